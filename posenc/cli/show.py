"""Run `posenc show`: draw what an encoding does, at its initial values or as a run trained it."""

from __future__ import annotations

import sys

from posenc.config.overrides import CommandLine
from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import write
from posenc.core.paths import expanded
from posenc.pictures.text import picture_text
from posenc.report.figure import check_picture
from posenc.running.drawing import measure_picture

FOOTER = "all of it as a picture: the same command with --out FILE.png"


def run_show(line: CommandLine, out: str | None) -> None:
    """Draw what the overrides choose into `out`, or print it as text. Raises UserError."""
    if out is None:
        write(f"{picture_text(measure_picture(line))}\n\n{FOOTER}\n", sys.stdout)
        return
    target = expanded(out)
    # The name is checked before anything is measured, so that a wrong one is known at once.
    path = check_picture("--out", target)
    format = path.suffix[1:].lower()
    from posenc.pictures.draw import picture_bytes  # with altair: only where a picture is wanted

    write_bytes_atomic(path, picture_bytes(measure_picture(line), format))
    print(target)
