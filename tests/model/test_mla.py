"""Latent attention: by loops in float64, and settings that are refused."""

import cmath
import math

import pytest
import torch
from composed import train_settings
from tiny_decoder import norm

from posenc.model.attention import LatentAttention
from posenc.model.decoder import ModelShape
from posenc.running.model_parts import build_model
from posenc.settings.tree import AttentionSettings, EncodingSettings

SHAPE = ModelShape("small", d_model=24, n_layers=2, n_heads=3, mlp_ratio=2)
T, VOCABULARY = 8, 13
RANKS = {"kv_rank": 10, "q_rank": 14, "rope_dim": 4}
DRAWN = [0, 1, 5, 6, 30, 31, 90, 127]


def model_of(encoding="rope", *, window=None, scale="none", **ranks):
    """Of the settings that a run has; weights of norms and scales are drawn, since ones would hide them."""
    attention = {"name": "mla", **RANKS, **ranks, "window": window, "scale": scale}
    settings = train_settings(f"encoding={encoding}", f"context_length={T}", "seed=1", "attention=mla")
    settings = settings.with_changes(attention=AttentionSettings(**attention))
    if encoding == "rope":
        rope = {"name": "rope", "base": 100.0, "layout": "half", "fraction": 1.0, "drop_low": 0.0}
        settings = settings.with_changes(encoding=EncodingSettings(**rope))
    model = build_model(settings, SHAPE, VOCABULARY)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
        for parameter in model.options.parameters():
            parameter.uniform_(0.1, 1, generator=generator)
    return model.eval()


def turn(encoding, x, t):
    """RoPE: pairs (k, k + D/2) as complex numbers times e^(i t theta_k), base 100."""
    if encoding == "nope":
        return x
    half = len(x) // 2
    pairs = [complex(x[k], x[k + half]) * cmath.exp(1j * t * 100.0 ** (-k / half)) for k in range(half)]
    return torch.tensor([z.real for z in pairs] + [z.imag for z in pairs], dtype=torch.float64)


def exactly(a, encoding, x, pos, window, slopes):
    """(T, d): the paper's formulas, a token and a head at a time, in float64."""
    weights = {name: p.detach().double() for name, p in a.named_parameters()}
    w_dkv, w_kr = weights["kv_down.weight"].split((a.kv_rank, a.rope_dim))
    w_q = weights["q_up.weight"].split(a.head_dim + a.rope_dim)  # by head
    w_uk, w_uv = (w.split(a.head_dim) for w in weights["kv_up.weight"].chunk(2))
    latent = [norm(w_dkv @ one, weights["kv_norm.weight"]) for one in x]
    k_rotary = [turn(encoding, w_kr @ one, t) for one, t in zip(x, pos, strict=True)]
    out = []
    for i, at in enumerate(pos):
        by_head = []
        seen = [j for j in range(i + 1) if window is None or at - pos[j] < window]
        for h in range(a.n_heads):
            factor = slopes[h] * math.log(len(seen)) if slopes else 1.0
            both = w_q[h] @ norm(weights["q_down.weight"] @ x[i], weights["q_norm.weight"])
            content, rotary = both.split((a.head_dim, a.rope_dim))
            rotary = turn(encoding, rotary, at)
            scores = [content @ (w_uk[h] @ latent[j]) + rotary @ k_rotary[j] for j in seen]
            p = torch.softmax(torch.stack(scores) * factor / math.sqrt(a.head_dim + a.rope_dim), 0)
            by_head.append(p @ torch.stack([w_uv[h] @ latent[j] for j in seen]))
        out.append(weights["out.weight"] @ torch.cat(by_head))
    return torch.stack(out)


NEAR, FAR = [0, 1, 2, 5, 6, 7, 8, 20], list(range(65529, 65537))
SMALL = {"kv_rank": 24, "q_rank": 1, "rope_dim": 2}
CASES = [
    ("rope", DRAWN, {}),
    ("rope", FAR, SMALL),
    ("nope", DRAWN, SMALL),
    ("rope", NEAR, {"window": 3}),
    ("rope", NEAR, {"scale": "ssmax", "window": 3}),
]


@pytest.mark.parametrize("encoding, pos, settings", CASES, ids=str)
@torch.no_grad()
def test_explicit_scores(encoding, pos, settings):
    model, x = model_of(encoding, **settings), torch.randn(T, 24, generator=torch.Generator().manual_seed(3))
    for layer, block in enumerate(model.blocks):
        assert isinstance(block.attention, LatentAttention)
        slopes = next((one[layer].tolist() for one in model.options.parameters()), None)
        want = exactly(block.attention, encoding, x.double(), pos, settings.get("window"), slopes)
        for wanted in (T, 3):
            found = block.attention(x[None], torch.tensor(pos), model.effective_encoding, wanted)[0]
            assert (found.double() - want[-wanted:]).abs().max() < 5e-6
