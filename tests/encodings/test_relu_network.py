"""A ReLU network of one input, by pieces and by its hidden numbers: the same values and gradients."""

import torch

from posenc.encodings.shared import relu_network as networks

HIDDEN, HEADS = 7, 3


def test_both_ways_have_the_same_values_and_gradients():
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 11), (HIDDEN,), (HIDDEN,), (HEADS, HIDDEN), (HEADS,))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    def values_and_gradients(network):
        arguments = [tensor.clone().requires_grad_() for tensor in tensors]
        values = network(*arguments)
        assert values.shape == (HEADS, 5, 11)
        values.square().sum().backward()
        return [values, *(argument.grad for argument in arguments)]

    by_pieces = values_and_gradients(networks.relu_network)
    plain = values_and_gradients(networks._plain)
    for piecewise, by_formula in zip(by_pieces, plain, strict=True):
        assert torch.allclose(piecewise, by_formula, atol=1e-10)


def test_a_bias_stays_float32_under_autocast():
    arguments = [torch.ones(shape) for shape in ((4,), (HIDDEN,), (HIDDEN,), (HEADS, HIDDEN), (HEADS,))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert networks._plain(*arguments).dtype == torch.float32
