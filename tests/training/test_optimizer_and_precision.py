"""The learning rate, what is decayed, and what `auto` means for device and precision."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tiny_model import OPTIMIZATION, build

from posenc.core.errors import UserError
from posenc.training import device
from posenc.training.device import resolve_device, resolve_precision
from posenc.training.optimizer import OPTIMIZERS, MuonAdamW, build_optimizer, learning_rate

CPU = torch.device("cpu")


@pytest.mark.parametrize(("able", "auto"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_where_the_hardware_has_it(monkeypatch, able, auto):
    monkeypatch.setattr(device, "has_hardware_bf16", lambda _: able)
    for said, meant in {"auto": auto, "fp32": "fp32", "bf16": "bf16"}.items():
        assert resolve_precision(said, CPU) == meant


def test_without_accelerator_auto_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match="no such device"):
            resolve_device(name)


SCHEDULE = replace(OPTIMIZATION, lr=1.0, warmup_fraction=0.1, final_lr_fraction=0.2)


def test_warms_up_to_the_peak_and_decays_to_its_share_after_the_last_update():
    rates = [learning_rate(step, 100, SCHEDULE) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert rates[9] == max(rates) == 1.0
    assert rates[99] == pytest.approx(0.2 + 0.8 / 90)
    down = [a - b for a, b in pairwise(rates[10:])]
    assert down == pytest.approx([0.8 / 90] * 89)
    assert learning_rate(0, 1, SCHEDULE) == learning_rate(0, 1, replace(SCHEDULE, warmup_fraction=0)) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_shared_matrices_are_decayed(store, name):
    model = build("learned", store)
    groups = build_optimizer(model, replace(OPTIMIZATION, name=name)).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in decayed}
    assert "encoding.table" not in names and "norm.weight" not in names
    assert {"embedding.weight", "blocks.0.attention.qkv.weight", "blocks.1.mlp.down.weight"} <= names
    every = [p for group in groups for p in group["params"]]
    assert len(every) == len({id(p) for p in every}) == len(list(model.parameters()))
    assert all(isinstance(p, torch.nn.Parameter) for p in every)


def test_muon_moves_hidden_matrices_alone_by_orthogonal_updates(store):
    model = build("t5", store)
    how = replace(OPTIMIZATION, name="muon", weight_decay=0.0)
    optimizer = build_optimizer(model, how)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    moved = {name: (p.detach() - before[name]) / how.lr for name, p in model.named_parameters()}
    up = moved["blocks.0.mlp.up.weight"]  # all singular values alike, sized as AdamW's
    values = torch.linalg.svdvals(up) / (0.2 * max(up.shape) ** 0.5)
    assert values.min() > 0.6 and values.max() < 1.3
    signs = [moved[name] for name in ("embedding.weight", "encoding.table", "norm.weight") if name in moved]
    assert len(signs) >= 2 and all((one.abs() - 1).abs().max() < 1e-3 for one in signs)


def test_muon_is_torchs_in_bf16_and_near_it_in_fp32():
    """torch's own has bfloat16 alone, which a CPU without it computes 20 times as slowly as float32."""
    torch.manual_seed(0)
    how = replace(OPTIMIZATION, name="muon", precision="bf16")
    start = [torch.randn(24, 8), torch.randn(8, 24)]
    own, exact, theirs = ([torch.nn.Parameter(x.clone()) for x in start] for _ in range(3))
    optimizers = [MuonAdamW(own, [], how), MuonAdamW(exact, [], replace(how, precision="fp32"))]
    given = {"weight_decay": how.weight_decay, "momentum": how.betas[0], "adjust_lr_fn": "match_rms_adamw"}
    optimizers.append(torch.optim.Muon(theirs, lr=how.lr, **given))
    for step in range(4):
        for trio in zip(own, exact, theirs, strict=True):
            gradient = torch.randn(trio[0].shape, generator=torch.Generator().manual_seed(step))
            for parameter in trio:
                parameter.grad = gradient.clone()
        for one in optimizers:
            one.step()
    for ours, other, peer in zip(own, exact, theirs, strict=True):
        assert torch.equal(ours, peer)
        assert 0 < (other - peer).abs().max() < 0.02 * 4 * how.lr * 0.2 * 24**0.5


def test_adamw_is_torchs_bit_for_bit(store):
    """The class there imports torch's compiler, which takes longer than all else before the first step."""
    moved = []
    for theirs in (False, True):
        model = build("learned", store)
        optimizer = build_optimizer(model, OPTIMIZATION)
        if theirs:
            groups = [{k: v for k, v in group.items() if k != "lr"} for group in optimizer.param_groups]
            beta, eps = OPTIMIZATION.betas, OPTIMIZATION.eps
            optimizer = torch.optim.AdamW(groups, lr=OPTIMIZATION.lr, betas=beta, eps=eps, fused=True)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        moved.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*moved)
