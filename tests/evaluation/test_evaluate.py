"""Cells: stored as they finish, never computed twice, passes shared, and no cell takes the others with it."""

import dataclasses

import pytest
import torch
from measuring import TEXT_PROTOCOLS, protocol_of
from tiny_model import T

from posenc.evaluation import evaluate, passes
from posenc.evaluation.extensions import build_extension

WINDOWS = [T // 2, T, 2 * T, 4 * T]
CELLS_OF_TWO_WINDOWS = 2 * (len(TEXT_PROTOCOLS) - 1) + 1  # positions is one long context


def test_each_cell_has_a_file_of_its_own(subject_of, measured, tmp_path):
    measured(subject_of("rope"), [T, 4 * T], folder=tmp_path / "run")
    assert len(list((tmp_path / "run" / "records").iterdir())) == CELLS_OF_TWO_WINDOWS


def test_finished_cells_are_not_computed_again(subject_of, measured, tmp_path, windows_passed):
    subject, folder, told = subject_of("rope"), tmp_path / "run", []
    first = measured(subject, [T, 4 * T], folder=folder)
    windows_passed.clear()
    again = measured(
        subject, [T, 4 * T], folder=folder, on_cell=lambda record, was_stored: told.append(was_stored)
    )
    assert again == first
    assert not windows_passed
    assert told == [True] * CELLS_OF_TWO_WINDOWS


def test_one_more_length_is_measured_alone(subject_of, measured, tmp_path, windows_passed):
    subject, folder = subject_of("rope"), tmp_path / "run"
    measured(subject, [T, 4 * T], folder=folder)
    windows_passed.clear()
    measured(subject, [T, 2 * T, 4 * T], folder=folder)  # the longest is unchanged, so targets are too
    assert max(windows_passed) == 2 * T  # shorter ones are passed beside them (dispersion, memory)


def test_a_damaged_cell_is_measured_alone(subject_of, measured, tmp_path, windows_passed):
    subject, folder = subject_of("rope"), tmp_path / "run"
    first = measured(subject, [T, 4 * T], folder=folder)
    damaged = next((folder / "records").glob(f"fixed-target-W{T}-*"))
    damaged.write_text(damaged.read_text()[:-20])
    windows_passed.clear()
    again = measured(subject, [T, 4 * T], folder=folder)
    seconds = {cell: {**record, "seconds": 0} for cell, record in again.items()}
    assert seconds == {cell: {**record, "seconds": 0} for cell, record in first.items()}
    assert set(windows_passed) == {T}


def test_a_pass_that_two_protocols_need_is_made_once(subject_of, measured, windows_passed):
    measured(subject_of("rope"), [T, 4 * T], protocols=["positions", "nonoverlapping"])
    together = windows_passed.count(4 * T)
    windows_passed.clear()
    for protocol in ("positions", "nonoverlapping"):
        measured(subject_of("rope"), [T, 4 * T], protocols=[protocol])
    assert windows_passed.count(4 * T) == 2 * together > 0


@pytest.mark.parametrize("protocol", ["positions", "nonoverlapping"])
def test_a_shared_pass_gives_the_same_numbers(subject_of, measured, protocol):
    shared = measured(subject_of("rope"), [T, 4 * T], protocols=["positions", "nonoverlapping"])
    for cell, record in measured(subject_of("rope"), [T, 4 * T], protocols=[protocol]).items():
        assert {**record, "seconds": 0} == {**shared[cell], "seconds": 0}


CPU_ERROR = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: x")
GPU_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore lines")


@pytest.fixture(params=[CPU_ERROR, GPU_ERROR], ids=["cpu", "gpu"])
def records_of_little_memory(request, subject_of, measured, monkeypatch):
    """Records of a machine with room for three windows of 2T at once, and the error of one of 8T."""

    def limited(make_pass):
        def make_small_pass(context, tokens, *others):
            if tokens.numel() > 3 * (2 * T + 1):
                raise request.param
            return make_pass(context, tokens, *others)

        return make_small_pass

    with monkeypatch.context() as patch:
        patch.setattr(passes, "forward", limited(passes.forward))
        patch.setattr(passes, "target_logits", limited(passes.target_logits))
        return measured(subject_of("rope"), [T, 2 * T, 8 * T]), request.param


def test_where_memory_runs_out_batches_are_smaller(records_of_little_memory, subject_of, measured):
    records, _ = records_of_little_memory
    with_room = measured(subject_of("rope"), [T, 2 * T, 8 * T])
    fitting = {
        (protocol, window): record
        for (protocol, window), record in records.items()
        # into windows of 2T no sentence of needle fits, and no prompt of ruler
        if window < 8 * T and protocol not in ("needle", "ruler")
    }
    assert fitting
    for cell, record in fitting.items():
        assert record["note"] is None
        assert record["targets"] == with_room[cell]["targets"]
        assert record["nats"] == pytest.approx(with_room[cell]["nats"], abs=1e-5)


def test_a_window_that_does_not_fit_is_noted(records_of_little_memory):
    records, error = records_of_little_memory
    # no prompt of ruler fits even into 8T
    too_long = [records[protocol, 8 * T] for protocol in TEXT_PROTOCOLS if protocol != "ruler"]
    for record in too_long:
        assert record["note"] == f"oom at {8 * T} tokens, batch 1: {str(error).splitlines()[0]}"
        assert record["nats"] is None
        assert record["per_document"] is None
        assert record["targets"] == 0


@pytest.fixture
def extended(subject_of, asked_of, tmp_path):
    """Records of dynamic_ntk, which up to T is the model as trained, by (window, whether extended)."""
    subject = subject_of("rope")
    subject = dataclasses.replace(subject, extension=build_extension({"name": "dynamic_ntk"}, subject.model))

    def go(extension=subject.extension):
        extended_subject = dataclasses.replace(subject, extension=extension)
        cells = evaluate.plan_cells(extended_subject, asked_of(WINDOWS), [protocol_of("fixed-target")])
        records = evaluate.evaluate(cells, tmp_path / "run", corpus="files", checkpoint_step=1)
        return {(record["window"], record["extend"] is not None): record for record in records}

    return subject, go


def test_the_model_as_trained_comes_before_its_extension(extended):
    _, go = extended
    assert list(go()) == [(T, False), *((window, True) for window in WINDOWS)]


def test_an_extension_that_changes_nothing_at_t_shares_the_pass_and_the_numbers(extended, windows_passed):
    _, go = extended
    records = go()
    assert windows_passed.count(T) == records[T, True]["targets"] // (T // 4)
    for key in ("nats", "per_document", "targets_hash"):
        assert records[T, True][key] == records[T, False][key]


def test_an_extended_encoding_is_made_once_for_a_window(extended):
    """Kernels keep masks by the encoding."""
    subject, go = extended
    go()
    assert subject.effective_encoding(2 * T) is subject.effective_encoding(2 * T)
    assert subject.effective_encoding(2 * T) is not subject.effective_encoding(4 * T)


def test_up_to_t_an_extension_takes_over_what_is_stored_of_the_model_as_trained(extended, windows_passed):
    _, go = extended
    as_trained = go(None)
    windows_passed.clear()
    records = go()
    assert set(windows_passed) == {2 * T, 4 * T}
    assert go() == records  # each has a file of its own
    for window in (T // 2, T):
        taken_over = {**records[window, True], "extend": None, "seconds": 0}
        assert taken_over == {**as_trained[window, False], "seconds": 0}


def test_an_extension_that_acts_at_t_takes_nothing_over(extended, windows_passed):
    subject, go = extended
    go(None)
    windows_passed.clear()
    go(build_extension({"name": "scale", "temperature": 0.5}, subject.model))
    assert set(windows_passed) == set(WINDOWS)


def test_an_extension_that_acts_at_t_has_numbers_of_its_own_there(extended):
    subject, go = extended
    hotter = build_extension({"name": "scale", "temperature": 0.5}, subject.model)
    records = go(hotter)
    assert records[T, True]["targets_hash"] == records[T, False]["targets_hash"]
    assert records[T, True]["nats"] != records[T, False]["nats"]


def test_a_record_says_what_the_knobs_come_to(extended):
    _, go = extended
    extend = go()[T, True]["extend"]
    assert extend == {"name": "dynamic_ntk", "factor": 1.0, "resolved": {"factor": 1.0}}


def test_extended_cells_are_not_computed_again(extended, windows_passed):
    _, go = extended
    records = go()
    windows_passed.clear()
    assert go() == records
    assert not windows_passed


def test_a_formula_that_was_revised_is_measured_anew(extended, windows_passed, monkeypatch):
    subject, go = extended
    go()
    windows_passed.clear()
    monkeypatch.setattr(type(subject.extension), "revision", 2)
    revisions = {record["extend"]["revision"] for record in go().values() if record["extend"]}
    assert revisions == {2}
    assert windows_passed
