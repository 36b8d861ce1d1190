"""W&B without a key, on a terminal where it would ask for one: the run ends by itself."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import tiny

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from pseudo_terminal import Terminal

pytest.importorskip("wandb")
pytestmark = pytest.mark.slow

ASKED = ("Enter your choice", "paste an API key", "Create a W&B account", "api key and hit enter")


@pytest.mark.parametrize("more", [(), ("-m", "seed=0,1")], ids=["a run", "a sweep"])
def test_nothing_is_asked_on_a_terminal(place: Path, corpus: Path, more: tuple[str, ...]) -> None:
    words = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=rope", "eval.lengths=[1x]"]
    command = [sys.executable, "-m", "posenc", *words, "tracking=wandb", *more]
    ours = {k: v for k, v in tiny.environment().items() if not k.startswith("WANDB_")}
    env = {
        **ours,
        "HOME": str(place),
        "NETRC": str(place / "netrc"),
        "POSENC_CACHE": os.environ["POSENC_CACHE"],
    }
    began, terminal = time.monotonic(), Terminal(command, place, env)
    try:
        assert terminal.wait(seconds=240) == 0, terminal.seen
    finally:
        terminal.close()
    assert not [word for word in ASKED if word.lower() in terminal.seen.lower()], terminal.seen
    assert "W&B" in terminal.seen and "nats" in terminal.seen, terminal.seen
    runs = [path for path in (place / "runs" / "default").iterdir() if not path.name.startswith(".")]
    assert len(runs) == (2 if more else 1) and time.monotonic() - began < 240
    for run in runs:
        assert f'"step": {tiny.STEPS}' in (run / "metrics.jsonl").read_text().splitlines()[-1]
