"""log n scaling: logits sharpened for queries that see more keys than training showed.

Formula: logits of query i times max(1, log n_i / log T), n_i the keys that it sees; the logits with their
biases, as in `attention.scale`, which does this in training and for short texts as well.
Papers: Chiang, Cholak 2022, arXiv 2202.12172; only beyond T: Su 2021 to 2023 (blog posts).
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.options import LogN
from posenc.evaluation.extend._base import Extension, RefusedError
from posenc.evaluation.extend._parts import together
from posenc.evaluation.extend._scores import check_softmax
from posenc.model.decoder import Decoder


class _Beyond(LogN):
    """Of the option, what sharpens."""

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return super().factor(q_pos, k_pos, layer).clamp_min(1)


class LogNBeyond(Extension):
    """Attention that stays as sharp among more keys."""

    name = "logn"
    paper = "Chiang, Cholak 2022, arXiv 2202.12172; Su 2021 to 2023 (blog posts)"
    formula = "logits times max(1, log n / log T), n the visible keys"
    applies = "every encoding with a softmax whose logits were not scaled by the number of keys in training"

    def __init__(self, model: Decoder) -> None:
        super().__init__(model)
        check_softmax(self.parts)
        if any(isinstance(part, LogN) for part in self.parts):
            raise RefusedError("its logits are scaled by the number of keys already (attention.scale)")
        for part in self.parts:
            if (reason := part.refuses.get("attention.scale")) is not None:
                raise RefusedError(reason)

    def acting(self, window: int) -> Encoding:
        shape = self.model.acting.shape
        if window <= shape.train_length:
            return self.model.acting
        return together(shape, [*self.parts, _Beyond(shape, counted=self.parts)])

    def resolved(self, window: int) -> dict[str, Any]:
        length = self.model.acting.shape.train_length
        return {"at_most": max(1.0, math.log(window) / math.log(length))}
