"""Signals, one writer, and runs that end badly."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from posenc.core.errors import RunError
from posenc.running.run_lock import locked

Posenc = Callable[..., tiny.Result]
LONG = ("train.tokens=256000", "eval.lengths=[1x]", "eval.protocols=[fixed-target]")  # 2000 updates


def only_run(runs: Path) -> Path:
    (found,) = (runs / "default").iterdir()
    return found


def status_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "status.json").read_text())
    return found


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def lines_of(runs: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in runs.glob("default/*/metrics.jsonl"))


@pytest.mark.slow
def test_signals_stop_a_run_that_continues_to_the_same_weights(
    train: Posenc, place: Path, corpus: Path
) -> None:
    """SIGTERM, then SIGINT, then to the end; meanwhile a second process is turned away."""
    arguments = ["train", *tiny.TINY, f"data.paths={corpus}", *LONG]
    assert train(*LONG, "runs_dir=whole").code == 0
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        before = lines_of(place / "runs")
        process = tiny.start(*arguments, cwd=place)
        until(lambda: lines_of(place / "runs") > before + 2 or process.poll() is not None)  # noqa: B023
        if number == signal.SIGTERM:
            began = time.monotonic()
            second = train(*LONG)
            assert (second.code, second.out) == (1, "") and time.monotonic() - began < 30
            assert f"pid {process.pid}" in second.err and "another process" in second.err
        process.send_signal(number)
        process.send_signal(number)  # a second one does no harm
        result = tiny.finished(process)
        assert result.code == code, result.err
        assert "continues" in result.err and result.out == "" and "Traceback" not in result.err
        run = only_run(place / "runs")
        status = status_of(run)
        assert (status["status"], status["reason"]) == ("interrupted", number.name)
        step = max(int(path.name[5:]) for path in (run / "checkpoints").iterdir())
        assert 0 < step < 2000
    ended = train(*LONG)
    assert ended.code == 0, ended.err
    weights = "checkpoints/step-00002000/{}.safetensors"
    whole = only_run(place / "whole")
    for name in ("model", "optimizer"):
        path = weights.format(name)
        assert (run / path).read_bytes() == (whole / path).read_bytes()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(10, 2001, 10))
    ours, theirs = (json.loads((r / "results.json").read_text())["records"] for r in (run, whole))
    assert [{**r, "seconds": 0} for r in ours] == [{**r, "seconds": 0} for r in theirs]
    assert status_of(run)["status"] == "finished"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143), (signal.SIGHUP, 143)],
)
def test_a_signal_during_evaluation_keeps_the_finished_cells(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    from posenc.evaluation import forward_cache

    forward, made = forward_cache._forward, []

    def interrupted(*args: Any) -> Any:
        made.append(args[1].shape[1] - 1)
        if args[1].shape[1] - 1 == 64 and made.count(64) == 1:
            os.kill(os.getpid(), number)
        return forward(*args)

    monkeypatch.setattr(forward_cache, "_forward", interrupted)
    result = train("encoding=rope", "eval.batch_tokens=64")
    assert (result.code, result.out) == (code, "")
    run = only_run(place / "runs")
    assert status_of(run)["status"] == "interrupted"
    assert {p.name.split("-step")[0] for p in (run / "records").iterdir()} == {
        *("fixed-target-W16", "fixed-target-W32"),
    }
    made.clear()
    monkeypatch.setattr(
        forward_cache, "_forward", lambda *args: (made.append(args[1].shape[1] - 1), forward(*args))[1]
    )
    assert train("encoding=rope", "eval.batch_tokens=64", "eval.protocols=[fixed-target]").code == 0
    assert set(made) == {64}


@pytest.mark.parametrize(("stops", "code"), [(True, 143), (False, 1)])
def test_what_was_finished_stays_so_when_more_is_asked_of_it(
    train: Posenc, run_copy: Path, monkeypatch: pytest.MonkeyPatch, stops: bool, code: int
) -> None:
    from posenc.evaluation import forward_cache

    forward = forward_cache._forward
    kept = {name: (run_copy / name).read_bytes() for name in ("config.yaml", "results.json")}
    asked = ("encoding=rope", "eval.lengths=[0.5x,1x,2x,3x]")

    def ended(*args: Any) -> Any:
        if not stops:
            raise OSError("the disk is gone")
        os.kill(os.getpid(), signal.SIGTERM)
        return forward(*args)

    monkeypatch.setattr(forward_cache, "_forward", ended)
    result = train(*asked)
    assert (result.code, result.out) == (code, ""), result.err
    assert status_of(run_copy)["status"] == "finished"
    assert {name: (run_copy / name).read_bytes() for name in kept} == kept
    monkeypatch.setattr(forward_cache, "_forward", forward)
    assert train(*asked).code == 0  # only now the longer length is there
    assert (run_copy / "results.json").read_bytes() != kept["results.json"]


def test_a_held_directory_names_its_holder_at_once(train: Posenc, posenc: Posenc, run_copy: Path) -> None:
    (run_copy / "status.json").write_text('{"status": "interrupted", "pid": 1, "host": "elsewhere"}')
    before = {p: p.read_bytes() for p in run_copy.rglob("*") if p.is_file()}
    holder = f"pid {os.getpid()} on "
    with locked(run_copy):
        before |= {p: p.read_bytes() for p in run_copy.glob(".run.*")}
        began = time.monotonic()
        result = train("encoding=rope")
        assert time.monotonic() - began < 30  # it does not wait for the holder
        assert result.code == 1 and holder in result.err and str(run_copy.name) in result.err
        assert {p: p.read_bytes() for p in run_copy.rglob("*") if p.is_file()} == before
    with locked(run_copy, "evaluation"):
        result = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,8x]")
        assert result.code == 1 and holder in result.err
    assert train("encoding=rope").code == 0  # released


def test_a_lock_is_free_again_when_its_holder_is_killed(place: Path, corpus: Path, train: Posenc) -> None:
    process = tiny.start("train", *tiny.TINY, f"data.paths={corpus}", *LONG, cwd=place)
    until(lambda: lines_of(place / "runs") > 0)
    process.kill()
    tiny.finished(process)
    assert status_of(only_run(place / "runs"))["status"] == "running"
    with locked(only_run(place / "runs")):
        pass


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"), locked(tmp_path / "file" / "run"):
        pass


def test_a_run_that_diverged_says_so_and_is_final(train: Posenc, posenc: Posenc, place: Path) -> None:
    first = train("encoding=rope", "train.lr=1e12")
    assert (first.code, first.out) == (1, "")
    assert "diverged: non-finite loss at step 2" in first.err and "train.lr" in first.err
    run = only_run(place / "runs")
    status = status_of(run)
    assert (status["status"], status["reason"], status["step"]) == (
        "diverged",
        "non-finite loss at step 2",
        1,
    )
    assert not (run / "results.json").exists() and not (run / "checkpoints").exists()
    again = train("encoding=rope", "train.lr=1e12")
    assert again.code == 1 and "diverged before: non-finite loss at step 2" in again.err
    assert status_of(run) == status
    table = posenc("compare")
    assert "diverged" in table.out + table.err and "nan" not in table.out.lower()


BROKEN = """
from posenc.encodings.base import Encoding

