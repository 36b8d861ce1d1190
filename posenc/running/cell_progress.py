"""Show how far an evaluation is, with the time left by the work of its cells, most of it in long windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posenc.core.console import Progress
from posenc.evaluation.evaluate import EvalCell
from posenc.evaluation.models import Subject
from posenc.evaluation.models.transformers import TransformersModel
from posenc.model.decoder import Decoder, forward_flops
from posenc.results.records import Record

MOST_OF_A_CELL = 0.99  # that may be done before it ends


class CellProgress:
    """Show which cell is measured, and how far it is: a long one takes minutes."""

    def __init__(self, line: Progress, split: str) -> None:
        self._line = line
        self._split = split  # whose documents are not named
        self._ended = 0  # cells
        self._share = 0.0  # of the cell that is measured

    def begin(self, cell: EvalCell) -> None:
        """Name a cell: `+yarn fixed-target at 512`."""
        self._share = 0.0
        extension = cell.context.extension
        name = "" if extension is None else f"+{extension.settings['name']} "
        documents = "" if cell.context.split == self._split else f" on {cell.context.split} documents"
        self._line.update(self._ended, f"{name}{cell.protocol.name} at {cell.window}{documents}")

    def inside(self, share: float) -> None:
        """Take the share of a pass that is done. Some cells need several, and the bar never goes back."""
        self._share = max(self._share, min(share, MOST_OF_A_CELL))
        self._line.update(self._ended + self._share)

    def end(self, record: Record, was_stored: bool) -> None:
        """Count a cell as measured."""
        self._ended += 1
        self._line.update(self._ended, f"{self._line.text} (stored)" if was_stored else None)


def work_of_cells(cells: Sequence[EvalCell], is_stored: Callable[[EvalCell], bool]) -> list[float]:
    """Return the FLOPs of each cell, about; 0 if it is stored, or an earlier one makes the same passes."""
    counted: set[tuple[object, int, str]] = set()
    work = []
    for cell in cells:
        context = cell.context
        is_as_trained = context.effective_encoding(cell.window) is context.model.effective_encoding
        key = (None if is_as_trained else context.extension, cell.window, cell.plan.hash)
        if key in counted or is_stored(cell):
            work.append(0.0)
            continue
        counted.add(key)
        work.append(cell.plan.tokens(cell.window) * flops_a_token(context.model, cell.window))
    return work


def flops_a_token(model: Subject, window: int) -> float:
    """Return the FLOPs of a token in windows of `window`; of a function of which nothing is known 1."""
    if isinstance(model, Decoder):
        return forward_flops(model, window)
    if not isinstance(model, TransformersModel):
        return 1.0
    shape = model.shape
    products = sum(weight.numel() for weight in model.parameters() if model.vocab_size not in weight.shape)
    return 2.0 * products + 2.0 * window * shape.n_heads * shape.head_dim * shape.n_layers
