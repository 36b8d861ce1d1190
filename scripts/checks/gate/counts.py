"""Count the files of posenc that `posenc train encoding=rope` passes to its first step, and to its table.

    python scripts/checks/gate/counts.py TREE [TREE ...] [--list]

A file counts once one of its functions is called. What runs while a module is imported (its top level,
decorators, tables made once) is not on the way that a reader follows, and is told apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from trees import Tree, open_tree

TINY = (
    "encoding=rope model.d_model=32 model.n_layers=2 model.n_heads=2 context_length=16 train.tokens=512 "
    "train.batch_tokens=128 eval.max_targets=200 eval.lengths=[1x,2x]"
)
SCRIPT = Path(__file__).with_name("profiled_train.py")


def count_files(tree: Tree) -> dict[str, list[str]]:
    """Return the files with a called function: until the first step, until the table, only by imports."""
    out = tree.work / "counts.json"
    words = [str(SCRIPT), str(tree.path / "posenc"), str(out), "train", *TINY.split()]
    outcome = tree.run_python(words, tree.work)
    if outcome.code:
        sys.exit(outcome.stderr)
    counted: dict[str, list[str]] = json.loads(out.read_text())
    return counted


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--list", action="store_true", help="the files, too")
    arguments = parser.parse_args()
    for index, path in enumerate(arguments.trees):
        with tempfile.TemporaryDirectory(prefix="gate-") as work:
            counted = count_files(open_tree(path, arguments.python, Path(work)))
        first, table, imports = (len(counted[part]) for part in ("first_step", "table", "imports"))
        print(f"tree {index + 1}: {first} files to the first step, {table} to the table", end="")
        print(f" ({imports} more only while they are imported)")
        if arguments.list:
            for file in counted["table"]:
                print(f"  {'first step' if file in counted['first_step'] else 'table':10}  {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
