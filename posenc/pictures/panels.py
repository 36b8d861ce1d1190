"""What a picture of an encoding holds, before it is drawn: panels with curves or with a map."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One curve: y over x, (n,) each."""

    label: str
    x: Numbers
    y: Numbers
    reference: bool = False  # the other lines are compared with it, so it is grey


@dataclass(frozen=True)
class Curves:
    """Lines over shared axes. A mark is a dashed line with a name at a value of x, a y-mark at one of y."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    x_scale: Literal["linear", "symlog"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    marks: dict[str, float] = field(default_factory=dict)
    y_marks: dict[str, float] = field(default_factory=dict)
    points: bool = False  # dots instead of lines
    ordered: bool = False  # the lines have an order, so their colours come from a scale


@dataclass(frozen=True)
class Map:
    """Which query sees which key."""

    title: str
    seen: Numbers  # (queries, keys) of 0 and 1; nan is not drawn
    positions: Numbers  # of the queries, and of the keys


Panel = Curves | Map


@dataclass(frozen=True)
class Picture:
    """Panels under one title."""

    title: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)
