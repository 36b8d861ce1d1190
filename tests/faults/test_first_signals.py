"""Ctrl-C at any moment from posenc's first line on: one line, and 130."""

import os
import signal
import time

import pytest
import tiny

# From the first line of posenc on the shell sees 130. Before it Python itself is starting, and within that
# line the handler is not set yet: the first signal comes 10 ms later.
PROGRAM = "from posenc.cli import main; import os; os.write(1, b'begins\\n'); main()"
MOMENTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0)  # seconds


def struck(moment, working_folder, *arguments):
    """Start posenc, send SIGINT so many seconds after its first line, and return how it ended."""
    process = tiny.start_python("-c", PROGRAM, *arguments, cwd=working_folder)
    assert process.stdout.readline() == "begins\n"
    time.sleep(moment)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
    return tiny.finished(process, 60)


@pytest.mark.faults
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_in_a_training_is_130_without_a_traceback(working_folder, corpus, moment):
    result = struck(moment, working_folder, "train", *tiny.TINY, f"data.paths={corpus}", "train.tokens=1e6")
    assert (result.code, result.out) == (130, ""), result
    assert result.err.splitlines()[-1].startswith("SIGINT: ")
    assert "Traceback" not in result.err
    assert "Exception ignored" not in result.err


@pytest.mark.faults
@pytest.mark.parametrize("moment", MOMENTS[::3])
def test_ctrl_c_in_a_short_command_leaves_no_traceback(working_folder, moment):
    result = struck(moment, working_folder, "show", "encoding=rope")
    assert result.code in (0, 130), result
    assert "Traceback" not in result.err
    assert "Exception ignored" not in result.err
