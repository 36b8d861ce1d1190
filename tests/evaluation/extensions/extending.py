"""Small trained-looking models, and each extension a second time: from raw queries and keys, pair by pair."""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "model"))
import decoding

from posenc.evaluation.extensions import NotForThisEncodingError, build_extension
from posenc.model import kernels
from posenc.model.decoder import Decoder

T = decoding.T  # 8
LONG = 4 * T
BASE = 100.0  # turns 1.3, 0.4, 0.13 and 0.04 times within T
WIDTH = decoding.SHAPE.head_dim  # 8
HEADS = decoding.SHAPE.n_heads
FACTORS = [1.0, 1.5, 3.0, 4.5]  # longrope's, one for each of four pairs


def model_of(name, *options, **params):
    """Of decoding.SHAPE at T; `rope` with BASE. Attention is sharp, so that a wrong score shows."""
    if name == "rope":
        params = {"base": BASE, **params}
    model = decoding.model_of(decoding.encoding(name, **params), *options)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight.mul_(1.5)
    return model


def outline_of(name):
    """Without numbers, as a stored run's settings are checked."""
    with torch.device("meta"):
        return Decoder(decoding.SHAPE, decoding.VOCABULARY, decoding.encoding(name))


def extension_of(model, name, **knobs):
    return build_extension({"name": name, **knobs}, model)


def refused(model, name, **knobs):
    with pytest.raises(NotForThisEncodingError) as caught:
        extension_of(model, name, **knobs)
    return caught.value.problem


def theta_of(encoding):
    """Frequencies of the one part that rotates."""
    part = next(p for p in getattr(encoding, "parts", [encoding]) if "rotate" in p.hooks)
    return part.frequencies(torch.device("cpu"))


@torch.no_grad()
def logits(model, tokens, acting=None, wanted=None):
    """(T, V) of one text at 0, 1, 2, ..."""
    out = model(torch.tensor([list(tokens)]), torch.arange(len(tokens)), wanted, acting)
    return out[0]


@dataclass
class Way:
    """What an extension does to rotated queries and keys, in plain numbers."""

    theta: Sequence[float] = tuple(BASE ** (-k / 4) for k in range(4))
    distance: Callable[[int, int], float] = lambda i, j: i - j
    seen: Callable[[int, int], bool] = lambda i, j: True
    times: Callable[[int], float] = lambda visible: 1.0  # of the logits, by the number of visible keys


def turned_product(q, k, r, theta):
    """Interleaved pairs as complex numbers: the real part of q conj(k) e^(i r theta)."""
    return sum(
        (complex(*q[2 * n : 2 * n + 2]) * complex(*k[2 * n : 2 * n + 2]).conjugate() * rotor).real
        for n, angle in enumerate(theta)
        for rotor in [complex(math.cos(r * angle), math.sin(r * angle))]
    )


def alibi(r, head):
    return -(2.0 ** (-8 * (head + 1) / HEADS)) * r


def rope(q, k, r, head, theta):
    return turned_product(q, k, r, theta) / math.sqrt(len(q))


def alibi_and_rope(q, k, r, head, theta):
    return rope(q, k, r, head, theta) + alibi(r, head)


def drawn_text(n=LONG):
    """Queries, keys, values (1, H, T, D), inputs of a layer (1, T, d); large, so that a wrong score shows."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (1.5 * torch.randn(3, 1, HEADS, n, WIDTH, generator=generator)).unbind()
    return {"q": q, "k": k, "v": v, "x": torch.randn(1, n, HEADS * WIDTH, generator=generator)}


@torch.no_grad()
def attended(acting, text, wanted=None):
    """(H, T, D) by the code, in layer 1."""
    q, k, v, x = (text[key] for key in "qkvx")
    n = q.shape[2]
    return kernels.attend(q[:, :, -(wanted or n) :], k, v, x, torch.arange(n), acting, 1)[0]


def by_pairs(text, way, law=rope):
    """The same in float64 by pairs: a law of raw query, raw key and the distance that they get."""
    q, k, v = (text[key][0].double() for key in "qkv")
    out = torch.zeros_like(q)
    for h, i in itertools.product(range(HEADS), range(q.shape[1])):
        seen = [j for j in range(i + 1) if way.seen(i, j)]
        scores = [law(q[h, i].tolist(), k[h, j].tolist(), way.distance(i, j), h, way.theta) for j in seen]
        weights = torch.tensor(scores, dtype=torch.float64).mul(way.times(len(seen))).softmax(0)
        out[h, i] = weights @ v[h, seen]
    return out
