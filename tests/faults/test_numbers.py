"""Numbers that are not finite and memory that runs out, in an evaluation and in training."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny
import torch
from fake_runs import only_run, read_json
from in_process import called_in

from posenc.evaluation import passes
from posenc.training import loop

pytestmark = pytest.mark.faults
ALL_WINDOWS = "eval.protocols=[fixed-target,sliding,nonoverlapping,positions]"


def notes_of(runs):
    """Return the notes of the only run's records by protocol and window."""
    records = read_json(only_run(runs) / "results.json")["records"]
    return {(record["protocol"], record["window"]): record["note"] for record in records}


def change_losses_beyond(limit, change):
    """Return the forward pass of an evaluation with a change to the losses of windows beyond the limit."""
    real_forward = passes.forward

    def forward(*arguments):
        losses = real_forward(*arguments)
        positions = arguments[2]
        return replace(losses, nats=change(losses.nats)) if len(positions) > limit else losses

    return forward


# --- Losses that are not finite
@pytest.fixture(scope="module", params=["nan", "inf"])
def diverged_past_32(request, tmp_path_factory, corpus, shared_cache):
    """A folder with a run whose losses at 64 tokens are no numbers, and posenc called in it."""
    folder = tmp_path_factory.mktemp("diverged")
    factor = float(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "forward", change_losses_beyond(32, lambda losses: losses * factor))
        arguments = ("train", *tiny.TINY, f"data.paths={corpus}", "encoding=rope", ALL_WINDOWS)
        result = called_in(folder, shared_cache, *arguments)
    assert result.code == 0, result.err
    return SimpleNamespace(
        folder=folder,
        trained=result,
        posenc=lambda *arguments: called_in(folder, shared_cache, *arguments),
    )


def test_a_loss_that_is_not_finite_is_noted_at_its_length(diverged_past_32):
    notes = notes_of(diverged_past_32.folder / "runs")
    diverged_windows = {window for (_, window), note in notes.items() if note == "diverged"}
    notes_of_short_windows = {note for (_, window), note in notes.items() if window < 64}
    assert diverged_windows == {64}
    assert notes_of_short_windows == {None}


def assert_says_diverged_without_a_number(text):
    assert "diverged" in text
    assert not re.search(r"\b(nan|inf|infinity)\b", text, re.IGNORECASE)


def test_a_loss_that_is_not_finite_is_no_number_in_the_table_after_training(diverged_past_32):
    assert_says_diverged_without_a_number(diverged_past_32.trained.out)


@pytest.mark.parametrize("output_format", ["table", "markdown", "csv", "latex", "json"])
def test_a_loss_that_is_not_finite_is_no_number_in_any_format(diverged_past_32, output_format):
    result = diverged_past_32.posenc("compare", "--format", output_format)
    assert_says_diverged_without_a_number(result.out)


def test_a_loss_that_is_not_finite_is_no_number_on_the_page(diverged_past_32):
    assert diverged_past_32.posenc("compare", "--html", "page.html").code == 0
    page = (diverged_past_32.folder / "page.html").read_text()
    page_without_code = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert_says_diverged_without_a_number(re.sub(r"<[^>]*>", " ", page_without_code))


# --- Memory that runs out
@pytest.fixture
def out_of_memory_past_32(train):
    """The result of a training after which the memory does not suffice for windows of 64 tokens."""

    def refuse(losses):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "forward", change_losses_beyond(32, refuse))
        result = train("encoding=rope")
    assert result.code == 0, result.err
    return result


def test_memory_that_runs_out_is_noted_at_its_length(out_of_memory_past_32, working_folder):
    notes = notes_of(working_folder / "runs")
    assert notes["fixed-target", 64].startswith("oom at 64 tokens, batch 1: ")
    assert notes["fixed-target", 32] is None


def test_memory_that_ran_out_is_told_in_the_table(out_of_memory_past_32, posenc):
    assert "oom" in out_of_memory_past_32.out
    assert "oom" in posenc("compare").out


def test_a_length_without_memory_is_measured_again(out_of_memory_past_32, posenc, working_folder):
    runs = working_folder / "runs"
    assert posenc("eval", f"run={only_run(runs)}").code == 0
    assert set(notes_of(runs).values()) == {None}


def test_memory_that_runs_out_in_training_says_what_to_make_smaller(train, working_folder, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(loop, "gradients", refuse)
    result = train("encoding=rope")
    status = read_json(only_run(working_folder / "runs") / "status.json")
    assert result.code == 1
    assert result.out == ""
    assert "train.batch_tokens" in result.err
    assert "out of memory after 0 steps" in status["reason"]
