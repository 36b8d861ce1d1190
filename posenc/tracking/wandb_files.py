"""Files of a run as a W&B artifact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from posenc.tracking.base import TrackedRun
from posenc.tracking.wandb_server import load_wandb

RESULTS = ("config.yaml", "results.json", "metrics.jsonl", "positions.json")
LONGEST_NAME = 128  # more is refused by the server


def artifact_of(run: TrackedRun, *, checkpoint: bool) -> Any:
    """The artifact of a run directory, its results and maybe its newest checkpoint; not logged yet.

    The checkpoint is not copied: it is uploaded from where it lies, now or by `wandb sync`.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", run.name)[:LONGEST_NAME]
    artifact = load_wandb().Artifact(name, type="run", metadata={"group": run.group, "tags": list(run.tags)})
    for file in (run.directory / name for name in RESULTS):
        if file.is_file():
            artifact.add_file(str(file), name=file.name)
    if checkpoint and (newest := newest_checkpoint(run.directory)) is not None:
        for file in sorted(newest.iterdir()):
            inside = f"checkpoints/{newest.name}/{file.name}"
            artifact.add_file(str(file), name=inside, policy="immutable", skip_cache=True)
    return artifact


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest folder of `checkpoints/` that is whole; its numbers have leading zeros."""
    return max((file.parent for file in directory.glob("checkpoints/step-*/manifest.json")), default=None)
