"""Show how far an evaluation is.

The remaining time is estimated from the FLOPs of each cell: long windows take most of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.progress import Progress
from posenc.evaluation.evaluate import EvalCell, cells_with_passes
from posenc.evaluation.models import MeasuredModel
from posenc.evaluation.models.transformers import TransformersModel
from posenc.model.decoder import Decoder, forward_flops
from posenc.results.records import Record
from posenc.running.unloaded_model import attention_flops, products_with

MOST_OF_A_CELL = 0.99  # the bar stays at or below this share of a cell until the cell ends


class CellProgress:
    """Show which cell is measured, and how far it is. A cell of long windows takes minutes."""

    def __init__(self, line: Progress, split: str) -> None:
        self._line = line
        self._split = split  # of most cells; a cell of another split shows the split's name
        self._ended = 0  # cells
        self._share = 0.0  # of the current cell that is done

    def begin(self, cell: EvalCell) -> None:
        """Name a cell: `+yarn fixed-target at 512`."""
        self._share = 0.0
        extension = cell.context.extension
        name = "" if extension is None else f"+{extension.settings['name']} "
        documents = "" if cell.context.split == self._split else f" on {cell.context.split} documents"
        self._line.update(self._ended, f"{name}{cell.protocol.name} at {cell.window}{documents}")

    def inside(self, share: float) -> None:
        """Take the share of a cell that is done.

        Where a protocol makes several passes without telling which part of the cell each is, the bar follows
        the first pass, and then waits.
        """
        # The bar never moves back, though a second pass of the same cell begins at 0 again.
        self._share = max(self._share, min(share, MOST_OF_A_CELL))
        self._line.update(self._ended + self._share)

    def end(self, record: Record, was_stored: bool) -> None:
        """Count a cell as measured, and say so if its record was stored before.

        It is the `on_cell` of `evaluate`, whose record it does not need.
        """
        self._ended += 1
        text = f"{self._line.text} (stored)" if was_stored else None  # None keeps the text
        self._line.update(self._ended, text)


def work_of_cells(cells: Sequence[EvalCell], stored: Sequence[bool]) -> list[float]:
    """Estimate the FLOPs of each cell; 0 if it is stored, or if an earlier cell makes the same passes.

    What `positions` measures without an extension, beside its pass with it, is not counted: it is short.
    """
    work = []
    for cell, makes_passes in cells_with_passes(cells, stored):
        flops = 0.0
        if makes_passes:
            flops = cell.plan.tokens(cell.window) * flops_per_token(cell.context.model, cell.window)
        work.append(flops)
    return work


def flops_per_token(model: MeasuredModel, window: int) -> float:
    """Return the FLOPs of a token in windows of `window` tokens.

    For a Python function, whose work is unknown, return 1, so that cells are weighed by their tokens.
    """
    if isinstance(model, Decoder):
        return forward_flops(model, window)
    if not isinstance(model, TransformersModel):
        return 1.0
    weights = model.named_parameters()
    products = sum(products_with(name, tuple(weight.shape), model.config) for name, weight in weights)
    return 2.0 * products + attention_flops(model.shape, window)
