"""Several jobs at once on one machine: how many, and what each gets of it, threads and a GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from posenc.core.machine import control_groups

THREADS = "OMP_NUM_THREADS"  # PyTorch takes its number of threads from it
GPUS = "CUDA_VISIBLE_DEVICES"


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may keep busy: what it is bound to, less where a container's quota is smaller."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(bound, _quota(root))))


def _quota(root: Path) -> float:
    """Cores by the control groups of this process, version 2 or 1; infinite without a limit."""
    found = [math.inf]
    for group, folder in control_groups("cpu", root):
        if group == 1:
            quota, period = (_text(folder / f"cpu.cfs_{x}_us") for x in ("quota", "period"))
        else:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdecimal() and period.strip().isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min(found)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError:
        return ""


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    there = torch.cuda.device_count()
    named = [name.strip() for name in environment.get(GPUS, "").split(",") if name.strip()]
    return named[:there] if named else [str(i) for i in range(there)]


def how_many(asked: int, devices: Sequence[str], cores: int, gpus: int) -> int:
    """Jobs at once, from `hydra.launcher.n_jobs`.

    `devices`: what the jobs run on, as PyTorch calls it: `cpu`, `cuda`, `cuda:1`, `mps`.
    """
    if asked > 0:
        return asked
    # On a CPU one thread a job gives the most tokens in all (measured: docs/clusters.md).
    return cores if all(device == "cpu" for device in devices) else max(1, gpus)


class Slots:
    """Shares the machine out: threads by the number of jobs at once, to each job the least busy GPU."""

    def __init__(
        self, at_once: int, cores: int, gpus: Sequence[str], environment: Mapping[str, str] = os.environ
    ) -> None:
        self.own_threads = environment.get(THREADS)  # the user's own are left alone
        self.threads = max(1, cores // at_once)
        self.busy: dict[str, list[int]] = {gpu: [] for gpu in gpus}

    def take(self, job: int, device: str) -> dict[str, str]:
        """Environment of a job that begins. On `cuda` it gets a GPU; who asks for `cuda:1` has chosen."""
        told = {} if self.own_threads else {THREADS: str(self.threads)}
        if device == "cuda" and self.busy:
            gpu = min(self.busy, key=lambda name: len(self.busy[name]))
            self.busy[gpu].append(job)
            told[GPUS] = gpu
        return told

    def give_back(self, job: int) -> None:
        """Its GPU is free again."""
        for jobs in self.busy.values():
            if job in jobs:
                jobs.remove(job)
