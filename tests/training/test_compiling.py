"""`train.compile`: what auto means, and that compiled blocks are the same model with one graph."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from posenc.encodings import build_encoding
from posenc.errors import UserError
from posenc.model.decoder import Decoder, ModelShape
from posenc.model.init import initialize
from posenc.training.compiling import compiled_blocks, resolve_compile
from posenc.training.step import NextTokenLoss, gradients

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_auto_is_for_long_runs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    long, short = {"parameters": 30_000_000, "tokens": 10**9}, {"parameters": 10**6, "tokens": 4_000_000}
    assert resolve_compile("auto", GPU, **long)
    assert not resolve_compile("auto", GPU, **short)
    assert not resolve_compile("auto", CPU, **long)
    for said, meant in (("true", True), ("True", True), (False, False), ("false", False)):
        assert all(resolve_compile(said, device, **short) is meant for device in (CPU, GPU))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not resolve_compile("auto", GPU, **long)  # Triton needs a C compiler
    with pytest.raises(UserError, match=r"train\.compile"):
        resolve_compile("maybe", CPU, **short)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_ten_blocks_share_a_graph_and_give_the_same_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    shape = ModelShape("x", d_model=16, n_layers=10, n_heads=2, mlp_ratio=2)
    encoding = build_encoding("alibi", d_model=16, n_heads=2, head_dim=8, n_layers=10, train_length=8)
    model = Decoder(shape, 32, encoding)
    initialize(model, 0)
    loss_of, pos = NextTokenLoss(model), torch.arange(8)
    ids = torch.randint(32, (2, 9), generator=torch.Generator().manual_seed(0))

    def step() -> dict[str, torch.Tensor]:
        model.zero_grad()
        loss, _ = gradients(loss_of, ids[:, :-1], ids[:, 1:], pos, precision="fp32", grad_clip=1e9)
        return {"loss": loss, **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}

    plain = step()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with compiled_blocks(model, enabled=True):
        fused = step()
        assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # one number, then any
    assert fused.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.allclose(fused[name], value, rtol=1e-4, atol=1e-6), name
    again = step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert all(torch.equal(again[name], value) for name, value in plain.items())
