"""What a picture of an encoding is made of: numpy arrays and words, no torch and no matplotlib."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Line:
    """One curve: y over x, (n,) each. `low` and `high` bound a shaded band."""

    label: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    reference: bool = False  # what the others are compared with: grey


@dataclass(frozen=True)
class Curves:
    """Lines over a shared axis. `marks` are dashed lines by name, at places on x; `y_marks` on y."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    x_scale: Literal["linear", "symlog"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    marks: dict[str, float] = field(default_factory=dict)
    y_marks: dict[str, float] = field(default_factory=dict)
    points: bool = False  # dots instead of lines
    ordered: bool = False  # the lines have an order: colours of a scale instead of distinct ones
    brief: bool = False  # also shown in a terminal


@dataclass(frozen=True)
class Map:
    """A matrix (rows, columns); nan is not drawn. Rows and columns stand at the values y and x."""

    title: str
    x_label: str
    y_label: str
    z_label: str
    z: Numbers
    x: Numbers
    y: Numbers
    matrix: bool = False  # row 0 on top, square cells
    binary: bool = False  # only 0 and 1
    log: bool = False
    marks: dict[str, float] = field(default_factory=dict)  # of x
    brief: bool = False


Panel = Curves | Map


@dataclass(frozen=True)
class Picture:
    """Panels under one title."""

    title: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)
