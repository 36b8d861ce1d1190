"""A sum: what acts alone and is refused, and its parts as settings."""

import re
from pathlib import Path
from typing import Any

import pytest
from decoding import CLOSE, apart, encoding, exactly, logits, model_of, text
from doubles import (
    Randomized,
    RandomizedSlopes,
)
from naive import Naive, Place
from summed import All, N, made_of, rotary
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings import resolve_encoding
from posenc.encodings.sum import Composed, Sum


@pytest.mark.parametrize(
    "parts, hook",
    [
        (["rope", "xpos"], "rotate"),
        (["rope", "rope"], "rotate"),
        (["hope", "alibi", "pope"], "rotate"),
        (["rnope_swa", "rope"], "rotate"),
        (["stick_breaking", "stick_breaking"], "weights"),
        (["shaw", "shaw"], "values"),
    ],
)
def test_what_decides_alone_is_refused_twice(parts: list[str], hook: str) -> None:
    with pytest.raises(UserError) as caught:
        encoding("sum", parts=parts)
    said = caught.value.text()
    first, second = (name for name in parts if hook in encoding(name).hooks)
    assert f"{first} and {second} cannot act together" in said and hook in said


def test_two_that_draw_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot act together.*positions"):
        made_of(Randomized, RandomizedSlopes)
    sum_of_one = made_of(Randomized)
    with pytest.raises(ValueError, match=r"cannot act together.*positions"):
        Composed(sum_of_one.shape, (sum_of_one, Randomized(sum_of_one.shape)))


def test_parts_with_different_policies_are_refused() -> None:
    clamped = {"name": "learned", "beyond": "clamp"}
    with pytest.raises(UserError, match=r"parts differ .*clamp.*truncate"):
        encoding("sum", parts=[clamped, {"name": "hybrid", "beyond": "truncate"}])
    assert encoding("sum", parts=[clamped, "alibi"]).beyond == "clamp"
    assert encoding("sum", parts=["rope", "alibi"]).beyond is None


def test_no_part_is_no_sum() -> None:
    with pytest.raises(UserError, match=r"parts=\[\]"):
        encoding("sum", parts=[])


def test_thousands_of_parts_are_refused_before_one_is_looked_up() -> None:
    with pytest.raises(UserError, match=r"encoding.parts=50000 encodings: too many"):
        encoding("sum", parts=["there is no such"] * 50_000)


def test_parts_have_parameters_and_the_others_those_of_their_yaml() -> None:
    made = encoding("sum", parts=[{"name": "rope", "base": 500_000, "layout": "half"}, "alibi"])
    assert isinstance(made, Sum)
    turning, _ = made.parts
    assert (turning.base, turning.layout, turning.still) == (500_000.0, "half", 0)
    resolved = resolve_encoding({"name": "sum", "parts": ["alibi", {"name": "xpos", "scale_base": 64}]})
    assert resolved == {
        "name": "sum",
        "parts": [
            {"name": "alibi", "learned_slopes": False},
            {"name": "xpos", "base": 10000.0, "layout": "interleaved", "scale_base": 64.0},
        ],
    }


@pytest.mark.parametrize(
    "parts, says",
    [
        (["alibi", "rop"], r"rope"),
        ([{"name": "rope", "bse": 3.0}], r"bse"),
        (["alibi", {"name": "rope", "base": "big"}], r"base.*parts\[1\]|parts\[1\].*base"),
        ([{"base": 3.0}], r"parts\[0\]"),
        ([3], r"parts\[0\]"),
        ("alibi", r"parts"),
        ([{"name": "rope", "base": 0.5}], r"base=0\.5"),
    ],
)
def test_parts_that_are_wrong_are_named(parts: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        encoding("sum", parts=parts)
    assert re.search(says, caught.value.text(), re.S)


PLUGIN = """
import torch
from posenc.encodings.base import Encoding


class Steep(Encoding):
    name = "steep"
    paper = formula = past_training = "a test"
    acts_on = "bias"
    learned = "0"

    def __init__(self, shape, *, slope: float):
        super().__init__(shape)
        self.slope = slope

    def distance_bias(self, r, layer):
        return -self.slope * r.float().expand(self.shape.n_heads, -1)
"""


def test_a_part_may_come_from_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steep_of_a_sum.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    parts = ["rope", {"name": "steep", "slope": 0.5}]
    model = model_of(encoding("sum", parts=parts, plugins=["steep_of_a_sum"]))

    class Steep(Naive):
        def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
            return s - 0.5 * (i - j)

    want = exactly(model, text(N), lambda wide: All(wide, [rotary(wide), Steep(wide.encoding)]))
    assert apart(logits(model, text(N)), want) < CLOSE
    with pytest.raises(UserError, match="steep"):
        encoding("sum", parts=parts)  # not named on the command line
    with pytest.raises(UserError, match="slope"):
        encoding("sum", parts=["steep"], plugins=["steep_of_a_sum"])  # no YAML, no default
