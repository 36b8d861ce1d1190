"""One run as read from disk: its status, settings, facts and records."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.core.errors import visible
from posenc.results.schema import Record, RunFacts


@dataclass
class Run:
    """What a run directory holds. With a `problem` (why it cannot be used) no facts, no records."""

    path: Path
    status: dict[str, Any] = field(default_factory=dict)
    facts: RunFacts | None = None
    records: list[Record] = field(default_factory=list)
    config: dict[str, Any] | None = None
    problem: str | None = None
    losses: dict[float, float] | None = None  # of a bundle; posenc.results.load.losses_of reads the others
    unread: set[str] = field(default_factory=set)  # protocols whose records were left out on reading

    @property
    def state(self) -> str:
        """running, finished, failed, diverged, interrupted; `damaged` with a problem; `unknown`; or `dead`:
        its process is gone and left no final status."""
        if self.problem is not None:
            return "damaged"
        state = self.status.get("status")
        if not isinstance(state, str):
            return "finished" if self.facts is not None else "unknown"
        if state == "running" and is_dead(self.status):
            return "dead"
        return visible(state)[:40]

    @property
    def reason(self) -> str | None:
        """Why it is in this state, as far as it is known. It may be a stranger's text."""
        if self.state == "dead":
            return f"its process {self.status.get('pid', '?')} is gone and left no word"
        reason = self.problem or self.status.get("reason")
        return reason if isinstance(reason, str) and reason else None

    @property
    def name(self) -> str:
        """The run's name: that of its directory."""
        return self.path.name or str(self.path)

    @property
    def parameters(self) -> int | None:
        """Of the whole model, where it is known."""
        total = (self.facts or {}).get("parameters", {}).get("total")
        return total if isinstance(total, int) else None

    @property
    def seed(self) -> int | None:
        """The training seed, where it is known."""
        seed = self.facts["seed"] if self.facts is not None else (self.config or {}).get("seed")
        return seed if isinstance(seed, int) else None


def is_dead(status: dict[str, Any]) -> bool:
    """Return whether the process of a status.json is certainly gone: it ran on this host and does not now."""
    pid = status.get("pid")
    here = status.get("host") == socket.gethostname()
    if not here or isinstance(pid, bool) or not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    import psutil  # takes 0.15 s, and most commands ask about no process

    try:
        process = psutil.Process(pid)
        written = datetime.fromisoformat(str(status.get("updated"))).timestamp()
        # a zombie has ended; one that began later has been given the number anew
        return bool(process.status() == psutil.STATUS_ZOMBIE or process.create_time() > written + 2)
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError):
        return False


def run_names(runs: Sequence[Run], most: int = 3, among: Sequence[Run] = ()) -> str:
    """Return a few names for a message: `a, b, c and 4 more`; paths where others of `among` have it."""
    others = [run.name for run in among]
    names = [str(run.path) if others.count(run.name) > 1 else run.name for run in runs[:most]]
    return ", ".join(names) + (f" and {len(runs) - most} more" if len(runs) > most else "")
