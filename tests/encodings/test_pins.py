"""Published numbers, initial values, values that follow from the shape, and what is refused."""

import math
import re

import pytest
import torch
from naive_formulas import Example
from tiny_model import encoding_of
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.shared import bounded, head_network
from posenc.encodings.shared.rotary import _rotate_as_complex, _rotate_by_formula
from posenc.encodings.shared.sinusoids import cos_sin, sinusoid_frequencies, sinusoids
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend


def built(name, T=64, heads=4, layers=2, width=8, **params):
    """With its initial values."""
    made = encoding_of(name, T, heads, width, layers, **params)
    initialize_encoding(made, "encoding", 0)
    return made


# encoding -> parameter -> (smallest, largest, standard deviation) of 8 heads of 16, 4 layers, T = 64; d = 128
NORMAL = (-1.0, 1.0, 128**-0.5)
ZERO = (0.0, 0.0, 0.0)


def uniform(fan_in):
    bound = fan_in**-0.5
    return -bound, bound, bound / 3**0.5


INITIAL = {
    **{name: {"table": NORMAL} for name in ("learned", "hybrid", "binary")},
    "normalized": {"direction": NORMAL},
    "integer": {"step": (-1.0, 1.0, 128**-0.5 / 64)},
    **{name: {"table": ZERO} for name in ("t5", "cope")},
    "pope": {"delta": ZERO},
    "headscale": {"scale": (1.0, 1.0, 0.0)},
    "carope": {"frequency": NORMAL},
    "selective_rope": {"down": NORMAL, "up": (-2, 2, 0.25), "taps": uniform(4), "offset": ZERO},
    "grape": {"own.map": NORMAL},
    "tape": {"mix": (-0.1, 0.1, 0.02), "up": (-0.1, 0.1, 0.02), "gate": NORMAL, "down": (-0.1, 0.1, 0.02)},
    "path": {"down": NORMAL, "taps": uniform(3), "strength": NORMAL, "offset": ZERO},
    "fox": {"gate": NORMAL, "offset": ZERO},
    "cable": {"slope": NORMAL, "gain": NORMAL},
    "transformer_xl": {"w": NORMAL, "u": ZERO, "v": ZERO},
    "shaw": {"keys": (-2.0, 2.0, 0.25), "added": (-2.0, 2.0, 0.25)},
    "sinusoidal_trainable": {"phase": ZERO},
    "dynamic_bias": {"w1": (-9, 9, 1), "w2": (-2, 2, 0.25), "b2": ZERO, "w3": ZERO},
    "fire": {"w1": uniform(1), "b1": uniform(1), "w2": uniform(32), "b2": uniform(32)},
    "dape": {"w1": uniform(16), "b1": uniform(16), "w2": uniform(32), "b2": uniform(32)},
}


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values(name):
    made = built(name, heads=8, layers=4, width=16)
    for key, (low, high, std) in INITIAL[name].items():
        parameter = made.get_parameter(key).detach()
        assert low <= parameter.min() and parameter.max() <= high, key
        close = 0.25 if parameter.numel() < 999 else 0.05
        assert parameter.std().item() == pytest.approx(std, rel=close), key
    assert not made.decayed


@pytest.mark.parametrize("name, key", [("log", "a"), ("power", "b")])
def test_initial_values_of_kerple_are_uniform(name, key):
    raw = built(f"kerple_{name}", heads=4000, width=1).get_parameter(key).detach()
    found = (bounded.above(raw, 0.01) if key == "a" else bounded.between(raw, 0.01, 2.0)).sort().values
    assert (found / 2 - torch.linspace(0, 1, 4000)).abs().max() < 0.03  # Kolmogorov, Smirnov: 0.026
    assert found.min() >= 0.01 and found.max() <= 2


def test_initial_values_that_start_as_another_encoding():
    pos = torch.tensor([0, 1, 65535])
    for per_layer in (False, True):
        waves = built("sinusoidal_trainable", per_layer=per_layer).rows(pos, 0)
        assert torch.allclose(waves, sinusoids(pos, 32, 1e4), atol=2e-3)  # frequencies are float32
    fire = built("fire", T=64)
    assert bounded.above(fire.c, 1e-6).tolist() == pytest.approx([0.1] * 2)
    assert bounded.above(fire.factor, 1e-6).tolist() == pytest.approx([1.0] * 2) and fire.start == 16
    concat = built("learned", heads=8, width=16, per_layer=True, combine="concat").get_parameter("joined")
    assert concat.shape == (2, 128, 256) and concat.std().item() == pytest.approx(256**-0.5, rel=0.02)


