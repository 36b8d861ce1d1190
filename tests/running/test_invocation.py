"""How a process was started, as its environment says it."""

import pytest

from posenc.running.invocation import Invocation


def test_without_variables_nothing_is_special():
    assert Invocation.read({}) == Invocation(debug=False, retry=False, waits=False, sweep=None)


@pytest.mark.parametrize(
    ("variables", "invocation"),
    [
        ({"POSENC_WAIT": "1"}, Invocation(waits=True)),
        ({"POSENC_WAIT": "0"}, Invocation()),
        ({"HYDRA_FULL_ERROR": "1"}, Invocation(debug=True)),
        ({"POSENC_SWEEP": "study-123abc"}, Invocation(sweep="study-123abc")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_each_variable_says_one_thing(variables, invocation):
    assert Invocation.read(variables) == invocation


def test_the_environment_of_this_process_is_read_unless_another_is_given(monkeypatch):
    monkeypatch.setenv("POSENC_WAIT", "1")
    assert Invocation.read().waits


def test_a_job_of_a_sweep_knows_it():
    assert Invocation(sweep="study-123abc").in_sweep
    assert not Invocation().in_sweep
