"""Position interpolation: longer windows are squeezed into the trained positions."""

from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.shared.absolute import Tabled
from posenc.evaluation.extensions.base import Extension
from posenc.evaluation.extensions.rescaled import Rescaled


class PI(Rescaled):
    """Divide positions by s: theta_k becomes theta_k / s. Here without the fine-tuning of the paper.

    A learned table is read between its rows, by linear interpolation at position m / s, as models of images
    do (ViT, arXiv 2010.11929, section 3.2).
    """

    name = "pi"
    paper = "Chen, Wong, Chen, Tian 2023, arXiv 2306.15595"
    formula = "positions m / s, s = W/T"
    applies = f"{Rescaled.applies}; learned tables with a row for each position"

    def __post_init__(self) -> None:
        # Not by `super()`, which refuses a model without a rotation. A model with a table has none.
        Extension.__post_init__(self)
        self.tables = [part for part in self.parts if isinstance(part, Tabled) and part.is_whole]
        if not self.tables:
            super().__post_init__()
        # To stretch one of the two alone would be no interpolation of positions.
        elif any("rotate" in part.hooks for part in self.parts):
            raise self.refusal("its positions are in a table and in a rotation")
        else:
            # The base class that was skipped would have checked it.
            self.check_factor()

    def effective_encoding(self, window: int) -> Encoding:
        s = self.s(window)
        if not self.tables or s == 1:
            return super().effective_encoding(window)
        acting: list[Encoding] = []
        for part in self.parts:
            acting.append(part.stretched(s) if part in self.tables else part)
        return self.compose(acting)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return theta / s
