"""The learning rate, what is decayed, and both optimizers beside torch's own."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
import torch
from tiny_model import OPTIMIZATION, build

from posenc.settings.tree import OptimizerName
from posenc.training.optimizer import AdamW, MuonAdamW, build_optimizer, learning_rate

# --- The schedule

SCHEDULE = replace(OPTIMIZATION, lr=1.0, warmup_fraction=0.1, final_lr_fraction=0.2)
RATES = [learning_rate(step, 100, SCHEDULE) for step in range(100)]


def test_the_rate_warms_up_to_the_peak():
    assert RATES[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert RATES[9] == max(RATES) == 1.0


def test_the_rate_decays_evenly_to_its_share_one_after_the_last_update():
    decrements = [a - b for a, b in pairwise(RATES[10:])]
    assert decrements == pytest.approx([0.8 / 90] * 89)
    assert RATES[99] == pytest.approx(0.2 + 0.8 / 90)


@pytest.mark.parametrize("warmup_fraction", [0.1, 0])
def test_a_single_update_has_the_peak_rate(warmup_fraction):
    assert learning_rate(0, 1, replace(SCHEDULE, warmup_fraction=warmup_fraction)) == 1


# --- Which parameters are moved how


@pytest.fixture(params=get_args(OptimizerName))
def optimizer(request, store):
    """An optimizer of each kind, with the names of its model's parameters by id."""
    model = build("learned", store)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return build_optimizer(model, replace(OPTIMIZATION, name=request.param), "fp32"), names


def test_every_parameter_is_in_one_group(optimizer):
    optimizer, names = optimizer
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(isinstance(p, torch.nn.Parameter) for p in parameters)
    assert sorted(names) == sorted(id(p) for p in parameters)


def test_only_shared_matrices_are_decayed(optimizer):
    optimizer, names = optimizer
    decayed_groups = [group for group in optimizer.param_groups if group["weight_decay"]]
    decayed = {names[id(p)] for group in decayed_groups for p in group["params"]}
    assert {"embedding.weight", "blocks.0.attention.qkv.weight", "blocks.1.mlp.down.weight"} <= decayed
    assert "encoding.table" not in decayed
    assert "norm.weight" not in decayed


@pytest.fixture
def moved_by_muon(store):
    """By how much the first update moved each parameter, in units of the learning rate."""
    model = build("t5", store)
    optimization = replace(OPTIMIZATION, name="muon", weight_decay=0.0)
    optimizer = build_optimizer(model, optimization, "fp32")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    return {name: (p.detach() - before[name]) / optimization.lr for name, p in model.named_parameters()}


def test_muon_moves_hidden_matrices_orthogonally_as_far_as_adamw_would(moved_by_muon):
    moved = moved_by_muon["blocks.0.mlp.up.weight"]
    values = torch.linalg.svdvals(moved) / (0.2 * max(moved.shape) ** 0.5)
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("name", ["embedding.weight", "encoding.table", "norm.weight"])
def test_muon_leaves_other_parameters_to_adamw(moved_by_muon, name):
    """AdamW's first update is the sign of the gradient."""
    assert (moved_by_muon[name].abs() - 1).abs().max() < 1e-3


# --- Beside torch's own


def moved(optimizer, parameters):
    """Four updates with the same random gradients for every optimizer."""
    for step in range(4):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
            parameter.grad = gradient
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


MUON = replace(OPTIMIZATION, name="muon")


def matrices():
    generator = torch.Generator().manual_seed(0)
    shapes = [(24, 8), (8, 24)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


@pytest.fixture
def moved_by_torchs_muon():
    parameters = matrices()
    torchs = torch.optim.Muon(
        parameters,
        lr=MUON.lr,
        weight_decay=MUON.weight_decay,
        momentum=MUON.betas[0],
        adjust_lr_fn="match_rms_adamw",
    )
    return moved(torchs, parameters)


def test_muon_in_bf16_is_torchs_bit_for_bit(moved_by_torchs_muon):
    parameters = matrices()
    assert torch.equal(moved(MuonAdamW(parameters, [], MUON, "bf16"), parameters), moved_by_torchs_muon)


def test_muon_in_fp32_is_near_torchs(moved_by_torchs_muon):
    """torch's has bfloat16 alone, which a CPU without it computes 20 times as slowly as float32."""
    parameters = matrices()
    difference = moved(MuonAdamW(parameters, [], MUON, "fp32"), parameters) - moved_by_torchs_muon
    farthest = 4 * MUON.lr * 0.2 * 24**0.5  # of four updates
    assert 0 < difference.abs().max() < 0.02 * farthest


def test_adamw_is_torchs_bit_for_bit(store):
    """torch's class imports torch's compiler, which takes longer than all else before the first step."""
    model = build("learned", store)
    optimizer = build_optimizer(model, OPTIMIZATION, "fp32")
    assert type(optimizer) is AdamW

    same_model = build("learned", store)
    parameters = dict(zip(model.parameters(), same_model.parameters(), strict=True))
    groups = [
        {"params": [parameters[p] for p in group["params"]], "weight_decay": group["weight_decay"]}
        for group in optimizer.param_groups
    ]
    torchs = torch.optim.AdamW(
        groups, lr=OPTIMIZATION.lr, betas=OPTIMIZATION.betas, eps=OPTIMIZATION.eps, fused=True
    )
    assert torch.equal(
        moved(optimizer, list(model.parameters())), moved(torchs, list(same_model.parameters()))
    )
