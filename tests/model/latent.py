"""Models with latent attention, and the same by loops in float64."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.model.decoder import Decoder, ModelShape
from posenc.model.mla import LatentAttention
from posenc.running.build import build_model

SHAPE = ModelShape("small", d_model=24, n_layers=2, n_heads=3, mlp_ratio=2)
T, VOCABULARY, HEADS, WIDTH = 8, 13, 3, 8
RANKS = {"kv_rank": 10, "q_rank": 14, "rope_dim": 4}
DRAWN = [0, 1, 5, 6, 30, 31, 90, 127]
CONTIGUOUS = {"name": "contiguous"}
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
Turn = Callable[[Tensor, int], Tensor]  # a vector and its position


def model_of(
    encoding: str = "rope",
    shape: ModelShape = SHAPE,
    *,
    window: int | None = None,
    scale: str = "none",
    positions: dict[str, Any] = CONTIGUOUS,
    **ranks: int | None,
) -> Decoder:
    """Of the settings that a run has; the norms' weights are drawn, since ones would hide them."""
    rope = {"base": 100.0, "layout": "half", "fraction": 1.0, "drop_low": 0.0}
    settings = {
        "attention": {"name": "mla", **RANKS, **ranks, "window": window, "scale": scale},
        "encoding": {"name": encoding, **(rope if encoding == "rope" else {})},
        "positions": positions,
        "context_length": T,
        "plugins": [],
        "seed": 1,
    }
    model = build_model(settings, shape, VOCABULARY)
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


def half_rope(x: Tensor, t: int) -> Tensor:
    """Pairs (k, k + D/2) as complex numbers times e^(i t theta_k), base 100."""
    half = len(x) // 2
    pairs = [complex(x[k], x[k + half]) * cmath.exp(1j * t * 100.0 ** (-k / half)) for k in range(half)]
    return torch.tensor([z.real for z in pairs] + [z.imag for z in pairs], dtype=torch.float64)


def turn(encoding: str) -> Turn:
    if encoding == "nope":
        return lambda x, t: x
    return half_rope


def apart(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean() + torch.finfo(torch.float32).eps).sqrt() * weight.double()


class Exactly:
    """The paper's formulas, a token and a head at a time, in float64; matrices by their own names."""

    def __init__(self, attention: LatentAttention, turn: Turn) -> None:
        a, self.turn = attention, turn
        self.width, self.heads, self.rope_dim = a.head_dim, a.n_heads, a.rope_dim
        weights = {name: p.detach().double() for name, p in a.named_parameters()}
        self.w_dq, self.w_q, self.w_o = (weights[f"{name}.weight"] for name in ("q_down", "q_up", "out"))
        self.w_dkv, self.w_kr = weights["kv_down.weight"].split((a.kv_rank, a.rope_dim))
        self.w_uk, self.w_uv = (w.split(a.head_dim) for w in weights["kv_up.weight"].chunk(2))  # by head
        self.q_norm, self.kv_norm = weights["q_norm.weight"], weights["kv_norm.weight"]
        self.root = math.sqrt(self.width + self.rope_dim)

    def query(self, x: Tensor, h: int, t: int) -> tuple[Tensor, Tensor]:
        """qC and the turned qR of a head."""
        latent = norm(self.w_dq @ x, self.q_norm)
        both = self.w_q.split(self.width + self.rope_dim)[h] @ latent
        content, rotary = both.split((self.width, self.rope_dim))
        return content, self.turn(rotary, t)

    def cached(self, x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """All that decoding keeps of a token: its latent and the turned kR."""
        return norm(self.w_dkv @ x, self.kv_norm), self.turn(self.w_kr @ x, t)

    def explicit(
        self,
        x: Tensor,
        pos: list[int],
        window: int | None = None,
        factor: Callable[[int], float] | None = None,
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
                    scores.append(z * (1.0 if factor is None else factor(len(seen))))
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
            mixed = torch.softmax(scores / self.root, 0) @ latents  # a latent again
            by_head.append(self.w_uv[h] @ mixed)
        return self.w_o @ torch.cat(by_head)

    def decoded(self, x: Tensor, pos: list[int]) -> Tensor:
        cache: list[tuple[Tensor, Tensor]] = []
        out = []
        for one, t in zip(x, pos, strict=True):
            cache.append(self.cached(one, t))
            out.append(self.absorbed(one, t, cache))
        return torch.stack(out)


@torch.no_grad()
def output(model: Decoder, x: Tensor, pos: list[int], wanted: int | None = None, layer: int = 0) -> Tensor:
    at = torch.tensor(pos)
    out: Tensor = attention_of(model, layer)(
        x.float()[None], at, model.effective_encoding, wanted or len(pos)
    )
    return out[0]
