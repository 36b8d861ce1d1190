"""Runs that diverge or fail, errors of the machine, and a screen that is gone: one line, and no harm done."""

import errno
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import tiny
from fake_runs import only_run, read_json
from in_process import called_in

from posenc.core.console import say
from posenc.core.progress import progress_line
from posenc.running.report_error import report_error
from posenc.running.signals import StopFlag

DIVERGING = ("encoding=rope", "train.lr=1e12")


# --- Divergence
@pytest.fixture(scope="module")
def diverged(tmp_path_factory, corpus, shared_cache):
    """The result of a training whose learning rate is too high, and the folder of its run."""
    folder = tmp_path_factory.mktemp("diverged")
    arguments = ("train", *tiny.TINY, f"data.paths={corpus}", *DIVERGING)
    result = called_in(folder, shared_cache, *arguments)
    return result, folder / "runs"


@pytest.fixture
def diverged_run(diverged, working_folder):
    """A copy of its run directory."""
    _, runs = diverged
    shutil.copytree(runs, working_folder / "runs")
    return only_run(working_folder / "runs")


def test_a_run_that_diverged_says_so(diverged):
    result, _ = diverged
    assert result.code == 1
    assert result.out == ""
    assert "diverged: non-finite loss at step 2" in result.err
    assert "train.lr" in result.err


def test_a_run_that_diverged_has_a_reason_and_neither_results_nor_checkpoints(diverged_run):
    status = read_json(diverged_run / "status.json")
    assert status["status"] == "diverged"
    assert status["step"] == 1
    assert status["reason"] == "non-finite loss at step 2"
    assert not (diverged_run / "results.json").exists()
    assert not (diverged_run / "checkpoints").exists()


def test_a_run_that_diverged_is_not_trained_again(train, diverged_run):
    status = read_json(diverged_run / "status.json")
    again = train(*DIVERGING)
    assert again.code == 1
    assert "diverged before: non-finite loss at step 2" in again.err
    assert read_json(diverged_run / "status.json") == status


def test_with_retry_a_run_that_diverged_begins_anew(train, diverged_run):
    checkpoints = diverged_run / "checkpoints"
    (checkpoints / "step-00000001").mkdir(parents=True)  # of the training that diverged later
    told = diverged_run / "tracking"  # what trackers were told of it
    told.mkdir()
    (told / "wandb.json").write_text('{"id": "a1b2c3", "group": null, "step": 900, "sent": []}')
    retried = train(*DIVERGING, "--retry")
    assert retried.code == 1
    assert "diverged: non-finite loss at step 2" in retried.err
    assert not checkpoints.exists()
    assert not told.exists()


# --- A plug-in that raises
RAISING_PLUGIN = ("encoding=./mine.py", "encoding.strength=1")


def write_raising_plugin(folder):
    statement = r'raise KeyError("boom [red]\nsecond line")'
    plugin = tiny.PLUGIN.replace("return -self", f"{statement}\n        return -self")
    (folder / "mine.py").write_text(plugin)


@pytest.fixture(scope="module")
def failed(tmp_path_factory, corpus, shared_cache):
    """The result of a training with a plug-in that raises, and its run directory."""
    folder = tmp_path_factory.mktemp("failed")
    write_raising_plugin(folder)
    arguments = ("train", *tiny.TINY, f"data.paths={corpus}", *RAISING_PLUGIN)
    result = called_in(folder, shared_cache, *arguments)
    return result, only_run(folder / "runs")


def test_a_plug_in_that_raises_fails_its_run_with_one_line(failed):
    result, _ = failed
    assert result.code == 1
    assert result.out == ""
    assert "boom [red]" in result.err
    assert "--debug" in result.err
    assert "Traceback" not in result.err


def test_the_status_of_a_failed_run_names_the_exception(failed):
    _, run = failed
    status = read_json(run / "status.json")
    assert status["status"] == "failed"
    assert "KeyError" in status["reason"]


def test_the_log_of_a_failed_run_has_the_traceback(failed):
    _, run = failed
    log = (run / "log.txt").read_text()
    assert "Traceback" in log
    assert "mine.py" in log


def test_with_debug_the_exception_goes_through(train, working_folder):
    write_raising_plugin(working_folder)
    with pytest.raises(KeyError):
        train("--debug", *RAISING_PLUGIN)


# --- The machine
@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(MemoryError(), "error: not enough memory: MemoryError\n", id="memory"),
        pytest.param(
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 12"),
            "not enough memory: Default",
            id="memory of torch",
        ),
        pytest.param(
            RuntimeError("unable to mmap 8 bytes from file: Cannot allocate memory (12)"),
            "not enough memory: unable to mmap",
            id="memory of torch for a file",
        ),
        pytest.param(
            OSError(errno.ENOMEM, "Cannot allocate memory"),
            "not enough memory: [Errno 12] Cannot allocate",
            id="memory for a process",
        ),
        pytest.param(
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "not enough memory: CUDA",
            id="memory of a GPU",
        ),
        pytest.param(
            OSError(errno.ENOSPC, "No space left on device"),
            "cannot write the output: No space left",
            id="disk",
        ),
    ],
)
def test_an_error_of_the_machine_is_no_fault_of_posenc(capsys, error, message):
    assert report_error(error, StopFlag()) == 1
    assert message in capsys.readouterr().err


def raise_os_error(number):
    """Return a function that raises this error of the operating system, whatever it is called with."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture(params=[False, True], ids=["pipe", "terminal"])
def closed_stderr(request, monkeypatch):
    """A stream of errors whose reader is gone."""
    stream = SimpleNamespace(
        encoding="utf-8",
        write=raise_os_error(errno.EIO),
        flush=raise_os_error(errno.EPIPE),
        isatty=lambda: request.param,
        fileno=lambda: 99,
    )
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)


@pytest.mark.usefixtures("closed_stderr")
def test_a_line_for_a_screen_that_is_gone_raises_nothing():
    say("a line")


@pytest.mark.usefixtures("closed_stderr")
def test_the_progress_on_a_screen_that_is_gone_raises_nothing():
    with progress_line("training", 3) as progress:
        progress.begin(0)
        progress.update(3, "loss 1.2")
