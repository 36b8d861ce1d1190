"""Latent attention: by loops in float64, decoded from its cache alone, as a part of a run."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_model
import torch
from torch import Tensor

from posenc.data import TokenStore
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.model import kernels
from posenc.model.attention import AttentionChoice
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.model.mla import LatentAttention
from posenc.running.build import build_model

Posenc = Callable[..., tiny.Result]
SHAPE = ModelShape("small", d_model=24, n_layers=2, n_heads=3, mlp_ratio=2)
T, VOCABULARY, HEADS, WIDTH = 8, 13, 3, 8
RANKS = {"kv_rank": 10, "q_rank": 14, "rope_dim": 4}
DRAWN = [0, 1, 5, 6, 30, 31, 90, 127]


def model_of(
    encoding: str = "rope", *, window: int | None = None, scale: str = "none", **ranks: Any
) -> Decoder:
    """Of the settings that a run has; the norms' weights are drawn, since ones would hide them."""
    rope = {"base": 100.0, "layout": "half", "fraction": 1.0, "drop_low": 0.0}
    settings = {
        "attention": {"name": "mla", **RANKS, **ranks, "window": window, "scale": scale},
        "encoding": {"name": encoding, **(rope if encoding == "rope" else {})},
        "positions": {"name": "contiguous"},
        "context_length": T,
        "plugins": [],
        "seed": 1,
    }
    model = build_model(settings, SHAPE, VOCABULARY)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def attention_of(model: Decoder, layer: int = 0) -> LatentAttention:
    found = model.blocks[layer].attention
    assert isinstance(found, LatentAttention)
    return found


def inputs(n: int = T) -> Tensor:
    """Inputs of a layer, of float32's numbers: (n, d) float64."""
    return torch.randn(n, SHAPE.d_model, generator=torch.Generator().manual_seed(3)).double()


def turn(encoding: str, x: Tensor, t: int) -> Tensor:
    """RoPE: pairs (k, k + D/2) as complex numbers times e^(i t theta_k), base 100."""
    if encoding == "nope":
        return x
    half = len(x) // 2
    pairs = [complex(x[k], x[k + half]) * cmath.exp(1j * t * 100.0 ** (-k / half)) for k in range(half)]
    return torch.tensor([z.real for z in pairs] + [z.imag for z in pairs], dtype=torch.float64)


def apart(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean() + torch.finfo(torch.float32).eps).sqrt() * weight.double()


