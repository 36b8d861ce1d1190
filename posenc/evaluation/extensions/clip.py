"""Clipped frequencies, called CoPE by its authors."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.shared.frequencies import clipped, pairs_to_clip
from posenc.evaluation.extensions.rescaled import CPU, OtherFrequencies


@dataclass(eq=False, kw_only=True)
class Clip(OtherFrequencies):
    """Fade out the lowest frequencies beyond T, or set them to zero there (`hard`).

    `pairs: null` clips 20/64 of all pairs, as the released code does for Llama, but at least 2. Its authors
    also train with clipped frequencies (`encoding=clipped_rope`). The encoding `cope` is another method.
    """

    name = "clip"
    paper = "Li, Ren, Yuille, Wang 2026 (CoPE: clipped RoPE), arXiv 2602.05258"
    formula = "the n lowest theta times 0.5 (1 + cos(pi i / (n-1))), i = 0..n-1, the highest of them first"
    grid: ClassVar = {"hard": (False, True)}

    pairs: int | None
    hard: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        total = len(self.turning.frequencies(CPU))
        # The formula divides by n - 1, so at least two pairs must fade.
        if total < 2:
            raise self.refusal("a single pair is none to clip")
        try:
            self.n_clipped = pairs_to_clip(self.pairs, total)
        except ValueError as error:
            allowed = f"a whole number from 2 to {total}, the pairs of a head"
            raise UserError("extend.pairs", self.pairs, "out of range", allowed=allowed) from error
        # A number of pairs and no length, but so the record says what `pairs: null` stood for.
        self.lengths["pairs"] = self.n_clipped

    def changed(self, theta: Tensor) -> Tensor:
        return clipped(theta, self.n_clipped, hard=self.hard)
