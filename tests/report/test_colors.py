"""Styles of encodings: distinct, stable, told apart without colour."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import yaml

from posenc.core.paths import conf_dir
from posenc.report import colors
from posenc.report.colors import DASHES, MARKERS, ON_DARK, ON_WHITE, VARIANT_DASHES, style_of, styles_of

CATALOGUE = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
EXTENSIONS = sorted(path.stem for path in (conf_dir() / "extend").glob("*.yaml"))
# Deuteranopia, the commonest: Machado, Oliveira and Fernandes (2009), severity 1; on linear RGB
SEEN = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.793617785, -0.0040720468],
    [1.9779984951, -2.428592205, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.808675766],
]


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    return np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ np.clip(rgb, 0, 1))


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def headline() -> list[str]:
    text = (conf_dir() / "experiment" / "headline.yaml").read_text()
    return [*yaml.safe_load(text)["hydra"]["sweeper"]["params"]["encoding"].split(","), "kerple_log"]


def test_the_headline_has_distinct_colours_and_markers_and_solid_lines() -> None:
    styles = [style_of(name) for name in headline()]
    assert len(styles) == 7
    for part in ("color", "dark", "marker"):
        assert len({getattr(style, part) for style in styles}) == 7, part
    assert {style.dash for style in styles} == {()}


def test_styles_are_distinct_and_those_of_earlier_figures() -> None:
    assert len(set(styles_of(CATALOGUE).values())) == len(CATALOGUE) > 25
    extended = ["rope", *(f"rope+{name}" for name in EXTENSIONS)]
    assert len(set(styles_of(extended).values())) == len(extended)
    assert style_of("rope") == colors.Style("#2B9DF4", "#7C9AD3", (), "P")
    assert style_of("rope base=500000") == colors.Style("#2B9DF4", "#7C9AD3", (4, 1.5), "X")


@pytest.mark.parametrize(
    ("palette", "ground", "least"), [(ON_WHITE, "#FFFFFF", 2.75), (ON_DARK, "#16181C", 3.5)]
)
def test_colours_differ_for_every_eye_and_stand_out(
    palette: tuple[str, ...], ground: str, least: float
) -> None:
    """Okabe and Ito's own seven have 0.076 as their least distance (deuteranopia), white aside."""
    for cones in (np.eye(3), np.array(SEEN)):
        labs = [oklab(cones @ linear(color)) for color in palette]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(labs, 2)) > 0.076
    assert min(contrast(color, ground) for color in palette) > least


def test_a_variant_keeps_the_family_and_an_extension_its_mark() -> None:
    base, yarn, other = style_of("rope"), style_of("rope+yarn"), style_of("alibi+yarn")
    assert (yarn.dash, yarn.marker) == (other.dash, other.marker) and yarn.color != other.color
    shades = {style_of(f"rope base={n}").color for n in range(200)}
    assert base.color in shades and len(shades) == 3
    assert not set(VARIANT_DASHES) & set(DASHES) and len(set(MARKERS)) == len(MARKERS)
    for label, dashes in {  # a sum is an encoding; an extension of another package a variant
        "alibi+rope": DASHES,
        "mine+rope": DASHES,
        "alibi+rope+yarn": VARIANT_DASHES,
        "rope+mine": VARIANT_DASHES,
        "rope base=7": VARIANT_DASHES,
    }.items():
        assert style_of(label).dash in dashes, label


def test_rows_that_stand_together_are_told_apart_in_any_order() -> None:
    bare, clamp, rows = style_of("learned"), "learned (beyond: clamp)", "learned (beyond: untrained)"
    both = styles_of([rows, clamp])
    assert style_of(rows) == both[clamp] == bare != both[rows] and list(both) == [rows, clamp]
    labels = [*CATALOGUE, *(f"rope base={n}" for n in range(60)), *(f"new{n}" for n in range(60))]
    found = styles_of(labels)
    assert len(set(found.values())) == len(labels)
    assert found == styles_of(reversed(labels))
    assert all(found[name] == style_of(name) for name in CATALOGUE)
    for name in ("", "+", "a+", "+a", "\ud800", "x" * 10_000):
        assert style_of(name).marker in MARKERS
