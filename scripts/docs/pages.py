"""Remake every table and figure of the study's pages, and others that quote it, from the records in docs/.

    python scripts/docs/pages.py            write what changed
    python scripts/docs/pages.py --check    only tell what would change; exit code 1 if anything would
What is made stands between one of these lines and `<!-- end -->`. Nothing is trained.
    <!-- posenc ... -->                      what the command prints
    <!-- prints: FILE OVERRIDES as DIR -->    what `posenc train` prints at its end
    <!-- costs: FILE FILE -->                runs, seeds and minutes of each file of records
    <!-- changes: PATH KEY=VALUE ... PROTOCOL@MULTIPLE ... -->    losses at 1x, changes beyond it
    <!-- grid: PATH KEY=VALUE,... -->        encodings by the values of a setting: loss at T, change at 8T
    <!-- seeds: PATH ROW ROW MULTIPLE -->    two rows seed by seed
    <!-- repeated: PATH SEED,SEED MULTIPLE -->   every encoding with several seeds, each seed by itself
    <!-- recalled: PATH -->             encodings whose seeds differ in what they find
    <!-- room: PATH PATH -->             encodings trained at T and at 8T: what the far text is worth
    <!-- sizes: PATH PATH ... -->            harm and use of the same encodings by size of the model
    <!-- verdicts: PATH PATH MULTIPLE -->   encodings whose word differs between two files of records
    <!-- causes: FILE -->                    what scripts/docs/causes.py measured
    <!-- bench: FILE -->                     cost of each encoding, from the JSON of `posenc bench`
    <!-- peers: FILE FILE -->                other packages beside posenc, by scripts/bench/peers.py
    <!-- directions: FILE -->                directions of each paper's losses that are met, and not
    <!-- retrieval: FILE FILE -->            the same of each paper's accuracies, beside recall
A figure has one line, and the file is what the command draws:
    <!-- drawn by: posenc ... --plot FILE ... -->
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path

import emergence
import numpy as np
import overview
import record_tables
from PIL import Image
from typer.testing import CliRunner

from posenc.cli import app
from posenc.report.writers import show_runs

ROOT = Path(__file__).parents[2]
NAMES = ("study", "study-more", "study-first", "reading-the-numbers", "tutorial", "performance")
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES))
MADE = re.compile(
    r"(?P<head><!-- (?P<how>posenc |[a-z]+: )(?P<words>[^\n]*?) -->\n)"
    r"(?P<body>.*?)(?P<end><!-- end -->)",
    re.S,
)
FIGURE = re.compile(r"<!-- drawn by: (?P<command>posenc [^\n]*? --plot (?P<file>\S+)[^\n]*?) -->")
# figures that no command of posenc draws
OWN = {emergence.FIGURE: lambda: emergence.drawn(emergence.stored()), overview.FIGURE: overview.drawn}


def printed(command: str) -> str:
    """What the command prints on stdout, at 80 columns, in the root of the clone."""
    with contextlib.chdir(ROOT):
        narrow = {"COLUMNS": "80", "NO_COLOR": "1"}
        done = CliRunner().invoke(app, shlex.split(command)[1:], env=narrow)
    if done.exit_code:
        raise SystemExit(f"{command}\n{done.stderr}{done.exception}")
    return done.stdout


def shown(words: str) -> str:
    """The table of a command: Markdown, or as in a terminal."""
    text = printed(f"posenc {words}").rstrip() + "\n"
    return text if "--format markdown" in words else f"```text\n{text}```\n"


def prints(words: str) -> str:
    """What `posenc train OVERRIDES` prints on stdout at its end: FILE OVERRIDES as DIR."""
    conditions, _, directory = words.partition(" as ")
    path, *overrides = conditions.split()
    runs = record_tables.runs_of([path])
    runs[0].status["overrides"] = overrides  # bundles do not have what was typed
    stream = io.StringIO()
    show_runs(runs, stream, saved=Path(directory))
    return f"```text\n{stream.getvalue().strip()}\n```\n"


MAKERS = {
    "posenc ": shown,
    "prints: ": prints,
    "costs: ": record_tables.costs,
    "changes: ": record_tables.changes,
    "grid: ": record_tables.grid,
    "seeds: ": record_tables.seeds,
    "repeated: ": record_tables.repeated,
    "recalled: ": record_tables.recalled,
    "room: ": record_tables.room,
    "sizes: ": record_tables.sizes,
    "verdicts: ": record_tables.verdicts,
    "causes: ": record_tables.causes,
    "bench: ": record_tables.bench,
    "peers: ": record_tables.peers,
    "directions: ": record_tables.directions,
    "retrieval: ": record_tables.retrieval,
}


def remade(text: str) -> str:
    """The page with everything as it would be made now. Raises ValueError for marks that do not pair up."""
    marks = re.findall(r"^<!-- (?!drawn by: |not run: )(.*) -->$", text, re.M)
    if not marks:
        raise ValueError("nothing on the page is made from the records")
    for begin, end in itertools.zip_longest(marks[::2], marks[1::2]):
        if not begin.startswith(tuple(MAKERS)):
            raise ValueError(f"<!-- {begin} -->: nothing makes this")
        if end != "end":
            raise ValueError(f"<!-- {begin} --> has no <!-- end -->")
    return MADE.sub(lambda found: found["head"] + MAKERS[found["how"]](found["words"]) + found["end"], text)


def figures(text: str) -> dict[Path, bytes]:
    """The bytes of every figure of the page, drawn anew elsewhere."""
    drawn = {}
    with tempfile.TemporaryDirectory() as folder:
        for found in FIGURE.finditer(text):
            file = Path(found["file"])
            elsewhere = Path(folder) / file.name
            printed(found["command"].replace(found["file"], shlex.quote(str(elsewhere))))
            drawn[ROOT / file] = elsewhere.read_bytes()
    return drawn


BLOCK, ALIKE = 16, 12.0  # pixels; of 255, a block's mean


def alike(one: bytes, other: bytes) -> bool:
    """Tell whether two files show the same: equal, or pictures that differ as two processors draw them.

    With and without AVX-512 blocks of 16 x 16 differ by up to 7 of 255 (edges of letters); with a seed less
    they differ by 130.
    """
    if one == other or not one.startswith(b"\x89PNG"):
        return one == other
    sheets = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.float32) for data in (one, other)]
    if sheets[0].shape != sheets[1].shape:
        return False
    apart = sheets[0] - sheets[1]
    for axis in (0, 1):
        apart = np.add.reduceat(apart, range(0, apart.shape[axis], BLOCK), axis=axis)
    return bool(np.abs(apart).max() / BLOCK**2 < ALIKE)


def main() -> int:
    """Write or check; 1 if something differed and was not to be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args().check
    began, changed = time.monotonic(), []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        made: dict[Path, bytes] = {page: remade(old).encode(), **figures(old)}
        for figure, draw in OWN.items():
            if f"({figure.relative_to(ROOT / 'docs')})" in old:
                made[figure] = draw()
        for path, data in made.items():
            if not path.is_file() or not alike(path.read_bytes(), data):
                changed.append(path)
                if not check:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
    told = ", ".join(str(path.relative_to(ROOT)) for path in changed) or "nothing"
    print(f"{'differs' if check else 'written'}: {told} ({time.monotonic() - began:.0f} s)")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
