"""Stop a real `posenc train` by SIGTERM, continue it, and compare it with a run that was never stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
SHORT = (
    "encoding=rope",
    "data=sympy",
    "train.log_every=5",
    "eval.lengths=[1x]",
    "eval.protocols=[fixed-target]",
    "eval.max_targets=1000",
)
STOPPED = 143  # exit code after SIGTERM
LINES_BEFORE_STOP = 3  # of metrics.jsonl
POLL_SECONDS = 0.01


def stop_and_continue(overrides: tuple[str, ...], device: str, compiled: bool) -> dict[str, object]:
    """Return where the run was stopped, and the largest difference of a weight from the undisturbed run's."""
    settings = [*SHORT, *overrides, f"device={device}", f"train.compile={str(compiled).lower()}"]
    with tempfile.TemporaryDirectory(prefix="posenc-resume-") as name:
        folder = Path(name)
        undisturbed = _train(folder, [*settings, "runs_dir=whole"])
        _check_exit(undisturbed, 0, "the undisturbed run")
        stopped_step = _stopped_run(folder, [*settings, "runs_dir=stopped"])
        continued = _train(folder, [*settings, "runs_dir=stopped"])
        _check_exit(continued, 0, "the continued run")
        step, weights = _last_weights(folder / "stopped")
        whole_step, whole_weights = _last_weights(folder / "whole")
    assert step == whole_step, (step, whole_step)
    differences = {
        name: float((tensor - whole_weights[name]).norm() / whole_weights[name].norm())
        for name, tensor in weights.items()
    }
    worst = max(differences, key=differences.__getitem__)
    return {
        "steps": step,
        "stopped_step": stopped_step,
        "is_bit_exact": all(bool((tensor == whole_weights[name]).all()) for name, tensor in weights.items()),
        "largest_difference": differences[worst],  # relative to the norm of the tensor
        "tensor": worst,
    }


def _start(folder: Path, settings: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "train.py"), *settings]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _train(folder: Path, settings: list[str]) -> subprocess.CompletedProcess[str]:
    process = _start(folder, settings)
    output, _ = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def _stopped_run(folder: Path, settings: list[str]) -> int:
    """Start a run, stop it after a few logged steps, and return the step at which it ended."""
    process = _start(folder, settings)
    runs = folder / "stopped"
    while process.poll() is None and _logged_lines(runs) < LINES_BEFORE_STOP:
        time.sleep(POLL_SECONDS)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    _check_exit(
        subprocess.CompletedProcess(process.args, process.returncode, output), STOPPED, "the stopped run"
    )
    step, _ = _last_weights(runs)
    return step


def _logged_lines(runs: Path) -> int:
    files = list(runs.rglob("metrics.jsonl"))
    return files[0].read_text().count("\n") if files else 0


def _check_exit(ended: subprocess.CompletedProcess[str], code: int, run: str) -> None:
    """Raise RuntimeError if a run ended in another way."""
    if ended.returncode != code:
        raise RuntimeError(f"{run} ended with {ended.returncode}, not {code}: {ended.stdout[-300:]}")


def _last_weights(runs: Path) -> tuple[int, dict]:
    """Return the number of the last checkpoint's step, and its tensors."""
    (checkpoint, *_) = sorted(runs.rglob("checkpoints/step-*"), reverse=True)
    return int(checkpoint.name.removeprefix("step-")), load_file(checkpoint / "model.safetensors")
