"""Sweeps: a job's death is its own, nothing is done twice, two of the same share the work."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import STEPS, Ended, digests, finish, start
from faults.sweep_place import DEATHS, ODD_DEATHS, Sweeps
from faults.sweeps_shared import cases as shared_cases

GOOD = ("rope", "alibi", "nope", "learned", "sinusoidal", "t5", "kerple_log")
STOPPED = ("seed=0,1", "train.tokens=64000", "train.checkpoint_seconds=0.1")
TWO = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def _seen(text: str, problems: Sequence[str], tried: int = 1) -> Seen:
    return Seen(text, tried=tried, failed=min(tried, len(problems)), details=tuple(problems))


def _wrong(done: Ended, code: int) -> list[str]:
    return [] if done.code == code else [f"exit code {done.code}, not {code}: {done.err[-1500:]}"]


def _deaths(sweeps: Sweeps, good: Sequence[str], *words: str, runs: str = "runs") -> Seen:
    names = [name for pair in zip(DEATHS, good, strict=False) for name in pair]
    names += [name for name in (*DEATHS, *good) if name not in names]
    done = sweeps.run(f"encoding={','.join(names)}", *words, runs=runs)
    problems = _wrong(done, 1) + sweeps.unlisted(done, DEATHS, runs)
    finished = sweeps.states(runs).count("finished")
    if finished != len(good):
        problems.append(f"{finished} finished: {done.err[-1500:]}")
    if "Traceback" in done.err:
        problems.append("a traceback on stderr")
    listed = len(DEATHS) - sum(": not listed" in one for one in problems)
    text = (
        f"{finished} of {len(names)} finished, {listed} deaths listed with reason and log, exit {done.code}"
    )
    return _seen(text, problems, tried=len(names))


def _again(sweeps: Sweeps, good: Sequence[str]) -> Seen:
    """The command of `_deaths`: the failed ones die again, the diverged one is not begun."""
    finished = sweeps.finished()
    before = _written(finished)
    done = sweeps.run(f"encoding={','.join([*good, *DEATHS])}")
    problems = _wrong(done, 1) + sweeps.unlisted(done, DEATHS)
    repeated = len(re.findall(rf"training \d+/{STEPS}", done.err))
    if repeated or done.err.count(": already finished") != len(good):
        problems.append(f"finished ones were repeated: {done.err[-1500:]}")
    if "diverged before" not in done.err:
        problems.append("the diverged one was begun")
    if len(finished) != len(good) or not before or _written(finished) != before:
        problems.append("weights were written again")
    return _seen(f"finished ones repeated: {repeated}, exit {done.code}", problems, tried=len(good))


def _written(runs: Sequence[Path]) -> dict[tuple[Path, str], tuple[str, int]]:
    """sha256 and time of every file of weights of these runs."""
    return {
        (run, name): (digest, (run / name).stat().st_mtime_ns)
        for run in runs
        for name, digest in digests(run, "**/*.safetensors").items()
    }


def _complete(sweeps: Sweeps, good: Sequence[str]) -> Seen:
    done = sweeps.run(f"encoding={','.join(good)}")
    problems = _wrong(done, 0)
    if done.err.count(": already finished") != len(good) or "fixed-target: nats per token" not in done.out:
        problems.append(done.err[-1500:])
    return _seen(f"{len(good)} runs, no process, the table: {done.seconds:.1f} s, exit {done.code}", problems)


def _odd(sweeps: Sweeps) -> Seen:
    done = sweeps.run(f"encoding={','.join([*ODD_DEATHS, 'rope'])}", *TWO, runs="odd")
    problems = _wrong(done, 1) + sweeps.unlisted(done, ODD_DEATHS, "odd")
    if sweeps.states("odd").count("finished") != 1:
        problems.append(f"rope is not finished: {done.err[-1500:]}")
    if "\x1b" in done.err or "\x07" in done.err:
        problems.append("control characters on stderr")
    return _seen(f"{len(ODD_DEATHS) - len(problems)} listed, 1 finished", problems, tried=len(ODD_DEATHS))


def _two(sweeps: Sweeps, jobs: int, runs: str, *words: str) -> Seen:
    line = sweeps.words(f"seed=range({jobs})", "train.tokens=32000", *words, runs=runs)
    both = [start(sweeps.place, *line, env=sweeps.env) for _ in range(2)]
    first, second = (finish(process, 1200) for process in both)
    problems = _wrong(first, 0) + _wrong(second, 0)
    if first.out != second.out or "fixed-target: nats per token" not in first.out:
        problems.append(f"the tables differ:\n{first.out[:600]}\n{second.out[:600]}")
    steps = [
        [line.partition(",")[0] for line in path.read_text().splitlines()]
        for path in (sweeps.place / runs).glob("default/*/metrics.jsonl")
    ]
    if len(steps) != jobs or any(len(set(one)) != len(one) for one in steps):
        problems.append(f"steps were logged twice: {steps}")
    trained = sum(len(re.findall(r"training 250/250", done.err)) for done in (first, second))
    if trained != jobs:
        problems.append(
            f"{trained} trainings to the end of {jobs} runs: {first.err[-900:]}{second.err[-900:]}"
        )
    shares = [done.err.count("training 250/250") for done in (first, second)]
    return _seen(f"exit {first.code} and {second.code}, one table, {shares[0]} + {shares[1]} runs", problems)


def _duplicates(sweeps: Sweeps) -> Seen:
    spelled = sweeps.run("seed=0", "train.tokens=1280,1.28e3,1.28e+3", "train.lr=2e-3,0.002", runs="same")
    logged = sweeps.run("seed=1", "train.log_every=5,10", "device=cpu", runs="same")
    problems = _wrong(spelled, 0) + _wrong(logged, 0)
    if "[1/1]" not in spelled.err or len(sweeps.states("same")) != 2:
        problems.append(f"spelled differently: {spelled.err[-900:]}")
    if (
        "the same run as" not in logged.err
        or "train.log_every" not in logged.err
        or "[1/1]" not in logged.err
    ):
        problems.append(f"log_every: {logged.err[-900:]}")
    return _seen("8 grid points, 2 runs; the one left out is named", problems, tried=2)


def _fail_fast(sweeps: Sweeps) -> Seen:
    ordinary = sweeps.run("encoding=rope", "seed=0", runs="fast")
    one = sweeps.run("encoding=raises,rope,alibi,nope", "sweep.fail_fast=true", runs="fast")
    problems = _wrong(ordinary, 0) + _wrong(one, 1)
    for name in ("alibi", "nope"):
        if not re.search(rf"\] {name}: not started", one.err):
            problems.append(f"{name} is not listed as not started: {one.err[-900:]}")
    if "rope: already finished" not in one.err:
        problems.append(f"the setting changed the hash: {one.err[-900:]}")
    long = ("train.tokens=1e7", "train.checkpoint_seconds=1")
    two = sweeps.run("encoding=rope,raises,nope", "sweep.fail_fast=true", *long, *TWO, runs="fast2")
    problems += _wrong(two, 1)
    if sweeps.states("fast2") != ["failed", "interrupted"] or "rope: interrupted" not in two.err:
        problems.append(f"the one that ran: {sweeps.states('fast2')} {two.err[-900:]}")
    return _seen("the rest not started; what ran was saved and stopped", problems, tried=2)


def _bad_third(sweeps: Sweeps) -> Seen:
    done = sweeps.run("seed=0,1,-3,4,5", runs="bad")
    problems = _wrong(done, 2)
    if "job 3 of 5" not in done.err or (sweeps.place / "bad").exists():
        problems.append(f"{done.err[-900:]}")
    return _seen(f"exit {done.code} in {done.seconds:.1f} s, nothing written", problems)


def _stopped(sweeps: Sweeps, how: signal.Signals, *words: str) -> Seen:
    """Stopped in the first job's training, then given again: the weights of a sweep left alone."""
    runs = f"stopped-{how.name}-{len(words)}"
    line = (*STOPPED, *words)
    process = start(sweeps.place, *sweeps.words(*line, runs=runs), env=sweeps.env)
    end = time.monotonic() + 300
    while not list((sweeps.place / runs).glob("default/*/checkpoints/step-*")) and time.monotonic() < end:
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(how)
    done = finish(process)
    seconds = time.monotonic() - began
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    problems = _wrong(done, expected)
    again = sweeps.run(*line, runs=runs)
    problems += _wrong(again, 0)
    ours = set(sweeps.weights(runs).values())
    if ours != set(sweeps.weights("whole").values()):
        problems.append(f"other weights than those of a sweep left alone: {again.err[-900:]}")
    return _seen(f"ended in {seconds:.1f} s with {done.code}; then finished, the same weights", problems)


