"""Compare the numbers of all tables of docs/study*.md, and what `posenc compare` prints of stored records.

    python scripts/checks/gate/tables.py compare OLD NEW        each a source tree, or a JSON of `observe`
    python scripts/checks/gate/tables.py observe TREE --out tables.json

A row of a table is known by its numbers alone, wherever it stands: pages may be reordered and reworded.
Records stand in docs/NAME or docs/records/NAME; `study`, `study-recall` and `study-room` are also names.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from command_line import Observation, Selection, run_part
from contents import Content, numbers_in, stream_content
from differences import Difference, compare_contents
from trees import ForkServer, Tree

NAMES = ("study", "study-recall", "study-room")
MOST_CHARACTERS = 0  # a stored comparison is its digests
OPTIONS = (
    ("--format", "json"),
    ("--format", "json", "--protocol", "all", "--allow-mixed"),
    ("--format", "json", "--metric", "bpb", "--allow-mixed"),
    ("--format", "csv", "--allow-mixed"),
    ("--format", "table", "--full", "--allow-mixed"),
)


def observe(tree: Tree, selection: Selection) -> Observation:
    """Return the numbers of every row of the pages' tables, and every comparison of stored records."""
    folder = tree.work / "tables"
    folder.mkdir(parents=True)
    comparisons = {}
    server = ForkServer(tree, "tables")
    for label, subject in _subjects(tree.path):
        if not selection.has(label):
            continue
        for options in OPTIONS:
            outcome = server.run(["compare", subject, *options], folder)
            content = stream_content(outcome.stdout, tree.folder_tags(folder))
            comparisons[f"{label} {' '.join(options)}"] = {"code": outcome.code, "stdout": content.stored()}
        print(f"{tree.work.name}: {label}", file=sys.stderr, flush=True)
    server.close()
    pages = sorted((tree.path / "docs").glob("study*.md"))
    rows = Counter(row for page in pages for row in rows_of(page.read_text()))
    return {"rows": dict(rows), "comparisons": comparisons}


def _subjects(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (label, what to compare): the three names, then every folder of records."""
    for name in NAMES:
        yield name, name
    folders = [path.parent for path in (root / "docs").rglob("*.runs.jsonl.gz")]
    for folder in sorted(set(folders), key=lambda folder: folder.name):
        yield f"records of {folder.name}", str(folder)


def rows_of(page: str) -> Iterator[str]:
    """Yield the numbers of every row of a Markdown table and every line of a block of output."""
    inside_block = False
    for line in page.splitlines():
        if line.startswith("```"):
            inside_block = not inside_block
        elif inside_block or line.lstrip().startswith("|"):
            numbers = numbers_in(line)
            if numbers:
                yield " ".join(numbers)


def compare(old: Observation, new: Observation) -> Iterator[Difference]:
    """Yield every row that only one of the trees has, and every comparison that differs."""
    before, after = Counter(old["rows"]), Counter(new["rows"])
    for row, count in (before - after).items():
        yield Difference("pages", "numbers", "row of a table", row, f"absent {count} times")
    for row, count in (after - before).items():
        yield Difference("pages", "numbers", "row of a table", f"absent {count} times", row)
    for label in sorted(old["comparisons"].keys() | new["comparisons"].keys()):
        yield from _compare_comparison(label, old["comparisons"].get(label), new["comparisons"].get(label))


def _compare_comparison(label: str, old: Observation | None, new: Observation | None) -> Iterator[Difference]:
    if old is None or new is None:
        yield Difference(label, "commands", "folder of records", old is not None, new is not None)
        return
    if old["code"] != new["code"]:
        yield Difference(label, "exit code", "exit code", old["code"], new["code"])
    yield from compare_contents(label, "stdout", Content(**old["stdout"]), Content(**new["stdout"]))


def compact(observation: Observation) -> Observation:
    """Return the observation with digests instead of the comparisons' leaves."""
    comparisons = {}
    for label, comparison in observation["comparisons"].items():
        content = Content(**comparison["stdout"]).compacted(MOST_CHARACTERS)
        comparisons[label] = comparison | {"stdout": content.stored()}
    return observation | {"comparisons": comparisons}


if __name__ == "__main__":
    sys.exit(run_part(__doc__, observe, compare, compact))
