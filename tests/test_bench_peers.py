"""scripts/bench_peers.py: every contestant of the same size learns; ratios are of the rounds."""

import importlib.util
import json
import subprocess
import sys

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


def test_every_contestant_is_of_the_same_size_and_learns_and_ratios_are_to_the_fastest_peer():
    only = ("*rope*", "*GPT-2*", "*Llama*", "*t5*")
    patterns = [word for pattern in only for word in ("--only", pattern)]
    rounds = ("--rounds", "4", "--steps", "8", "--format", "json")
    command = [sys.executable, str(SCRIPT), *SHAPE, *patterns, *rounds]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=tiny.environment())
    assert done.returncode == 0, done.stderr[-3000:]
    (table,) = json.loads(done.stdout)["tables"]
    rows = {row["name"]: row for row in table["rows"]}
    assert not table["left_out"] and table["steps"] == 2 + 4 * 8
    for name in ("posenc rope", "x-transformers rope flash", "transformers Llama sdpa", "posenc t5"):
        assert {f"{name} fp32", f"{name} bf16"} <= set(rows)
    sizes = [row["parameters"] for row in rows.values()]
    assert max(sizes) <= 1.06 * min(sizes)  # GPT-2's biases and learned positions
    for row in rows.values():
        assert 5 < row["first_loss"] < 7 and row["last_loss"] < row["first_loss"] - 0.3, row
    best = min((row for row in rows.values() if row["package"] != "posenc"), key=lambda row: row["seconds"])
    assert table["best_peer"] == best["name"] and best["against_best_peer"] == 1
