"""scripts/bench_peers.py: every contestant of the same size learns; ratios are of the rounds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest
import tiny

SCRIPT = tiny.ROOT / "scripts" / "bench_peers.py"
SHAPE = ("--model", "32,2,2,4", "--batch-tokens", "256", "--lengths", "16")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("x_transformers", "transformers")),
        reason="needs x-transformers and transformers",
    ),
]


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), *SHAPE, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=tiny.environment(OMP_NUM_THREADS="1")
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    only = ("*rope*", "*GPT-2*", "*Llama*", "*t5*")
    patterns = [word for pattern in only for word in ("--only", pattern)]
    found: dict[str, Any] = json.loads(run(*patterns, "--rounds", "4", "--steps", "8", "--format", "json"))
    return found


def test_every_contestant_is_there_at_the_same_size_and_learns(document: dict[str, Any]) -> None:
    (table,) = document["tables"]
    rows = {row["name"]: row for row in table["rows"]}
    assert not table["left_out"] and table["steps"] == 2 + 4 * 8
    for name in ("posenc rope", "x-transformers rope flash", "transformers Llama sdpa", "posenc t5"):
        assert {f"{name} fp32", f"{name} bf16"} <= set(rows)
    sizes = [row["parameters"] for row in rows.values()]
    assert max(sizes) <= 1.06 * min(sizes)  # GPT-2's biases and learned positions
    assert rows["posenc rope fp32"]["parameters"] == rows["x-transformers rope flash fp32"]["parameters"]
    for row in rows.values():
        assert 5 < row["first_loss"] < 7 and row["last_loss"] < row["first_loss"] - 0.3, row


def test_ratios_are_to_the_fastest_peer_and_to_the_fastest_of_the_same_encoding(
    document: dict[str, Any],
) -> None:
    (table,) = document["tables"]
    peers = [row for row in table["rows"] if row["package"] != "posenc"]
    best = min(peers, key=lambda row: row["seconds"])
    assert table["best_peer"] == best["name"] and best["against_best_peer"] == 1
    for position in ("rope", "t5"):
        alike = min((r for r in peers if r["position"] == position), key=lambda row: row["seconds"])
        assert alike["against_same"] == 1
    for row in table["rows"]:
        assert row["tokens_per_second"] == pytest.approx(256 / row["seconds"])
