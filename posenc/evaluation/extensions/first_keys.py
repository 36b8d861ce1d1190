"""The base class of `sinks` and `lm_infinite`: the first keys of the text stay visible."""

from dataclasses import dataclass

from posenc.encodings.attention_options.window import Window
from posenc.evaluation.extensions.base import Length
from posenc.evaluation.extensions.redistanced import Redistancing


@dataclass(eq=False, kw_only=True)
class FirstKeys(Redistancing):
    """Show every query the first keys of the text and its nearest ones, and no others."""

    applies = (
        "encodings that act by distance alone, or carry no position: rotations, biases by distance, sums of "
        "them; not with windows of their own"
    )
    # To hide keys is a change for `nope` as well, which has no distances.
    needs_distance = False
    sinks: int
    window: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_softmax()
        for part in self.parts:
            name = part.name
            if "prepare" in part.hooks:
                raise self.refusal(f"{name} counts along all of the text, also what a cache has dropped")
            if "visible" in part.hooks:
                raise self.refusal(f"{name} hides the first keys by a window that the model was trained with")
        if self.has_gaps():
            raise self.refusal("its positions are drawn with gaps, so that a place in the cache has none")
        # Without a first key both extensions would be the extension `window`.
        self.check_range("sinks", self.sinks, 1)
        self.lengths["sinks"] = self.sinks

    def hide_middle_keys(self, default: int) -> None:
        """Hide all keys but the first and the nearest ones; `default` is the number of the latter."""
        self.w = self.tokens("window", self.window, default)
        # A part like any other, so that options which count visible keys do not count the hidden ones.
        self.parts += (Window(self.shape, window=self.w, first=self.sinks),)
