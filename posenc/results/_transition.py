"""Fill in what a config.yaml of schema 1 lacks, until runs are written with schema 2. Deleted then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).resolve().parents[2] / "conf"
TRAIN: dict[str, Any] = {
    "init": None,
    "length_schedule": None,
    "began": None,
    "tuned": None,
    "batch_tokens": 2048,
    "lr": 2e-3,
}
TRAIN |= {
    "precision": "auto",
    "compile": "auto",
    "checkpoint_seconds": 60.0,
    "log_every": 25,
    "tokens": 4_000_000,
}


def upgraded(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings of schema 1 with every key that schema 2 has."""
    if config.get("schema_version") == 2:
        return config
    new = {**config, "schema_version": 2}
    evaluation = yaml.safe_load((CONF / "eval" / "default.yaml").read_text())
    new["eval"] = {**evaluation, **config.get("eval", {})}
    new["data"] = {"plant": None, **config["data"]}
    new.setdefault("experiment_name", "default")
    if "model" not in config:
        for key in ("attention", "positions", "train", "device", "optim", "tracking"):
            new.pop(key, None)
        return new | {
            "precision": config.get("precision", (config.get("train") or {}).get("precision", "fp32"))
        }
    new["attention"] = {"window": None, "scale": "none", **config["attention"]}
    new["model"] = {"short_conv": None, **config["model"]}
    new["train"] = {**TRAIN, **config["train"]}
    new.setdefault("extend", {"name": "none"})
    new.setdefault("runs_dir", "runs")
    new.setdefault("name", None)
    new.setdefault("plugins", [])
    new.setdefault("device", "auto")
    new.setdefault("tracking", {"name": "none"})
    new.pop("sweep", None)
    return new
