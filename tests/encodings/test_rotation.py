"""Pairs turned as complex numbers (CPUs) and as the formula says it (GPUs) are the same."""

from __future__ import annotations

import pytest
import torch

from posenc.encodings.families.absolute import sinusoid_frequencies
from posenc.encodings.families.rotary import _as_complex, _as_real, cos_sin


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_real_and_complex_products_turn_alike(layout: str) -> None:
    x = torch.randn(2, 3, 7, 10, generator=torch.Generator().manual_seed(0))
    cos, sin = cos_sin(torch.arange(7), lambda device: sinusoid_frequencies(10, 10000.0, device))
    turned = _as_real(x, cos, sin, layout)
    assert not torch.allclose(turned, x)
    assert torch.allclose(turned, _as_complex(x, torch.complex(cos, sin), layout), rtol=1e-5, atol=1e-6)
