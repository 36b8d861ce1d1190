"""Signals in every phase, one writer, and runs that end badly: a line, 143 or 130, nothing half done."""

import errno
import importlib
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import tiny
from fake_runs import only_run, read_json, stamps

from posenc.core.console import progress_line, say
from posenc.running import evaluate as evaluating
from posenc.running.locks import is_held, locked
from posenc.running.report_error import report_error
from posenc.running.signals import CODES, ONE_WISH, InterruptedRunError, StopFlag, to_take_over


def strike(patch, module, name, number, at=1):
    """Have a signal come as a function is called for this time; returns the calls that began."""
    owner, done = importlib.import_module(module), []
    real = getattr(owner, name)

    def struck(*given, **named):
        if len(done) == at - 1:
            os.kill(os.getpid(), number)
        done.append(name)
        return real(*given, **named)

    patch.setattr(owner, name, struck)
    return done


@pytest.mark.faults
@pytest.mark.parametrize(
    ("module", "name", "number"),
    [
        ("posenc.config.compose", "compose_jobs", signal.SIGTERM),
        ("posenc.data.sources", "read_documents", signal.SIGINT),
        ("posenc.cli.dry_run", "estimate", signal.SIGTERM),
    ],
)
def test_before_anything_is_saved_a_signal_ends_the_command(train, place, monkeypatch, module, name, number):
    strike(monkeypatch, module, name, number)
    monkeypatch.setenv("POSENC_CACHE", str(place / "cache"))
    result = train("encoding=rope", *(["--dry-run"] if name == "estimate" else []))
    assert (result.code, result.out) == (CODES[number], "")
    assert result.err.count("\n") == 1 and f"{number.name}: stopped" in result.err
    assert "same command" in result.err and not (place / "runs").exists()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("module", "name", "calls", "more"),
    [
        ("posenc.training.loop", "autocast", 1, ()),  # the first step may compile for a minute
        ("posenc.evaluation.passes", "token_losses", 3, ("eval.batch_tokens=64",)),
    ],
)
def test_a_long_call_is_not_waited_for(train, monkeypatch, module, name, calls, more):
    with monkeypatch.context() as patch:
        done = strike(patch, module, name, signal.SIGTERM, calls)
        result = train("encoding=rope", *more)
    assert (result.code, len(done)) == (143, calls - 1)
    assert result.err.count("same command continues") == 1
    assert train("encoding=rope", *more).code == 0


def test_two_signals_at_once_interrupt_once_and_a_later_one_again(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("posenc.running.signals.time.monotonic", lambda: clock[0])
    with StopFlag() as stop:
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # passed on by a sweep: it must not strike what cleans up
        clock[0] += 2 * ONE_WISH
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGTERM)
    assert stop.name == "SIGINT"


def test_while_something_is_saved_a_signal_is_only_noted():
    with StopFlag() as stop:
        stop.guard()
        with pytest.raises(InterruptedRunError), stop.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(InterruptedRunError):
            stop.check()
        with pytest.raises(InterruptedRunError), stop.at_once():
            raise AssertionError("what was asked before counts")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_during_evaluation_keeps_the_finished_cells(train, run_copy, monkeypatch, name):
    for path in [*(run_copy / "records").iterdir(), run_copy / "results.json", run_copy / "status.json"]:
        path.unlink()
    evaluate, cells = evaluating.evaluate, []

    def interrupted(*args, on_cell, **more):
        def stored(record, was_there):
            on_cell(record, was_there)
            cells.append(record["window"])
            if len(cells) == 2:
                signal.raise_signal(getattr(signal, name))

        return evaluate(*args, on_cell=stored, **more)

    monkeypatch.setattr(evaluating, "evaluate", interrupted)
    result = train("encoding=rope")
    assert (result.code, result.out) == (130 if name == "SIGINT" else 143, "") and "continues" in result.err
    assert read_json(run_copy / "status.json")["status"] == "interrupted" and cells == [16, 32]
    assert len(list((run_copy / "records").iterdir())) == 2


def test_what_was_finished_stays_so_when_more_is_asked_of_it(train, run_copy, monkeypatch):
    kept = [(run_copy / name).read_bytes() for name in ("config.yaml", "results.json")]

    def ended(*args, **more):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(evaluating, "evaluate", ended)
    result = train("encoding=rope", "eval.lengths=[0.5x,1x,2x,3x]")
    assert (result.code, result.out) == (143, ""), result.err
    assert read_json(run_copy / "status.json")["status"] == "finished"
    assert [(run_copy / name).read_bytes() for name in ("config.yaml", "results.json")] == kept


