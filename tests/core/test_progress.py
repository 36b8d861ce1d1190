"""Progress in a terminal, a dumb terminal and a pipe; library calls that are not waited for."""

import importlib.util
import os
import pty
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import tiny

from posenc.core import progress
from posenc.core.errors import UserError
from posenc.core.library_calls import library_at_work, run_interruptible
from posenc.core.progress import progress_line
from posenc.core.quantities import bytes_text, clock

PROGRAM = """
import sys
import time
from posenc.core import console, progress
progress.REFRESH_SECONDS = 0.02
progress.Progress.seconds_between_refreshes = 0.02
with progress.progress_line("training", 10) as line:
    line.begin(2)
    time.sleep(0.1)
    for done in (4, 8.5):
        line.update(done, "loss [1.2] " + "x" * (1 if done == 4 else 200))
        time.sleep(0.1)
        console.say("a line of another part")
print("the end", file=sys.stderr)
"""


def test_an_empty_time_between_lines_is_that_of_posenc(monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "")
    assert progress._seconds_between_lines() == 60


@pytest.mark.parametrize("text", ["10s", "nan", "-1", "inf"])
def test_what_is_no_time_between_lines_is_refused(monkeypatch, text):
    monkeypatch.setenv("POSENC_PROGRESS", text)
    with pytest.raises(UserError, match=f"POSENC_PROGRESS={text}: is no time"):
        progress._seconds_between_lines()


STARTING = """
import os
import signal
import sys
from posenc.core import first_signals, progress
first_signals.leave_at_signals()
progress.REFRESH_SECONDS = 0.02
with progress.starting():
    if sys.argv[1:] == ["stop"]:
        os.kill(os.getpid(), signal.SIGINT)
    if sys.argv[1:] == ["result"]:
        progress.end_starting()
        print("a result")
    with progress.progress_line("training", 10) as line:
        line.update(4)
        line.refresh()
"""


