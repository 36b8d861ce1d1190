"""What the machine is, and how fast it multiplies matrices: the yardstick of MFU."""

from __future__ import annotations

import platform
import re
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from posenc.core.machine import usable_cores
from posenc.running.run_directory import versions

SECONDS = 0.25  # of products for each shape
SQUARE = {"cuda": 8192}  # side of the large square product; elsewhere
SMALLER_SQUARE = 1024  # is large enough: 2048 was no faster on two cores

Shape = tuple[int, int, int]


def measured_rate(device: torch.device, precision: str, shapes: Iterable[Shape]) -> dict[str, Any]:
    """Best operations per second of products (m, k) x (k, n), 2 m k n each, over the shapes and a square."""
    side = SQUARE.get(device.type, SMALLER_SQUARE)
    found: list[dict[str, Any]] = []
    for shape in dict.fromkeys([*map(tuple, shapes), (side, side, side)]):
        m, k, n = shape
        found.append({"shape": [m, k, n], "flops_per_second": _rate(device, precision, m, k, n)})
    best = max(found, key=lambda one: one["flops_per_second"])
    return {**best, "shapes": found}


def _rate(device: torch.device, precision: str, m: int, k: int, n: int) -> float:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x = torch.randn(m, k, device=device).to(dtype)
    weight = torch.randn(n, k, device=device).to(dtype)
    best, began = float("inf"), time.perf_counter()
    inner = 1
    while time.perf_counter() - began < SECONDS:
        wait_for(device)
        start = time.perf_counter()
        for _ in range(inner):
            F.linear(x, weight)
        wait_for(device)
        took = time.perf_counter() - start
        best = min(best, took / inner)
        if took < 1e-3:  # too short for the clock
            inner *= 2
    return 2.0 * m * k * n / best


def wait_for(device: torch.device) -> None:
    """Until everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, threads, device and versions, as plain JSON."""
    cuda = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "cpu": processor(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": None if cuda is None else cuda.name,
        "device_bytes": None if cuda is None else cuda.total_memory,
        "system": platform.platform(),
        "versions": {
            name: told for name, told in versions().items() if name in ("python", "torch", "posenc")
        },
    }


def processor() -> str:
    """The processor's own name, or its architecture where the system does not say."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found[1].strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        told = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if told.stdout.strip():
            return told.stdout.strip()
    return platform.processor() or platform.machine()
