"""Cells: stored as they finish, never computed twice, and no single one takes the others with it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import T

from posenc.encodings.base import Encoding
from posenc.evaluation import PROTOCOLS
from posenc.evaluation import forward_cache as subject_module
from posenc.evaluation.forward_cache import EvalContext
from posenc.results.schema import Record

Measured = Callable[..., dict[tuple[str, int], Record]]
SubjectOf = Callable[..., EvalContext]


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(batch, window) of every forward pass."""
    made: list[tuple[int, int]] = []
    forward = subject_module._forward

    def counted(
        subject: EvalContext, batch: torch.Tensor, pos: torch.Tensor, acting: Encoding, wanted: int
    ) -> torch.Tensor:
        made.append((len(batch), batch.shape[1] - 1))
        return forward(subject, batch, pos, acting, wanted)

    monkeypatch.setattr(subject_module, "_forward", counted)
    return made


def test_finished_cells_are_not_computed_again(
    subject_of: SubjectOf, measured: Measured, tmp_path: Path, forwards: list[Any]
) -> None:
    subject, folder, told = subject_of("rope"), tmp_path / "run", []
    first = measured(subject, [T, 4 * T], folder=folder)
    cells = 2 * (len(PROTOCOLS) - 1) + 1  # positions is one long context
    assert len(list((folder / "records").iterdir())) == cells
    forwards.clear()
    again = measured(subject, [T, 4 * T], folder=folder, on_cell=lambda r, was: told.append(was))
    assert again == first and not forwards and told == [True] * cells

    measured(subject, [T, 2 * T, 4 * T], folder=folder)  # one more length, the longest unchanged
    assert {window for _, window in forwards} == {2 * T}

    forwards.clear()
    one = next((folder / "records").glob(f"fixed-target-W{T}-*"))
    one.write_text(one.read_text()[:-20])  # damaged: that cell alone is measured anew
    assert measured(subject, [T, 4 * T], folder=folder) == {
        **first,
        ("fixed-target", T): {**first["fixed-target", T], "seconds": json.loads(one.read_text())["seconds"]},
    }
    assert {window for _, window in forwards} == {T}


@pytest.mark.parametrize(
    "change",
    [{"checkpoint_step": 2}, {"target_fraction": 0.5}, {"max_targets": 100}, {"split": "validation"}],
)
def test_what_identifies_a_cell_makes_another_cell(
    subject_of: SubjectOf, measured: Measured, tmp_path: Path, forwards: list[Any], change: dict[str, Any]
) -> None:
    subject, folder = subject_of("rope"), tmp_path / "run"
    only = {"protocols": ["fixed-target"], "folder": folder}
    measured(subject, [T], **only)
    forwards.clear()
    split = change.get("split", subject.split)
    measured(dataclasses.replace(subject, split=split), [T], **{**only, **change})
    assert forwards and len(list((folder / "records").iterdir())) == 2


def test_a_stride_makes_another_cell_of_the_same_targets(
    subject_of: SubjectOf, measured: Measured, tmp_path: Path, forwards: list[Any]
) -> None:
    subject, only = subject_of("rope"), {"protocols": ["sliding"], "folder": tmp_path / "run"}
    first = measured(subject, [T], stride=4, **only)["sliding", T]
    forwards.clear()
    other = measured(subject, [T], stride=8, **only)["sliding", T]
    assert forwards and (first["stride"], other["stride"]) == (4, 8)
    assert first["targets_hash"] == other["targets_hash"] and first["nats"] != other["nats"]
    forwards.clear()
    assert measured(subject, [T], stride=4, **only)["sliding", T] == first and not forwards


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

    subject, folder = subject_of("rope", batch_tokens=T), tmp_path / "run"
    with pytest.raises(StoppedError):
        measured(
            subject,
            [T // 2, T, 2 * T],
            folder=folder,
            max_targets=60,
            protocols=["fixed-target", "nonoverlapping"],
            check_stop=check,
        )
    stored = sorted(p.name.split("-step")[0] for p in (folder / "records").iterdir())
    assert stored == [f"fixed-target-W{T}", f"fixed-target-W{T // 2}"]


def out_of_memory(most: int, error: Exception) -> Callable[..., Any]:
    forward = subject_module._forward

    def limited(
        subject: EvalContext, batch: torch.Tensor, pos: torch.Tensor, acting: Encoding, wanted: int
    ) -> torch.Tensor:
        if batch.numel() > most:
            raise error
        return forward(subject, batch, pos, acting, wanted)

    return limited


CPU_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: x")
GPU_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore lines")


@pytest.mark.parametrize("error", [CPU_ERROR, GPU_ERROR, MemoryError("no")])
def test_smaller_batches_when_memory_runs_out(
    subject_of: SubjectOf, measured: Measured, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    windows = [T, 2 * T]
    whole = measured(subject_of("rope"), windows)
    monkeypatch.setattr(subject_module, "_forward", out_of_memory(3 * (2 * T + 1), error))
    halved = measured(subject_of("rope"), windows)
    for cell, record in whole.items():
        assert halved[cell]["note"] is None and halved[cell]["targets"] == record["targets"]
        assert halved[cell]["nats"] == pytest.approx(record["nats"], abs=1e-5)


def test_a_length_that_does_not_fit_is_noted_and_the_others_go_on(
    subject_of: SubjectOf, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_module, "_forward", out_of_memory(2 * T + 1, GPU_ERROR))
    records = measured(subject_of("rope"), [T, 2 * T, 4 * T])
    assert records["positions", 4 * T]["note"] == records["fixed-target", 4 * T]["note"]
    for protocol in set(PROTOCOLS) - {"positions"}:
        assert records[protocol, T]["nats"] and records[protocol, 2 * T]["nats"]
        lost = records[protocol, 4 * T]
        assert lost["nats"] is None and lost["ppl"] is None and lost["per_document"] is None
        assert (
            lost["note"]
            == f"oom at {4 * T} tokens, batch 1: CUDA out of memory. Tried to allocate 20.00 GiB."
        )


def test_a_loss_that_is_not_finite_is_noted_and_never_a_number(
    subject_of: SubjectOf, measured: Measured, tmp_path: Path
) -> None:
    subject = subject_of("learned")
    with torch.no_grad():
        subject.model.encoding.table[0, T - 1] = float("nan")  # only windows of T and more reach it
    records = measured(subject, [T // 2, T], folder=tmp_path / "run")
    assert records["fixed-target", T // 2]["nats"] is not None
    assert records["fixed-target", T]["note"] == "diverged" and records["fixed-target", T]["nats"] is None
    assert "NaN" not in "".join(p.read_text() for p in (tmp_path / "run" / "records").iterdir())
