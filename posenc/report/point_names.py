"""Place names beside the points of a panel, where they cover as little as possible of what else is drawn.

Lengths are in pt (1/72 inch); a point is a point of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FONT_SIZE = 6.0  # pt
CHARACTER = 3.4  # pt, the mean width of a character of this size
HALF_LINE = 3.5  # pt, half the height of a name
HALF_POINT = 3.0  # pt, half the width of a marker
HALF_RULE = 1.2  # pt, half the width of a line with its margin
GAP = 5.0  # pt between a point and its name
FARTHEST = 42  # pt that a name may be above or below its point
STEP = 3  # pt from one try to the next
COST_OF_COVER = 4.0  # for each square pt
COST_OF_LEAVING = 10.0  # for each square pt outside of the panel
COST_OF_DISTANCE = 4.0  # for each pt, so a name across a line (2.4 x 7 pt) costs as much as 17 pt of distance


@dataclass(frozen=True)
class Box:
    """A rectangle on the panel, in pt from its top left corner."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Return the area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)


@dataclass(frozen=True)
class NamedPoint:
    """A point of data, in pt from the panel's top left corner."""

    name: str
    x: float
    y: float


def vertical_rule(x: float, top: float, bottom: float) -> Box:
    """Return the box of a vertical line."""
    return Box(x - HALF_RULE, top, x + HALF_RULE, bottom)


def horizontal_rule(y: float, left: float, right: float) -> Box:
    """Return the box of a horizontal line."""
    return Box(left, y - HALF_RULE, right, y + HALF_RULE)


def place_names(points: Sequence[NamedPoint], lines: Sequence[Box], panel: Box) -> list[Box]:
    """Return a box for the name of each point, near it.

    It is greedy, in the order of the points: each name takes the cheapest box. A box costs what it covers of
    points, lines and earlier names, its part outside of the panel, and its vertical distance from the point.
    """
    # A name across the border would be read as a part of the axis.
    borders = [
        vertical_rule(panel.left, panel.top, panel.bottom),
        vertical_rule(panel.right, panel.top, panel.bottom),
        horizontal_rule(panel.top, panel.left, panel.right),
        horizontal_rule(panel.bottom, panel.left, panel.right),
    ]
    taken = [*lines, *borders]
    # All points count before the first name is placed, so that no name covers a point whose turn comes later.
    for point in points:
        taken.append(
            Box(point.x - HALF_POINT, point.y - HALF_POINT, point.x + HALF_POINT, point.y + HALF_POINT)
        )
    boxes = []
    for point in points:
        # All boxes are tried: about eighty for each point, and a figure has some dozens of points.
        costs = {box: _cost(box, point, taken, panel) for box in _boxes_near(point)}
        cheapest = min(costs, key=lambda box: costs[box])
        boxes.append(cheapest)
        taken.append(cheapest)
    return boxes


def _boxes_near(point: NamedPoint) -> list[Box]:
    """Return boxes for the name of a point: right and left of it at every height, centred above and below it.

    Heights are up to FARTHEST above and below the point, in steps of STEP.
    """
    length = CHARACTER * len(point.name)
    boxes = []
    for offset in range(-FARTHEST, FARTHEST + 1, STEP):
        middle = point.y + offset
        lefts = [point.x + GAP, point.x - GAP - length]
        is_clear_of_marker = abs(offset) > HALF_LINE + HALF_POINT
        if is_clear_of_marker:
            lefts.append(point.x - length / 2)
        for left in lefts:
            boxes.append(Box(left, middle - HALF_LINE, left + length, middle + HALF_LINE))
    return boxes


def _cost(box: Box, point: NamedPoint, taken: Sequence[Box], panel: Box) -> float:
    area = (box.right - box.left) * (box.bottom - box.top)
    covered = sum(box.overlap(other) for other in taken)
    outside = area - box.overlap(panel)
    # A name is always close to its point sideways, so that its height alone tells how far it is.
    vertical_distance = abs((box.top + box.bottom) / 2 - point.y)
    return COST_OF_COVER * covered + COST_OF_LEAVING * outside + COST_OF_DISTANCE * vertical_distance
