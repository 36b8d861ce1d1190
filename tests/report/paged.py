"""A folder of runs that has everything a page shows, and hostile text wherever a run directory holds text."""

from __future__ import annotations

import json
from pathlib import Path

from fake_runs import T, positions, record, write_run

from posenc.report.page import write_page
from posenc.results.comparison import compare, metric_for, tables_of
from posenc.results.load import Run, load_runs

EVIL = "</script><img src=x onerror=alert(1)>"
LOSSES = {
    "rope": {0.5: 1.35, 1: 1.30, 2: 2.1, 4: 2.9, 8: 3.4},
    "alibi": {0.5: 1.37, 1: 1.33, 2: 1.331, 4: 1.332, 8: 1.333},
    "nope": {0.5: 1.41, 1: 1.45, 2: 1.9, 4: 2.4, 8: 2.8},
}


def log(run: Path) -> None:
    """A metrics.jsonl of 60 logged steps."""
    steps = [{"step": i, "tokens": 2048 * i, "loss": 1.2 + 3 / i} for i in range(1, 61)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))


def write_runs(root: Path) -> Path:
    """Three encodings x two seeds with curves; one more that failed at 8x, one that never had a number."""
    for name, losses in LOSSES.items():
        for seed in (0, 1):
            records = [record(int(m * T), loss + seed / 100) for m, loss in losses.items()]
            params = {"base": 10000.0} if name == "rope" else {}
            log(
                write_run(
                    root, name, seed=seed, records=[*records, positions(shift=seed / 50)], params=params
                )
            )
    records = [record(T, 1.5), record(8 * T, 9.9, note=f"oom {EVIL}")]
    config = {"train": {"tokens": 3_276_800, "lr": EVIL}}
    write_run(root, f"x{EVIL}", seed=0, records=records, config=config)
    write_run(root, "fire", seed=0, results=False, status="failed", reason=EVIL, config={EVIL: EVIL})
    return root


def page_of(root: Path, path: Path) -> list[Run]:
    """The page of all protocols of the runs below `root`."""
    runs = load_runs([root])
    protocols = tables_of(runs)
    write_page(path, runs, [compare(runs, one, metric_for(runs, one, "nats"), True) for one in protocols])
    return runs
