"""Cells: stored as they finish, never computed twice, passes shared, and no cell takes the others with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import T

from posenc.encodings.base import Encoding
from posenc.evaluation import PROTOCOLS, evaluate, forward_cache
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import EvalRequest
from posenc.evaluation.tune import candidates, tune
from posenc.results.schema import Record

Measured = Callable[..., dict[tuple[str, int], Record]]
SubjectOf = Callable[..., EvalContext]
AskedOf = Callable[..., EvalRequest]
RecordsOf = Callable[[EvalContext, list[str]], list[Record]]
WINDOWS = [T // 2, T, 2 * T, 4 * T]


@pytest.fixture
def windows_passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every window that went through the model, a number for each."""
    made: list[int] = []
    forward = forward_cache._forward

    def counted(
        subject: EvalContext, batch: torch.Tensor, pos: torch.Tensor, acting: Encoding, wanted: int
    ) -> torch.Tensor:
        made.extend([batch.shape[1] - 1] * len(batch))
        return forward(subject, batch, pos, acting, wanted)

    monkeypatch.setattr(forward_cache, "_forward", counted)
    return made


def test_finished_cells_are_not_computed_again(
    subject_of: SubjectOf, measured: Measured, tmp_path: Path, windows_passed: list[int]
) -> None:
    subject, folder, told = subject_of("rope"), tmp_path / "run", []
    first = measured(subject, [T, 4 * T], folder=folder)
    cells = 2 * (len(PROTOCOLS) - 1) + 1  # positions is one long context
    assert len(list((folder / "records").iterdir())) == cells
    windows_passed.clear()
    again = measured(subject, [T, 4 * T], folder=folder, on_cell=lambda r, was: told.append(was))
    assert again == first and not windows_passed and told == [True] * cells

    measured(subject, [T, 2 * T, 4 * T], folder=folder)  # one more length, the longest unchanged
    assert set(windows_passed) == {2 * T}

    windows_passed.clear()
    one = next((folder / "records").glob(f"fixed-target-W{T}-*"))
    one.write_text(one.read_text()[:-20])  # damaged: that cell alone is measured anew
    assert measured(subject, [T, 4 * T], folder=folder) == {
        **first,
        ("fixed-target", T): {**first["fixed-target", T], "seconds": json.loads(one.read_text())["seconds"]},
    }
    assert set(windows_passed) == {T}


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint_step": 2},
        {"target_fraction": 0.5},
        {"max_targets": 100},
        {"split": "validation"},
        {"protocols": ["sliding"], "stride": 8},
    ],
    ids=str,
)
def test_what_identifies_a_cell_makes_another_cell(
    subject_of: SubjectOf,
    measured: Measured,
    tmp_path: Path,
    windows_passed: list[int],
    change: dict[str, Any],
) -> None:
    subject = subject_of("rope")
    only = {"protocols": change.get("protocols", ["fixed-target"]), "folder": tmp_path / "run"}
    ((_, first),) = measured(subject, [T], **only).items()
    windows_passed.clear()
    other = dataclasses.replace(subject, split=change.get("split", subject.split))
    ((_, second),) = measured(other, [T], **{**only, **change}).items()
    assert windows_passed and len(list((tmp_path / "run" / "records").iterdir())) == 2
    assert (first["targets_hash"] == second["targets_hash"]) == (
        "stride" in change or "checkpoint_step" in change
    )


