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


class Forgetful(dict[Any, Any]):
    """A cache that has nothing of before."""

    def __contains__(self, key: object) -> bool:
        return False


@pytest.mark.parametrize(
    ("changes", "saved"),
    [
        ({"protocols": ["positions", "fixed-target", "nonoverlapping"]}, {4 * T}),
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


@pytest.mark.parametrize("error", [CPU_ERROR, GPU_ERROR])
def test_smaller_batches_when_memory_runs_out(
    subject_of: SubjectOf, measured: Measured, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    only = {"windows": [T, 2 * T], "protocols": ["fixed-target", "sliding"]}
    whole = measured(subject_of("rope"), **only)
    run_out_of_memory(monkeypatch, 3 * (2 * T + 1), error)
    for cell, record in measured(subject_of("rope"), **only).items():
        assert record["note"] is None and record["targets"] == whole[cell]["targets"]
        assert record["nats"] == pytest.approx(whole[cell]["nats"], abs=1e-5)


def test_a_length_that_does_not_fit_is_noted_and_the_others_go_on(
    subject_of: SubjectOf, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_out_of_memory(monkeypatch, 2 * T + 1, GPU_ERROR)
    note = f"oom at {4 * T} tokens, batch 1: CUDA out of memory. Tried to allocate 20.00 GiB."
    for (_, window), record in measured(subject_of("rope"), [T, 2 * T, 4 * T]).items():
        assert (record["nats"] is None) == (record["per_document"] is None) == (window == 4 * T)
        assert record["note"] == (note if window == 4 * T else None)


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
    subject_of: SubjectOf,
    records_of: RecordsOf,
    windows_passed: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """dynamic_ntk up to T is the model as trained: measured once, stored under both names."""
    subject = extended(subject_of("rope"), name="dynamic_ntk")
    records = {(r["window"], r["extend"] is not None): r for r in records_of(subject, ["fixed-target"])}
    assert set(records) == {(T, False), *((window, True) for window in WINDOWS)}
    assert numbers(records[T, True]) == numbers(records[T, False])
    assert records[T, True]["extend"]["name"] == "dynamic_ntk"
    windows_passed.clear()

    plain = records_of(dataclasses.replace(subject, extension=None), ["fixed-target"])
    assert set(windows_passed) == {2 * T, 4 * T}  # T/2 was stored on the way
    for record in plain:
        same = numbers(record) == numbers(records[record["window"], True])
        assert same == (record["window"] <= T) and record["extend"] is None
    # no target is another one, and a formula that was revised is measured anew
    assert {(r["targets_hash"], r["targets"]) for r in [*plain, *records.values()]} == {
        (plain[0]["targets_hash"], plain[0]["targets"])
    }
    monkeypatch.setattr(type(subject.extension), "revision", 2)
    revised = [r["extend"] for r in records_of(subject, ["fixed-target"]) if r["extend"]]
    assert {extend["revision"] for extend in revised} == {2}
