"""A finished run in a folder, a shell to call posenc from there, and what counts as a complaint."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from faults.case import Seen
from faults.commands import TINY, Ended, environment, write_corpus

BASH = shutil.which("bash") or "/bin/bash"  # a path: some cases have no PATH
POSENC = f"{shlex.quote(sys.executable)} -m posenc"


class World:
    """A corpus, a finished run, and the shell to call posenc from."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.chmod(0o755)  # for another user
        write_corpus(place / "texts")
        self.train = f"{POSENC} train {' '.join(TINY)} data.paths={place}/texts encoding=rope"
        assert self.sh(self.train).code == 0
        self.run = next((place / "runs" / "default").iterdir())

    def sh(
        self,
        script: str,
        cwd: Path | None = None,
        env: dict[str, str | None] | None = None,
        seconds: float = 300,
    ) -> Ended:
        """A line of bash; a variable that is None is not set."""
        given = {**environment(self.place), **(env or {})}
        done = subprocess.run(
            [BASH, "-c", script],
            cwd=cwd or self.place,
            env={key: value for key, value in given.items() if value is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=seconds,
        )
        return Ended(done.returncode, _text(done.stdout), _text(done.stderr), 0.0)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def complaint(ended: Ended, codes: Sequence[int] = (0,), says: str = "") -> str | None:
    """What is wrong with it, or None."""
    both = ended.out + ended.err
    shown = " / ".join(both.strip().splitlines()[-3:])[-300:]
    for word in ("Traceback", "fault of posenc", "Exception ignored", "UnicodeEncodeError"):
        if word in both:
            return f"{word}: {shown}"
    if ended.code not in codes:
        return f"exit code {ended.code}: {shown}"
    return None if says in " ".join(both.split()) else f"does not say {says!r}: {shown}"


def tried(found: dict[str, str | None]) -> Seen:
    """Of complaints by what was tried."""
    wrong = [f"{name!r}: {said}" for name, said in found.items() if said is not None]
    return Seen(
        f"{len(found) - len(wrong)} of {len(found)} as promised", len(found), len(wrong), tuple(wrong)
    )