class Exactly:
    """The paper's formulas, a token and a head at a time, in float64; matrices by their own names."""

    def __init__(self, a: LatentAttention, encoding: str) -> None:
        self.encoding, self.width, self.heads, self.rope_dim = encoding, a.head_dim, a.n_heads, a.rope_dim
        weights = {name: p.detach().double() for name, p in a.named_parameters()}
        self.w_dq, self.w_q, self.w_o = (weights[f"{name}.weight"] for name in ("q_down", "q_up", "out"))
        self.w_dkv, self.w_kr = weights["kv_down.weight"].split((a.kv_rank, a.rope_dim))
        self.w_uk, self.w_uv = (w.split(a.head_dim) for w in weights["kv_up.weight"].chunk(2))  # by head
        self.q_norm, self.kv_norm = weights["q_norm.weight"], weights["kv_norm.weight"]
        self.root = math.sqrt(self.width + self.rope_dim)

    def query(self, x: Tensor, h: int, t: int) -> tuple[Tensor, Tensor]:
        """qC and the turned qR of a head."""
        both = self.w_q.split(self.width + self.rope_dim)[h] @ norm(self.w_dq @ x, self.q_norm)
        content, rotary = both.split((self.width, self.rope_dim))
        return content, turn(self.encoding, rotary, t)

    def cached(self, x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """All that decoding keeps of a token: its latent and the turned kR."""
        return norm(self.w_dkv @ x, self.kv_norm), turn(self.encoding, self.w_kr @ x, t)

    def explicit(
        self,
        x: Tensor,
        pos: list[int],
        window: int | None = None,
        factor: Callable[[int], float] = lambda n: 1.0,
    ) -> Tensor:
        """(T, d): keys and values of every head written out."""
        out = []
        for i, at in enumerate(pos):
            by_head = []
            seen = [j for j in range(i + 1) if window is None or at - pos[j] < window]
            for h in range(self.heads):
                content, rotary = self.query(x[i], h, at)
                scores, values = [], []
                for j in seen:
                    latent, k_rotary = self.cached(x[j], pos[j])
                    z = (content @ (self.w_uk[h] @ latent) + rotary @ k_rotary) / self.root
                    scores.append(z * factor(len(seen)))
                    values.append(self.w_uv[h] @ latent)
                by_head.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
            out.append(self.w_o @ torch.cat(by_head))
        return torch.stack(out)

    def absorbed(self, x: Tensor, t: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One token's output (d,) from the cache alone: no key or value is ever made."""
        latents, rotaries = (torch.stack(part) for part in zip(*cache, strict=True))
        by_head = []
        for h in range(self.heads):
            content, rotary = self.query(x, h, t)
            scores = latents @ (self.w_uk[h].T @ content) + rotaries @ rotary
            by_head.append(self.w_uv[h] @ (torch.softmax(scores / self.root, 0) @ latents))
        return self.w_o @ torch.cat(by_head)


@torch.no_grad()
def output(model: Decoder, x: Tensor, pos: list[int], wanted: int | None = None, layer: int = 0) -> Tensor:
    attention, n_targets = attention_of(model, layer), wanted or len(pos)
    out: Tensor = attention(x.float()[None], torch.tensor(pos), model.effective_encoding, n_targets)
    return out[0]


@pytest.mark.parametrize("encoding", ["rope", "nope"])
@pytest.mark.parametrize("pos", [DRAWN, list(range(65529, 65537))], ids=["drawn", "far"])
@pytest.mark.parametrize("ranks", [RANKS, {"kv_rank": 24, "q_rank": 1, "rope_dim": 2}], ids=["4", "2"])
def test_explicit_scores(encoding: str, pos: list[int], ranks: dict[str, int]) -> None:
    model, x = model_of(encoding, **ranks), inputs()
    for layer in range(SHAPE.n_layers):
        exact = Exactly(attention_of(model, layer), encoding)
        assert apart(output(model, x, pos, layer=layer), exact.explicit(x, pos)) < 5e-6


def test_the_cache_alone_gives_the_same() -> None:
    model, x = model_of("rope"), inputs()
    exact, cache, out = Exactly(attention_of(model), "rope"), [], []
    for one, t in zip(x, DRAWN, strict=True):
        cache.append(exact.cached(one, t))
        out.append(exact.absorbed(one, t, cache))
    assert apart(torch.stack(out), exact.explicit(x, DRAWN)) < 1e-13


class Seen(Encoding):
    """Notes what it is given to turn."""

    name = "seen"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self.given = q, k, q_pos, k_pos, layer
        return q, k


@torch.no_grad()
def test_the_encoding_turns_the_rotary_parts_alone_and_heads_share_the_key() -> None:
    model, x = model_of("nope"), inputs()
    seen = Seen(model.encoding.shape)
    assert seen.shape.head_dim == RANKS["rope_dim"] and seen.shape.d_model == SHAPE.d_model
    attention_of(model, 1)(x.float()[None], torch.tensor(DRAWN), seen, 3)
    q, k, q_pos, k_pos, layer = seen.given
    assert (q.shape, k.shape, layer) == ((1, HEADS, 3, 4), (1, 1, T, 4), 1)
    assert q_pos.tolist() == DRAWN[-3:] and k_pos.tolist() == DRAWN
    exact = Exactly(attention_of(model, 1), "nope")
    assert apart(k[0, 0, 2], exact.cached(x[2], 0)[1]) < 1e-5  # kR: not normed, of the input itself
    assert apart(q[0, 1, 0], exact.query(x[T - 3], 1, 0)[1]) < 1e-5


@pytest.mark.parametrize("wanted", [1, 3, T])
def test_blocks_of_queries(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = model_of(window=3), inputs()
    whole = output(model, x, DRAWN)
    monkeypatch.setattr(kernels, "MAX_SCORES", 60)
    assert apart(output(model, x, DRAWN, wanted), whole[-wanted:]) < 1e-6


@pytest.mark.parametrize("window, scale", [(3, "none"), (None, "logn"), (3, "ssmax")])
def test_window_and_scale(window: int | None, scale: str) -> None:
    model, x, pos = model_of("rope", window=window, scale=scale), inputs(), [0, 1, 2, 5, 6, 7, 8, 20]
    exact = Exactly(attention_of(model), "rope")
    factor = (
        (lambda n: 1.0) if scale == "none" else (lambda n: math.log(n) / math.log(T))
    )  # ssmax starts there
    assert apart(output(model, x, pos), exact.explicit(x, pos, window, factor)) < 5e-6


def test_published_sizes() -> None:
    """DeepSeek-V2 has 128 heads of 128: latents of 512 and 1536 numbers, 64 rotary ones."""
    with torch.device("meta"):
        a = LatentAttention(16384, 128, 0, kv_rank=None, q_rank=None, rope_dim=None)
        cut = LatentAttention(64, 4, 0, kv_rank=None, q_rank=None, rope_dim=None)
    assert (a.kv_rank, a.q_down.out_features, a.rope_dim, a.head_dim) == (512, 1536, 64, 128)
    assert (cut.kv_rank, cut.q_down.out_features, cut.rope_dim) == (64, 64, 8)


def test_bf16_is_near() -> None:
    model, x = model_of(), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = output(model, x, DRAWN)
    assert 0 < apart(near, output(model, x, DRAWN)) < 0.05


def tiny_mla(store: TokenStore, seed: int) -> Decoder:
    choice = AttentionChoice("mla", {"kv_rank": 12, "q_rank": None, "rope_dim": None})
    width = choice.encoded_width(tiny_model.SHAPE.head_dim)
    own = build_encoding("rope", d_model=32, n_heads=2, head_dim=width, n_layers=2, train_length=tiny_model.T)
    model = Decoder(tiny_model.SHAPE, store.vocab_size, own, attention=choice)
    initialize(model, seed)
    return model


def test_stopped_and_continued_is_not_stopped(place: Path, corpus: Path, tmp_path: Path) -> None:
    store = tiny_model.tokens_of(corpus)
    for folder, stop in (("whole", None), ("stopped", 6)):
        tiny_model.run(tiny_mla(store, 0), store, tmp_path / folder, stop_after=stop, precision="bf16")
    # another seed's model: everything has to come from the checkpoint
    tiny_model.run(tiny_mla(store, 9), store, tmp_path / "stopped", precision="bf16")
    assert tiny_model.on_disk(tmp_path / "stopped") == tiny_model.on_disk(tmp_path / "whole")


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["encoding=alibi"], ["attention=mla", "encoding=alibi", "nope, rope"]),
        (["encoding=xpos"], ["attention=mla", "encoding=xpos", "nope, rope"]),
        (["attention.rope_dim=3"], ["rope_dim=3", "even"]),
        (["attention.rope_dim=0"], ["rope_dim=0", "at least 2"]),
        (["attention.kv_rank=33"], ["kv_rank=33", "1..d_model=32"]),
        (["attention.q_rank=0"], ["q_rank=0", "1..d_model=32"]),
        (["attention.kv_rnk=3"], ["attention.kv_rnk=3", "did you mean: attention.kv_rank"]),
        (["attention.name=gqa"], ["attention=gqa", "mha, mla"]),
    ],
    ids=lambda value: value[0],
)
def test_wrong_settings(train: Posenc, place: Path, overrides: list[str], says: list[str]) -> None:
    refused = train("attention=mla", *overrides)
    assert refused.code == 2 and refused.out == "", refused
    for text in says:
        assert text in refused.err, refused.err
    assert "Traceback" not in refused.err and not list(place.iterdir())
