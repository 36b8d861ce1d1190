"""What torchrun says of a process in its environment variables."""

import pytest

from posenc.core.torchrun import is_another_process


@pytest.mark.parametrize(
    ("variables", "is_another"),
    [
        ({}, False),
        ({"RANK": "0", "WORLD_SIZE": "2"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, True),
        ({"RANK": "1"}, False),
        ({"RANK": "1", "WORLD_SIZE": "1"}, False),
    ],
)
def test_only_a_later_one_of_several_processes_is_silent(monkeypatch, variables, is_another):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_another_process() == is_another