# encoding, parameters, values of learned numbers (others: those of the second encoding) -> what it is then
GATES = {"own.query": 0.0, "own.key": 0.0, "own.rate": math.log(math.expm1(1 / (2 * math.log(2))))}
SAME = [
    ("grape", {"rotation": True, "additive": "none"}, {"own.log_factor": 0.0}, "rope", {}),
    ("grape", {"additive": "gated"}, GATES, "alibi", {}),
    ("grape", {"additive": "forget"}, {}, "fox", {}),
    ("fope", {"gain": 0.0}, {}, "hope", {"turns": 1.0}),
    ("tape", {}, {"mix": 0.0, "down": 0.0}, "rope", {}),
    ("headscale", {}, {}, "nope", {}),  # from the start, as the next one
    ("alibi", {"learned_slopes": True}, {}, "alibi", {}),
    ("pattern", {"period": [0, 0, 0, 1], "windows": [5, None], "scales": []}, {}, "rnope_swa", {"window": 5}),
]


@pytest.mark.parametrize("name, params, values, other, others", SAME, ids=str)
@torch.no_grad()
def test_is_another_encoding_with_matching_parameters(name, params, values, other, others):
    one, like = built(name, layers=4, **params), built(other, layers=4, **others)
    theirs = dict(like.named_parameters())
    for key, parameter in one.named_parameters():
        if key in values:
            parameter.fill_(values[key])
        elif (last := key.removeprefix(f"{other}.")) in theirs:
            parameter.copy_(theirs[last])
    q, k, v = torch.randn(3, 2, 4, 40, 8, generator=torch.Generator().manual_seed(0))
    x, pos = torch.randn(2, 40, 32, generator=torch.Generator().manual_seed(1)), torch.arange(1000, 1040)
    acting = one.for_one_pass(), like.for_one_pass()
    for layer in range(4):
        found, want = (attend(Heads(q, k, v), x, Layer(encoding, layer, pos)) for encoding in acting)
        assert torch.allclose(found, want, atol=2e-6), (found - want).abs().max()


@torch.no_grad()
def test_a_pass_through_the_layers_forgets_the_one_before():
    """Of `tape` where neither the first nor the last layer has it."""
    made = built("pattern", layers=3, parts=["nope", "tape"], period=[0, 1, 0], scales=[])
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    passes = (made.for_one_pass(), made.for_one_pass())
    x, pos = torch.ones(2, 9, 32), torch.arange(9)
    first, again = (attend(Heads(q, k, v), x, Layer(acting, 1, pos)) for acting in passes)
    assert torch.equal(first, again)


@pytest.mark.parametrize("size", [-200.0, -5.0, 80.0])
@pytest.mark.parametrize("name", ["kerple_log", "kerple_power", "fire"])
def test_reparametrised_numbers_stay_in_range_with_finite_gradients(name, size):
    """Where a clamp through `.data` would have a gradient of zero."""
    made, pos = built(name), torch.arange(40)
    for key in {"a", "b", "c", "factor"} & set(dict(made.named_parameters())):
        made.get_parameter(key).data.fill_(size)
    found = made.bias(pos, pos, 0)
    found.sum().backward()
    assert found.isfinite().all() and all(p.grad.isfinite().all() for p in made.parameters())
    if size == -5.0 and name != "fire":
        assert all((p.grad != 0).all() for p in made.parameters())


def test_concatenated_rows_are_not_rounded_under_autocast():
    made = built("integer", combine="concat", position_limit=4096)
    pos, nothing = torch.tensor([256, 257, 2048, 2049]), torch.zeros(1, 4, 32)
    exact = made.embed(nothing, pos, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made.embed(nothing, pos, 0), exact)
    assert not torch.equal(exact[0, 0], exact[0, 1])


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_real_and_complex_products_rotate_alike(layout):
    """Complex on CPUs, real on GPUs."""
    x = torch.randn(2, 3, 7, 10)
    cos, sin = cos_sin(torch.arange(7), lambda device: sinusoid_frequencies(10, 1e4, device))
    turned = _rotate_as_complex(x, torch.complex(cos, sin), layout)
    assert torch.allclose(_rotate_by_formula(x, cos, sin, layout), turned, atol=1e-6)


