"""Clipped frequencies, called CoPE by its authors."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.shared.frequencies import clipped, pairs_to_clip
from posenc.evaluation.extensions.rescaled import CPU, OtherFrequencies


@dataclass(eq=False, kw_only=True)
class Clip(OtherFrequencies):
    """Fade out the lowest frequencies beyond T, or set them to zero there (`hard`).

    `pairs: null` clips 20/64 of the pairs, as the released code does for Llama, but at least 2. Its authors
    also train with clipped frequencies (`encoding=clipped_rope`). The encoding `cope` is another method.

    Pairs that do not turn (p-RoPE, Gemma 4's `proportional`) are not counted, or they would be the lowest
    ones, and clipping them would change nothing.
    """

    name = "clip"
    paper = "Li, Ren, Yuille, Wang 2026 (CoPE: clipped RoPE), arXiv 2602.05258"
    formula = "the n lowest theta times 0.5 (1 + cos(pi i / (n-1))), i = 0..n-1, the highest of them first"
    grid: ClassVar = {"hard": (False, True)}

    pairs: int | None
    hard: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        theta = self.turning.frequencies(CPU)
        total = int(torch.count_nonzero(theta))
        # The formula divides by n - 1, so at least two pairs must fade.
        if total < 2:
            raise self.refusal("fewer than two pairs turn, so there is none to clip")
        if total < len(theta):
            # Such pairs were counted at first, so that an older record may be of the model as trained.
            self.revision = 2  # type: ignore[misc]
        try:
            self.n_clipped = pairs_to_clip(self.pairs, total)
        except ValueError as error:
            allowed = f"a whole number from 2 to {total}, the pairs of a head that turn"
            raise UserError("extend.pairs", self.pairs, "out of range", allowed=allowed) from error
        # A number of pairs and no length, but so the record says what `pairs: null` stood for.
        self.lengths["pairs"] = self.n_clipped

    def changed(self, theta: Tensor) -> Tensor:
        turns = theta != 0
        changed = theta.clone()
        changed[turns] = clipped(theta[turns], self.n_clipped, hard=self.hard)
        return changed
