"""Time two trees in turns: start-up, first step, training, dry run, and a comparison of 2,000 runs.

    python scripts/checks/gate/speed.py OLD NEW [--pairs 7] [--only NAME ...]

Each figure is measured in pairs, old and new one after the other, the order swapped from pair to pair. What
is printed is the median of each and the median of the differences or ratios within a pair. CPU seconds stand
beside seconds: on a machine with other work they are the ones to trust. Then the list of large libraries
that each command imports: a command of the new tree must not import one that it did not import before.
Exit code 1 if a limit is passed or an import was added.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from command_list import TINY
from texts import write_texts
from trees import Tree, open_tree

ROWS, SEEDS = 20, 100  # of the synthetic comparison: 2,000 runs
HEAVY = ("torch", "pandas", "scipy.stats", "scipy.special", "pydantic", "hydra", "datasets", "transformers")
IMPORTS_OF = (
    *("--help", "train --help", "compare runs", "compare runs --format csv", "runs runs"),
    *("encodings", "train encoding=rpe"),
)
IMPORT_LINE = re.compile(r"^import time: .*\| +([\w.]+)$", re.MULTILINE)  # of python -X importtime


@dataclass(frozen=True)
class Timing:
    """Seconds on the clock and on the processor."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Figure:
    """Something to be timed, with the most that the new tree may add: seconds, or a share."""

    name: str
    measure: Callable[[Tree], Timing]
    most_seconds: float | None = None
    most_share: float | None = None
    pairs: int | None = None  # fewer than the command line says, where one takes long


def timed_process(
    tree: Tree, arguments: list[str], cwd: Path, until: Callable[[], bool] | None = None
) -> Timing:
    """Time a process of the tree to its end, or until something is true; then it is killed."""
    began = time.perf_counter()
    process = tree.start(arguments, cwd)
    if until:
        while not until() and process.poll() is None:
            time.sleep(0.002)
        wall = time.perf_counter() - began
        os.killpg(process.pid, signal.SIGKILL)
    else:
        assert process.stdout
        assert process.stderr
        # Both streams at once: a process whose stderr is full would wait for ever.
        read_stderr = threading.Thread(target=process.stderr.read)
        read_stderr.start()
        process.stdout.read()
        read_stderr.join()
    # Popen.wait would not tell the seconds on the processor.
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # it has been waited for
    if not until:
        wall = time.perf_counter() - began
    return Timing(wall, usage.ru_utime + usage.ru_stime)


def posenc_timing(words: str) -> Callable[[Tree], Timing]:
    """Return a function that times `posenc WORDS` in the tree's folder."""
    return lambda tree: timed_process(tree, ["-m", "posenc", *words.split()], tree.work)


def first_step(tree: Tree) -> Timing:
    """Time `posenc train encoding=rope` until the first step is logged."""
    runs = tree.work / "first"
    shutil.rmtree(runs, ignore_errors=True)
    words = ["-m", "posenc", "train", "encoding=rope", "train.log_every=1", f"runs_dir={runs}"]

    def has_logged() -> bool:
        return any(path.stat().st_size for path in runs.glob("default/*/metrics.jsonl"))

    return timed_process(tree, words, tree.work, until=has_logged)


def training(tree: Tree) -> Timing:
    """Return the seconds that one million tokens take, by the rate that the run reports."""
    runs = tree.work / "training"
    shutil.rmtree(runs, ignore_errors=True)
    words = (
        "-m posenc train encoding=rope train.tokens=200000 train.precision=fp32 eval.max_targets=64 "
        f"eval.lengths=[1x] eval.protocols=[fixed-target] runs_dir={runs}"
    )
    timing = timed_process(tree, words.split(), tree.work)
    (results,) = runs.glob("default/*/results.json")
    rate = json.loads(results.read_text())["run"]["tokens_per_second"]
    return Timing(1e6 / rate, timing.cpu)


FIGURES = (
    Figure("help", posenc_timing("--help"), most_seconds=0.1),
    Figure("compare, 2 runs", posenc_timing("compare runs"), most_seconds=0.1),
    Figure("a mistake", posenc_timing("train encoding=rpe"), most_seconds=0.1),
    Figure("first step", first_step, most_seconds=0.2),
    Figure("a million tokens", training, most_share=0.05, pairs=5),
    Figure("dry run", posenc_timing("train encoding=rope --dry-run"), most_share=0.05),
    Figure("dry run of 6", posenc_timing("train -m experiment=headline --dry-run"), most_share=0.05),
    Figure("compare, 2000 runs", posenc_timing("compare many"), most_share=0.05, pairs=5),
    Figure("compare 2000, JSON", posenc_timing("compare many --format json"), most_share=0.05, pairs=3),
    Figure("runs, 2000 runs", posenc_timing("runs many"), most_share=0.05, pairs=3),
)


def prepare(tree: Tree) -> None:
    """Train two short runs in the tree's folder, and make 2,000 more from one of them."""
    write_texts(tree.work / "texts", seed=0)
    for encoding in ("rope", "alibi"):
        words = ["train", *TINY.split(), f"encoding={encoding}", f"name={encoding}"]
        outcome = tree.run(words, tree.work)
        if outcome.code:
            sys.exit(outcome.stderr)
    (directory,) = (tree.work / "runs/default").glob("rope-*")
    run = StoredRun(
        directory,
        settings=yaml.safe_load((directory / "config.yaml").read_text()),
        results=json.loads((directory / "results.json").read_text()),
    )
    for row in range(ROWS):
        for seed in range(SEEDS):
            copy_run(run, tree.work / "many", row, seed)


