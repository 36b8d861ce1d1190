"""A fixed temperature at test time."""

from dataclasses import dataclass
from typing import ClassVar

from posenc.encodings.base import Encoding
from posenc.evaluation.extensions.base import Extension, Times


@dataclass(eq=False, kw_only=True)
class Scale(Extension):
    """Divide logits, biases included, by a fixed temperature: a control for `yarn` and `logn`."""

    name = "scale"
    paper = "none (the temperature of YaRN, arXiv 2309.00071, alone)"
    formula = "logits divided by t"
    applies = "every encoding with a softmax"
    grid: ClassVar = {"temperature": (1.0, 0.9, 0.8, 0.7)}
    temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_softmax()
        self.check_range("temperature", self.temperature, 0, above=True)

    def effective_encoding(self, window: int) -> Encoding:
        # The same object, by which passes are shared with the model as trained.
        if self.temperature == 1:
            return self.trained
        return self.compose([*self.parts, Times(self.shape, 1 / self.temperature)])
