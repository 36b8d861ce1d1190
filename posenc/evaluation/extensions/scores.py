"""Extensions that scale logits (`scale`, `logn`) or leave the encoding out (`drop`)."""

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.base import Encoding
from posenc.encodings.shared.absolute import Absolute
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.extensions import Extension, Times, leaves


@dataclass(eq=False, kw_only=True)
class Scale(Extension):
    """A fixed temperature at every window, biases included: a control for `yarn` and `logn`."""

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
        if self.temperature == 1:
            return self.trained
        return self.together([*self.parts, Times(self.shape, 1 / self.temperature)])


class _AtLeastOne(LogN):
    """Log-n attention scaling, clamped to >= 1."""

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return super().factor(q_pos, k_pos, layer).clamp_min(1)


class LogNBeyond(Extension):
    """Logits of query i times max(1, log n_i / log T), n_i the keys that it sees, at windows beyond T."""

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
            if (reason := part.refuses.get("attention.scale")) is not None:
                raise self.refusal(reason)

    def effective_encoding(self, window: int) -> Encoding:
        if window <= self.shape.train_length:
            return self.trained
        return self.together([*self.parts, _AtLeastOne(self.shape, counted=self.parts)])

    def resolved(self, window: int) -> dict[str, Any]:
        return {"at_most": max(1.0, math.log(window) / math.log(self.shape.train_length))}


class Drop(Extension):
    """The trained model without its encoding, at every window; its options (a window, a scale) stay.

    Of an absolute encoding the factor on the token embeddings and the map of `combine: concat` stay.
    """

    name = "drop"
    paper = "Gelberg, Eguchi, Akiba, Cetin 2025 (DroPE), arXiv 2512.12167"
    formula = "the trained model without its encoding"
    applies = (
        "encodings that can be taken out alone: rotations, biases, laws of the scores, absolute vectors; not "
        "what stands for the softmax, nor what changes queries and keys at position 0 as well"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        own = leaves(self.model.encoding)
        if not any(part.hooks for part in own):
            raise self.refusal("there is nothing to remove")
        self.kept = [one for part in own for one in self._left_of(part)] + list(self.parts[len(own) :])

    def effective_encoding(self, window: int) -> Encoding:
        return self.together(self.kept)

    def _left_of(self, part: Encoding) -> list[Encoding]:
        """Return what stays of a removed encoding. Raises a refusal where more than positions would go."""
        name = part.name
        if "weights" in part.hooks:
            raise self.refusal(f"{name} stands in the place of the softmax, which would come back")
        if "rotate" in part.hooks and not isinstance(part, Rotary):
            raise self.refusal(f"{name} changes queries and keys at position 0 too, so more would go with it")
        if "embed" not in part.hooks:
            return []
        if not isinstance(part, Absolute):
            raise self.refusal(f"what {name} leaves of the embeddings without positions is not known")
        emptied, width = copy.copy(part), part.shape.d_model
        vars(emptied)["rows"] = lambda pos, place: torch.zeros(len(pos), width, device=pos.device)
        emptied.beyond = emptied.ends_at = None
        return [emptied]