@dataclass(frozen=True)
class StoredRun:
    """A run on disk, with its settings and its results as read."""

    directory: Path
    settings: dict[str, Any]
    results: dict[str, Any]


def copy_run(run: StoredRun, folder: Path, row: int, seed: int) -> None:
    """Write what a comparison reads of a run, with another seed, another base of RoPE and other losses."""
    copy = folder / f"rope-row{row}-s{seed}-{row * SEEDS + seed:08x}"
    encoding = {"base": 10000.0 + row}
    # 37 has no factor in common with SEEDS, so that all seeds differ, and not in ascending order.
    factor = 1 + 1e-3 * row + 1e-4 * ((37 * seed) % SEEDS)
    copy.mkdir(parents=True)
    for name in ("status.json", "log.txt", "metrics.jsonl"):
        shutil.copy(run.directory / name, copy / name)
    settings = run.settings | {"seed": seed, "encoding": run.settings["encoding"] | encoding}
    (copy / "config.yaml").write_text(yaml.dump(settings, Dumper=yaml.CSafeDumper, sort_keys=False))
    about = run.results["run"]
    changes = {"name": copy.name, "seed": seed, "encoding": about["encoding"] | encoding}
    changes["settings_hash"] = copy.name[-8:]
    records = [with_losses_times(record, factor) for record in run.results["records"]]
    results = run.results | {"run": about | changes, "records": records}
    (copy / "results.json").write_text(json.dumps(results))


def with_losses_times(record: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return a record with the losses of all its documents multiplied, so that rows and seeds differ."""
    documents = record.get("per_document")
    if not documents:
        return record
    nats = [loss * factor for loss in documents["nats"]]
    return record | {"nats": record["nats"] * factor, "per_document": documents | {"nats": nats}}


def time_in_turns(figure: Figure, old: Tree, new: Tree, pairs: int) -> bool:
    """Print the medians of a figure; return whether the new tree keeps within its limit."""
    count = min(pairs, figure.pairs or pairs)
    figure.measure(old)  # not counted: files come into memory, Python compiles
    figure.measure(new)
    timings: list[tuple[Timing, Timing]] = []
    for pair in range(count):
        if pair % 2:
            new_timing = figure.measure(new)
            old_timing = figure.measure(old)
        else:
            old_timing = figure.measure(old)
            new_timing = figure.measure(new)
        timings.append((old_timing, new_timing))
    added = {}
    ratio = {}
    for clock in ("wall", "cpu"):
        old_seconds = [getattr(old_timing, clock) for old_timing, _ in timings]
        new_seconds = [getattr(new_timing, clock) for _, new_timing in timings]
        pairs_of_seconds = list(zip(old_seconds, new_seconds, strict=True))
        added[clock] = statistics.median(after - before for before, after in pairs_of_seconds)
        ratio[clock] = statistics.median(after / before for before, after in pairs_of_seconds)
        print(
            f"{figure.name:28} {clock:4}  old {statistics.median(old_seconds):8.3f} s"
            f"  new {statistics.median(new_seconds):8.3f} s"
            f"  {added[clock]:+.3f} s  {ratio[clock]:.3f}x",
            flush=True,
        )
    # Either clock will do: other work makes the wall slow, a second thread makes the processor busy.
    if figure.most_seconds is not None:
        kept = min(added.values()) <= figure.most_seconds
        limit = f"{figure.most_seconds:+.1f} s"
    else:
        assert figure.most_share is not None
        kept = min(ratio.values()) <= 1 + figure.most_share
        limit = f"{1 + figure.most_share:.2f}x"
    if not kept:
        print(f"  PASSES ITS LIMIT of {limit}")
    return kept


def heavy_imports(tree: Tree, words: str) -> set[str]:
    """Return which of the large libraries `posenc WORDS` imports."""
    # Not sys.modules at the end: posenc may leave by os._exit, after which no code of ours runs.
    outcome = tree.run_python(["-X", "importtime", "-m", "posenc", *words.split()], tree.work)
    return set(HEAVY) & set(IMPORT_LINE.findall(outcome.stderr))


def compare_imports(old: Tree, new: Tree) -> bool:
    """Print what each command imports; return whether the new tree imports nothing more."""
    kept = True
    for words in IMPORTS_OF:
        old_imports = heavy_imports(old, words)
        new_imports = heavy_imports(new, words)
        print(f"posenc {words}: imports {', '.join(sorted(new_imports)) or 'none of the large libraries'}")
        changes = (
            ("MORE than before", new_imports - old_imports),
            ("less than before", old_imports - new_imports),
        )
        for change, names in changes:
            if names:
                print(f"  {change}: {', '.join(sorted(names))}")
        kept = kept and new_imports <= old_imports
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="figures whose name holds one of these texts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-") as work:
        old = open_tree(arguments.old, arguments.python, Path(work) / "old")
        new = open_tree(arguments.new, arguments.python, Path(work) / "new")
        prepare(old)
        prepare(new)
        verdicts = [compare_imports(old, new)]
        for figure in FIGURES:
            if not arguments.only or any(text in figure.name for text in arguments.only):
                verdicts.append(time_in_turns(figure, old, new, arguments.pairs))
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