def in_a_terminal(columns=80, program=PROGRAM, arguments=(), exit_code=0, **env):
    """What the program writes to a terminal."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env=tiny.environment(COLUMNS=str(columns), PYTHONPATH=str(tiny.ROOT), **env),
    )
    os.close(child)
    output = b""
    try:
        while chunk := os.read(parent, 4096):
            output += chunk
    except OSError:  # so Linux tells that the other end is closed
        pass
    assert process.wait() == exit_code
    os.close(parent)
    return output.decode()


@pytest.fixture(scope="module", params=[{}, {"NO_COLOR": "1"}], ids=["colours", "no colours"])
def drawn(request):
    return in_a_terminal(TERM="xterm", **request.param)


def lines_of(drawn):
    """Every line that was drawn, without colours and movements."""
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part).strip("\n") for part in drawn.split("\r")]


def test_the_bar_is_there_before_anything_is_done(drawn):
    assert any(line.startswith("training 0/10 ") for line in lines_of(drawn))


def test_the_bar_has_count_text_and_time_left(drawn):
    assert any(re.match(r"training 4/10 .* loss \[1\.2\] x +0:0\d left", line) for line in lines_of(drawn))


@pytest.mark.parametrize("columns", [80, 20, 5])
def test_no_line_is_longer_than_the_terminal(columns):
    drawn = in_a_terminal(columns, TERM="xterm")
    assert "8/10" in drawn
    assert max(len(line) for line in lines_of(drawn)) <= columns + len("a line of another part") * (
        columns < 22
    )


def test_a_narrow_terminal_has_count_and_time():
    assert any(re.match(r"4/10 +0:0\d left", line) for line in lines_of(in_a_terminal(20, TERM="xterm")))


def test_no_color_has_no_colour():
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", in_a_terminal(TERM="xterm", NO_COLOR="1"))


def test_what_others_print_stands_above_the_bar(drawn):
    assert drawn.count("a line of another part\r\n") == 2


def test_the_bar_is_gone_in_the_end(drawn):
    assert drawn.endswith("\x1b[2Kthe end\r\n")


def test_a_dumb_terminal_has_plain_lines():
    drawn = in_a_terminal(TERM="dumb", POSENC_PROGRESS="0")
    assert "training 4/10  loss [1.2] x" in drawn
    assert "\x1b" not in drawn


def test_a_task_inside_another_one_shows_nothing(capsys, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    with progress_line("training", 3), progress_line("reading", 3) as inner:
        inner.update(1, "rows")
    assert capsys.readouterr().err == ""


def test_a_task_right_after_another_one_is_shown(capsys, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    for name in ("training", "evaluating"):
        with progress_line(name, 3) as line:
            line.update(1, "a step")
    training, evaluating = capsys.readouterr().err.splitlines()
    assert training.startswith("training 1/3  a step")
    assert evaluating.startswith("evaluating 1/3  a step")


def test_the_first_task_takes_the_place_of_a_command_that_begins():
    drawn = in_a_terminal(program=STARTING, TERM="xterm")
    lines = [line for line in lines_of(drawn) if line.strip()]
    assert lines[0].startswith("starting ")
    assert lines[-1].startswith("training 4/10 ")


def test_a_signal_leaves_nothing_of_a_command_that_begins():
    drawn = in_a_terminal(program=STARTING, arguments=["stop"], exit_code=130, TERM="xterm")
    erased_and_cursor_back = "\r\x1b[2K\x1b[?25h"
    assert f"{erased_and_cursor_back}SIGINT: stopped" in drawn


def test_a_result_stands_where_the_command_began():
    lines = lines_of(in_a_terminal(program=STARTING, arguments=["result"], TERM="xterm"))
    assert "a result" in lines


def test_a_dumb_terminal_is_not_told_that_a_command_begins():
    assert "starting" not in in_a_terminal(program=STARTING, TERM="dumb")


# --- Notebooks


@pytest.fixture
def notebook(monkeypatch):
    """This process as a kernel of Jupyter."""
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return monkeypatch


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_has_its_widget_and_plain_lines_without(notebook, has_widgets):
    real_find = importlib.util.find_spec
    notebook.setattr(
        importlib.util,
        "find_spec",
        lambda name: has_widgets or None if name == "ipywidgets" else real_find(name),
    )
    assert progress._can_draw() is has_widgets


# --- Pipes


def piped(capsys, seconds, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", str(seconds))
    with progress_line("training", 3) as line:
        for done in (1, 2, 3):
            line.update(done, "loss 1.2")
    return capsys.readouterr().err.splitlines()


def test_a_pipe_has_a_line_now_and_then_and_the_last_one(capsys, monkeypatch):
    assert piped(capsys, 100, monkeypatch) == ["training 3/3  loss 1.2  0:00 left"]


def test_the_last_line_of_a_pipe_comes_once_with_its_text(capsys, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "100")
    with progress_line("training", 3) as line:
        line.update(3)
        line.update(3, "loss 1.2")
    assert capsys.readouterr().err == "training 3/3  loss 1.2  0:00 left\n"


def test_a_pipe_has_all_lines_if_none_is_too_soon(capsys, monkeypatch):
    assert len(piped(capsys, 0, monkeypatch)) == 3


def test_a_pipe_has_a_line_by_time_while_nothing_is_done(capsys, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "0.05")
    monkeypatch.setattr(progress.Progress, "seconds_between_refreshes", 0.01)
    with progress_line("evaluating", 4) as line:
        line.update(1.5, "fixed-target at 64")
        time.sleep(0.3)
    assert capsys.readouterr().err.startswith("evaluating 1/4  fixed-target at 64  0:0")


def test_the_time_left_counts_from_where_the_task_began_here(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
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


@pytest.mark.parametrize(
    ("size", "total", "text"),
    [
        (12_300_000, 340_200_000, "12/340 MB"),
        (1_230_000, 3_400_000, "1.2/3.4 MB"),
        (0, 5_000_000_000, "0.0/5.0 GB"),
        (2_000, None, "2.0 kB"),
        (10, 20, "0.0/0.0 kB"),
    ],
)
def test_bytes_are_told_in_one_unit(size, total, text):
    assert bytes_text(size, total) == text


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
