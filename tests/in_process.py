"""posenc called in this process, as a new process would run it."""

import io
import logging
import os
import signal
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
import tiny

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def as_a_new_process(arguments):
    """Give a call what a new process would have, and put everything back afterwards."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    root = logging.getLogger()
    argv_before = sys.argv
    log_handlers_before = root.handlers[:]
    log_level_before = root.level
    environment_before = dict(os.environ)
    signal_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    unraisable_hook_before = sys.unraisablehook
    sys.argv = ["posenc", *arguments]
    try:
        yield
    finally:
        sys.argv = argv_before
        root.handlers[:] = log_handlers_before
        root.level = log_level_before
        sys.unraisablehook = unraisable_hook_before
        for number, handler in signal_handlers.items():
            signal.signal(number, handler)
        # posenc sets POSENC_SWEEP, HYDRA_FULL_ERROR and HF_HUB_OFFLINE for its own process.
        for name in os.environ.keys() - environment_before.keys():
            del os.environ[name]
        os.environ.update(environment_before)
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None  # a job that raised leaves its configuration there


def exit_code_of(*arguments):
    """Call the console script's function in this process and return its exit code."""
    from posenc import cli

    with as_a_new_process(arguments):
        try:
            cli.main()
        except SystemExit as stop:
            if isinstance(stop.code, int):
                return stop.code
            # Python's own rule: None is success, a text is printed and counts as 1.
            return 0 if stop.code is None else 1
    return 0


@contextmanager
def working_in(folder, cache):
    """Enter a folder, as the fixture `working_folder` does, for fixtures that several tests share."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("POSENC_CACHE", str(cache))
        patch.setattr(torch, "set_num_threads", lambda _: None)
        yield


def called_in(folder, cache, *arguments):
    """Call `posenc ARGUMENTS` in this process and in a folder, for fixtures that several tests share."""
    out = io.StringIO()
    err = io.StringIO()
    with working_in(folder, cache), redirect_stdout(out), redirect_stderr(err):
        code = exit_code_of(*arguments)
    return tiny.Result(code, out.getvalue(), err.getvalue())
