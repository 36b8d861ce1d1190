"""Write docs/pictures: what six encodings do at their initial values, as `posenc show` draws it.

From the root of a clone: python scripts/docs/pictures.py [NAME...]
PNG of 256 colours: half the size of SVG for maps, a quarter of the plain PNG.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

from posenc.cli.show import picture_of
from posenc.config.overrides import CommandLine
from posenc.pictures.draw import picture_bytes

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
NAMES = ("rope", "alibi", "sinusoidal", "t5", "kerple_log", "fire")


def picture(name: str) -> bytes:
    """The PNG of `posenc show encoding=NAME`, made small."""
    plain = picture_bytes(picture_of(CommandLine([f"encoding={name}"])), "png")
    image = Image.open(io.BytesIO(plain)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        (FOLDER / f"{name}.png").write_bytes(picture(name))
