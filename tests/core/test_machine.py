"""What this machine says: the number of threads that somebody has chosen."""

import pytest

from posenc.core.machine import threads_of_user


@pytest.mark.parametrize(("text", "threads"), [("4", "4"), ("", None), (" ", None)])
def test_an_empty_variable_chooses_no_threads(monkeypatch, text, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads_of_user() == threads


def test_without_the_variable_nobody_has_chosen(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_of_user() is None
