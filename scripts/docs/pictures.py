"""Draw what six encodings do at their initial values, as `posenc show` does, for docs/pictures/.

    python scripts/docs/pictures.py [NAME ...]

A PNG of 256 colours has half the size of an SVG for maps, and a quarter of the plain PNG.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from posenc_output import ROOT, run_posenc

FOLDER = ROOT / "docs" / "pictures"
NAMES = ("rope", "alibi", "sinusoidal", "t5", "kerple_log", "fire")


def small_picture(name: str) -> bytes:
    """Return the PNG of `posenc show encoding=NAME` with 256 colours."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.png"
        run_posenc(f"posenc show encoding={name} --out {plain}")
        picture = Image.open(plain).convert("RGB")
    small = picture.quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        (FOLDER / f"{name}.png").write_bytes(small_picture(name))
