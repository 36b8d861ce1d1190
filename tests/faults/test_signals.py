"""Signals in every phase of a command: one line, exit code 143 or 130, and nothing half done."""

import importlib
import os
import signal
import time

import pytest
from fake_runs import read_json

from posenc.core.first_signals import CODES
from posenc.running import evaluate as evaluating
from posenc.running.signals import ONE_WISH, InterruptedRunError, StopFlag, to_take_over


def send_signal_at(patch, function, number, *, call=1):
    """Have a signal come as `module:function` is called for the n-th time; return the list of its calls."""
    module_name, name = function.split(":")
    module = importlib.import_module(module_name)
    real = getattr(module, name)
    calls = []

    def struck(*arguments, **keywords):
        if len(calls) == call - 1:
            os.kill(os.getpid(), number)
        calls.append(name)  # not reached by the call that the signal interrupts
        return real(*arguments, **keywords)

    patch.setattr(module, name, struck)
    return calls


# --- Commands
@pytest.mark.faults
@pytest.mark.parametrize(
    ("function", "number", "options"),
    [
        pytest.param("posenc.config.compose:compose_jobs", signal.SIGTERM, [], id="composing"),
        pytest.param("posenc.data.sources:read_documents", signal.SIGINT, [], id="reading texts"),
        pytest.param("posenc.cli.dry_run:estimate", signal.SIGTERM, ["--dry-run"], id="dry run"),
    ],
)
def test_before_anything_is_saved_a_signal_ends_the_command(
    train, working_folder, monkeypatch, function, number, options
):
    send_signal_at(monkeypatch, function, number)
    monkeypatch.setenv("POSENC_CACHE", str(working_folder / "cache"))
    result = train("encoding=rope", *options)
    assert result.code == CODES[number]
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert f"{number.name}: stopped" in result.err
    assert "same command" in result.err
    assert not (working_folder / "runs").exists()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("function", "call", "options"),
    [
        # The first step may compile for a minute.
        pytest.param("posenc.training.loop:autocast", 1, [], id="first step"),
        pytest.param("posenc.evaluation.passes:forward", 3, ["eval.batch_tokens=64"], id="third batch"),
    ],
)
def test_a_long_call_is_not_waited_for(train, function, call, options):
    with pytest.MonkeyPatch.context() as patch:
        calls = send_signal_at(patch, function, signal.SIGTERM, call=call)
        stopped = train("encoding=rope", *options)
    assert stopped.code == 143
    assert stopped.err.count("same command continues") == 1
    assert len(calls) == call - 1
    assert train("encoding=rope", *options).code == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143), (signal.SIGHUP, 143)],
)
def test_a_signal_during_evaluation_keeps_the_finished_lengths(train, run_copy, monkeypatch, number, code):
    for path in [*(run_copy / "records").iterdir(), run_copy / "results.json", run_copy / "status.json"]:
        path.unlink()
    real_evaluate = evaluating.evaluate
    windows = []

    def interrupted_evaluate(*arguments, on_cell, **keywords):
        def store(record, was_there):
            on_cell(record, was_there)
            windows.append(record["window"])
            if len(windows) == 2:
                signal.raise_signal(number)

        return real_evaluate(*arguments, on_cell=store, **keywords)

    monkeypatch.setattr(evaluating, "evaluate", interrupted_evaluate)
    result = train("encoding=rope")
    assert result.code == code
    assert result.out == ""
    assert "continues" in result.err
    assert windows == [16, 32]
    assert len(list((run_copy / "records").iterdir())) == 2
    assert read_json(run_copy / "status.json")["status"] == "interrupted"


def test_a_finished_run_stays_finished_when_more_lengths_are_interrupted(train, run_copy, monkeypatch):
    names = ("config.yaml", "results.json")
    contents = [(run_copy / name).read_bytes() for name in names]

    def interrupted_evaluate(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(evaluating, "evaluate", interrupted_evaluate)
    result = train("encoding=rope", "eval.lengths=[0.5x,1x,2x,3x]")
    assert result.code == 143, result.err
    assert result.out == ""
    assert read_json(run_copy / "status.json")["status"] == "finished"
    assert [(run_copy / name).read_bytes() for name in names] == contents


# --- The stop flag
@pytest.fixture
def clock(monkeypatch):
    """The time that the stop flag sees, as the only element of a list."""
    seconds = [100.0]
    monkeypatch.setattr("posenc.running.signals.time.monotonic", lambda: seconds[0])
    return seconds


def test_two_signals_at_once_interrupt_once(clock):
    """A sweep passes on what its jobs got already: the second signal must not strike what cleans up."""
    with StopFlag() as stop:
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.name == "SIGINT"


def test_a_later_signal_interrupts_again(clock):
    with StopFlag() as stop:
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGINT)
        clock[0] += 2 * ONE_WISH
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGTERM)
    assert stop.name == "SIGINT"


def test_while_something_is_saved_a_signal_is_noted_until_the_next_check():
    with StopFlag() as stop:
        stop.guard()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(InterruptedRunError):
            stop.check()


def test_where_a_call_may_be_interrupted_at_once_a_signal_does():
    with StopFlag() as stop:
        stop.guard()
        with pytest.raises(InterruptedRunError), stop.at_once():
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_call_does_not_begin_after_a_signal_that_was_noted():
    with StopFlag() as stop:
        stop.guard()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(InterruptedRunError), stop.at_once():
            raise AssertionError("the call began")


class RaisesSignalWhenDeleted:
    """Python swallows an exception in `__del__`, and with it what a signal's handler raises there."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_swallowed_is_not_lost():
    with StopFlag() as outer:
        dying = RaisesSignalWhenDeleted()
        del dying
        assert outer.received == signal.SIGTERM
        with StopFlag() as inner:
            assert inner.received == signal.SIGTERM
            with pytest.raises(InterruptedRunError):
                inner.guard()


# --- Hangups
@pytest.fixture
def set_hangup():
    """Return a function that sets what a hangup does; put back afterwards."""
    if not hasattr(signal, "SIGHUP"):
        pytest.skip("no hangups there")
    handler_before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, handler_before)


def test_a_hangup_that_nohup_has_switched_off_stays_so(set_hangup):
    set_hangup(signal.SIG_IGN)
    assert signal.SIGHUP not in to_take_over()
    assert signal.SIGTERM in to_take_over()


def test_a_hangup_stops_as_other_signals_do(set_hangup):
    set_hangup(signal.SIG_DFL)
    with StopFlag() as stop:
        stop.guard()
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.requested()
        assert stop.name == "SIGHUP"
        assert stop.exit_code == 143