class Broken(Encoding):
    name, paper, formula, acts_on, past_training = "broken", "none", "none", "nothing", "none"

    def embed(self, x, pos, layer):
        raise KeyError("boom [red]\\nsecond line")
"""


def test_a_plug_in_that_raises_fails_its_run_with_one_line(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "broken_plugin.py").write_text(BROKEN)
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "broken.yaml").write_text("name: broken\n")
    monkeypatch.syspath_prepend(str(place))
    arguments = ("encoding=broken", "plugins=[broken_plugin]", "--config-dir", str(place / "conf"))
    result = train(*arguments)
    assert (result.code, result.out) == (1, "")
    assert "boom [red]" in result.err and "Traceback" not in result.err and "--debug" in result.err
    run = only_run(place / "runs")
    assert status_of(run)["status"] == "failed" and "KeyError" in status_of(run)["reason"]
    log = (run / "log.txt").read_text()
    assert "Traceback" in log and "broken_plugin.py" in log
    with pytest.raises(KeyError):
        train("--debug", *arguments)


def test_a_damaged_checkpoint_is_named_on_stderr_and_in_the_log(train: Posenc, run_copy: Path) -> None:
    weights = run_copy / "checkpoints" / f"step-{tiny.STEPS:08d}" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (run_copy / "status.json").write_text('{"status": "running"}')
    result = train("encoding=rope")
    assert result.code == 1 and f"step-{tiny.STEPS:08d}" in result.err and "intact" in result.err
    assert status_of(run_copy)["status"] == "failed"
    assert "intact" in (run_copy / "log.txt").read_text()
