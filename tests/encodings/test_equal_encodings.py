"""Encodings that are another one where their parameters match."""

import math

import pytest
import torch
from tiny_model import encoding_of

from posenc.encodings.initial_values import initialize_encoding
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend

LAYERS = 4


def built(name, params):
    """Build an encoding of four heads of 8 for T = 64, with its initial values."""
    encoding = encoding_of(name, 64, 4, 8, LAYERS, **params)
    initialize_encoding(encoding, "encoding", 0)
    return encoding


def match_parameters(encoding, values, other, prefix):
    """Set the parameters named in `values`, and copy the others from another encoding where it has them."""
    parameters_of_other = dict(other.named_parameters())
    for name, parameter in encoding.named_parameters():
        name_in_other = name.removeprefix(prefix)
        if name in values:
            parameter.fill_(values[name])
        elif name_in_other in parameters_of_other:
            parameter.copy_(parameters_of_other[name_in_other])


# A gate that neither queries nor keys move, with ALiBi's slope.
RATE_OF_ALIBI = math.log(math.expm1(1 / (2 * math.log(2))))
CONSTANT_GATES = {"own.query": 0.0, "own.key": 0.0, "own.rate": RATE_OF_ALIBI}
WINDOWS_BY_LAYER = {"period": [0, 0, 0, 1], "windows": [5, None], "scales": []}


@pytest.mark.parametrize(
    ("name", "params", "values", "other_name", "other_params"),
    [
        pytest.param(
            "grape",
            {"rotation": True, "additive": "none"},
            {"own.log_factor": 0.0},
            "rope",
            {},
            id="grape-rope",
        ),
        pytest.param("grape", {"additive": "gated"}, CONSTANT_GATES, "alibi", {}, id="grape-alibi"),
        pytest.param("grape", {"additive": "forget"}, {}, "fox", {}, id="grape-fox"),
        pytest.param("fope", {"gain": 0.0}, {}, "hope", {"turns": 1.0}, id="fope-hope"),
        pytest.param("bam", {}, {}, "alibi", {}, id="bam-alibi"),
        pytest.param("tape", {}, {"mix": 0.0, "down": 0.0}, "rope", {}, id="tape-rope"),
        pytest.param("headscale", {}, {}, "nope", {}, id="headscale-nope, from the start"),
        pytest.param("alibi", {"learned_slopes": True}, {}, "alibi", {}, id="learned slopes, from the start"),
        pytest.param("pattern", WINDOWS_BY_LAYER, {}, "rnope_swa", {"window": 5}, id="pattern-rnope_swa"),
    ],
)
@torch.no_grad()
def test_is_another_encoding_with_matching_parameters(name, params, values, other_name, other_params):
    encoding = built(name, params)
    other = built(other_name, other_params)
    match_parameters(encoding, values, other, prefix=f"{other_name}.")
    q, k, v = torch.randn(3, 2, 4, 40, 8, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 40, 32, generator=torch.Generator().manual_seed(1))
    pos = torch.arange(1000, 1040)
    acting = encoding.for_one_pass()
    acting_other = other.for_one_pass()
    for layer in range(LAYERS):
        output = attend(Heads(q, k, v), x, Layer(acting, layer, pos))
        expected = attend(Heads(q, k, v), x, Layer(acting_other, layer, pos))
        torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_a_pass_through_the_layers_forgets_the_one_before():
    """`tape` hands a state from layer to layer; here neither the first nor the last layer has it."""
    pattern = built("pattern", {"parts": ["nope", "tape"], "period": [0, 1, 0, 0], "scales": []})
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    x = torch.ones(2, 9, 32)
    pos = torch.arange(9)
    first_pass = pattern.for_one_pass()
    second_pass = pattern.for_one_pass()
    first = attend(Heads(q, k, v), x, Layer(first_pass, 1, pos))
    second = attend(Heads(q, k, v), x, Layer(second_pass, 1, pos))
    assert torch.equal(first, second)
