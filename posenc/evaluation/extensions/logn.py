"""Log-n scaling at windows beyond training."""

import math
from typing import Any

from torch import Tensor

from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.base import Encoding
from posenc.evaluation.extensions.base import Extension


class AtLeastOne(LogN):
    """Multiply scores by max(1, log n_i / log T)."""

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        # A query with fewer than T keys has the temperature that it was trained with.
        return super().factor(q_pos, k_pos, layer).clamp_min(1)


class LogNBeyond(Extension):
    """Multiply the logits of query i, which sees n_i keys, by max(1, log n_i / log T) beyond T."""

    name = "logn"
    paper = "Chiang, Cholak 2022, arXiv 2202.12172; Su 2021 to 2023 (blog posts)"
    formula = "logits times max(1, log n / log T), n the visible keys"
    applies = "every encoding with a softmax whose logits were not scaled by the number of keys in training"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_softmax()
        for part in self.parts:
            if isinstance(part, LogN):
                raise self.refusal("its logits are scaled by the number of keys already (attention.scale)")
            reason = part.refuses.get("attention.scale")
            if reason is not None:
                raise self.refusal(reason)

    def effective_encoding(self, window: int) -> Encoding:
        # T and not the positions that training spanned, since n counts keys.
        if window <= self.shape.train_length:
            return self.trained
        return self.compose([*self.parts, AtLeastOne(self.shape, counted=self.parts)])

    def resolved(self, window: int) -> dict[str, Any]:
        # The factor of the last query, which sees the most keys. If a window hides some of them it is
        # smaller.
        return {"at_most": max(1.0, math.log(window) / math.log(self.shape.train_length))}
