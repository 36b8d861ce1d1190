"""Fused kernels against blocks of queries, and which of them serves."""

import pytest
import torch
from decoding import OneKeyHead, Widened

from posenc.encodings import build_encoding
from posenc.encodings.base import Shape
from posenc.model import kernels

BATCH, HEADS, WIDTH = 2, 4, 8


def encoding(name):
    sizes = {"d_model": HEADS * WIDTH, "n_heads": HEADS, "head_dim": WIDTH, "n_layers": 1}
    return build_encoding(name, train_length=16, **sizes)


def double(cls):
    made = cls(Shape(HEADS * WIDTH, HEADS, WIDTH, 1, 16))
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def qkv(keys, queries):
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, BATCH, HEADS, keys, WIDTH, generator=generator).unbind(0)
    return q[:, :, -(queries or keys) :] * 2, k, v  # twice, so that the softmax is not flat


def attended(e, keys, queries=None):
    q, k, v = qkv(keys, queries)
    return kernels.attend(q, k, v, torch.zeros(BATCH, keys, HEADS * WIDTH), torch.arange(keys), e, 0)


CHOICES = [
    *((which, "causal") for which in ("nope", "rope", OneKeyHead)),
    *(
        (which, "masked")
        for which in ("nope", "rope", "alibi", "t5", "fire", "rnope_swa", "hard_alibi", OneKeyHead)
    ),
]


@pytest.mark.parametrize("queries", [300, 77, 1])
@pytest.mark.parametrize(("which", "kernel"), CHOICES)
@torch.no_grad()
def test_fused_and_blockwise_agree(which, kernel, queries, monkeypatch):
    e = encoding(which) if isinstance(which, str) else double(which)
    for parameter in e.parameters():
        parameter.normal_(generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(kernels, "choose", lambda *_: kernel)
    fused = attended(e, 300, queries)
    monkeypatch.setattr(kernels, "choose", lambda *_: "blocks")
    assert (attended(e, 300, queries) - fused).abs().max() < 1e-5


def test_which_kernel_serves(monkeypatch):
    served = []
    for name in ("_causal", "_masked", "_blockwise"):
        monkeypatch.setattr(kernels, name, lambda *a, name=name: served.append(name))
    many, fewer = kernels.CAUSAL_FROM, kernels.MASKED_FROM
    cases = (("rope", fewer), ("rope", many), ("alibi", many), ("learned", many), ("fox", many))
    for which, keys in cases:
        attended(encoding(which), keys)
    assert served == ["_blockwise", "_causal", "_blockwise", "_causal", "_blockwise"]
    served.clear()
    with torch.no_grad():
        for which, keys in (("rope", fewer - 1), ("rope", fewer), *cases[1:]):
            attended(encoding(which), keys)
        attended(double(Widened), fewer)  # queries wider than values
    assert served == ["_blockwise", "_masked", "_causal", "_masked", "_causal", "_blockwise", "_blockwise"]
