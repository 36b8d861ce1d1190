"""What a picture of an encoding holds, before it is drawn: panels with curves, a mask or vectors.

Each panel has a sentence that says what to see, made of the numbers that the panel shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from posenc.evaluation.lengths import LONGEST_DEFAULT

Numbers = NDArray[np.float64]
# As far as posenc evaluates by default, so that a picture shows where the losses are measured.
FAR = LONGEST_DEFAULT  # pictures go to this many times T
POSITION = "position in tokens"
DISTANCE = "distance r in tokens"
WEIGHT = "mean attention weight"


@dataclass(frozen=True)
class Line:
    """Hold one curve: y over x, (n,) each."""

    label: str
    x: Numbers
    y: Numbers
    is_reference: bool = False  # the other lines are compared with it, so it is grey


@dataclass(frozen=True)
class Curves:
    """Hold curves over shared axes, with dashed lines at marked values of x and y."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    x_scale: Literal["linear", "symlog"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    marks: dict[str, float] = field(default_factory=dict)  # name -> x of a vertical dashed line
    y_marks: dict[str, float] = field(default_factory=dict)  # name -> y of a horizontal dashed line
    has_points: bool = False  # dots instead of lines
    is_ordered: bool = False  # the lines have an order, so their colours come from a scale
    sentence: str = ""

    @property
    def measured_lines(self) -> list[Line]:
        """Return the lines that are compared with the reference, without the reference itself."""
        return [line for line in self.lines if not line.is_reference]


@dataclass(frozen=True)
class KeyMask:
    """Hold which query sees which key."""

    title: str
    seen: Numbers  # (queries, keys) of 0 and 1; nan is not drawn
    positions: Numbers  # the same for queries and keys; some of T
    seen_by_last: int  # how many of all keys the last query sees
    keys: int
    sentence: str = ""


@dataclass(frozen=True)
class VectorMap:
    """Hold the vectors of positions, to be drawn as a map of position x dimension."""

    title: str
    values: Numbers  # (positions, dimensions)
    positions: Numbers  # in tokens
    dimensions: Numbers  # their numbers, from 1 on
    marks: dict[str, float] = field(default_factory=dict)  # name -> position of a dashed line
    sentence: str = ""


Panel = Curves | KeyMask | VectorMap


@dataclass(frozen=True)
class Picture:
    """Hold panels under one title, with notes between the two."""

    title: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)


def in_lengths(tokens: int, length: int) -> str:
    """Return `4T` for a multiple of T, `T/4` for a part of it, else the number of tokens."""
    if tokens == length:
        return "T"
    if tokens and tokens % length == 0:
        return f"{tokens // length}T"
    if tokens and length % tokens == 0:
        return f"T/{length // tokens}"
    return str(tokens)


def length_marks(length: int, longest: int) -> dict[str, float]:
    """Return the marks of T and of the longest window: `{"T": 64.0, "8T": 512.0}`."""
    return {"T": float(length), in_lengths(longest, length): float(longest)}
