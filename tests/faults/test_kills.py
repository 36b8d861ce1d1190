"""Killed, stopped or struck at any moment: the same command ends as if nothing had happened, bit for bit."""

import signal
import time

import pytest
import tiny
from battery import (
    LONG,
    THREE_SEEDS,
    command,
    count_logged_lines,
    logged_steps,
    statuses,
    wait_until,
    weights,
)
from fake_runs import only_run


def test_after_kill_9_the_same_command_ends_as_if_nothing_had_happened(train, working_folder, corpus):
    runs = working_folder / "runs"
    assert train(*LONG, "runs_dir=undisturbed").code == 0
    victim = tiny.start(*command(corpus, *LONG), cwd=working_folder)
    wait_until(lambda: list(runs.glob("default/*/checkpoints/step-*")), victim)
    victim.kill()
    victim.communicate()

    result = train(*LONG)

    assert result.code == 0, result.err
    assert "continuing at step" in result.err
    assert weights(runs) == weights(working_folder / "undisturbed")
    steps = logged_steps(only_run(runs))
    assert len(steps) == len(set(steps))


@pytest.fixture(scope="module", params=[1, 2], ids=["one job", "two jobs"])
def shared_sweep(request, tmp_path_factory, corpus, shared_cache):
    """The results of two processes that run the same sweep at once, and the folder of their runs."""
    folder = tmp_path_factory.mktemp("shared_sweep")
    arguments = ("train", f"sweep.jobs={request.param}", *THREE_SEEDS, f"data.paths={corpus}")
    processes = [
        tiny.start(*arguments, "train.tokens=32000", cwd=folder, POSENC_CACHE=str(shared_cache))
        for _ in range(2)
    ]
    results = [tiny.finished(process, 400) for process in processes]
    return results, folder / "runs"


@pytest.mark.faults
def test_two_of_the_same_sweep_print_the_same_comparison(shared_sweep):
    (first, second), _ = shared_sweep
    assert first.code == 0, first.err
    assert second.code == 0, second.err
    assert first.out == second.out
    assert "3 seeds" in first.out


@pytest.mark.faults
def test_two_of_the_same_sweep_share_its_runs(shared_sweep):
    _, runs = shared_sweep
    assert statuses(runs) == ["finished"] * 3


@pytest.mark.faults
def test_two_of_the_same_sweep_train_no_step_twice(shared_sweep):
    _, runs = shared_sweep
    for run in (runs / "default").glob("[!.]*"):
        steps = logged_steps(run)
        assert len(steps) == len(set(steps))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_that_is_stopped_goes_on_with_the_same_weights(working_folder, corpus, jobs, number, code):
    runs = working_folder / "runs"
    slow = ("train.tokens=64000", "train.checkpoint_seconds=0.2")
    arguments = ("train", f"sweep.jobs={jobs}", *THREE_SEEDS, f"data.paths={corpus}", *slow)
    assert tiny.spawn(*arguments, "runs_dir=undisturbed", cwd=working_folder).code == 0
    victim = tiny.start(*arguments, cwd=working_folder)
    wait_until(lambda: count_logged_lines(runs) > 2, victim)
    victim.send_signal(number)
    stopped = tiny.finished(victim)
    assert stopped.code == code, stopped.err
    # A sweep that is killed tells its jobs nothing: they notice.
    end = time.monotonic() + 30
    while "running" in statuses(runs) and time.monotonic() < end:
        time.sleep(0.1)
    assert "running" not in statuses(runs)
    assert "interrupted" in statuses(runs)

    result = tiny.spawn(*arguments, cwd=working_folder)

    assert result.code == 0, result.err
    assert weights(runs) == weights(working_folder / "undisturbed")
