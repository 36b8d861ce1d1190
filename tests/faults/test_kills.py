"""Killed, stopped or struck at any moment: the same command ends as if nothing had happened, bit for bit."""

import pytest
import tiny
from battery import LONG, command, run_in, wait_until, weights


@pytest.fixture
def whole(train, place):
    """The weights of the long run that nothing happened to."""
    result = train(*LONG, "runs_dir=whole")
    assert result.code == 0, result.err
    return weights(place / "whole")


def test_kill_9_and_the_same_command(train, place, corpus, whole):
    victim = tiny.start(*command(corpus, *LONG), cwd=place)
    wait_until(lambda: [*(place / "runs").glob("default/*/checkpoints/step-*")], victim)
    victim.kill()
    victim.communicate()
    again = train(*LONG)
    assert again.code == 0 and "continuing at step" in again.err, again.err
    assert weights(place / "runs") == whole
    lines = (run_in(place / "runs") / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len({line.partition(",")[0] for line in lines})
