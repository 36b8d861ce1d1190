"""Real processes of posenc that are struck, and what they left."""

import json
import subprocess
import time

import tiny
from tiny_model import sha256

SHORT = ("eval.lengths=[1x]", "eval.max_targets=100", "eval.protocols=[fixed-target]")
LONG = (*SHORT, "train.tokens=25600", "train.checkpoint_seconds=0.3")
SAVES = (*SHORT, "train.checkpoint_seconds=0")  # a save after each of 40 steps


def command(corpus, *words):
    return ("train", *tiny.TINY, f"data.paths={corpus}", *words)


def called(*words, cwd, **env):
    """Run a program with nothing to read, and wait."""
    how = {"env": tiny.environment(**env), "stdin": subprocess.DEVNULL, "capture_output": True}
    done = subprocess.run(words, cwd=cwd, timeout=300, **how)
    return tiny.Result(done.returncode, *(out.decode(errors="replace") for out in (done.stdout, done.stderr)))


def weights(runs):
    """Return sha256 of weights and optimizer in each run's newest checkpoint."""
    found = {}
    for run in (runs / "default").glob("[!.]*"):
        newest = max((run / "checkpoints").glob("step-*"))
        found |= {f"{run.name}/{newest.name}/{p.name}": sha256(p) for p in newest.glob("*.safetensors")}
    return found


def statuses(runs):
    return sorted(json.loads(p.read_text())["status"] for p in runs.glob("default/*/status.json"))


def wait_until(true, process, seconds=120):
    """Wait for a moment in the life of a process; it must not end before."""
    end = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.005)


def logged(runs):
    return sum(len(path.read_bytes().splitlines()) for path in runs.glob("default/*/metrics.jsonl"))
