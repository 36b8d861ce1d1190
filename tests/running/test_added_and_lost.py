"""What a later command finds: facts of the training kept, measurements of lost weights made anew."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from posenc.running import measure
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.training import checkpoint

Posenc = Callable[..., tiny.Result]


def facts_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())["run"]


def test_an_added_evaluation_leaves_the_facts_of_the_training(train: Posenc, run_copy: Path) -> None:
    """Another process measured; it trained nothing, whatever its own memory and machine are."""
    place = run_copy / "results.json"
    before = facts_of(run_copy)
    text = place.read_text().replace(str(before["peak_memory_bytes"]), "123456789")
    place.write_text(text)
    assert train("encoding=rope", "eval.lengths=[0.5x,1x,2x,3x]").code == 0
    assert facts_of(run_copy) == {**before, "peak_memory_bytes": 123456789}
    assert '"window": 48' in place.read_text()


def test_facts_that_only_the_training_knew_are_not_made_up(train: Posenc, run_copy: Path) -> None:
    (run_copy / "results.json").unlink()  # as after a kill before it was put together
    (run_copy / "status.json").write_text('{"status": "running"}')
    assert train("encoding=rope").code == 0
    assert facts_of(run_copy)["peak_memory_bytes"] is None


def test_numbers_of_weights_that_are_gone_are_measured_anew(train: Posenc, run_copy: Path) -> None:
    (path,) = (run_copy / "records").glob("fixed-target-W32-*")
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "nats": 9.0}))
    shutil.rmtree(run_copy / "checkpoints")
    assert train("encoding=rope", "eval.lengths=[0.5x,1x,2x,4x]").code == 0
    assert json.loads(path.read_text())["nats"] == pytest.approx(stored["nats"], abs=1e-4)
    assert len(list((run_copy / "checkpoints").iterdir())) == 1


def test_the_text_may_change_while_a_run_trains(
    train: Posenc, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that the reference is made of are kept before; a change shows in the next command."""
    texts = shutil.copytree(corpus, place / "texts")
    whole = measure.evaluate

    def changed(*args: Any, **more: Any) -> Any:
        with (texts / "000.txt").open("a") as file:
            file.write("one more line\n")
        return whole(*args, **more)

    monkeypatch.setattr(measure, "evaluate", changed)
    result = train("encoding=nope", f"data.paths={texts}", "tokenizer=bpe", "tokenizer.vocab_size=300")
    assert result.code == 0, result.err
    (run,) = (place / "runs" / "default").iterdir()
    assert any(path.name.startswith("trigram") for path in (run / "records").iterdir())


def test_an_evaluation_beside_its_training_leaves_the_tracker_alone(
    posenc: Posenc, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenc.running.eval_run.is_held", lambda directory, name: name == "run")
    asked = ["eval", f"run={run_copy}", "tracking=tensorboard"]
    result = posenc(*asked)
    assert result.code == 0 and "its own process tells the tracker" in result.err, result
    assert not list(run_copy.rglob("events.*"))
    monkeypatch.setattr("posenc.running.eval_run.is_held", lambda directory, name: False)
    assert posenc(*asked).code == 0
    assert list(run_copy.rglob("events.*"))


def test_checkpoints_that_are_replaced_while_they_are_read(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_copy / "checkpoints"
    (newer,) = folder.iterdir()
    aside, older = newer.rename(run_copy / newer.name), folder / "step-00000020"
    older.mkdir()
    whole = checkpoint.problem_of

    def slow(path: Path) -> str | None:
        if older.exists():  # a training saves, and clears the older one
            aside.rename(newer)
            older.rmdir()
        return whole(path)

    monkeypatch.setattr(checkpoint, "problem_of", slow)
    found = checkpoint.newest_checkpoint(folder)
    assert found is not None and found.path == newer


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_swallowed_is_not_lost() -> None:
    class Dying:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with StopFlag() as outer:
        dying = Dying()
        del dying
        assert outer.received == signal.SIGTERM
        with StopFlag() as inner:
            assert inner.received == signal.SIGTERM
            with pytest.raises(InterruptedRunError):
                inner.guard()
