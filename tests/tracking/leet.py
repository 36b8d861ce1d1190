"""Offline W&B runs, read with wandb's own reader."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any


def offline_runs(directory: Path) -> list[Path]:
    """The offline runs below a run directory, in the order of their beginning."""
    found = (directory / "wandb").glob("offline-run-*/*.wandb")
    return [file.parent for file in sorted(found, key=lambda file: file.stat().st_ctime_ns)]


def inspect(directory: Path, *options: str) -> str:
    """What `wandb leet inspect --json` says."""
    wandb = Path(sysconfig.get_path("scripts")) / "wandb"
    asked = [str(wandb), "leet", "inspect", *options, "--json", str(directory)]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout


def contents(directory: Path) -> list[dict[str, Any]]:
    """Every entry of the run's file."""
    return [json.loads(line) for line in inspect(directory).splitlines() if line.strip()]


def history(directory: Path) -> list[dict[str, Any]]:
    """The rows of its history."""
    return [line["history"]["item"] for line in contents(directory) if line["type"] == "history"]
