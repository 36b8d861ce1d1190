"""How long a sweep still takes: by estimates, and by the speed that its runs write down."""

import json
import os
import time

import pytest

from posenc.running.sweep.time_left import START_SECONDS, EstimatedTask, SweepEstimate

TOKENS = 1000


@pytest.fixture
def tasks(tmp_path):
    """Three trainings of 100 s each, with evaluations of 20 s."""
    estimates = {}
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        estimates[name] = EstimatedTask(tmp_path / name, TOKENS, 100.0, 20.0)
    return estimates


def write_speed(task, tokens, tokens_per_second, seconds_ago=0.0):
    """Write a line to the metrics of a run, as its training does."""
    file = task.directory / "metrics.jsonl"
    file.write_text(json.dumps({"tokens": tokens, "tokens_per_second": tokens_per_second}) + "\n")
    written_at = time.time() - seconds_ago
    os.utime(file, (written_at, written_at))


def test_before_anything_runs_the_estimates_are_what_is_left(tasks):
    assert SweepEstimate(tasks, at_once=1).seconds_left({}, []) == pytest.approx(3 * (START_SECONDS + 120))


def test_several_at_once_take_as_long_as_the_last_one(tasks):
    assert SweepEstimate(tasks, at_once=2).seconds_left({}, []) == pytest.approx(2 * (START_SECONDS + 120))


def test_a_slow_machine_is_slow_for_the_jobs_that_wait_too(tasks):
    write_speed(tasks["first"], tokens=500, tokens_per_second=5)  # half of the estimated speed
    left = SweepEstimate(tasks, at_once=1).seconds_left({"first": 100.0}, [])
    left_of_first = 500 / 5 + 2 * 20
    assert left == pytest.approx(left_of_first + 2 * 2 * (START_SECONDS + 120), abs=1)


def test_while_a_run_is_evaluated_the_time_goes_on(tasks):
    write_speed(tasks["first"], tokens=TOKENS, tokens_per_second=10, seconds_ago=15)
    left = SweepEstimate({"first": tasks["first"]}, at_once=1).seconds_left({"first": 115.0}, [])
    assert left == pytest.approx(20 - 15, abs=1)


def test_what_an_earlier_process_wrote_long_ago_does_not_count_as_time_that_went_on(tasks):
    write_speed(tasks["first"], tokens=500, tokens_per_second=10, seconds_ago=3600)
    left = SweepEstimate({"first": tasks["first"]}, at_once=1).seconds_left({"first": 2.0}, [])
    assert left == pytest.approx(500 / 10 + 20 - 2 + START_SECONDS - 2, abs=1)


def test_a_job_that_has_ended_takes_no_time(tasks):
    left = SweepEstimate(tasks, at_once=1).seconds_left({}, ["first", "second"])
    assert left == pytest.approx(START_SECONDS + 120)


@pytest.mark.parametrize(
    ("seconds_running", "start_left"), [(0.0, START_SECONDS), (3.0, START_SECONDS - 3), (9.0, 0)]
)
def test_a_job_has_to_start_first(tasks, seconds_running, start_left):
    estimate = SweepEstimate({"first": tasks["first"]}, at_once=1)
    assert estimate.seconds_left({"first": seconds_running}, []) == pytest.approx(start_left + 120)
