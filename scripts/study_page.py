"""Remake every table and figure of the study's pages, and the README's, from the records in docs/study/.

    python scripts/study_page.py            write what changed
    python scripts/study_page.py --check    only tell what would change; exit code 1 if anything would
What is made stands between one of these lines and `<!-- end -->`. Nothing is trained.
    <!-- posenc ... -->                      what the command prints
    <!-- costs: FILE FILE -->                runs, seeds and minutes of each file of records
    <!-- pairs: FILE KEY=VALUE ... -->       how many pairs of rows are told apart at each length
    <!-- causes: FILE -->                    what scripts/study_causes.py measured
    <!-- directions: FILE -->                directions of each paper's table that are met, and not
A figure has one line, and the file is what the command draws:
    <!-- drawn by: posenc ... --plot FILE ... -->
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from posenc.results import Run, load_runs
from posenc.results.against import against
from posenc.results.comparison import compare
from posenc.results.filters import where
from posenc.results.published import tables

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "study.md", ROOT / "docs" / "study-directions.md")
MADE = re.compile(
    r"(?P<head><!-- (?P<how>posenc |[a-z]+: )(?P<words>[^\n]*?) -->\n)"
    r"(?P<body>.*?)(?P<end><!-- end -->)",
    re.S,
)
FIGURE = re.compile(r"<!-- drawn by: (?P<command>posenc [^\n]*? --plot (?P<file>\S+)[^\n]*?) -->")


def printed(command: str) -> str:
    """What the command prints on stdout, at 80 columns, in the root of the clone."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "posenc", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr}")
    return done.stdout


def shown(words: str) -> str:
    """The table of a command: Markdown, or as in a terminal."""
    text = printed(f"posenc {words}").rstrip() + "\n"
    return text if "--format markdown" in words else f"```text\n{text}```\n"


def costs(words: str) -> str:
    """What was run, and how long it took."""
    lines = ["| records | runs | encodings | seeds | training, minutes a run | measuring | in all, hours |"]
    lines.append("| --- | ---: | ---: | --- | ---: | ---: | ---: |")
    for name in words.split():
        runs = [run for run in load_runs([ROOT / name]) if run.facts is not None]
        trained = [facts["wall_seconds"] / 60 for run in runs if (facts := run.facts)]
        measured = [sum(record.get("seconds") or 0 for record in run.records) / 60 for run in runs]
        seeds = sorted({run.seed for run in runs if run.seed is not None})
        encodings = {str(run.facts["encoding"]) for run in runs if run.facts}
        hours = (sum(trained) + sum(measured)) / 60
        lines.append(
            f"| {Path(name).name} | {len(runs)} | {len(encodings)} | {', '.join(map(str, seeds))} "
            f"| {_middle(trained)} | {_middle(measured)} | {hours:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def pairs(words: str) -> str:
    """Of all pairs of rows: told apart, tied, unclear; by length."""
    name, *conditions = words.split()
    runs = where(load_runs([ROOT / name]), conditions)
    table = compare(runs, "fixed-target", "nats", allow_mixed=False)
    lines = ["| length | pairs | told apart | tied | unclear |", "| --- | ---: | ---: | ---: | ---: |"]
    for column in table.columns:
        said = [pair.word for pair in column.pairs]
        apart = said.count("lower") + said.count("higher")
        counts = (len(said), apart, said.count("tie"), said.count("unclear"))
        lines.append(f"| {column.multiple:g}x | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def causes(words: str) -> str:
    """Trained models, altered at one place: the loss at T, and the change to it."""
    found = json.loads((ROOT / words.strip()).read_text(encoding="utf-8"))
    lines = ["| encoding | changed | T | 2x | 4x | 8x |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for encoding, altered in found.items():
        for what, (at_train_length, *beyond) in altered.items():
            changes = " | ".join(f"{loss - at_train_length:+.3f}" for loss in beyond)
            lines.append(f"| {encoding} | {what} | {at_train_length:.3f} | {changes} |")
    return "\n".join(lines) + "\n"


def directions(words: str) -> str:
    """A line for each paper's table with something to compare."""
    runs: list[Run] = load_runs([ROOT / words.strip()])
    lines = ["| paper's table | pass | fail | cannot tell |", "| --- | ---: | ---: | ---: |"]
    every: dict[str, Counter[str]] = {outcome: Counter() for outcome in ("pass", "fail", "cannot tell")}
    total = dict.fromkeys(every, 0)
    for table in tables():
        checks = [check for block in against(runs, table).blocks for check in block.checks]
        count = {outcome: sum(check.outcome == outcome for check in checks) for outcome in total}
        total = {outcome: total[outcome] + count[outcome] for outcome in total}
        for outcome, whats in every.items():
            whats.update(check.what for check in checks if check.outcome == outcome)
        lines.append(f"| {table} | {' | '.join(map(str, count.values()))} |")
    lines.append(f"| in all | {' | '.join(map(str, total.values()))} |")
    lines.append(f"| different ones | {' | '.join(str(len(whats)) for whats in every.values())} |")
    lines += ["", "| not as published | times |", "| --- | ---: |"]
    lines += [f"| {what} | {n} |" for what, n in every["fail"].most_common()]
    return "\n".join(lines) + "\n"


MAKERS = {
    "posenc ": shown,
    "costs: ": costs,
    "pairs: ": pairs,
    "causes: ": causes,
    "directions: ": directions,
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


def main() -> int:
    """Write or check; 1 if something differed and was not to be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args().check
    began, changed = time.monotonic(), []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        made: dict[Path, bytes] = {page: remade(old).encode(), **figures(old)}
        for path, data in made.items():
            if not path.is_file() or path.read_bytes() != data:
                changed.append(path)
                if not check:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
    told = ", ".join(str(path.relative_to(ROOT)) for path in changed) or "nothing"
    print(f"{'differs' if check else 'written'}: {told} ({time.monotonic() - began:.0f} s)")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
