"""A sweep while it runs: the time left, the table of finished cells, on a terminal and on a pipe."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from pathlib import Path

import pytest
import tiny
from rich.console import Console

from posenc.config.compose import ComposedJob
from posenc.core.console import clock, shown
from posenc.report.live import LARGEST, VARIABLE, Row, SweepState, finished_line, seconds_left, sweep_table
from posenc.running.sweep_state import Sweep, labels_of

sys.path.append(str(Path(__file__).resolve().parent.parent / "cli"))
from pseudo_terminal import Terminal

RUN = ("eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]", "train.log_every=1")


def drawn(state: SweepState, width: int = 80, rows: int = 10) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(sweep_table(state, width, rows))
    return [line.split() for line in capture.get().splitlines()]


def test_time_left_is_unknown_then_a_bound_then_from_the_finished_jobs() -> None:
    state = SweepState(number=1, total=3, label="a", remaining=2, began=100.0)
    assert seconds_left([(30.0, None)], 2, 1, []) is None and state.left(None) == ""
    # 30 s in, 10 s of training left: 10 + two more jobs of 40
    assert seconds_left([(30.0, 10.0)], 2, 1, []) == (90.0, True)
    assert state.left(10.0, now=130.0) == "at least 1:30 left"
    assert seconds_left([(30.0, 5.0)], 1, 1, [40.0, 60.0]) == (20.0 + 50.0, False)
    assert seconds_left([(30.0, 45.0)], 1, 1, [40.0, 60.0]) == (45.0 + 50.0, False)  # slower than before
    later = SweepState(number=2, total=3, label="b", seconds=[40.0, 60.0], remaining=1, began=100.0)
    assert later.left(None, now=500.0) == "0:50 left"


def test_time_left_with_several_at_once() -> None:
    """Jobs of 50 s, three to come: one begins where the first ends, and so on; what ends last counts."""
    finished = [40.0, 60.0]
    # 10 and 40 s left: 10 -> 60 -> 110, 40 -> 90
    assert seconds_left([(40.0, 3.0), (10.0, None)], 3, 2, finished) == (110.0, False)
    assert seconds_left([(40.0, 3.0)], 0, 2, finished) == (10.0, False)  # a place that is free is no job
    assert seconds_left([(40.0, 3.0)], 1, 3, finished) == (50.0, False)  # it begins there at once
    # nothing finished: 40 s in all by the one that says so, 30 s of it for the other
    assert seconds_left([(30.0, 10.0), (10.0, None)], 0, 2, []) == (30.0, True)
    assert seconds_left([(60.0, None), (30.0, 10.0)], 1, 2, []) == (40.0, True)
    assert seconds_left([], 0, 2, finished) == (0.0, False)


def test_a_row_runs_until_its_last_job_has_ended(place: Path) -> None:
    jobs = [ComposedJob([f"seed={i}"], {"encoding": {"name": "plain"}}) for i in range(3)]
    places = [place / str(i) for i in range(3)]
    sweep = Sweep(jobs, places, {})
    for folder in places[:2]:
        folder.mkdir()
    (places[1] / "metrics.jsonl").write_text('{"step": 1, "tokens": 500}\n')
    sweep.begin(0, 2)
    sweep.begin(1, 1)
    sweep.pace(1, 100.0)
    sweep.pace(2, 1.0)  # a line that comes after its job has ended, or before, is nobody's
    assert (sweep.left(0, 2), sweep.left(1, 2)) == ("at least 1:40 left", "at least 3:20 left")
    (places[0] / "metrics.jsonl").write_text('{"step": 1, "tokens": 1000}\n')
    assert sweep.end(0, 1) == {} and sweep.rows["plain"].state == "..." and sweep.over == 1
    with (places[1] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "tokens": 800}\n')
    sweep.end(1, -9)
    assert sweep.rows["plain"].state == "failed" and (sweep.over, sweep.seconds) == (2, [])
    assert sweep.trained == 1000 + 300  # what a run had before is not counted again


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 65, 3600, 36065)] == ["0:00", "1:00", "1:05", "1:00:00", "10:01:05"]


def test_a_job_is_told_through_the_environment_and_nothing_odd_ends_it() -> None:
    state = SweepState(2, 5, "[red]x", [1.0], 3, 9.0, [Row("[red]x", 2, 1, "", {"1x": [1.5]})], ["1x"])
    told = state.to_environment()
    assert SweepState.from_environment(told) == state
    for odd in ({}, {VARIABLE: ""}, {VARIABLE: "[]"}, {VARIABLE: '{"number": 1}'}, {VARIABLE: '{"rows": 3}'}):
        assert SweepState.from_environment(odd) is None
    rows = [Row(f"label {i}" * 20, 1, 1, "", {"1x": [1.0]}) for i in range(2000)]
    long = SweepState(1, 2000, "x", [], 1999, 0.0, rows, ["1x"]).to_environment()
    assert len(long[VARIABLE]) < LARGEST
    kept = SweepState.from_environment(long)
    assert kept is not None and kept.rows == [] and kept.total == 2000


def test_cells_fill_up_row_by_row() -> None:
    rows = [
        Row("first", 2, 2, "", {"1x": [1.0, 1.2], "8x": [2.0, 3.0]}),
        Row("[bold]\x1b[31msecond", 2, 0, "..."),
        Row("third", 2, 0, "failed"),
        Row("fourth", 2),
    ]
    lines = drawn(SweepState(4, 8, "", rows=rows, columns=["1x", "8x"]))
    assert lines[0] == ["nats", "per", "token", "runs", "1x", "8x"]
    assert lines[1] == ["first", "2/2", "1.100", "2.500"]
    assert lines[2] == ["[bold]\\x1b[31msecond", "0/2", "..."]
    assert lines[3] == ["third", "0/2", "failed"] and lines[4] == ["fourth", "0/2", "-"]
    few = drawn(SweepState(4, 8, "", rows=rows, columns=["1x", "8x"]), rows=2)
    assert [line[0] for line in few[1:]] == ["[bold]\\x1b[31msecond", "third"]


def test_rows_are_what_the_jobs_differ_in() -> None:
    def job(*overrides: str) -> ComposedJob:
        return ComposedJob(list(overrides), {"encoding": {"name": "plain"}})

    jobs = [job(f"encoding={e}", "experiment=smoke", f"seed={s}") for e in ("a", "b") for s in (0, 1)]
    assert labels_of(jobs) == ["a", "a", "b", "b"]
    assert labels_of(jobs, but=()) == ["a seed=0", "a seed=1", "b seed=0", "b seed=1"]
    assert labels_of([job("seed=0"), job("seed=1")]) == ["plain", "plain"]
    assert labels_of([job("encoding=a", "train.lr=1"), job("encoding=a", "train.lr=2")]) == [
        *("train.lr=1", "train.lr=2"),
    ]
    measured = [ComposedJob(["run=x/one", f"extend={e}"], {"run": "x/one"}) for e in ("pi", "yarn")]
    assert labels_of(measured) == ["extend=pi", "extend=yarn"]


def test_losses_are_those_of_the_job_itself(run_copy: Path) -> None:
    jobs = [ComposedJob([f"seed={i}"], {"encoding": {"name": "rope"}}) for i in (0, 1)]
    sweep = Sweep(jobs, [run_copy, run_copy.parent / "nothing"], {})
    state = sweep.begin(0, 1)
    assert (state.number, state.total, state.remaining) == (1, 2, 1)
    results = json.loads((run_copy / "results.json").read_text())["records"]
    losses = {f"{r['multiple']:g}x": r["nats"] for r in results if r["protocol"] == "fixed-target"}
    assert sweep.end(0, 0) == losses and len(sweep.seconds) == 1
    assert sweep.begin(1, 0).columns == ["1x", "2x", "4x"]
    assert sweep.end(1, 1) == {} and len(sweep.seconds) == 1
    assert sweep.rows["rope"].state == "failed" and sweep.rows["rope"].done == 1
    assert finished_line({"1x": 1.0, "2x": 2.5}, 65) == "1x 1.000, 2x 2.500 nats per token; 1:05"


def test_lines_without_a_sweep_say_nothing_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("training", 4) as bar:
        bar.begin(0)
        bar.update(4, "loss 1.0")
    assert capsys.readouterr().err == "training 4/4  loss 1.0  0:00 left\n"


@pytest.mark.slow
def test_a_terminal_shows_the_table_and_the_whole_below_the_bar(place: Path, corpus: Path) -> None:
    arguments = ["train", "-m", *tiny.TINY, f"data.paths={corpus}", *RUN, "encoding=rope,alibi"]
    command = [sys.executable, "-m", "posenc", *arguments, "train.tokens=25600"]
    terminal = Terminal(command, place, tiny.environment(POSENC_CACHE=str(place / "cache")), columns=90)
    try:
        assert terminal.wait(300) == 0, terminal.seen
    finally:
        terminal.close()
    seen = terminal.seen
    assert re.search(r"sweep +\S+ +0/2", seen) and re.search(r"sweep +\S+ +1/2", seen)
    assert re.search(r"nats per token +1x +2x", seen) and re.search(r"rope +\d\.\d{3} +\d\.\d{3}", seen)
    assert re.search(r"alibi +(-|\.\.\.)", seen)
    assert "at least" in seen


@pytest.mark.slow
def test_a_signal_still_ends_the_sweep(place: Path, corpus: Path) -> None:
    arguments = ["train", "-m", *tiny.TINY, f"data.paths={corpus}", *RUN, "train.tokens=96000", "seed=0,1,2"]
    process = tiny.start(*arguments, cwd=place)
    while process.poll() is None and not list(place.glob("runs/*/*/metrics.jsonl")):
        pass
    process.send_signal(signal.SIGTERM)
    result = tiny.finished(process, 600)
    assert result.code == 143 and len(list(place.glob("runs/*/*/status.json"))) == 1, result.err
    assert "nats per token;" not in result.err  # nothing finished