def test_a_stop_between_batches_keeps_the_finished_cells(
    subject_of: SubjectOf, measured: Measured, tmp_path: Path
) -> None:
    class StoppedError(Exception):
        pass

    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 30:
            raise StoppedError

    subject = dataclasses.replace(subject_of("rope", batch_tokens=T), check_stop=check)
    only = {"folder": tmp_path / "run", "max_targets": 60, "protocols": ["fixed-target", "nonoverlapping"]}
    with pytest.raises(StoppedError):
        measured(subject, [T // 2, T, 2 * T], **only)
    stored = sorted(p.name.split("-step")[0] for p in (tmp_path / "run" / "records").iterdir())
    assert stored == [f"fixed-target-W{T}", f"fixed-target-W{T // 2}"]


class Forgetful(dict[Any, Any]):
    """A cache that has nothing of before."""

    def __contains__(self, key: object) -> bool:
        return False


@pytest.mark.parametrize(
    ("changes", "saved"),
    [
        ({"protocols": ["positions", "fixed-target", "nonoverlapping"]}, {4 * T}),
        ({"protocols": ["nonoverlapping", "sliding"], "stride": T // 2}, {T // 2}),
        ({"protocols": ["fixed-target", "sliding"]}, set()),  # windows that lie elsewhere
    ],
    ids=str,
)
def test_sharing_changes_no_number_and_saves_passes(
    subject_of: SubjectOf,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
    windows_passed: list[int],
    changes: dict[str, Any],
    saved: set[int],
) -> None:
    subject, windows = subject_of("rope"), [T // 2, T, 4 * T]
    shared = measured(subject, windows, **changes)
    with_sharing = sorted(windows_passed)
    windows_passed.clear()
    monkeypatch.setattr(evaluate, "dict", Forgetful, raising=False)
    alone = measured(subject, windows, **changes)
    without_seconds = [{cell: {**r, "seconds": 0} for cell, r in found.items()} for found in (shared, alone)]
    assert without_seconds[0] == without_seconds[1]
    fewer = {window for window in windows_passed if windows_passed.count(window) > with_sharing.count(window)}
    assert fewer == saved


def run_out_of_memory(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> None:
    forward = forward_cache._forward

    def limited(
        subject: EvalContext, batch: torch.Tensor, pos: torch.Tensor, acting: Encoding, wanted: int
    ) -> torch.Tensor:
        if batch.numel() > most:
            raise error
        return forward(subject, batch, pos, acting, wanted)

    monkeypatch.setattr(forward_cache, "_forward", limited)


CPU_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: x")
GPU_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore lines")


@pytest.mark.parametrize("error", [CPU_ERROR, GPU_ERROR, MemoryError("no")])
def test_smaller_batches_when_memory_runs_out(
    subject_of: SubjectOf, measured: Measured, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    windows, only = [T, 2 * T], {"protocols": ["fixed-target", "sliding"]}
    whole = measured(subject_of("rope"), windows, **only)
    run_out_of_memory(monkeypatch, 3 * (2 * T + 1), error)
    halved = measured(subject_of("rope"), windows, **only)
    for cell, record in whole.items():
        assert halved[cell]["note"] is None and halved[cell]["targets"] == record["targets"]
        assert halved[cell]["nats"] == pytest.approx(record["nats"], abs=1e-5)


def test_a_length_that_does_not_fit_is_noted_and_the_others_go_on(
    subject_of: SubjectOf, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_out_of_memory(monkeypatch, 2 * T + 1, GPU_ERROR)
    records = measured(subject_of("rope"), [T, 2 * T, 4 * T])
    note = f"oom at {4 * T} tokens, batch 1: CUDA out of memory. Tried to allocate 20.00 GiB."
    assert records["positions", 4 * T]["note"] == note
    for protocol in set(PROTOCOLS) - {"positions"}:
        assert records[protocol, T]["nats"] and records[protocol, 2 * T]["nats"]
        lost = records[protocol, 4 * T]
        assert (lost["nats"], lost["ppl"], lost["per_document"], lost["note"]) == (None, None, None, note)


def test_a_loss_that_is_not_finite_is_noted_and_never_a_number(
    subject_of: SubjectOf, measured: Measured, tmp_path: Path
) -> None:
    subject = subject_of("learned")
    with torch.no_grad():
        subject.model.encoding.table[0, T - 1] = float("nan")  # only windows of T and more reach it
    records = measured(subject, [T // 2, T], folder=tmp_path / "run")
    assert records["fixed-target", T // 2]["nats"] is not None
    assert records["fixed-target", T]["note"] == "diverged" and records["fixed-target", T]["nats"] is None
    assert records["positions", T].get("curve") is None
    assert "NaN" not in "".join(p.read_text() for p in (tmp_path / "run" / "records").iterdir())


@pytest.fixture
def records_of(tmp_path: Path, asked_of: AskedOf, few_sequences: None) -> RecordsOf:
    """Records of the cells in their order, stored in one folder."""

    def go(subject: EvalContext, protocols: list[str]) -> list[Record]:
        cells = evaluate.plan_cells(subject, asked_of(WINDOWS), protocols)
        return evaluate.evaluate(cells, tmp_path / "run", corpus="files", checkpoint_step=1)

    return go


def extended(subject: EvalContext, **settings: Any) -> EvalContext:
    return dataclasses.replace(subject, extension=build_extension(settings, subject.model))


def numbers(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("extend", "seconds")}


def test_where_nothing_is_extended_one_measurement_serves_both(
    subject_of: SubjectOf, records_of: RecordsOf, windows_passed: list[int]
) -> None:
    """dynamic_ntk up to T is the model as trained: measured once, stored under both names."""
    subject = extended(subject_of("rope"), name="dynamic_ntk")
    records = {(r["window"], r["extend"] is not None): r for r in records_of(subject, ["fixed-target"])}
    assert set(records) == {(T, False), *((window, True) for window in WINDOWS)}
    assert numbers(records[T, True]) == numbers(records[T, False])
    assert records[T, True]["extend"]["name"] == "dynamic_ntk"
    counts = {window: windows_passed.count(window) for window in WINDOWS}
    windows_passed.clear()

    plain = records_of(dataclasses.replace(subject, extension=None), ["fixed-target"])
    assert set(windows_passed) == {2 * T, 4 * T}  # T/2 was stored on the way
    for record in plain:
        same = numbers(record) == numbers(records[record["window"], True])
        assert same == (record["window"] <= T) and record["extend"] is None
    assert {window: windows_passed.count(window) for window in (2 * T, 4 * T)} == {
        window: counts[window] for window in (2 * T, 4 * T)
    }


def test_an_extension_changes_no_target(subject_of: SubjectOf, records_of: RecordsOf) -> None:
    subject = subject_of("rope")
    protocols = sorted(PROTOCOLS)
    plain = {(r["protocol"], r["window"]): r for r in records_of(subject, protocols)}
    for record in records_of(extended(subject, name="pi"), protocols):
        of = plain[record["protocol"], record["window"]]
        same = ("targets_hash", "targets", "documents", "unit", "stride")
        assert all(record[key] == of[key] for key in same)
        assert (record["nats"] != of["nats"]) == (record["extend"] is not None and record["window"] > T)


def test_a_formula_that_was_revised_is_measured_anew(
    subject_of: SubjectOf, records_of: RecordsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = extended(subject_of("rope"), name="pi", factor=2.0)
    before = records_of(subject, ["fixed-target"])
    assert records_of(subject, ["fixed-target"]) == before
    assert all("revision" not in (record["extend"] or {}) for record in before)
    monkeypatch.setattr(type(subject.extension), "revision", 2)
    after = records_of(subject, ["fixed-target"])
    assert {record["extend"]["revision"] for record in after if record["extend"]} == {2}


def test_nothing_is_called_chosen_where_nothing_has_a_number(
    subject_of: SubjectOf, asked_of: AskedOf
) -> None:
    subject = subject_of("rope")
    grid = candidates(build_extension({"name": "window"}, subject.model), subject.model)
    asked = asked_of(WINDOWS)
    nothing = tune(subject, asked, grid, lambda cells: [{"nats": None}])  # type: ignore[list-item]
    assert "tuned_on" not in nothing[0].settings and "none of" in nothing[1]
    losses = iter([None, 1.0, *[2.0] * len(grid)])
    chosen = tune(subject, asked, grid, lambda cells: [{"nats": next(losses)}])  # type: ignore[list-item]
    assert chosen[0] is grid[1] and chosen[0].settings["tuned_on"] == "validation"
