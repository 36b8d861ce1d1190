"""Remake every table and figure that the pages quote from the records in docs/records/. Nothing is trained.

    python scripts/docs/pages.py            write what changed
    python scripts/docs/pages.py --check    only tell what would change; exit code 1 if anything would
    python scripts/docs/pages.py docs/study.md      only this page

A page marks such a part with a comment, of which there are three kinds. Text from a mark to `<!-- end -->` is
made anew:

    <!-- printed by: posenc compare docs/records/study --sort 8x -->     what the command prints
    <!-- made by: room(["study-room"]) -->                               what a function of FUNCTIONS returns

A figure has one mark, below the line that shows it. Its command names the file below docs/pictures/:

    <!-- drawn by: posenc compare docs/records/study --plot docs/pictures/results/change.png -->

The arguments of a function are plain values. A function stands in one of the files *_tables.py, and its
docstring says what it makes. To add a table, write a function there, add it to FUNCTIONS, put the mark and
`<!-- end -->` into the page, and run this script.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import control_tables
import measured_tables
import numpy as np
import paper_tables
import record_tables
import softmax_tables
import task_ranks
import task_tables
import text_tables
from PIL import Image
from posenc_output import ROOT, run_posenc

from posenc.core.machine import usable_cores

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FUNCTIONS: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (
        record_tables.costs,
        record_tables.losses_and_changes,
        record_tables.by_setting,
        record_tables.two_rows_by_seed,
        record_tables.changes_by_seed,
        record_tables.recall_by_seed,
        record_tables.room,
        record_tables.harm_and_use,
        record_tables.cost_of_plants,
        record_tables.harm_by_size,
        record_tables.use_by_size,
        record_tables.verdicts_counted,
        record_tables.recipe,
        record_tables.memory_beside_recall,
        record_tables.extensions_beside,
        record_tables.verdicts_that_differ,
        control_tables.controls,
        control_tables.controls_by_seed,
        paper_tables.changes_in_papers,
        paper_tables.accuracies_in_papers,
        measured_tables.altered_models,
        measured_tables.speed_beside_peers,
        measured_tables.gpu_table,
        measured_tables.plan_beside_measured,
        measured_tables.end_of_training,
        text_tables.verdicts_by_text,
        text_tables.memory_by_text,
        text_tables.agreement_by_text,
        softmax_tables.harm_by_option,
        softmax_tables.loss_by_option,
        softmax_tables.found_by_option,
        softmax_tables.attention_by_option,
        softmax_tables.directions_met,
        softmax_tables.harm_against_softmax,
        softmax_tables.reasons_by_case,
        softmax_tables.numbers_by_case,
        task_tables.whole_answers,
        task_tables.right_tokens_beside,
        task_tables.minutes_of_tasks,
        task_tables.right_tokens,
        task_ranks.tasks_beside_text,
        task_ranks.ranks_by_task,
    )
}
MARK = re.compile(r"^<!-- (?P<kind>printed by|made by|drawn by): (?P<source>.*?) -->\n", re.S | re.M)
END = "<!-- end -->"
COMMENT = re.compile(r"^<!-- (?P<first_words>.*)", re.M)
FIGURE = re.compile(r"docs/pictures/\S+\.(?:png|svg)")
BLOCK = 16  # pixels
SAME_PICTURE = 12.0  # of 255, the most by which the mean of a block may differ


def printed_text(command: str) -> str:
    """Return what a command prints: Markdown as it is, a table for a terminal in a block of code."""
    text = run_posenc(command).rstrip() + "\n"
    return text if "--format markdown" in command else f"```text\n{text}```\n"


def made_text(call_text: str) -> str:
    """Return what a function of FUNCTIONS returns. Raises ValueError for all but a call with plain values."""
    call = ast.parse(call_text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"made by: {call_text}: not a call of a function")
    if call.func.id not in FUNCTIONS:
        raise ValueError(f"made by: {call_text}: no such function; there are {', '.join(FUNCTIONS)}")
    arguments = [ast.literal_eval(argument) for argument in call.args]
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return FUNCTIONS[call.func.id](*arguments, **named)


MAKERS = {"printed by": printed_text, "made by": made_text}


def remade(page: str) -> str:
    """Return the page with every text part made anew. Raises ValueError for a mark that cannot be read."""
    check_comments(page)
    parts: list[str] = []
    position = 0
    for mark in MARK.finditer(page):
        if mark["kind"] == "drawn by":
            continue
        # A mark without its end would swallow the page up to the end of the next mark.
        end = page.find(END, mark.end())
        next_mark = MARK.search(page, mark.end())
        if end < 0 or (next_mark is not None and next_mark.start() < end):
            raise ValueError(f"<!-- {mark['kind']}: {mark['source']} --> has no {END}")
        parts += [page[position : mark.end()], MAKERS[mark["kind"]](mark["source"])]
        position = end
    return "".join([*parts, page[position:]])


def check_comments(page: str) -> None:
    """Raise ValueError for a comment that is none of the kinds: a slip would leave its table as it is."""
    beginnings = ("printed by: ", "made by: ", "drawn by: ", "not run: ", "end -->")
    for comment in COMMENT.finditer(page):
        if not comment["first_words"].startswith(beginnings):
            raise ValueError(f"<!-- {comment['first_words']}: not one of {', '.join(beginnings)}")


def redrawn(page: str) -> dict[Path, bytes]:
    """Return the bytes of every figure of a page, drawn anew in another folder."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for mark in MARK.finditer(page):
            if mark["kind"] != "drawn by":
                continue
            command = mark["source"]
            (file,) = FIGURE.findall(command)
            copy = Path(folder) / Path(file).name
            draw(command.replace(file, shlex.quote(str(copy))))
            figures[ROOT / file] = copy.read_bytes()
    return figures


