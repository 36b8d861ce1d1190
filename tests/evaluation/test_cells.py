"""Cells: stored as they finish, never computed twice, passes shared, and no cell takes the others with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import T
from token_stores import store_of

from posenc.encodings.base import Encoding
from posenc.evaluation import PROTOCOLS, forward_cache
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.forward_cache import EvalContext, text_losses
from posenc.results.schema import Record

Measured = Callable[..., dict[tuple[str, int], Record]]
SubjectOf = Callable[..., EvalContext]


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


@pytest.mark.parametrize(
    ("name", "changes", "saved"),
    [
        ("rope", {"protocols": ["positions", "fixed-target", "nonoverlapping"]}, {4 * T}),
        ("rope", {"protocols": ["nonoverlapping", "sliding"], "stride": T // 2}, {T // 2}),
        ("rope", {"protocols": ["fixed-target", "sliding"]}, set()),  # windows that lie elsewhere
        ("learned", {"protocols": ["fixed-target"], "beyond": "truncate"}, {T}),
    ],
    ids=str,
)
def test_sharing_changes_no_number_and_saves_passes(
    subject_of: SubjectOf,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
    windows_passed: list[int],
    name: str,
    changes: dict[str, Any],
    saved: set[int],
) -> None:
    changes = dict(changes)
    params = {key: changes.pop(key) for key in ("beyond",) if key in changes}
    subject, windows = subject_of(name, **params), [T // 2, T, 4 * T]
    shared = measured(subject, windows, **changes)
    with_sharing = sorted(windows_passed)
    windows_passed.clear()
    keys = iter(range(10**6))
    monkeypatch.setattr(forward_cache, "_key", lambda *_: next(keys))
    alone = measured(subject, windows, **changes)
    without_seconds = [{cell: {**r, "seconds": 0} for cell, r in found.items()} for found in (shared, alone)]
    assert without_seconds[0] == without_seconds[1]
    fewer = {window for window in windows_passed if windows_passed.count(window) > with_sharing.count(window)}
    assert fewer == saved


def test_an_extension_shares_where_it_changes_nothing(subject_of: SubjectOf) -> None:
    plain = dataclasses.replace(subject_of("rope"), cache={})
    extended = dataclasses.replace(plain, extension=build_extension({"name": "dynamic_ntk"}, plain.model))
    other = dataclasses.replace(plain, extension=build_extension({"name": "pi", "factor": 3}, plain.model))
    stops = np.array([5 * T, 6 * T])
    same = [text_losses(one, stops, T, 4) for one in (plain, extended)]
    assert same[0] is same[1] and not same[0].flags.writeable
    apart = [text_losses(one, stops, 4 * T, 4) for one in (plain, extended, other)]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in ((apart[0], apart[1]), (apart[1], apart[2])))


@pytest.mark.parametrize("change", ["stops", "window", "n_targets", "store", "model"])
def test_another_pass_is_another(subject_of: SubjectOf, change: str) -> None:
    subject = dataclasses.replace(subject_of("rope"), cache={})
    asked: dict[str, Any] = {"stops": np.array([5 * T, 6 * T]), "window": 2 * T, "n_targets": 4}
    first = text_losses(subject, **asked)
    if change == "store":
        subject = dataclasses.replace(subject, store=store_of([bytes(range(30, 200))]))
    elif change == "model":
        subject = dataclasses.replace(subject, model=subject_of("alibi").model)
    else:
        asked[change] = {"stops": np.array([5 * T, 6 * T + 1]), "window": T, "n_targets": 3}[change]
    assert not np.array_equal(text_losses(subject, **asked)[:, -1], first[:, -1]) or change == "n_targets"
    assert text_losses(subject, **asked).shape == (2, asked["n_targets"])


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
