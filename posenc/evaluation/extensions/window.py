"""A sliding window at test time: each token sees its nearest keys alone."""

from __future__ import annotations

from typing import Any, ClassVar

from posenc.encodings.base import Encoding
from posenc.encodings.options import Window
from posenc.evaluation.extensions.base import Extension, Length
from posenc.model.decoder import Decoder


class SlidingWindow(Extension):
    """Key j is seen where i - j < w, w = `window`, T by default, in every layer.

    A window that the model was trained with stays as well. Through the layers a token still depends on older
    ones.
    """

    name = "window"
    paper = "Beltagy, Peters, Cohan 2020 (Longformer), arXiv 2004.05150"
    formula = "keys at i - j < w"
    applies = "every encoding"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    def __init__(self, model: Decoder, *, window: Length) -> None:
        super().__init__(model)
        self.window = self.reach if window is None else self.tokens("window", window)

    def effective_encoding(self, window: int) -> Encoding:
        if self.span(window) <= self.window:
            return self.trained
        return self.together([*self.parts, Window(self.shape, window=self.window)])

    def resolved(self, window: int) -> dict[str, Any]:
        return {"window": self.window}
