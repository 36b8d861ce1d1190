"""Record a sweep in a terminal of 80 columns, and write it as an animation for the README.

From the root of a clone, in its environment, with `pip install termtosvg-ng`:
    python scripts/docs/recording.py record recording.cast   # trains six small models, some minutes
    python scripts/docs/recording.py draw recording.cast
The picture shows what the terminal showed, faster. The cast is in the format of asciinema.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "sweep.svg"
COMMAND = "posenc train -m encoding=rope,alibi seed=0,1,2 train.tokens=1e6"
COLUMNS = 80
ROWS = 24
TEMPLATE = "window_frame"  # dark, so that it is readable on a light and on a dark page
SHOWN_SECONDS = 25.0  # of the whole command
TYPING_SECONDS = 0.04  # between two letters of the command
BETWEEN_FRAMES = 200  # milliseconds, at least
LAST_FRAME = 8000  # milliseconds: time to read the comparison


class Output(NamedTuple):
    """Hold what a terminal received at a time, in seconds since the command began."""

    seconds: float
    text: str


def record(command: str) -> Iterator[Output]:
    """Run a command of posenc in a terminal of its own, in an empty folder; yield what it writes."""
    arguments = [sys.executable, "-P", "-m", *shlex.split(command)]
    variables = {
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
    }
    with tempfile.TemporaryDirectory() as folder:
        began_at = time.monotonic()
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(folder)
            os.execve(arguments[0], arguments, {**os.environ, **variables})
        try:
            # A character may be cut at the end of what is read, and then becomes a replacement sign.
            while data := os.read(terminal, 65536):
                yield Output(time.monotonic() - began_at, data.decode(errors="replace"))
        except OSError:  # so Linux tells that the other end is closed
            pass
        _, status = os.waitpid(process, 0)
    if status != 0:
        raise SystemExit(f"{command}: exit code {os.waitstatus_to_exitcode(status)}")


def write_cast(file: Path, outputs: Iterator[Output]) -> None:
    """Write a recording in the format of asciinema, version 2."""
    lines = [json.dumps({"version": 2, "width": COLUMNS, "height": ROWS, "command": COMMAND})]
    for output in outputs:
        lines.append(json.dumps([output.seconds, "o", output.text]))
        print(output.text, end="", flush=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_cast(file: Path) -> list[Output]:
    """Read a recording."""
    _, *lines = file.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return [Output(seconds, text) for seconds, _, text in events]


def with_typing(outputs: list[Output]) -> list[Output]:
    """Return the command as somebody types it, then what it wrote, in SHOWN_SECONDS instead of minutes."""
    typed = [Output(0.0, "$ ")]
    for letter in COMMAND:
        typed.append(Output(typed[-1].seconds + TYPING_SECONDS, letter))
    begins_at = typed[-1].seconds + 0.5
    typed.append(Output(begins_at, "\r\n"))
    faster = SHOWN_SECONDS / outputs[-1].seconds
    return typed + [Output(begins_at + output.seconds * faster, output.text) for output in outputs]


def draw(outputs: list[Output], file: Path) -> None:
    """Write the animation."""
    from termtosvg import anim, term
    from termtosvg.asciicast import AsciiCastV2Event, AsciiCastV2Header
    from termtosvg.config import default_templates

    events = [AsciiCastV2Event(output.seconds, "o", output.text, None) for output in outputs]
    header = AsciiCastV2Header(2, COLUMNS, ROWS, None)
    geometry, frames = term.timed_frames([header, *events], BETWEEN_FRAMES, None, LAST_FRAME)
    anim.render_animation(frames, geometry, str(file), default_templates()[TEMPLATE])


if __name__ == "__main__":
    action, cast = sys.argv[1], Path(sys.argv[2])
    if action == "record":
        write_cast(cast, record(COMMAND))
    else:
        draw(with_typing(read_cast(cast)), PICTURE)
