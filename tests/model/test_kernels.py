"""Fused kernels against blocks of queries, and which of them serves."""

import pytest
import torch
from decoding import OneKeyHead, Widened
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.model import kernels

BATCH, HEADS, WIDTH = 2, 4, 8


def encoding(name: str) -> Encoding:
    sizes = {"d_model": HEADS * WIDTH, "n_heads": HEADS, "head_dim": WIDTH, "n_layers": 1}
    return build_encoding(name, train_length=16, **sizes)


def double(cls: type[Encoding]) -> Encoding:
    made = cls(Shape(HEADS * WIDTH, HEADS, WIDTH, 1, 16))
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def qkv(keys: int, queries: int | None = None, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, BATCH, HEADS, keys, WIDTH, generator=generator).to(dtype).unbind(0)
    return q[:, :, -(queries or keys) :] * 2, k, v  # twice, so that the softmax is not flat


def attended(
    e: Encoding, keys: int, queries: int | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    q, k, v = qkv(keys, queries, dtype)
    return kernels.attend(q, k, v, torch.zeros(BATCH, keys, HEADS * WIDTH), torch.arange(keys), e, 0)


def other_kernel(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    monkeypatch.setattr(kernels, "choose", lambda *_: kernel)


CHOICES = [
    *((which, "causal") for which in ("nope", "rope", Widened, OneKeyHead)),
    *(
        (which, "masked")
        for which in ("nope", "rope", "alibi", "t5", "fire", "rnope_swa", Widened, OneKeyHead)
    ),
]


@pytest.mark.parametrize("queries", [300, 77, 1])
@pytest.mark.parametrize(("which", "kernel"), CHOICES)
@torch.no_grad()
def test_fused_and_blockwise_agree(
    which: str | type[Encoding], kernel: str, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = encoding(which) if isinstance(which, str) else double(which)
    for parameter in e.parameters():
        parameter.normal_(generator=torch.Generator().manual_seed(2))
    other_kernel(monkeypatch, kernel)
    fused = attended(e, 300, queries)
    other_kernel(monkeypatch, "blocks")
    assert (attended(e, 300, queries) - fused).abs().max() < 1e-5


def test_which_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
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


@pytest.mark.parametrize("name", ["sandwich", "t5", "kerple_log"])
def test_autocast_rounds_no_bias_of_long_windows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandwich's is 28 at four heads, where bf16 has steps of 0.125 and neighbours differ by less."""
    own, keys = encoding(name), 300
    q, k, v = (one.bfloat16() for one in qkv(keys))
    arguments = (own, 0)
    pos = torch.arange(keys)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = kernels._masked(q, k, v, pos, *arguments, WIDTH**-0.5)
    with torch.no_grad():
        exact = kernels._masked(q.float(), k.float(), v.float(), pos, *arguments, WIDTH**-0.5)
        rounded = kernels.Masked(own, pos, 0, keys).additive(0, keys, keys)[None].bfloat16()
        poor = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=rounded, scale=WIDTH**-0.5)
    assert found.dtype == torch.bfloat16
    off = (found.float() - exact).abs().mean()
    assert off <= (poor.float() - exact).abs().mean()
    if name == "sandwich":
        assert off < 0.7 * (poor.float() - exact).abs().mean()
