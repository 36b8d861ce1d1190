"""Extensions that multiply the logits on their way into the softmax: `scale` and `logn`."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.options import LogN
from posenc.evaluation.extensions.base import Extension, RefusedError, Times, check_range
from posenc.model.decoder import Decoder


class Scale(Extension):
    """A fixed temperature at every window, softmax(z / t): a control for `yarn` and `logn`.

    z are the logits with their biases, t = `temperature`; below 1 attention is sharper.
    """

    name = "scale"
    paper = "none (the temperature of YaRN, arXiv 2309.00071, alone)"
    formula = "logits divided by t"
    applies = "every encoding with a softmax"
    grid: ClassVar = {"temperature": (1.0, 0.9, 0.8, 0.7)}

    def __init__(self, model: Decoder, *, temperature: float) -> None:
        super().__init__(model)
        self.check_softmax()
        check_range("temperature", temperature, 0, above=True)
        self.temperature = temperature

    def effective_encoding(self, window: int) -> Encoding:
        if self.temperature == 1:
            return self.trained
        return self.together([*self.parts, Times(self.shape, 1 / self.temperature)])


class _AtLeastOne(LogN):
    """Log-n attention scaling, clamped to >= 1."""

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return super().factor(q_pos, k_pos, layer).clamp_min(1)


class LogNBeyond(Extension):
    """Logits sharpened for queries that see more keys than training showed.

    Logits of query i times max(1, log n_i / log T), n_i the keys that it sees; the logits with their biases,
    as in `attention.scale`, which does this in training and for short texts as well. Only beyond T: Su.
    """

    name = "logn"
    paper = "Chiang, Cholak 2022, arXiv 2202.12172; Su 2021 to 2023 (blog posts)"
    formula = "logits times max(1, log n / log T), n the visible keys"
    applies = "every encoding with a softmax whose logits were not scaled by the number of keys in training"

    def __init__(self, model: Decoder) -> None:
        super().__init__(model)
        self.check_softmax()
        if any(isinstance(part, LogN) for part in self.parts):
            raise RefusedError("its logits are scaled by the number of keys already (attention.scale)")
        for part in self.parts:
            if (reason := part.refuses.get("attention.scale")) is not None:
                raise RefusedError(reason)

    def effective_encoding(self, window: int) -> Encoding:
        if window <= self.shape.train_length:
            return self.trained
        return self.together([*self.parts, _AtLeastOne(self.shape, counted=self.parts)])

    def resolved(self, window: int) -> dict[str, Any]:
        return {"at_most": max(1.0, math.log(window) / math.log(self.shape.train_length))}
