"""Hundreds of short runs in one process: what of files, threads, memory and time is not given back."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, environment, posenc, write_corpus

KB_A_RUN = 100  # least-squares slope of resident memory after the warm-up
SLOWER = 1.5  # median seconds a run, last quarter by second quarter
# The console script's function for seed 0, 1, 2, ..., a line of JSON after each run.
PROGRAM = """
import json, os, resource, sys, threading, time
from posenc.cli import main
said, words = os.fdopen(os.dup(1), "w"), json.loads(sys.argv[1])
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for seed in range(int(sys.argv[2])):
    sys.argv[1:] = [*words, f"seed={seed}"]
    began, code = time.monotonic(), 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    seen = {"code": code, "seconds": time.monotonic() - began, "resident": resident,
            "files": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}
    print(json.dumps(seen), file=said, flush=True)
"""
KNOWN = {"config.yaml", "status.json", "metrics.jsonl", "records", "results.json", "checkpoints", "log.txt"}
TORCH = "torchinductor_"  # torch makes this folder when it is imported, whatever is compiled
HIDDEN = (".run.", ".results.", ".evaluation.")  # locks and their holders


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Trainings, and evaluations of one run."""
    write_corpus(place / "texts")
    count = 20 if quick else 200
    short = [f"train.tokens={4 * 128}", "train.log_every=1"]
    words = ["train", *TINY, *short, "data.paths=texts", "encoding=rope"]
    limits = f"files, threads: none more; memory: below {KB_A_RUN} KB a run; nothing left behind"
    yield Case(f"{count} short runs in one process", limits, lambda: _runs(place, words, count))


def _runs(place: Path, words: Sequence[str], count: int) -> Seen:
    own = place / "one-process"
    temporary = own / "tmp"
    temporary.mkdir(parents=True)
    posenc(place, *words, f"runs_dir={own / 'first'}")  # the corpus is in the cache now
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*words, f"runs_dir={own / 'runs'}"]), str(count)],
        cwd=place,
        env=environment(place, TMPDIR=str(temporary), PYTHONMALLOC="malloc"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if len(rows) != count or any(row["code"] for row in rows):
        return Seen(f"{len(rows)} of {count} runs", count, 1, (done.stderr[-600:],))
    warm = max(2, count // 10)
    late = rows[warm:]
    per_run = slope([row["resident"] for row in late]) / 1024
    files, threads = (max(row[key] for row in late) - rows[1][key] for key in ("files", "threads"))
    quarter = max(1, len(late) // 4)
    took = [row["seconds"] for row in late]
    growth = statistics.median(took[-quarter:]) / statistics.median(took[:quarter])
    left = [path.name for path in temporary.iterdir() if not path.name.startswith(TORCH)]
    strange = {
        path.name
        for run in (own / "runs/default").iterdir()
        for path in run.iterdir()
        if path.name not in KNOWN and not path.name.startswith(HIDDEN)
    }
    checks = {
        f"{per_run:.0f} KB a run": per_run > KB_A_RUN and count >= 100,  # few runs are all warm-up
        f"{files} open files more": files > 0,
        f"{threads} threads more": threads > 0,
        f"left in TMPDIR: {left}": bool(left),
        f"left in run directories: {sorted(strange)}": bool(strange),
        f"{growth:.2f} times as slow at the end": growth > SLOWER,
    }
    wrong = tuple(text for text, broken in checks.items() if broken)
    text = (
        f"{per_run:.0f} KB, {files} files, {threads} threads more; {growth:.2f} of the time; left {len(left)}"
    )
    return Seen(text, count, len(wrong), wrong)


def slope(values: Sequence[float]) -> float:
    """Least squares, per step."""
    middle, mean = (len(values) - 1) / 2, statistics.fmean(values)
    above = sum((i - middle) * (value - mean) for i, value in enumerate(values))
    return above / sum((i - middle) ** 2 for i in range(len(values)))


FAMILY = Family("leaks", cases)