def _retry(sweeps: Sweeps) -> Seen:
    first = sweeps.run("encoding=explodes", "seed=0,1", runs="retry")
    (sweeps.place / "mended").touch()  # what made it diverge is no part of the run
    try:
        second = sweeps.run("encoding=explodes", "seed=0,1", runs="retry")
        third = sweeps.run("encoding=explodes", "seed=0,1", "--retry", runs="retry")
    finally:
        (sweeps.place / "mended").unlink()
    problems = _wrong(first, 1) + _wrong(second, 1) + _wrong(third, 0)
    if "--retry" not in second.err or second.err.count("diverged before") != 2:
        problems.append(f"without it: {second.err[-900:]}")
    if sweeps.states("retry") != ["finished", "finished"]:
        problems.append(f"with it: {third.err[-900:]}")
    return _seen(f"exit {first.code}, {second.code}, with --retry {third.code}", problems, tried=2)


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Of the long ones fewer jobs when `quick`."""
    sweeps = Sweeps(place)
    good = GOOD[:2] if quick else GOOD
    many = len(good) + len(DEATHS)
    yield Case(
        f"{many} jobs, 5 different deaths",
        f"{len(good)} finished, all 5 listed with reason and log, exit 1",
        lambda: _deaths(sweeps, good),
    )
    yield Case("the same again", "no finished run repeated", lambda: _again(sweeps, good))
    yield Case("complete, again", "no process, seconds, exit 0", lambda: _complete(sweeps, good))
    if not quick:
        yield Case(
            f"{many} jobs, 5 deaths, two at once",
            f"{len(good)} finished, all 5 listed",
            lambda: _deaths(sweeps, good, *TWO, runs="two"),
        )
    yield Case(
        "no memory; killed before a word; garbage on stderr, then exit code 0",
        "each listed with reason and log",
        lambda: _odd(sweeps),
    )
    yield Case(
        "two identical sweeps at once",
        "they share the work, both exit 0, one table",
        lambda: _two(sweeps, 2 if quick else 4, "shared"),
    )
    if not quick:
        yield Case(
            "two identical sweeps at once, joblib",
            "they share the work, both exit 0, one table",
            lambda: _two(sweeps, 4, "shared2", *TWO),
        )
    yield from shared_cases(sweeps, quick)
    yield Case("duplicate grid points", "each run once, what is left out named", lambda: _duplicates(sweeps))
    yield Case("sweep.fail_fast=true", "the rest not started, what runs saved", lambda: _fail_fast(sweeps))
    yield Case("a wrong value in job 3 of 5", "exit 2, nothing begun", lambda: _bad_third(sweeps))
    yield Case("--retry after a divergence", "final without it, trained with it", lambda: _retry(sweeps))
    kinds = (signal.SIGTERM,) if quick else (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
    sweeps.run(*STOPPED, runs="whole")
    for how in kinds:
        yield Case(
            f"{how.name} to the sweep, then again",
            "the weights of a sweep left alone",
            lambda how=how: _stopped(sweeps, how),
        )
        if not quick:
            yield Case(
                f"{how.name} to the sweep, two at once, then again",
                "the weights of a sweep left alone",
                lambda how=how: _stopped(sweeps, how, *TWO),
            )


FAMILY = Family("sweeps", cases)
