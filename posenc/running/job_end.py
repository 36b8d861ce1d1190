"""How a job of a sweep ended that did not finish: what is said of it, and where to read on."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from posenc.core.errors import visible
from posenc.report.failures import DIVERGED, Ended
from posenc.running import job_log
from posenc.running.run_directory import read_status
from posenc.running.signals import CODES

LONGEST = 200  # characters of a job's last line
OUT_OF_MEMORY = "out of memory, if nobody did that: fewer jobs at once, a smaller batch or model"


def not_finished(
    name: str, place: Path, code: int, stands: str | None, own_part: int, said: Sequence[str]
) -> Ended:
    """From the exit code of a job and how its run `stands` (as in run_sweep); the log says at least as much.

    `own_part` is where the job's own part of its run's log begins, `said` its last lines where we read them.
    """
    if code in CODES.values() or -code in CODES:  # that, before it could take the signal over
        return Ended(name, "interrupted", "saved as far as it was", _log(place))
    if stands == DIVERGED:
        return diverged(name, place)
    reason = job_log.reason_since(place, own_part)
    if code >= 0 and reason is not None:  # the job's own words
        return Ended(name, "failed", reason, _log(place))
    if code < 0:
        state, reason = f"killed by {_signal(-code)}", OUT_OF_MEMORY if code == -signal.SIGKILL else None
    else:
        last = said[-1].strip()[:LONGEST] + "; " if said else ""
        state, reason = "failed", f"{last}exit code {code} before it was finished"
    if not place.is_dir():
        return Ended(name, state, reason)
    text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {name}\n" + "".join(f"  {visible(line)}\n" for line in said)
    try:
        job_log.add(place, text, ", ".join(filter(None, (state, reason))))
    except OSError as error:
        no_log = f"its log cannot be written: {error.strerror or error}"
        return Ended(name, state, "; ".join(filter(None, (reason, no_log))))
    return Ended(name, state, reason, _log(place))


def diverged(name: str, place: Path) -> Ended:
    """A run that diverged now or before."""
    reason = read_status(place).get("reason")
    return Ended(name, DIVERGED, reason if isinstance(reason, str) else None, _log(place))


def _log(place: Path) -> Path | None:
    path = place / job_log.NAME
    return path if path.is_file() else None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
