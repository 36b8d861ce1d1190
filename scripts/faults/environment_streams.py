"""Terminals, colours, letters and streams that are not as usual."""

from __future__ import annotations

import sys

from faults.case import Seen
from faults.environment_world import POSENC, World, complaint, tried
from faults.terminal import in_terminal

READERS = ("compare", "runs", "encodings", "encodings rope", "show encoding=alibi", "data list", "--help")


def narrow(world: World) -> Seen:
    found = {}
    for columns in (20, 80):
        for words in READERS:
            ended = world.sh(f"{POSENC} {words}", env={"COLUMNS": str(columns)})
            found[f"{columns} columns: {words}"] = complaint(ended)
            if columns == 80 and (
                wide := [n for n in ended.out.splitlines() if len(n) > 80 and str(world.place) not in n]
            ):
                found[f"{columns} columns: {words}"] = f"a line of {len(wide[0])}: {wide[0]}"
    return tried(found)


def plain(world: World) -> Seen:
    """No colour in a pipe or with NO_COLOR; colour in a terminal without."""
    found = {}
    for words in ("compare", "runs", "check encoding=nope"):
        ended = world.sh(f"{POSENC} {words}")
        found[f"pipe: {words}"] = "escapes" if "\x1b" in ended.out + ended.err else complaint(ended)
        for name, env in (("NO_COLOR", {"NO_COLOR": "1"}), ("TERM=dumb", {"TERM": "dumb"})):
            ended = in_terminal([sys.executable, "-m", "posenc", *words.split()], world.place, env)
            colored = [code for code in ("\x1b[3", "\x1b[9", "\x1b[4") if code in ended.out]
            found[f"{name}: {words}"] = f"colour {colored}" if colored else complaint(ended)
    return tried(found)


def ascii_only(world: World) -> Seen:
    """Locales and streams that have no letters but ASCII."""
    off = {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    kinds = {
        "LANG=C": {"LANG": "C", "LC_ALL": None},
        "LC_ALL=POSIX": {"LC_ALL": "POSIX", **off},
        "PYTHONIOENCODING=ascii": {"PYTHONIOENCODING": "ascii"},
        "latin-1": {"PYTHONIOENCODING": "latin-1"},
    }
    trains = f"{world.train} runs_dir=ascii seed="
    found = {}
    for i, (name, env) in enumerate(kinds.items()):
        for words in READERS:
            found[f"{name}: {words}"] = complaint(world.sh(f"{POSENC} {words}", env=env))
        found[f"{name}: train"] = complaint(world.sh(f"{trains}{i}", env=env))
        found[f"{name}: wrong"] = complaint(
            world.sh(f"{POSENC} train encoding=röpe", env=env), (2,), "quote what holds"
        )
    return tried(found)


def streams(world: World) -> Seen:
    """Output that nobody reads, that is full or closed; no input."""
    found = {}
    for words in (
        "encodings",
        "compare",
        "runs",
        "compare --format json",
        "train --help",
        "encodings --json",
    ):
        ended = world.sh(f"set -o pipefail; {POSENC} {words} | head -1")
        found[f"| head -1: {words}"] = complaint(ended, (0, 1, 141)) or (ended.err.strip() or None)
        found[f">&-: {words}"] = complaint(world.sh(f"{POSENC} {words} >&-"), (0, 1))
        ended = world.sh(f"{POSENC} {words} > /dev/full")
        found[f"/dev/full: {words}"] = complaint(ended, (1,), "No space left")
    for closed in ("<&-", "2>&-", "<&- >&- 2>&-"):
        found[closed] = complaint(world.sh(f"{POSENC} runs {closed}"))
        found[f"train {closed}"] = complaint(world.sh(f"{world.train} runs_dir=closed{len(closed)} {closed}"))
    return tried(found)
