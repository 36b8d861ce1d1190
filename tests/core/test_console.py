"""Progress in a terminal, a dumb terminal and a pipe; library calls that are not waited for."""

import os
import pty
import subprocess
import sys
import threading
import time

import pytest
import tiny

from posenc.core import console
from posenc.core.console import clock, library_at_work, progress_line, run_interruptible

PROGRAM = """
import sys
from posenc.core.console import progress_line, say
with progress_line("training", 10) as line:
    line.begin(2)
    for done in range(3, 11):
        if done == 5:
            say("a line of another part")
        line.update(done, "loss [1.2] " + "x" * (200 if done == 7 else 1))
print("the end", file=sys.stderr)
"""


def in_a_terminal(**env):
    """What the program writes to a terminal of 80 columns."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=child,
        stdout=child,
        stderr=child,
        env=tiny.environment(COLUMNS="80", PYTHONPATH=str(tiny.ROOT), **env),
    )
    os.close(child)
    output = b""
    try:
        while chunk := os.read(parent, 4096):
            output += chunk
    except OSError:  # so Linux tells that the other end is closed
        pass
    assert process.wait() == 0
    os.close(parent)
    return output.decode()


@pytest.fixture(scope="module", params=[{}, {"NO_COLOR": "1"}], ids=["colours", "no colours"])
def drawn(request):
    return in_a_terminal(TERM="xterm", **request.param)


def test_a_terminal_has_a_line_for_each_update(drawn):
    for done in (3, 4, 5, 6, 8, 9, 10):
        assert f"training {done}/10  loss [1.2] x  0:00 left" in drawn


def test_a_terminal_line_is_no_longer_than_the_terminal(drawn):
    (line,) = [part for part in drawn.split("\r") if "training 7/10" in part]
    assert len(line.replace("\x1b[2K", "").rstrip("\n")) <= 80


def test_what_others_print_stands_above_the_line(drawn):
    assert "a line of another part\r\n" in drawn


def test_the_line_is_gone_in_the_end(drawn):
    assert drawn.endswith("\x1b[2Kthe end\r\n")


def test_a_dumb_terminal_has_plain_lines():
    assert in_a_terminal(TERM="dumb", POSENC_PROGRESS="0").count("training ") == 8
    assert "\x1b" not in in_a_terminal(TERM="dumb")


def piped(capsys, seconds, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", str(seconds))
    with progress_line("training", 3) as line:
        for done in (1, 2, 3):
            line.update(done, "loss 1.2")
    return capsys.readouterr().err.splitlines()


def test_a_pipe_has_a_line_now_and_then_and_the_last_one(capsys, monkeypatch):
    assert piped(capsys, 100, monkeypatch) == ["training 3/3  loss 1.2  0:00 left"]


def test_a_pipe_has_all_lines_if_none_is_too_soon(capsys, monkeypatch):
    assert len(piped(capsys, 0, monkeypatch)) == 3


def test_the_time_left_counts_from_where_the_task_began_here(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with progress_line("training", 100) as line:
        line.begin(50)  # by earlier processes
        now[0] = 10.0
        line.update(60, "loss 1.2")  # a second each
    assert capsys.readouterr().err == "training 60/100  loss 1.2  0:40 left\n"


def test_before_anything_is_done_there_is_no_estimate(capsys, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    with progress_line("evaluating", 4) as line:
        line.update(0, "fixed-target at 64")
    assert capsys.readouterr().err == "evaluating 0/4  fixed-target at 64\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "0:05"), (125, "2:05"), (3725, "1:02:05"), (90000, "1 day, 1:00:00")]
)
def test_a_clock_has_hours_only_where_there_are_any(seconds, text):
    assert clock(seconds) == text


def test_a_library_call_has_a_time_limit():
    answered = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.05 s"):
        run_interruptible(answered.wait, limit=0.05)
    answered.set()
    while library_at_work():  # a thread that is left behind makes posenc end its process at once
        time.sleep(0.01)


def test_an_error_of_a_library_call_is_raised():
    with pytest.raises(KeyError, match="gone"):
        run_interruptible(lambda: {}["gone"])
