"""The command line that the parts of the gate share: observe one tree, or compare two."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from differences import Difference, read_allowed, report
from trees import Tree, open_tree

Observation = dict[str, Any]


@dataclass(frozen=True)
class Selection:
    """Which labels are observed: those of `--only`, or all."""

    only: tuple[str, ...] = ()

    def has(self, label: str) -> bool:
        return not self.only or label in self.only


Observe = Callable[[Tree, Selection], Observation]
Compare = Callable[[Observation, Observation], Iterator[Difference]]
Compact = Callable[[Observation], Observation]


def run_part(
    description: str | None, observe: Observe, compare: Compare, compact: Compact | None = None
) -> int:
    """Do what the command line asks for with one part of the gate; return the exit code.

    `compact` makes an observation smaller before it is stored.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter with posenc's dependencies")
    parser.add_argument(
        "--work", type=Path, help="new folder for all that is written, kept (else: temporary)"
    )
    parser.add_argument(
        "--only", default="", help="of commands: chapters; of bits: runs; as a,b (trees alone)"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    observe_verb = verbs.add_parser("observe", help="record what one tree does")
    observe_verb.add_argument("tree", type=Path)
    observe_verb.add_argument("--out", type=Path, required=True)
    observe_verb.add_argument("--full", action="store_true", help="store long contents, not their digests")
    compare_verb = verbs.add_parser("compare", help="compare two trees, or JSON files of `observe`")
    compare_verb.add_argument("old", type=Path)
    compare_verb.add_argument("new", type=Path)
    arguments = parser.parse_args()
    selection = Selection(tuple(filter(None, arguments.only.split(","))))

    with tempfile.TemporaryDirectory(prefix="gate-") as temporary:
        work = arguments.work or Path(temporary)
        if arguments.verb == "observe":
            observation = _observe(arguments.tree, work / "tree", observe, selection, arguments.python)
            if compact and not arguments.full:
                observation = compact(observation)
            write_observation(arguments.out, observation)
            return 0
        # Both at once: nothing here measures time, and what runs in parallel must not matter.
        with ThreadPoolExecutor(max_workers=2) as pool:
            sources = ((arguments.old, "old"), (arguments.new, "new"))
            waiting = [
                pool.submit(_observe, source, work / name, observe, selection, arguments.python)
                for source, name in sources
            ]
            old, new = (future.result() for future in waiting)
        return report(compare(old, new), read_allowed())


def _observe(source: Path, work: Path, observe: Observe, selection: Selection, python: str) -> Observation:
    """Return a stored observation, or observe a tree now."""
    if source.is_file():
        if selection.only:
            sys.exit("--only compares two trees: a stored observation has everything")
        return json.loads(source.read_text())
    began = time.monotonic()
    observation = observe(open_tree(source, python, work), selection)
    print(f"{work.name}: observed in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return observation


def write_observation(path: Path, observation: Observation) -> None:
    """Write JSON of one line for each command or run, so that a changed baseline shows as a small diff."""
    path.write_text(json.dumps(observation, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
