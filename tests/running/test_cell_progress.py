"""The progress of an evaluation: which cell is measured, and how far a long one is."""

from types import SimpleNamespace

import pytest

from posenc.core import progress
from posenc.evaluation.evaluate import EvalCell
from posenc.running.cell_progress import CellProgress, work_of_cells


class Recorded(progress.Progress):
    """Progress that is not drawn."""

    def refresh(self):
        pass


@pytest.fixture
def line():
    return Recorded(progress.Title("evaluating"), 3)


def cell(extension=None, split="test"):
    context = SimpleNamespace(extension=extension, split=split)
    return SimpleNamespace(context=context, protocol=SimpleNamespace(name="sliding"), window=512)


def test_a_cell_is_named_when_it_begins(line):
    CellProgress(line, "test").begin(cell())
    assert line.line() == "evaluating 0/3  sliding at 512"


def test_its_extension_and_other_documents_are_named(line):
    extension = SimpleNamespace(settings={"name": "yarn"})
    CellProgress(line, "test").begin(cell(extension, "validation"))
    assert line.text == "+yarn sliding at 512 on validation documents"


def test_the_bar_moves_inside_a_cell_and_never_back(line):
    progress = CellProgress(line, "test")
    progress.begin(cell())
    done = []
    for share in (0.25, 0.75, 0.1, 1.0):  # a second pass begins after the second
        progress.inside(share)
        done.append(line.done)
    progress.end({}, False)
    assert done == [0.25, 0.75, 0.75, 0.99]
    assert line.done == 1


def test_the_time_left_goes_by_work(line, monkeypatch):
    """The third cell is nine tenths of the work: after a tenth of it in ten seconds 90 are left."""
    line.weigh([0.5, 0.5, 9.0])
    began = line._began_at
    monkeypatch.setattr(progress.time, "monotonic", lambda: began + 10)
    line.update(2)
    assert line.time_left == "1:30 left"


def test_cells_that_are_stored_or_shared_are_no_work():
    context = SimpleNamespace(model=None, acting_extension=lambda window: None)
    plans = [
        SimpleNamespace(hash=name, passes_key=name, tokens=lambda window: 10 * window)
        for name in ("a", "b", "b")
    ]
    cells = [EvalCell(context, None, plan, window=4) for plan in plans]
    assert work_of_cells(cells, [True, False, False]) == [0.0, 40.0, 0.0]


def test_a_stored_cell_is_said_to_be_stored(line):
    progress = CellProgress(line, "test")
    progress.begin(cell())
    progress.end({}, True)
    assert line.text == "sliding at 512 (stored)"
