"""A sliding window at test time."""

from dataclasses import dataclass
from typing import ClassVar

from posenc.encodings.attention_options.window import Window
from posenc.encodings.base import Encoding
from posenc.evaluation.extensions.base import Extension, Length


@dataclass(eq=False, kw_only=True)
class SlidingWindow(Extension):
    """Show query i the keys at i - j < w = `window` (T) in every layer. A trained window stays as well."""

    name = "window"
    paper = "Beltagy, Peters, Cohan 2020 (Longformer), arXiv 2004.05150"
    formula = "keys at i - j < w"
    applies = "every encoding"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    window: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.w = self.tokens("window", self.window, self.reach)

    def effective_encoding(self, window: int) -> Encoding:
        if self.span(window) <= self.w:
            return self.trained
        # A trained window stays among the parts. Both hide keys, so the narrower of the two decides.
        return self.compose([*self.parts, Window(self.shape, window=self.w)])
