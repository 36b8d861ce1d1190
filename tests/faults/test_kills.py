"""Killed, stopped or struck at any moment: the same command ends as if nothing had happened, bit for bit."""

import json
import signal
import time

import pytest
import tiny
from battery import LONG, SHORT, command, logged, statuses, wait_until, weights
from fake_runs import only_run


def test_kill_9_and_the_same_command(train, place, corpus):
    assert train(*LONG, "runs_dir=whole").code == 0
    victim = tiny.start(*command(corpus, *LONG), cwd=place)
    wait_until(lambda: [*(place / "runs").glob("default/*/checkpoints/step-*")], victim)
    victim.kill()
    victim.communicate()
    again = train(*LONG)
    assert again.code == 0 and "continuing at step" in again.err, again.err
    assert weights(place / "runs") == weights(place / "whole")
    lines = (only_run(place / "runs") / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len({line.partition(",")[0] for line in lines})


@pytest.mark.faults
@pytest.mark.parametrize("jobs", [1, 2])
def test_two_of_the_same_sweep_share_the_work(place, corpus, jobs):
    words = ("train", "-m", f"sweep.jobs={jobs}", *tiny.TINY, f"data.paths={corpus}", *SHORT, "seed=0,1,2")
    both = [tiny.start(*words, "train.tokens=32000", cwd=place) for _ in range(2)]
    first, second = (tiny.finished(process, 400) for process in both)
    assert first.code == second.code == 0, first.err + second.err
    assert first.out == second.out and "3 seeds" in first.out
    assert statuses(place / "runs") == ["finished"] * 3
    for path in place.glob("runs/default/*/metrics.jsonl"):
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert len(set(steps)) == len(steps)


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_that_is_stopped_goes_on_with_the_same_weights(place, corpus, jobs, number):
    words = ("train", "-m", f"sweep.jobs={jobs}", *tiny.TINY, f"data.paths={corpus}", *SHORT, "seed=0,1,2")
    words = (*words, "train.tokens=64000", "train.checkpoint_seconds=0.2")
    assert tiny.spawn(*words, "runs_dir=whole", cwd=place).code == 0
    victim = tiny.start(*words, cwd=place)
    wait_until(lambda: logged(place / "runs") > 2, victim)
    victim.send_signal(number)
    ended = tiny.finished(victim)
    assert ended.code == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[number], ended.err
    end = time.monotonic() + 30
    while "running" in statuses(place / "runs") and time.monotonic() < end:
        time.sleep(0.1)  # killed, it told its jobs nothing: they notice
    assert "interrupted" in statuses(place / "runs") and "running" not in statuses(place / "runs")
    again = tiny.spawn(*words, cwd=place)
    assert again.code == 0, again.err
    assert weights(place / "runs") == weights(place / "whole")
