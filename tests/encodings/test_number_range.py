"""Encodings where float32 or bf16 could fail: far positions, long sums, numbers at the end of their range."""

import pytest
import torch
from tiny_model import encoding_of

from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.shared import head_network
from posenc.encodings.shared.rotary import _rotate_as_complex, _rotate_by_formula
from posenc.encodings.shared.sinusoids import cos_sin, sinusoid_frequencies

LONGEST = 65_536  # tokens


def built(name, heads=4, layers=2, **params):
    """Build an encoding of heads of 8 for T = 64, with its initial values."""
    encoding = encoding_of(name, 64, heads, 8, layers, **params)
    initialize_encoding(encoding, "encoding", 0)
    return encoding


# --- Learned numbers at the ends of their ranges
def at_raw_value(name, value):
    """Build an encoding whose bounded numbers come from this raw value."""
    encoding = built(name)
    names = {"a", "b", "c", "factor"} & dict(encoding.named_parameters()).keys()
    for parameter_name in names:
        encoding.get_parameter(parameter_name).data.fill_(value)
    return encoding


@pytest.mark.parametrize("value", [-200.0, -5.0, 80.0])
@pytest.mark.parametrize("name", ["kerple_log", "kerple_power", "fire"])
def test_bounded_numbers_have_finite_biases_and_gradients(name, value):
    encoding = at_raw_value(name, value)
    bias = encoding.bias(torch.arange(40), torch.arange(40), 0)
    bias.sum().backward()
    assert bias.isfinite().all()
    for parameter in encoding.parameters():
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power"])
def test_bounded_numbers_come_back_from_below_their_range(name):
    """A clamp through `.data` would have a gradient of zero there."""
    encoding = at_raw_value(name, -5.0)
    encoding.bias(torch.arange(40), torch.arange(40), 0).sum().backward()
    for parameter in encoding.parameters():
        assert (parameter.grad != 0).all()


# --- Products and sums in lower precision
@pytest.fixture(scope="module")
def integer_rows():
    """The rows that `integer` joins to tokens that are zero, at positions which bf16 cannot tell apart."""
    encoding = built("integer", combine="concat", position_limit=4096)
    pos = torch.tensor([256, 257, 2048, 2049])

    def rows():
        return encoding.embed(torch.zeros(1, 4, 32), pos, 0)

    return rows


def test_concatenated_rows_are_not_rounded_under_autocast(integer_rows):
    exact = integer_rows()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(integer_rows(), exact)


def test_concatenated_rows_of_neighbours_differ(integer_rows):
    rows = integer_rows()
    assert not torch.equal(rows[0, 0], rows[0, 1])


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_real_and_complex_products_rotate_alike(layout):
    """The complex product is used on CPUs, the real one on GPUs."""
    x = torch.randn(2, 3, 7, 10)
    cos, sin = cos_sin(torch.arange(7), lambda device: sinusoid_frequencies(10, 1e4, device))
    rotated = _rotate_as_complex(x, torch.complex(cos, sin), layout)
    assert torch.allclose(_rotate_by_formula(x, cos, sin, layout), rotated, atol=1e-6)


def plain_head_network(scores, biases, w1, b1, w2, b2):
    """Return w2 leaky_relu(w1 [scores; biases] + b1) + b2 of all pairs at once."""
    pairs = torch.cat((scores, biases.expand_as(scores)), dim=1).movedim(1, -1)
    hidden = torch.nn.functional.leaky_relu(pairs @ w1.T + b1, 0.01)
    return (hidden @ w2.T + b2).movedim(-1, 1)


def test_gradients_of_the_network_over_heads(monkeypatch):
    """Of several texts in small chunks, inside autocast; those of one text are in test_formulas."""
    monkeypatch.setattr(head_network, "PAIRS", 7)
    generator = torch.Generator().manual_seed(0)
    sizes = {
        "scores": (2, 3, 4, 9),
        "biases": (3, 4, 9),
        "w1": (5, 6),
        "b1": (5,),
        "w2": (3, 5),
        "b2": (3,),
    }
    inputs = {name: torch.randn(size, generator=generator).requires_grad_() for name, size in sizes.items()}
    past = torch.ones(4, 9).tril(5)
    expected_loss = (plain_head_network(**inputs) * past).square().sum()
    expected = torch.autograd.grad(expected_loss, list(inputs.values()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (head_network.head_network(**inputs) * past).square().sum()
        gradients = torch.autograd.grad(loss, list(inputs.values()))
    for name, gradient, expected_gradient in zip(sizes, gradients, expected, strict=True):
        assert torch.allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-3), name


def test_second_derivative_of_the_network_over_heads_is_refused():
    """Its first one has no graph, so a second one would lose the part of the scores in silence."""
    scores = torch.randn(1, 2, 3, 3).requires_grad_()
    biases = torch.randn(2, 3, 3)
    weights = (torch.randn(5, 4), torch.randn(5), torch.randn(2, 5), torch.randn(2))
    loss = head_network.head_network(scores, biases, *weights).square().sum()
    (gradient,) = torch.autograd.grad(loss, scores, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@torch.no_grad()
def test_far_sums_of_gates_stay_exact():
    """Of 65 536 gates near 1: in float32 the nearest would be off by 1e-3; bf16 stops growing at 256."""
    encoding = built("fox", heads=1, layers=1)
    x = torch.randn(1, LONGEST, 8, generator=torch.Generator().manual_seed(0))
    no_scores = torch.zeros(1, 1, 1, LONGEST)
    last_query = torch.tensor([LONGEST - 1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = encoding.prepare(x, x, x, 0)
        scores = encoding.scores(no_scores, no_scores, no_scores, last_query, torch.arange(LONGEST), state, 0)
    weight = encoding.get_parameter("gate")[0, 0].double()
    gates = torch.nn.functional.logsigmoid(x[0, -40:].double() @ weight)
    expected = gates.flip(0).cumsum(0).flip(0) - gates
    assert (scores[0, 0, 0, -40:].double() - expected).abs().max() < 1e-5


# --- The longest windows of xpos: its z^(-j/512) alone overflows from j = 36 000 on
@pytest.fixture(scope="module")
def xpos_inputs():
    """The encoding, vectors of 65 536 tokens, and their positions."""
    x = torch.randn(1, 1, LONGEST, 8, generator=torch.Generator().manual_seed(0))
    return built("xpos", heads=1), x, torch.arange(LONGEST)


def test_xpos_has_no_overflow_in_its_longest_windows(xpos_inputs):
    xpos, x, pos = xpos_inputs
    q, k = xpos.rotate(x, x, pos, pos, 0)
    assert q.isfinite().all()
    assert k.isfinite().all()


def test_a_block_of_queries_of_xpos_counts_from_the_middle_of_all(xpos_inputs):
    xpos, x, pos = xpos_inputs
    q, k = xpos.rotate(x, x, pos, pos, 0)
    q_of_block, k_beside_block = xpos.rotate(x[:, :, -5:], x, pos[-5:], pos, 0)
    assert torch.equal(q_of_block, q[:, :, -5:])
    assert torch.equal(k_beside_block, k)
