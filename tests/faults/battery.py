"""Real processes of posenc that are struck, and what they left."""

import json
import subprocess
import time

import tiny
from tiny_model import sha256

SHORT = ("eval.lengths=[1x]", "eval.max_targets=100", "eval.protocols=[fixed-target]")
LONG = (*SHORT, "train.tokens=25600", "train.checkpoint_seconds=0.3")
SAVES = (*SHORT, "train.checkpoint_seconds=0")  # a save after each of 40 steps
THREE_SEEDS = ("-m", *tiny.TINY, *SHORT, "seed=0,1,2")


def command(corpus, *overrides):
    """Return the arguments of `posenc train` at the tiny size."""
    return ("train", *tiny.TINY, f"data.paths={corpus}", *overrides)


def called(*command_line, cwd, **env):
    """Run a program with nothing to read, and wait."""
    completed = subprocess.run(
        command_line,
        cwd=cwd,
        timeout=300,
        env=tiny.environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    # Not text=True: a program that is struck may print half of a character.
    out = completed.stdout.decode(errors="replace")
    err = completed.stderr.decode(errors="replace")
    return tiny.Result(completed.returncode, out, err)


def weights(runs):
    """Return the checksums of weights and optimizer in each run's newest checkpoint."""
    checksums = {}
    for run in (runs / "default").glob("[!.]*"):
        newest = max((run / "checkpoints").glob("step-*"))
        for path in newest.glob("*.safetensors"):
            checksums[f"{run.name}/{newest.name}/{path.name}"] = sha256(path)
    return checksums


def statuses(runs):
    """Return the sorted statuses of all runs."""
    paths = runs.glob("default/*/status.json")
    return sorted(json.loads(path.read_text())["status"] for path in paths)


def wait_until(condition, process, seconds=120):
    """Wait for a moment in the life of a process, which must not end before."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, process.communicate()
        time.sleep(0.005)


def count_logged_lines(runs):
    """Return the number of lines that the training of all runs has logged."""
    return sum(len(path.read_bytes().splitlines()) for path in runs.glob("default/*/metrics.jsonl"))


def logged_steps(run):
    """Return the steps in the training log of a run."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]
