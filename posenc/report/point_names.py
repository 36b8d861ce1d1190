"""Place names beside the points of a panel, where they cover no point, no line and no other name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FONT_SIZE = 6.0  # points
CHARACTER = 3.4  # points, the mean width of a character
HALF_LINE = 3.5  # points
HALF_POINT = 3.0  # points, of a marker
HALF_RULE = 1.2  # points, of a line and the air beside it
GAP = 5.0  # points between a point and its name
FARTHEST = 42  # points that a name may be above or below its point
STEP = 3  # points from one try to the next
COST_OF_COVER = 4.0  # for each square point
COST_OF_LEAVING = 10.0  # for each square point outside of the panel
COST_OF_DISTANCE = 4.0  # for each point: across a vertical line is as bad as 17 points away


@dataclass(frozen=True)
class Box:
    """A rectangle on the panel, in points from its top left corner."""

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
    """A point of a panel, in points from its top left corner."""

    name: str
    x: float
    y: float


def vertical_rule(x: float, top: float, bottom: float) -> Box:
    """Return what a vertical line takes."""
    return Box(x - HALF_RULE, top, x + HALF_RULE, bottom)


def horizontal_rule(y: float, left: float, right: float) -> Box:
    """Return what a horizontal line takes."""
    return Box(left, y - HALF_RULE, right, y + HALF_RULE)


def place_names(points: Sequence[NamedPoint], lines: Sequence[Box], panel: Box) -> list[Box]:
    """Return a box for the name of each point, near it.

    One name after the other takes the box that costs the least: what it covers of points, lines and earlier
    names, what leaves the panel, and its distance from the point.
    """
    borders = [
        vertical_rule(panel.left, panel.top, panel.bottom),
        vertical_rule(panel.right, panel.top, panel.bottom),
        horizontal_rule(panel.top, panel.left, panel.right),
        horizontal_rule(panel.bottom, panel.left, panel.right),
    ]
    taken = [*lines, *borders]
    for point in points:
        taken.append(
            Box(point.x - HALF_POINT, point.y - HALF_POINT, point.x + HALF_POINT, point.y + HALF_POINT)
        )
    boxes = []
    for point in points:
        costs = {box: _cost(box, point, taken, panel) for box in _boxes_near(point)}
        cheapest = min(costs, key=lambda box: costs[box])
        boxes.append(cheapest)
        taken.append(cheapest)
    return boxes


def _boxes_near(point: NamedPoint) -> list[Box]:
    """Return the boxes right of a point, left of it, and above and below it."""
    length = CHARACTER * len(point.name)
    boxes = []
    for down in range(-FARTHEST, FARTHEST + 1, STEP):
        lefts = [point.x + GAP, point.x - GAP - length]
        if abs(down) > HALF_LINE + HALF_POINT:
            lefts.append(point.x - length / 2)
        for left in lefts:
            middle = point.y + down
            boxes.append(Box(left, middle - HALF_LINE, left + length, middle + HALF_LINE))
    return boxes


def _cost(box: Box, point: NamedPoint, taken: Sequence[Box], panel: Box) -> float:
    area = (box.right - box.left) * (box.bottom - box.top)
    covered = sum(box.overlap(other) for other in taken)
    outside = area - box.overlap(panel)
    distance = abs((box.top + box.bottom) / 2 - point.y)
    return COST_OF_COVER * covered + COST_OF_LEAVING * outside + COST_OF_DISTANCE * distance
