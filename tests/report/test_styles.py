"""Styles: stable by name, never alike, and eight colours that are told apart, also by the colour-blind."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from posenc.core.paths import conf_dir
from posenc.report.charts.styles import COLORS, DASHES, SOLID, style_of, styles_of

FEW_ROWS = len(COLORS)
CATALOGUE = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
EXTENSIONS = sorted(path.stem for path in (conf_dir() / "extend").glob("*.yaml"))
README_ROWS = ("nope", "learned", "sinusoidal", "rope", "alibi", "t5")
# Machado, Oliveira and Fernandes (2009), severity 1: what somebody without one kind of
# cones sees, in linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# CIELAB units. Measured: 20.4 on white (blue and green) and 12.3 on dark (blue and sky), both of tritanopia.
LEAST_DISTANCE_ON_WHITE = 20
LEAST_DISTANCE_ON_DARK = 12
OKABE_ITO = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")


def lab(color, vision):
    """Return a colour as CIELAB (D65), as somebody with this vision sees it."""
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = [t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def nearest_distance(colors, vision):
    pairs = itertools.combinations(colors, 2)
    return min(np.linalg.norm(lab(one, vision) - lab(other, vision)) for one, other in pairs)


def nearest_for_anybody(colors):
    return min(nearest_distance(colors, vision) for vision in VISION)


def test_the_nearest_two_colours_differ_more_than_those_of_okabe_and_ito_for_the_colour_blind():
    on_white = [on_white for on_white, _ in COLORS.values()]
    assert nearest_for_anybody(on_white) > nearest_for_anybody(OKABE_ITO)


@pytest.mark.parametrize("vision", VISION)
def test_any_two_colours_on_white_are_told_apart(vision):
    colors = [on_white for on_white, _ in COLORS.values()]
    assert nearest_distance(colors, vision) > LEAST_DISTANCE_ON_WHITE


@pytest.mark.parametrize("vision", VISION)
def test_any_two_colours_on_dark_are_told_apart(vision):
    colors = [on_dark for _, on_dark in COLORS.values()]
    assert nearest_distance(colors, vision) > LEAST_DISTANCE_ON_DARK


def test_every_encoding_of_the_catalogue_is_listed_with_a_look_of_its_own():
    looks = {style_of(name, name) for name in CATALOGUE}
    assert len(looks) == len(CATALOGUE)


@pytest.mark.parametrize(
    "rows", [README_ROWS, CATALOGUE[:FEW_ROWS], CATALOGUE[-FEW_ROWS:], EXTENSIONS[:FEW_ROWS]]
)
def test_up_to_eight_rows_have_colours_of_their_own(rows):
    styles = styles_of({name: name for name in rows})
    assert len({style.color for style in styles.values()}) == len(rows)


def test_an_extension_beside_its_encoding_has_another_colour_while_there_are_few():
    styles = styles_of({"rope": "rope", "rope+yarn": "rope", "rope+pi": "rope"})
    assert len({style.color for style in styles.values()}) == 3


def test_the_rows_of_the_readme_keep_the_styles_of_the_table():
    styles = styles_of({name: name for name in README_ROWS})
    assert styles == {name: style_of(name, name) for name in README_ROWS}


def test_a_variant_has_its_encodings_colour_and_dashes():
    base = style_of("rope", "rope")
    variant = style_of("rope base=500000", "rope")
    assert variant.color == base.color
    assert base.dash == SOLID
    assert variant.dash in DASHES


def test_an_extension_looks_alike_on_every_encoding():
    on_rope = style_of("rope+yarn", "rope")
    on_alibi = style_of("alibi+yarn", "alibi")
    assert on_rope.dash == on_alibi.dash
    assert on_rope.marker == on_alibi.marker


def test_a_sum_is_an_encoding_of_its_own():
    assert style_of("alibi+rope", "alibi+rope").dash == SOLID
    assert style_of("alibi+rope+yarn", "alibi+rope").dash in DASHES


@pytest.fixture
def many():
    """More rows than there are colours: the catalogue, variants, and encodings that nobody listed."""
    rows = {name: name for name in CATALOGUE}
    rows |= {f"rope base={n}": "rope" for n in range(20)}
    return rows | {f"zz{n}": f"zz{n}" for n in range(60)}


def test_many_rows_are_all_told_apart(many):
    assert len(set(styles_of(many).values())) == len(many)


def test_the_order_of_rows_changes_no_style(many):
    assert styles_of(many) == styles_of(dict(reversed(many.items())))


def test_a_listed_encoding_keeps_colour_and_marker_among_many(many):
    styles = styles_of(many)
    for name in CATALOGUE:
        listed = style_of(name, name)
        assert styles[name].color == listed.color
        assert styles[name].marker == listed.marker


@pytest.mark.parametrize("count", [9, 10, 16, 17, 24])
def test_beyond_eight_rows_no_colour_is_taken_more_often_than_it_must(count):
    styles = styles_of({name: name for name in CATALOGUE[:count]})
    counts = Counter(style.color for style in styles.values())
    assert max(counts.values()) == math.ceil(count / FEW_ROWS)


@pytest.mark.parametrize("count", [9, 16, 39])
def test_rows_of_one_colour_differ_in_dashes_and_in_markers(count):
    rows = styles_of({name: name for name in CATALOGUE[:count]}).values()
    assert len({(style.color, style.dash) for style in rows}) == count
    assert len({(style.color, style.marker) for style in rows}) == count


@pytest.mark.parametrize("label", ["", "+", "a+", "+a", "\ud800", "x" * 10_000])
def test_any_name_has_a_style(label):
    assert style_of(label, label[:1]).color in COLORS
