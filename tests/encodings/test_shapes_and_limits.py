"""What follows from the shape and T, and the parameters and positions that encodings refuse."""

import math
import re

import pytest
from naive_formulas import Example
from tiny_model import encoding_of

from posenc.core.errors import UserError


def built(name, T, **params):
    return encoding_of(name, T, 4, 8, 2, **params)


# --- What follows from T, or from the limits of drawn positions
RANDOMIZED = {"position_limit": 1024, "distance_limit": 1024}


@pytest.mark.parametrize(
    ("name", "T", "params", "attribute", "expected"),
    [
        ("t5", 64, {}, "max_distance", 64),
        ("t5", 512, {}, "max_distance", 128),
        ("t5", 17, {}, "max_distance", 17),
        ("t5", 8, {}, "max_distance", 17),
        ("t5", 64, RANDOMIZED, "max_distance", 128),
        ("cope", 64, {}, "p_max", 16),
        ("cope", 1024, {}, "p_max", 64),
        ("cope", 3, {}, "p_max", 1),
        ("rnope_swa", 64, RANDOMIZED, "window", 512),
        ("xpos", 64, {}, "ends_at", 65_537),
        ("binary", 64, {"bits": 7}, "ends_at", 128),
    ],
    ids=str,
)
def test_what_follows_from_the_shape(name, T, params, attribute, expected):
    assert getattr(built(name, T, **params), attribute) == expected


# --- Parameters that are refused
@pytest.mark.parametrize(
    ("name", "T", "params", "message"),
    [
        ("rope", 64, {"base": 1.0}, "base="),
        ("rope", 64, {"base": math.nan}, "base="),
        ("rope", 64, {"base": math.inf}, "base="),
        ("rope", 64, {"drop_low": 1.0}, "drop_low="),
        ("rope", 64, {"drop_low": 0.99}, "drop_low="),
        ("rope", 64, {"drop_low": 0.03}, "drop_low="),
        ("rope", 64, {"drop_low": -0.1}, "drop_low="),
        ("xpos", 64, {"position_limit": 32_769}, "positions.max=32769"),
        ("xpos", 65_537, {}, "context_length=65537"),
        ("fope", 4, {}, "no frequency has a period within T=4"),
        ("grape", 64, {"additive": "none"}, "nothing is left"),
        ("grape", 64, {"path_width": 5}, "path_width=5"),
        ("hope", 4, {}, "no pair turns that often within T=4"),
        ("binary", 64, {"bits": 5}, "bits=5: must be 6"),
        ("pattern", 64, {"parts": []}, "parts=[]: at least one encoding"),
    ],
    ids=str,
)
def test_refused_parameters(name, T, params, message):
    with pytest.raises(UserError, match=re.escape(message)):
        built(name, T, **params)


def test_an_odd_width_cannot_be_rotated():
    with pytest.raises(UserError, match="head_dim=15"):
        encoding_of("rope", 64, head_dim=15)


# Several fractions would be one encoding, under a hash each.
@pytest.mark.parametrize("name", ["rope", "scale_invariant"])
@pytest.mark.parametrize(
    ("fraction", "nearest"),
    [
        (0.375, "0.25 or 0.5"),
        (0.49, "0.25 or 0.5"),
        (0.625, "0.5 or 0.75"),
        (0.1, "0.25"),
        (0.99, "0.75 or 1"),
    ],
)
def test_a_fraction_of_no_whole_pairs_is_refused_with_its_neighbours(name, fraction, nearest):
    with pytest.raises(UserError, match=rf"fraction={fraction}: .* head_dim=8 .* work: {nearest}$"):
        encoding_of(name, 64, head_dim=8, fraction=fraction)


def test_of_an_odd_head_no_fraction_above_1_is_suggested():
    with pytest.raises(UserError, match=r"the nearest that work: 0\.933333$"):
        encoding_of("rope", 64, head_dim=15, fraction=0.99)


@pytest.mark.parametrize(
    ("head_dim", "fraction", "width"), [(8, 0.25, 2), (80, 0.4, 32), (48, 0.333333, 16), (15, 0.933333, 14)]
)
def test_a_fraction_of_whole_pairs_is_the_width(head_dim, fraction, width):
    assert encoding_of("rope", 64, head_dim=head_dim, fraction=fraction).width == width


# --- Positions past the end: refused on the host, since a GPU could only fail later and elsewhere
@pytest.mark.parametrize(
    ("name", "params", "pos", "message"),
    [
        (
            "learned",
            {"beyond": "truncate"},
            [0, 16],
            "rows end at 16, beyond=truncate has none for position 16",
        ),
        ("binary", {"bits": 5}, [0, 32], "bits=5 end at position 31, not at 32"),
    ],
)
def test_rows_past_the_end_are_refused(name, params, pos, message):
    example = Example(name, pos, **params)
    with pytest.raises(ValueError, match=message):
        example.embedding(0)


def test_distances_past_the_end_of_xpos_are_refused():
    example = Example("xpos", [5, 32_774])
    with pytest.raises(ValueError, match="from position 5 to 32774"):
        example.attention()


def test_hard_alibi_with_one_head_says_that_none_is_masked():
    assert encoding_of("hard_alibi", 16, 1, 8, 2).warnings() == ["no head is masked, so this is nope"]
    assert not encoding_of("hard_alibi", 16, 2, 8, 2).warnings()


@pytest.mark.parametrize("name", ["t5", "binary"])
def test_a_warning_leaves_the_name_of_its_encoding_to_whoever_prints_it(name):
    (warning,) = encoding_of(name, 16, 2, 8, 2).warnings()
    assert name not in warning


def test_repo_without_plain_layers_reads_no_position():
    assert not encoding_of("repo", 16, 2, 8, 2, plain_layers=0).uses_positions
    assert encoding_of("repo", 16, 2, 8, 2, plain_layers=1).uses_positions
