"""The distribution from which each encoding's parameters are drawn."""

import pytest
import torch
from tiny_model import encoding_of

from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.shared import bounded
from posenc.encodings.shared.sinusoids import sinusoids


def built(name, heads=4, width=8, layers=2, **params):
    """Build an encoding for T = 64 with its initial values."""
    encoding = encoding_of(name, 64, heads, width, layers, **params)
    initialize_encoding(encoding, "encoding", 0)
    return encoding


# The smallest value, the largest one and the standard deviation, for 8 heads of 16 (d = 128) and T = 64.
NORMAL = (-1.0, 1.0, 128**-0.5)  # as token embeddings
ZERO = (0.0, 0.0, 0.0)
QUARTER = (-2.0, 2.0, 0.25)


def uniform(fan_in):
    """Return what torch's linear maps have."""
    bound = fan_in**-0.5
    return -bound, bound, bound / 3**0.5


INITIAL = {
    "learned": {"table": NORMAL},
    "hybrid": {"table": NORMAL},
    "binary": {"table": NORMAL},
    "normalized": {"direction": NORMAL},
    "integer": {"step": (-1.0, 1.0, 128**-0.5 / 64)},
    "t5": {"table": ZERO},
    "cope": {"table": ZERO},
    "pope": {"delta": ZERO},
    "headscale": {"scale": (1.0, 1.0, 0.0)},
    "carope": {"frequency": NORMAL},
    "selective_rope": {"down": NORMAL, "up": QUARTER, "taps": uniform(4), "offset": ZERO},
    "grape": {"own.map": NORMAL},
    "tape": {"mix": (-0.1, 0.1, 0.02), "up": (-0.1, 0.1, 0.02), "gate": NORMAL, "down": (-0.1, 0.1, 0.02)},
    "path": {"down": NORMAL, "taps": uniform(3), "strength": NORMAL, "offset": ZERO},
    "fox": {"gate": NORMAL, "offset": ZERO},
    "cable": {"slope": NORMAL, "gain": NORMAL},
    "transformer_xl": {"w": NORMAL, "u": ZERO, "v": ZERO},
    "shaw": {"keys": QUARTER, "added": QUARTER},
    "sinusoidal_trainable": {"phase": ZERO},
    "dynamic_bias": {"w1": (-9, 9, 1), "w2": QUARTER, "b2": ZERO, "w3": ZERO},
    "fire": {"w1": uniform(1), "b1": uniform(1), "w2": uniform(32), "b2": uniform(32)},
    "dape": {"w1": uniform(16), "b1": uniform(16), "w2": uniform(32), "b2": uniform(32)},
}
PARAMETERS = [
    pytest.param(encoding, name, *distribution, id=f"{encoding}-{name}")
    for encoding, distributions in INITIAL.items()
    for name, distribution in distributions.items()
]


@pytest.mark.parametrize(("encoding", "name", "low", "high", "deviation"), PARAMETERS)
def test_a_parameter_has_the_range_and_the_deviation_of_its_distribution(
    encoding, name, low, high, deviation
):
    parameter = built(encoding, heads=8, width=16, layers=4).get_parameter(name).detach()
    tolerance = 0.25 if parameter.numel() < 999 else 0.05
    assert parameter.min() >= low
    assert parameter.max() <= high
    assert parameter.std().item() == pytest.approx(deviation, rel=tolerance)


@pytest.mark.parametrize("encoding", INITIAL)
def test_no_parameter_of_an_encoding_has_weight_decay(encoding):
    assert not built(encoding, heads=8, width=16, layers=4).decayed


def kerple_values(name, key):
    """Return the sorted numbers a or b of 4000 heads."""
    raw = built(f"kerple_{name}", heads=4000, width=1).get_parameter(key).detach()
    numbers = bounded.soft_floor(raw, 0.01) if key == "a" else bounded.soft_range(raw, 0.01, 2.0)
    return numbers.sort().values


@pytest.mark.parametrize(("name", "key"), [("log", "a"), ("power", "b")])
def test_kerples_numbers_are_uniform_up_to_2(name, key):
    numbers = kerple_values(name, key)
    largest_gap = (numbers / 2 - torch.linspace(0, 1, 4000)).abs().max()
    assert largest_gap < 0.03  # Kolmogorov and Smirnov's limit for 4000 numbers is 0.026


@pytest.mark.parametrize(("name", "key"), [("log", "a"), ("power", "b")])
def test_kerples_numbers_lie_in_their_range(name, key):
    numbers = kerple_values(name, key)
    assert numbers.min() >= 0.01
    assert numbers.max() <= 2


@pytest.mark.parametrize("per_layer", [False, True])
def test_trainable_sinusoids_start_as_sinusoids(per_layer):
    pos = torch.tensor([0, 1, 65535])
    waves = built("sinusoidal_trainable", per_layer=per_layer).rows(pos, 0)
    assert torch.allclose(waves, sinusoids(pos, 32, 1e4), atol=2e-3)  # its frequencies are float32


def test_fire_starts_with_the_numbers_of_its_paper():
    fire = built("fire")
    assert bounded.soft_floor(fire.c, 1e-6).tolist() == pytest.approx([0.1] * 2)
    assert bounded.soft_floor(fire.factor, 1e-6).tolist() == pytest.approx([1.0] * 2)
    assert fire.threshold_at_start == 16


def test_the_map_that_joins_rows_and_tokens_is_drawn_for_its_width():
    joined = built("learned", heads=8, width=16, per_layer=True, combine="concat").get_parameter("joined")
    assert joined.shape == (2, 128, 256)
    assert joined.std().item() == pytest.approx(256**-0.5, rel=0.02)
