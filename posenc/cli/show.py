"""Run `posenc show`: draw what an encoding does, at its initial values or as a run trained it."""

from __future__ import annotations

import sys

from posenc.config.overrides import CommandLine
from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import write
from posenc.core.errors import UserError
from posenc.core.paths import expanded, output_file
from posenc.pictures.text import picture_text
from posenc.report.figure import FORMATS
from posenc.running.drawing import measure_picture

FOOTER = "all of it as a picture: the same command with --out FILE.png"


def run_show(line: CommandLine, out: str | None) -> None:
    """Draw what the overrides choose into `out`, or print it as text. Raises UserError."""
    if out is None:
        write(f"{picture_text(measure_picture(line))}\n\n{FOOTER}\n", sys.stdout)
        return
    target = expanded(out)
    format = target.suffix[1:].lower()
    if format not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise UserError("--out", out, "its ending names the format", allowed=allowed)
    # The name is checked before anything is measured, so that a wrong one is known at once.
    path = output_file("--out", target)
    from posenc.pictures.draw import picture_bytes  # with altair: only where a picture is wanted

    write_bytes_atomic(path, picture_bytes(measure_picture(line), format))
    print(target)
