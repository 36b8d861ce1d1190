"""A signal outside training: one line, 143 or 130, nothing half done; the same command goes on."""

import importlib
import os
import signal

import pytest

from posenc.running.signals import CODES, ONE_WISH, InterruptedRunError, StopFlag

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [
        ("posenc.config.compose", "compose_jobs", signal.SIGTERM),
        ("posenc.data.sources", "read_documents", signal.SIGINT),
        ("posenc.cli.dry_run", "estimate", signal.SIGTERM),
    ],
)
def test_before_there_is_anything_to_save_a_signal_ends_the_command(
    train, place, monkeypatch, module, name, number
):
    owner = importlib.import_module(module)
    real = getattr(owner, name)

    def struck(*given, **named):
        os.kill(os.getpid(), number)
        return real(*given, **named)

    monkeypatch.setattr(owner, name, struck)
    monkeypatch.setenv("POSENC_CACHE", str(place / "cache"))
    result = train("encoding=rope", *(["--dry-run"] if name == "estimate" else []))
    assert (result.code, result.out) == (CODES[number], "")
    assert result.err.count("\n") == 1 and f"{number.name}: stopped" in result.err
    assert "same command" in result.err and not (place / "runs").exists()


@pytest.mark.parametrize(
    ("module", "name", "calls", "more"),
    [
        ("posenc.training.loop", "autocast", 1, ()),  # the first step may compile for a minute
        ("posenc.evaluation.forward_cache", "token_losses", 3, ("eval.batch_tokens=64",)),
    ],
)
def test_a_long_call_is_not_waited_for(train, monkeypatch, module, name, calls, more):
    owner = importlib.import_module(module)
    real, done = getattr(owner, name), []

    def struck(*given, **named):
        if len(done) == calls - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        done.append("a call")
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, struck)
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
