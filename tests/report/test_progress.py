"""Work goes on when nobody sees it any more, and stops with a save when its terminal is gone."""

import os
import signal
import sys

import pytest

from posenc.core.console import say, shown
from posenc.running.signals import StopFlag, to_take_over


@pytest.mark.parametrize("terminal", [False, True])
def test_a_screen_that_is_gone_ends_no_training(monkeypatch, terminal):
    class Gone:
        encoding = "utf-8"

        def write(self, text):
            raise OSError(5, "Input/output error")

        def flush(self):
            raise BrokenPipeError(32, "Broken pipe")

        def isatty(self):
            return terminal

        def fileno(self):
            return 99

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Gone())
    say("a line")
    with shown("training", 3) as progress:
        progress.begin(0)
        progress.update(3, "loss 1.2")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no hangups there")
def test_a_hangup_saves_unless_nohup_has_switched_it_off():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signal.SIGHUP not in to_take_over() and signal.SIGTERM in to_take_over()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with StopFlag() as stop:
            stop.guard()
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested() and (stop.name, stop.exit_code) == ("SIGHUP", 143)
    finally:
        signal.signal(signal.SIGHUP, before)
