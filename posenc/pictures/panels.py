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
    is_reference: bool = False  # the other lines are compared with it, so it is grey


@dataclass(frozen=True)
class Curves:
    """Lines over shared axes, with dashed lines at marked places."""

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


@dataclass(frozen=True)
class Map:
    """A map of which query sees which key."""

    title: str
    seen: Numbers  # (queries, keys) of 0 and 1; nan is not drawn
    positions: Numbers  # the same for queries and keys


Panel = Curves | Map


@dataclass(frozen=True)
class Picture:
    """Panels under one title."""

    title: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)
