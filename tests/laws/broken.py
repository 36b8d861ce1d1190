"""Encodings with the faults that circulate; each says what it is and which law catches it.

`healthy` is the shipped encoding, or the class here, that does the same without the fault. `caught_by` is
None where the fault is consistent in itself: only a formula rebuilt by a second route sees that.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding


class Broken(Encoding):
    """Parameters of standard deviation 1, so that what they do is seen."""

    name = paper = formula = acts_on = past_training = "broken"
    learned = "0"
    caught_by: ClassVar[str | None]
    says: ClassVar[str]  # part of the reason
    healthy: ClassVar[Any]

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(parameter, generator=generator)
