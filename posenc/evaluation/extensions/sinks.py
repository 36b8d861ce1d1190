"""Attention sinks: queries see the first keys and a window, with positions inside the cache."""

from typing import ClassVar

from posenc.core.errors import UserError
from posenc.evaluation.extensions.first_keys import FirstKeys
from posenc.evaluation.extensions.redistanced import FarPairs


class Sinks(FirstKeys):
    """Show the first n = `sinks` keys and those at i - j < w = `window`. A cache holds these c = n + w keys.

    By default c is T. Positions are places in the cache, so a first key j is at distance min(i, c-1) - j.
    This is not for absolute embeddings, since a key has another place for every query that sees it.
    """

    name = "sinks"
    paper = "Xiao, Tian, Chen, Han, Lewis 2023 (StreamingLLM), arXiv 2309.17453"
    formula = "the first n keys, at distance min(i, n+w-1) - j, and those at i - j < w"
    grid: ClassVar = {"sinks": (1, 4)}

    def __post_init__(self) -> None:
        super().__post_init__()
        # By default the window is what the sinks leave of T, so it would have no key.
        if self.window is None and self.sinks >= self.reach:
            problem = "leaves no room in a cache of T tokens"
            allowed = f"1 to {self.reach - 1}, or say extend.window as well"
            raise UserError("extend.sinks", self.sinks, problem, allowed=allowed)
        self.hide_middle_keys(self.reach - self.sinks)

    def far_pairs(self, window: int) -> list[FarPairs]:
        cache = self.sinks + self.w
        if self.span(window) <= cache:
            return []
        return [
            FarPairs(
                # Until the cache is full every key is at its true distance.
                pairs=lambda q_pos, k_pos: (q_pos >= cache)[:, None].expand(-1, len(k_pos)),
                query=lambda pos: pos.clamp_max(cache - 1),
                key=lambda pos: pos,
                # Only these are far. So the second product has n keys and not as many as the text.
                keys=self.sinks,
            )
        ]
