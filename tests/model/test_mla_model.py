"""Latent attention as a part of the model: kernels, options, positions, weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import pytest
import torch
from latent import (
    DRAWN,
    HEADS,
    RANDOMIZED,
    RANKS,
    VOCABULARY,
    Exactly,
    T,
    apart,
    attention_of,
    inputs,
    model_of,
    output,
    turn,
)
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.model import kernels
from posenc.model.attention import AttentionChoice
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.model.mla import LatentAttention


class Seen(Encoding):
    """Notes what it is given to turn."""

    name = "seen"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self.given = q, k, q_pos, k_pos, layer
        return q, k


@torch.no_grad()
def test_the_encoding_turns_the_rotary_parts_alone_and_heads_share_the_key() -> None:
    model = model_of("nope")
    seen = Seen(model.encoding.shape)
    assert seen.shape.head_dim == RANKS["rope_dim"]
    x, attention, exact = inputs(), attention_of(model, 1), Exactly(attention_of(model, 1), turn("nope"))
    attention(x.float()[None], torch.tensor(DRAWN), seen, 3)
    q, k, q_pos, k_pos, layer = seen.given
    assert (q.shape, k.shape, layer) == ((1, HEADS, 3, 4), (1, 1, T, 4), 1)
    assert q_pos.tolist() == DRAWN[-3:] and k_pos.tolist() == DRAWN
    for j in range(T):
        assert apart(k[0, 0, j], exact.cached(x[j], 0)[1]) < 1e-5  # kR: not normed, of the input itself
    for h in range(HEADS):
        assert apart(q[0, h, 0], exact.query(x[T - 3], h, 0)[1]) < 1e-5


@pytest.mark.parametrize("wanted", [1, 3, T])
@pytest.mark.parametrize("most", [1, 60])
def test_blocks_of_queries(wanted: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for window in (None, 3):
        model, x = model_of(window=window), inputs()
        whole = output(model, x, DRAWN)
        with monkeypatch.context() as patched:
            patched.setattr(kernels, "MAX_SCORES", most)
            assert apart(output(model, x, DRAWN, wanted), whole[-wanted:]) < 1e-6


@pytest.mark.parametrize("encoding", ["rope", "nope"])
@pytest.mark.parametrize(
    "window, scale", [(3, "none"), (1, "none"), (None, "logn"), (None, "ssmax"), (4, "logn"), (3, "ssmax")]
)
def test_window_and_scale(encoding: str, window: int | None, scale: str) -> None:
    model, x = model_of(encoding, window=window, scale=scale), inputs()
    exact = Exactly(attention_of(model), turn(encoding))
    factor = None if scale == "none" else lambda n: math.log(n) / math.log(T)  # ssmax starts there
    for pos in (list(range(T)), [0, 1, 2, 5, 6, 7, 8, 20]):
        assert apart(output(model, x, pos), exact.explicit(x, pos, window, factor)) < 5e-6


@torch.no_grad()
def test_randomized_positions_reach_the_rotary_parts() -> None:
    model = model_of(positions=RANDOMIZED)
    pos = model.positions(T, torch.Generator().manual_seed(0)).tolist()
    assert pos == sorted(set(pos)) and pos[-1] >= T and pos[-1] < 16 * T
    x = inputs()
    exact = Exactly(attention_of(model), turn("rope"))
    assert apart(output(model, x, pos), exact.explicit(x, pos)) < 5e-6
    assert apart(output(model, x, pos), output(model, x, list(range(T)))) > 1e-3


def test_published_sizes() -> None:
    """DeepSeek-V2 has 128 heads of 128: latents of 512 and 1536 numbers, 64 rotary ones."""
    with torch.device("meta"):
        a = LatentAttention(16384, 128, 0, kv_rank=None, q_rank=None, rope_dim=None)
    assert (a.kv_rank, a.q_down.out_features, a.rope_dim, a.head_dim) == (512, 1536, 64, 128)
    with torch.device("meta"):
        cut = LatentAttention(64, 4, 0, kv_rank=None, q_rank=None, rope_dim=None)
    assert (cut.kv_rank, cut.q_down.out_features, cut.rope_dim) == (64, 64, 8)


def test_initial_values() -> None:
    shape = ModelShape("wide", d_model=128, n_layers=2, n_heads=4, mlp_ratio=1)
    choice = AttentionChoice("mla", {"kv_rank": 64, "q_rank": 96, "rope_dim": 16})
    sizes = {"d_model": 128, "n_heads": 4, "head_dim": 16, "n_layers": 2, "train_length": T}
    model = Decoder(shape, VOCABULARY, build_encoding("rope", **sizes), attention=choice)
    initialize(model, 0)
    wanted = {"q_down": 128, "q_up": 96, "kv_down": 128, "kv_up": 64, "out": 128 * 4}  # out: 2 layers
    for layer in range(2):
        attention = attention_of(model, layer)
        for name, fan_in in wanted.items():
            weight = attention.get_parameter(f"{name}.weight")
            assert weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.04), name
            assert abs(weight.mean().item()) < 3 * fan_in**-0.5 / math.sqrt(weight.numel())
        assert (attention.q_norm.weight == 1).all() and (attention.kv_norm.weight == 1).all()
    one, other = (attention_of(model, layer).kv_up.weight for layer in range(2))
    assert not torch.equal(one, other)


@pytest.fixture
def always_warned() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def test_bf16_is_near_and_silent(always_warned: None) -> None:
    model, x = model_of(), inputs()
    whole = output(model, x, DRAWN)
    tokens = torch.arange(T)[None] % VOCABULARY
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            near = output(model, x, DRAWN)
            loss = model.train()(tokens, torch.arange(T)).float().logsumexp(-1).sum()
        loss.backward()
    assert 0 < apart(near, whole) < 0.05