def test_a_held_directory_names_its_holder_at_once(train, posenc, run_copy):
    (run_copy / "status.json").write_text('{"status": "interrupted", "pid": 1, "host": "elsewhere"}')
    holder = f"pid {os.getpid()} on "
    with locked(run_copy):
        before = stamps(run_copy)
        result = train("encoding=rope")
        assert result.code == 1 and holder in result.err and str(run_copy.name) in result.err
        assert stamps(run_copy) == before
        assert is_held(run_copy, "run") and not is_held(run_copy, "evaluation")
    with locked(run_copy, "evaluation"):
        result = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,8x]")
        assert result.code == 1 and holder in result.err
    assert not is_held(run_copy, "run") and train("encoding=rope").code == 0  # released


def test_a_run_that_diverged_says_so_and_is_final_without_retry(train, place):
    first = train("encoding=rope", "train.lr=1e12")
    assert (first.code, first.out) == (1, "")
    assert "diverged: non-finite loss at step 2" in first.err and "train.lr" in first.err
    run = only_run(place / "runs")
    status = read_json(run / "status.json")
    assert (status["status"], status["step"]) == ("diverged", 1)
    assert status["reason"] == "non-finite loss at step 2"
    assert not (run / "results.json").exists() and not (run / "checkpoints").exists()
    again = train("encoding=rope", "train.lr=1e12")
    assert again.code == 1 and "diverged before: non-finite loss at step 2" in again.err
    assert read_json(run / "status.json") == status
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)  # of an hour of training: forgotten
    retried = train("encoding=rope", "train.lr=1e12", "--retry")
    assert retried.code == 1 and "diverged: non-finite loss at step 2" in retried.err
    assert not (run / "checkpoints").exists()


def test_a_plug_in_that_raises_fails_its_run_with_one_line(train, place):
    boom = r'raise KeyError("boom [red]\nsecond line")'
    (place / "mine.py").write_text(tiny.PLUGIN.replace("return -self", f"{boom}\n        return -self"))
    arguments = ("encoding=./mine.py", "encoding.strength=1")
    result = train(*arguments)
    assert (result.code, result.out) == (1, "")
    assert "boom [red]" in result.err and "Traceback" not in result.err and "--debug" in result.err
    run = only_run(place / "runs")
    status, log = read_json(run / "status.json"), (run / "log.txt").read_text()
    assert status["status"] == "failed" and "KeyError" in status["reason"]
    assert "Traceback" in log and "mine.py" in log
    with pytest.raises(KeyError):
        train("--debug", *arguments)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_swallowed_is_not_lost():
    class Dying:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    with StopFlag() as outer:
        dying = Dying()
        del dying
        assert outer.received == signal.SIGTERM
        with StopFlag() as inner:
            assert inner.received == signal.SIGTERM
            with pytest.raises(InterruptedRunError):
                inner.guard()


def test_an_error_of_the_machine_is_no_fault_of_posenc(capsys):
    for error, said in (
        (MemoryError(), "error: not enough memory: MemoryError\n"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 12"), "not enough memory: Default"),
        (OSError(28, "No space left on device"), "cannot write the output: No space left"),
    ):
        assert report_error(error, StopFlag()) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [False, True])
def test_a_screen_that_is_gone_ends_no_training(monkeypatch, terminal):
    def raising(number):
        def fail(*_):
            raise OSError(number, os.strerror(number))

        return fail

    gone = SimpleNamespace(encoding="utf-8", write=raising(errno.EIO), flush=raising(errno.EPIPE))
    gone.isatty, gone.fileno = lambda: terminal, lambda: 99
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", gone)
    say("a line")
    with progress_line("training", 3) as progress:
        progress.begin(0)
        progress.update(3, "loss 1.2")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no hangups there")
def test_a_hangup_saves_unless_nohup_has_switched_it_off():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signal.SIGHUP not in to_take_over() and signal.SIGTERM in to_take_over()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with StopFlag() as stop:
            stop.guard()
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested() and (stop.name, stop.exit_code) == ("SIGHUP", 143)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_that_is_held_is_waited_for_when_asked(tmp_path, monkeypatch, capsys):
    taken = threading.Event()

    def hold():
        with locked(tmp_path):
            taken.set()
            time.sleep(1.5)  # longer than without the wish to wait

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    with locked(tmp_path, waits=True):
        holder.join(0.2)
        assert not holder.is_alive()
    assert "waiting for another process to finish" in capsys.readouterr().err
