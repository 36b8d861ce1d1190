"""A fixed temperature: all logits divided by one number, at every window. A control for `yarn` and `logn`.

Formula: softmax(z / t), t = `temperature`, z the logits with their biases; below 1 attention is sharper.
Source: none; the temperature of YaRN, arXiv 2309.00071, without its frequencies.
"""

from __future__ import annotations

from typing import ClassVar

from posenc.encodings.base import Encoding
from posenc.evaluation.extend._base import Extension, check_range
from posenc.evaluation.extend._parts import together
from posenc.evaluation.extend._scores import Times, check_softmax
from posenc.model.decoder import Decoder


class Scale(Extension):
    """Attention sharper or flatter."""

    name = "scale"
    paper = "none (the temperature of YaRN, arXiv 2309.00071, alone)"
    formula = "logits divided by t"
    applies = "every encoding with a softmax"
    grid: ClassVar = {"temperature": (1.0, 0.9, 0.8, 0.7)}

    def __init__(self, model: Decoder, *, temperature: float) -> None:
        super().__init__(model)
        check_softmax(self.parts)
        check_range("temperature", temperature, 0, above=True)
        self.temperature = temperature

    def acting(self, window: int) -> Encoding:
        if self.temperature == 1:
            return self.model.acting
        shape = self.model.acting.shape
        return together(shape, [*self.parts, Times(shape, 1 / self.temperature)])
