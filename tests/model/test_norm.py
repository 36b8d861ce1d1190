"""RMSNorm, whose gradient is written out, against the plain formula."""

import warnings

import torch
import torch.nn.functional as F
from backward import check_same, drawn, gradients

from posenc.encodings.base import Encoding, Shape
from posenc.model.attention import Attention
from posenc.model.norm import rms_norm, rms_norm_for_product


def plain_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight)


def test_numbers_and_gradients_are_those_of_the_plain_formula():
    inputs = (drawn(3, 4, 8, dtype=torch.float32), drawn(8, dtype=torch.float64).float())
    check_same(gradients(rms_norm, *inputs), gradients(plain_norm, *inputs), torch.float32)


def test_a_norm_for_a_product_is_rounded_once():
    x, weight = drawn(4, 16, dtype=torch.float32), drawn(16).float()
    with torch.autocast("cpu", torch.bfloat16):
        exact = rms_norm(x, weight)
        rounded = rms_norm_for_product(x, weight)
    assert exact.dtype == torch.float32
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, exact.to(torch.bfloat16))


def test_a_norm_for_a_product_stays_float32_without_autocast():
    assert rms_norm_for_product(drawn(4, 16, dtype=torch.float32), drawn(16).float()).dtype == torch.float32


def test_queries_and_keys_are_normed_in_one_precision():
    """torch warns of bf16 inputs and float32 weights, once a process."""
    attention = Attention(16, 2, 0, qk_norm=True)
    encoding = Encoding(Shape(16, 2, 8, 1, 4))
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
            warnings.simplefilter("error")
            attention(torch.randn(1, 4, 16), torch.arange(4), encoding, 4)
    finally:
        torch.set_warn_always(False)
