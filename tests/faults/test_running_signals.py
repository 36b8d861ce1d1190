"""A signal outside training: one line, 143 or 130, nothing half done; the same command goes on."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from posenc.running.signals import CODES, ONE_WISH, InterruptedRunError, StopFlag

Posenc = Callable[..., tiny.Result]


def striking(number: signal.Signals, real: Callable[..., Any], at: int = 1) -> Callable[..., Any]:
    """The function, and at its `at`-th call first the signal to this very process."""
    calls = []

    def struck(*given: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == at:
            os.kill(os.getpid(), number)
        return real(*given, **named)

    return struck


@pytest.mark.parametrize("number", list(CODES))
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("posenc.config.compose:compose_jobs", ("train", "encoding=rope")),
        ("posenc.data.facts:read_documents", ("train", "encoding=rope")),
        ("posenc.cli.dry_run:estimate", ("train", "encoding=rope", "--dry-run")),
    ],
)
def test_before_there_is_anything_to_save_a_signal_ends_the_command(
    posenc: Posenc,
    corpus: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    where: str,
    words: tuple[str, ...],
) -> None:
    import importlib

    module, _, name = where.partition(":")
    owner = importlib.import_module(module)
    if where.startswith("posenc.config.compose"):
        owner = importlib.import_module("posenc.running.command")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, striking(number, getattr(owner, name)))
        patch.setenv("POSENC_CACHE", str(place / "cache"))
        result = posenc(*words, *tiny.TINY, f"data.paths={corpus}")
    assert (result.code, result.out) == (CODES[number], "")
    assert result.err.count("\n") == 1 and f"{number.name}: stopped" in result.err
    assert "same command" in result.err and not (place / "runs").exists()


def test_in_the_first_step_which_may_compile_for_a_minute_nothing_is_waited_for(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posenc.training import loop

    real, done = loop.gradients, []

    def slow(*given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("a step")
        return real(*given, **named)

    monkeypatch.setattr(loop, "gradients", slow)
    result = train("encoding=rope")
    assert (result.code, done) == (143, []) and "same command continues" in result.err
    monkeypatch.setattr(loop, "gradients", real)
    assert train("encoding=rope").code == 0


def test_in_the_middle_of_a_pass_of_an_evaluation_nothing_is_waited_for(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posenc.evaluation import forward_cache

    real, done = forward_cache.token_losses, []

    def slow(*given: Any) -> Any:
        if len(done) == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        done.append("a pass")
        return real(*given)

    monkeypatch.setattr(forward_cache, "token_losses", slow)
    result = train("encoding=rope", "eval.batch_tokens=64")
    assert (result.code, len(done)) == (143, 2)
    assert result.err.count("same command continues") == 1
    monkeypatch.setattr(forward_cache, "token_losses", real)
    assert train("encoding=rope", "eval.batch_tokens=64").code == 0


def test_what_it_strikes_does_not_keep_the_wish() -> None:
    """A library that catches every Exception around its own work, as compilers do."""
    with StopFlag() as stop, pytest.raises(InterruptedRunError):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:
            raise AssertionError("kept") from None
    assert (stop.name, stop.exit_code) == ("SIGTERM", 143)


def test_the_same_wish_by_two_ways_strikes_once_and_a_later_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_guarded_is_guarded_again_after_a_part_that_stops_at_once() -> None:
    with StopFlag() as stop:
        stop.guard()
        with pytest.raises(InterruptedRunError), stop.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # while it is written down: only noted
        with pytest.raises(InterruptedRunError):
            stop.check()
        with pytest.raises(InterruptedRunError), stop.at_once():
            raise AssertionError("what was asked before counts")


def test_every_place_that_a_signal_is_to_strike_is_there() -> None:
    sys.path.insert(0, str(tiny.ROOT / "scripts"))
    from faults.signals import PHASES

    for phase in PHASES:
        if phase.where is not None:
            module, _, name = phase.where.partition(":")
            found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
            assert callable(found), phase.where
