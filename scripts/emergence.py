"""Draw when each encoding begins to recall in training, from the losses that runs logged.

    python scripts/emergence.py runs/study              take the losses from run directories
    python scripts/emergence.py docs/study/emergence.json --plot FILE
The JSON has for each row and seed the tokens trained and the loss on values that can be known, in nats.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from posenc.results.comparison import Comparison
from posenc.results.load import load_runs

STORED = Path(__file__).parents[1] / "docs" / "study" / "emergence.json"
Curve = list[list[float]]


def logged(folder: Path) -> dict[str, dict[str, Curve]]:
    """Return {row: {seed: [[tokens, nats], ...]}} of the finished runs below a folder that planted pairs."""
    found: dict[str, dict[str, Curve]] = {}
    for run in load_runs([folder]):
        path = Path(run.path) / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        curve = [[one["tokens"], round(one["recall_loss"], 3)] for one in lines if one.get("recall_loss") is not None]
        if curve:
            found.setdefault(run.label, {})[str(run.seed)] = curve
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()


if __name__ == "__main__":
    main()
