"""Numbers that are not finite and memory that runs out, in an evaluation and in training."""

import re

import pytest
import torch
from fake_runs import only_run, read_json

from posenc.evaluation import passes

pytestmark = pytest.mark.faults
PROTOCOLS = "eval.protocols=[fixed-target,sliding,nonoverlapping,positions]"


def notes(place):
    records = read_json(only_run(place / "runs") / "results.json")["records"]
    return {(r["protocol"], r["window"]): r["note"] for r in records}


def beyond(limit, do):
    """The forward pass, with something done to the losses of longer windows."""
    real = passes.forward

    def forward(*given):
        losses, best = real(*given)
        return do(losses) if len(given[2]) > limit else losses, best

    return forward


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_at_a_length_is_noted_there_and_is_no_number_anywhere(
    train, posenc, place, monkeypatch, value
):
    monkeypatch.setattr(passes, "forward", beyond(32, lambda losses: losses * float(value)))
    result = train("encoding=rope", PROTOCOLS)
    assert result.code == 0, result.err
    found = notes(place)
    assert {window for (_, window), note in found.items() if note == "diverged"} == {64}
    assert all(note is None for (_, window), note in found.items() if window < 64)
    shown = [result.out]
    for kind in ("table", "markdown", "csv", "latex", "json"):
        shown.append(posenc("compare", "--format", kind).out)
    assert posenc("compare", "--html", "page.html").code == 0
    page = re.sub(r"<(script|style).*?</\1>", "", (place / "page.html").read_text(), flags=re.DOTALL)
    for text in (*shown, re.sub(r"<[^>]*>", " ", page)):
        assert "diverged" in text and not re.search(r"\b(nan|inf|infinity)\b", text, re.IGNORECASE)


def test_memory_that_runs_out_at_a_length_is_noted_there_and_measured_again(
    train, posenc, place, monkeypatch
):
    def refuse(losses):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(passes, "forward", beyond(32, refuse))
        result = train("encoding=rope")
        assert result.code == 0 and "oom" in result.out, result.err
    assert str(notes(place)["fixed-target", 64]).startswith("oom at 64 tokens, batch 1: ")
    assert notes(place)["fixed-target", 32] is None
    assert "oom" in posenc("compare").out
    assert posenc("eval", f"run={only_run(place / 'runs')}").code == 0
    assert set(notes(place).values()) == {None}


def test_memory_that_runs_out_in_training_says_what_to_make_smaller(train, place, monkeypatch):
    from posenc.training import loop

    def refuse(*_, **__):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(loop, "gradients", refuse)
    result = train("encoding=rope")
    assert (result.code, result.out) == (1, "") and "train.batch_tokens" in result.err
    assert "out of memory in step 1" in read_json(only_run(place / "runs") / "status.json")["reason"]