def test_gradients_of_the_network_over_heads(monkeypatch):
    """Of several texts in small chunks, inside autocast too; of one text they are in test_formulas."""
    monkeypatch.setattr(head_network, "PAIRS", 7)
    generator, sizes = torch.Generator().manual_seed(0), [(2, 3, 4, 9), (3, 4, 9), (5, 6), (5,), (3, 5), (3,)]
    z, b, w1, b1, w2, b2 = given = [torch.randn(size, generator=generator).requires_grad_() for size in sizes]
    both = torch.cat((z, b.expand_as(z)), dim=1).movedim(1, -1)
    plain = (torch.nn.functional.leaky_relu(both @ w1.T + b1, 0.01) @ w2.T + b2).movedim(-1, 1)
    past = torch.ones(4, 9).tril(5)
    want = torch.autograd.grad((plain * past).square().sum(), given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad((head_network.head_network(*given) * past).square().sum(), given)
    assert all(torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in zip(found, want, strict=True))


def test_far_sums_of_gates_stay_exact():
    """Of 65 536 gates near 1: in float32 the nearest would be off by 1e-3; bf16 stops growing at 256."""
    made, n = built("fox", heads=1, layers=1), 65_536
    x = torch.randn(1, n, 8, generator=torch.Generator().manual_seed(0))
    s = torch.zeros(1, 1, 1, n)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        state = made.prepare(x, x, x, 0)
        found = made.scores(s, s, s, torch.tensor([n - 1]), torch.arange(n), state, 0)[0, 0, 0, -40:]
    gates = torch.nn.functional.logsigmoid(x[0, -40:].double() @ made.get_parameter("gate")[0, 0].double())
    want = gates.flip(0).cumsum(0).flip(0) - gates
    assert (found.double() - want).abs().max() < 1e-5


DRAWN = {"position_limit": 1024, "distance_limit": 1024}  # positions=randomized
OFFSET = {"position_limit": 512}
# encoding, T, parameters, attribute or parameter -> its value (a number, or the parameter's size)
FOLLOWS = [
    *(("t5", T, {}, "max_distance", want) for T, want in ((64, 64), (512, 128), (17, 17), (8, 17))),
    ("t5", 64, DRAWN, "max_distance", 128),
    *(("cope", T, {}, "p_max", want) for T, want in ((64, 16), (1024, 64), (3, 1))),
    ("rnope_swa", 64, DRAWN, "window", 512),
    ("xpos", 64, {}, "ends_at", 65_537),
    ("binary", 64, {"bits": 7}, "ends_at", 128),
]


@pytest.mark.parametrize("name, T, params, key, want", FOLLOWS, ids=str)
def test_what_follows_from_the_shape(name, T, params, key, want):
    found = getattr(built(name, T, **params), key)
    assert (found.numel() if isinstance(found, Tensor) else found) == want


# encoding, T, parameters that are refused -> part of the message
REFUSED = [
    *(("rope", 64, {"base": base}, "base=") for base in (1.0, math.nan, math.inf)),
    *(("rope", 64, {"drop_low": share}, "drop_low=") for share in (1.0, 0.99, 0.03, -0.1)),
    ("rope", 64, {"width": 15}, "head_dim=15"),
    ("xpos", 64, {"position_limit": 32_769}, "positions.max=32769"),
    ("xpos", 65_537, {}, "context_length=65537"),
    ("fope", 4, {}, "no frequency has a period within T=4"),
    ("grape", 64, {"additive": "none"}, "nothing is left"),
    ("grape", 64, {"path_width": 5}, "path_width=5"),
    ("hope", 4, {}, "no pair turns as often within T=4"),
    ("binary", 64, {"bits": 5}, "bits=5: must be 6"),
]


@pytest.mark.parametrize("name, T, params, says", REFUSED, ids=str)
def test_refused_values(name, T, params, says):
    with pytest.raises(UserError, match=re.escape(says)):
        built(name, T, **params)


# encoding, parameters, positions that are refused -> part of the message
ENDS = [
    ("learned", {"beyond": "truncate"}, [0, 16], "rows end at 16, beyond=truncate has none for position 16"),
    ("binary", {"bits": 5}, [0, 32], "bits=5 end at position 31, not at 32"),
    ("xpos", {}, [5, 32_774], "from position 5 to 32774"),
]


@pytest.mark.parametrize("name, params, pos, says", ENDS)
def test_positions_past_the_end_are_refused_on_the_host(name, params, pos, says):
    example = Example(name, pos, **params)
    with pytest.raises(ValueError, match=says):
        example.attention() if name == "xpos" else example.embedding(0)


def test_xpos_has_no_overflow_in_its_longest_windows():
    """z^(-j/512) alone overflows from j = 36 000 on; a block of queries counts from the same middle."""
    made, n = built("xpos", heads=1), 65_536
    pos, x = torch.arange(n), torch.randn(1, 1, n, 8, generator=torch.Generator().manual_seed(0))
    q, k = made.rotate(x, x, pos, pos, 0)
    assert q.isfinite().all() and k.isfinite().all()
    last, same = made.rotate(x[:, :, -5:], x, pos[-5:], pos, 0)
    assert torch.equal(last, q[:, :, -5:]) and torch.equal(same, k)