def draw(command: str) -> None:
    """Run a command that draws: of posenc, or of a script beside this one."""
    if command.startswith("posenc "):
        run_posenc(command)
    else:
        program, *arguments = shlex.split(command)
        assert program == "python", command
        subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)


def same_content(old: bytes, new: bytes) -> bool:
    """Tell whether two files show the same: equal, or pictures that differ as two processors draw them.

    With and without AVX-512 the means of 16 x 16 pixels differ by up to 7 of 255, at the edges of letters. A
    figure with one seed less differs by 130.
    """
    if old == new:
        return True
    if not old.startswith(b"\x89PNG"):
        return False
    old_pixels, new_pixels = pixels_of(old), pixels_of(new)
    if old_pixels.shape != new_pixels.shape:
        return False
    difference = old_pixels - new_pixels  # (height, width, 3)
    for axis in (0, 1):
        blocks = range(0, difference.shape[axis], BLOCK)
        difference = np.add.reduceat(difference, blocks, axis=axis)
    return bool(np.abs(difference).max() / BLOCK**2 < SAME_PICTURE)


def pixels_of(picture: bytes) -> np.ndarray:
    """Return the colours of a picture: (height, width, 3) float32."""
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"), np.float32)


def contents_of(page: Path) -> dict[Path, bytes]:
    """Return a page and its figures, made anew."""
    text = page.read_text(encoding="utf-8")
    return {page: remade(text).encode(), **redrawn(text)}


def changed_of(contents: dict[Path, bytes]) -> dict[Path, bytes]:
    """Return those contents that the files do not show yet."""
    changed = {}
    for path, content in contents.items():
        if not path.is_file() or not same_content(path.read_bytes(), content):
            changed[path] = content
    return changed


def write(contents: dict[Path, bytes]) -> None:
    """Write the contents to their files."""
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def main() -> int:
    """Write or check all pages; return 1 if something differs and was not to be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="default: all")
    arguments = parser.parse_args()
    only_check: bool = arguments.check
    start = time.monotonic()
    changed = []
    # The largest pages first, which mostly take longest, so that no core waits for the last one.
    pages: list[Path] = sorted(arguments.pages, key=lambda page: page.stat().st_size, reverse=True)
    with ProcessPoolExecutor(usable_cores()) as processes:
        for contents in processes.map(contents_of, pages):
            changed_contents = changed_of(contents)
            changed += [os.path.relpath(path, ROOT) for path in changed_contents]
            if not only_check:
                write(changed_contents)
    did = "differs" if only_check else "written"
    print(f"{did}: {', '.join(changed) or 'nothing'} ({time.monotonic() - start:.0f} s)")
    return 1 if only_check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
