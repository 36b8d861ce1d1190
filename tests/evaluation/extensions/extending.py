"""Small trained-looking models, and each extension a second time: from raw queries and keys, pair by pair."""

import cmath
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import tiny_decoder
import torch
from tiny_decoder import SHAPE, VOCABULARY, T
from tiny_model import encoding_of

from posenc.evaluation.extensions import NotForThisEncodingError, build_extension
from posenc.model import kernels
from posenc.model.decoder import Decoder
from posenc.model.inputs import Heads, Layer

LONG = 4 * T  # of 8
BASE = 100.0  # turns 1.3, 0.4, 0.13 and 0.04 times within T
WIDTH, HEADS = SHAPE.head_dim, SHAPE.n_heads  # 8, 2
FACTORS = [1.0, 1.5, 3.0, 4.5]  # longrope's, one for each of four pairs


def model_of(name, *options, **params):
    """Of SHAPE at T; `rope` with BASE. Attention is sharp, so that a wrong score shows."""
    if name == "rope":
        params = {"base": BASE, **params}
    model = tiny_decoder.model_of(encoding_of(name, T, **params), *options)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight.mul_(1.5)
    return model


def outline_of(name):
    """Without numbers, as a stored run's settings are checked."""
    with torch.device("meta"):
        return Decoder(SHAPE, VOCABULARY, encoding_of(name, T))


def extension_of(model, name, **knobs):
    return build_extension({"name": name, **knobs}, model)


def refused(model, name, **knobs):
    with pytest.raises(NotForThisEncodingError) as caught:
        extension_of(model, name, **knobs)
    return caught.value.problem


def theta_of(encoding):
    """Frequencies of the one part that rotates."""
    part = next(p for p in getattr(encoding, "parts", [encoding]) if "rotate" in p.hooks)
    return part.acting_frequencies(torch.device("cpu"))


@torch.no_grad()
def logits(model, tokens, acting=None):
    """(T, V) of one text at 0, 1, 2, ..."""
    return model(torch.tensor([list(tokens)]), torch.arange(len(tokens)), None, acting)[0]


@dataclass
class Way:
    """What an extension does to rotated queries and keys, in plain numbers."""

    theta: Sequence[float] = tuple(BASE ** (-k / 4) for k in range(4))
    distance: Callable[[int, int], float] = lambda i, j: i - j
    seen: Callable[[int, int], bool] = lambda i, j: True
    times: Callable[[int], float] = lambda visible: 1.0  # of the logits, by the number of visible keys


def alibi(r, head):
    return -(2.0 ** (-8 * (head + 1) / HEADS)) * r


def rope(q, k, r, head, theta):
    """Interleaved pairs as complex numbers: the real part of q conj(k) e^(i r theta)."""
    pairs = zip(q[::2], q[1::2], k[::2], k[1::2], theta, strict=True)
    turned = sum(complex(a, b) * complex(c, -d) * cmath.exp(1j * r * w) for a, b, c, d, w in pairs)
    return turned.real / math.sqrt(len(q))


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
    heads = Heads(q[:, :, -(wanted or n) :], k, v)
    return kernels.attend(heads, x, Layer(acting, 1, torch.arange(n)))[0]


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
