"""Numbers and gradients of a function, to compare one that is written out with the plain formula."""

import torch

TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1e-2}


def drawn(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def gradients(function, *inputs):
    """The output, and the gradients of its weighted sum."""
    output = function(*inputs)
    weights = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with_gradient = [x for x in inputs if x.requires_grad]
    return [output, *torch.autograd.grad(output, with_gradient, weights.to(output.dtype))]


def check_same(computed, expected, dtype, slack=1):
    """Assert that tensors agree in dtype, shape and values; `slack` is a factor on the tolerance."""
    assert len(computed) == len(expected) > 1
    for a, b in zip(computed, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        off = (a.double() - b.double()).norm() / b.double().norm()
        assert off < slack * TOLERANCE[dtype]
