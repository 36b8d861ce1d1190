"""posenc called in this process, as a new process would run it."""

import io
import logging
import os
import signal
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
import tiny

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def as_a_new_process(arguments):
    """What a fresh process has and a second call in one process would not; put back afterwards."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    root = logging.getLogger()
    before, environment = (sys.argv, root.handlers[:], root.level), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in ENDS}
    sys.argv = ["posenc", *arguments]
    try:
        yield
    finally:
        sys.argv, root.handlers[:], root.level = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name in os.environ.keys() - environment.keys():  # POSENC_SWEEP, HYDRA_FULL_ERROR, HF_HUB_OFFLINE
            del os.environ[name]
        os.environ.update(environment)
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None  # a job that raised leaves its configuration there


def exit_code_of(*arguments):
    """The console script's function in this process."""
    from posenc import cli

    with as_a_new_process(arguments):
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def called_in(folder, cache, *arguments):
    """`posenc ARGUMENTS` in this process and in a folder, for fixtures that several tests share."""
    import torch

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("POSENC_CACHE", str(cache))
        patch.setattr(torch, "set_num_threads", lambda _: None)
        with redirect_stdout(out), redirect_stderr(err):
            code = exit_code_of(*arguments)
    return tiny.Result(code, out.getvalue(), err.getvalue())
