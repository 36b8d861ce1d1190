"""Cells: stored as they finish, never computed twice, passes shared, and no cell takes the others with it."""

import dataclasses
import json

import pytest
import torch
from tiny_model import T

from posenc.evaluation import PROTOCOLS, evaluate, forward_cache
from posenc.evaluation.extensions import build_extension

WINDOWS = [T // 2, T, 2 * T, 4 * T]


def test_finished_cells_are_not_computed_again(subject_of, measured, tmp_path, windows_passed):
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


def test_a_pass_that_two_protocols_need_is_made_once(subject_of, measured, windows_passed):
    shared = measured(subject_of("rope"), [T, 4 * T], protocols=["positions", "nonoverlapping"])
    together = windows_passed.count(4 * T)
    windows_passed.clear()
    for protocol in ("positions", "nonoverlapping"):
        for cell, record in measured(subject_of("rope"), [T, 4 * T], protocols=[protocol]).items():
            assert {**record, "seconds": 0} == {**shared[cell], "seconds": 0}
    assert windows_passed.count(4 * T) == 2 * together > 0


CPU_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: x")
GPU_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore lines")


@pytest.mark.parametrize("error", [CPU_ERROR, GPU_ERROR])
def test_where_memory_runs_out_batches_are_smaller_or_it_is_noted(subject_of, measured, monkeypatch, error):
    whole = measured(subject_of("rope"), [T, 2 * T, 8 * T])
    forward = forward_cache._forward

    def limited(subject, batch, *others):
        if batch.numel() > 3 * (2 * T + 1):
            raise error
        return forward(subject, batch, *others)

    monkeypatch.setattr(forward_cache, "_forward", limited)
    note = f"oom at {8 * T} tokens, batch 1: {str(error).splitlines()[0]}"
    for (protocol, window), record in measured(subject_of("rope"), [T, 2 * T, 8 * T]).items():
        fits, before = window < 8 * T, whole[protocol, window]
        assert record["note"] == (None if fits else note)
        assert (record["targets"], record["per_document"] is not None) == (before["targets"] * fits, fits)
        assert record["nats"] == (pytest.approx(before["nats"], abs=1e-5) if fits else None)


def test_the_model_as_trained_comes_first(subject_of, asked_of, tmp_path, windows_passed, monkeypatch):
    """dynamic_ntk up to T is the model as trained: stored under both names, passed once."""
    subject = subject_of("rope")
    extension = build_extension({"name": "dynamic_ntk"}, subject.model)
    subject = dataclasses.replace(subject, extension=extension)

    def go():
        cells = evaluate.plan_cells(subject, asked_of(WINDOWS), ["fixed-target"])
        records = evaluate.evaluate(cells, tmp_path / "run", corpus="files", checkpoint_step=1)
        return {(r["window"], r["extend"] is not None): r for r in records}

    records = go()
    assert list(records) == [(T, False), *((window, True) for window in WINDOWS)]
    assert windows_passed.count(T) == records[T, True]["targets"] // (T // 4)
    for key in ("nats", "per_document", "targets_hash"):
        assert records[T, True][key] == records[T, False][key]
    assert records[T, True]["extend"] == {"name": "dynamic_ntk", "factor": 1.0, "resolved": {"factor": 1.0}}
    windows_passed.clear()
    assert go() == records and not windows_passed
    monkeypatch.setattr(type(extension), "revision", 2)  # a formula that was revised is measured anew
    assert {r["extend"]["revision"] for r in go().values() if r["extend"]} == {2}
