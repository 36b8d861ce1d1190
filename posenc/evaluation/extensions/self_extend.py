"""Self-Extend: far distances counted in groups of tokens."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from posenc.evaluation.extensions.base import Length
from posenc.evaluation.extensions.redistanced import FarPairs, Redistancing, pairs_apart


@dataclass(eq=False, kw_only=True)
class SelfExtend(Redistancing):
    """Distances from w = `window` (T/2) on are counted in groups of g = `group` tokens.

    They become floor(i/g) - floor(j/g) + w - floor(w/g). With `group: auto`, g is the smallest with which the
    largest distance in the window was seen in training, so it is 1 up to T.
    """

    name = "self_extend"
    paper = "Jin et al. 2024, arXiv 2401.01325"
    formula = "i - j below w, else floor(i/g) - floor(j/g) + w - floor(w/g)"
    grid: ClassVar = {"window": ("0.25x", "0.5x", "0.75x")}

    window: Length
    group: int | Literal["auto"]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.near = self.tokens("window", self.window, max(1, self.reach // 2), self.reach - 1)
        if self.group != "auto":
            self.check_range("group", self.group, 1)

    def farthest(self, window: int, group: int) -> int:
        """Return the largest distance at a window of W tokens."""
        last = self.span(window) - 1
        # No pair is far enough apart to be counted in groups.
        if last < self.near:
            return last
        return last // group + self.near - self.near // group

    def g(self, window: int) -> int:
        """Return the group's size at a window of W tokens."""
        if self.group != "auto":
            return self.group
        group_sizes = range(1, self.span(window) + 1)
        # The largest size always fits: it puts all far tokens into group 0, and `near` is below T.
        return next(size for size in group_sizes if self.farthest(window, size) < self.reach)

    def far_pairs(self, window: int) -> list[FarPairs]:
        g = self.g(window)
        w = self.near
        if g == 1 or self.span(window) <= w:
            return []
        return [
            FarPairs(
                pairs_apart(w),
                query=lambda pos: pos // g + (w - w // g),
                key=lambda pos: pos // g,
            )
        ]

    def resolved(self, window: int) -> dict[str, Any]:
        return {**self.lengths, "group": self.g(window)}
