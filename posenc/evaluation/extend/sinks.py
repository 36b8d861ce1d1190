"""Attention sinks: the first keys stay visible beside a window, and positions count inside the cache.

Formula: the first n = `sinks` keys and those at i - j < w = `window` are seen. The cache holds c = n + w
keys, the query's own included, and positions are places in it: a first key j stands at distance
min(i, c-1) - j, the others at their true one. By default w = T - n: the cache holds T keys, and nothing
changes up to T.
Not for absolute embeddings: a key's place in the cache is another for every query that sees it.
Paper: Xiao, Tian, Chen, Han, Lewis 2023 (StreamingLLM), arXiv 2309.17453.
"""

from __future__ import annotations

from typing import Any, ClassVar

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.evaluation.extend._base import Extension, Length, check_range
from posenc.evaluation.extend._parts import together
from posenc.evaluation.extend._redistance import Far, redistanced
from posenc.evaluation.extend._sinks import APPLIES, FirstAndNear, check_sinks
from posenc.model.decoder import Decoder


class Sinks(Extension):
    """The cache of StreamingLLM."""

    name = "sinks"
    paper = "Xiao, Tian, Chen, Han, Lewis 2023 (StreamingLLM), arXiv 2309.17453"
    formula = "the first n keys, at distance min(i, n+w-1) - j, and those at i - j < w"
    applies = APPLIES
    grid: ClassVar = {"sinks": (1, 4)}

    def __init__(self, model: Decoder, *, sinks: int, window: Length) -> None:
        super().__init__(model)
        check_sinks(model, self.parts)
        check_range("sinks", sinks, 1)
        if window is None and sinks >= self.reach:
            allowed = f"1 to {self.reach - 1}, or say extend.window as well"
            raise UserError("extend.sinks", sinks, "leaves no room in a cache of T tokens", allowed=allowed)
        self.sinks = sinks
        self.window = self.reach - sinks if window is None else self.tokens("window", window)

    def acting(self, window: int) -> Encoding:
        first, cache = self.sinks, self.sinks + self.window
        if self.span(window) <= cache:
            return self.model.acting
        shape = self.model.acting.shape
        far = Far(
            pairs=lambda q_pos, k_pos: (q_pos >= cache)[:, None].expand(-1, len(k_pos)),
            query=lambda q_pos: q_pos.clamp_max(cache - 1),
            key=lambda k_pos: k_pos,
            keys=first,
        )
        mask = FirstAndNear(shape, first=first, near=self.window)
        return together(shape, [*redistanced(shape, self.parts, far), mask])

    def resolved(self, window: int) -> dict[str, Any]:
        return {"sinks": self.sinks, "window": self.window}
