"""torch and what it runs on: build, devices, bf16, threads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from posenc.cli.doctor.finding import Finding, short, size
from posenc.core.machine import usable_cores

SIDE = 512  # of the matrices that are multiplied to see whether bf16 is fast


def torch_and_devices() -> Iterator[Finding]:
    """Stops at the first thing that is broken: nothing after it can be told."""
    try:
        import torch
    except BaseException as error:
        advice = "install it as pytorch.org says for this machine, then again: pip install -e ."
        yield Finding("torch", "problem", f"cannot be imported ({short(error)})", advice)
        return
    yield Finding("torch", "ok", f"{torch.__version__}, built for {_build(torch)}")
    from posenc.training.precision import has_hardware_bf16, resolve_device, resolve_precision

    yield from _accelerators(torch)
    device = resolve_device("auto")
    yield Finding("device=auto", "ok", str(device))
    chosen = resolve_precision("auto", device)
    ratio = _bf16_speed(torch, device)
    told = (
        f"bf16 {'in hardware' if has_hardware_bf16(device) else 'emulated'}, {ratio:.1f} times fp32's speed"
    )
    if (chosen == "bf16") == (ratio > 0.9):
        yield Finding("train.precision=auto", "ok", f"{chosen}; {told}")
    else:
        better = "fp32" if chosen == "bf16" else "bf16"
        advice = f"try train.precision={better}; products of {SIDE} x {SIDE} are no whole model"
        yield Finding("train.precision=auto", "note", f"{chosen}; {told}", advice)
    yield _threads(torch)


def _build(torch: Any) -> str:
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return "CPU" + (" and MPS" if torch.backends.mps.is_built() else "")


def _accelerators(torch: Any) -> Iterator[Finding]:
    if torch.version.cuda and not torch.cuda.is_available():
        advice = "nvidia-smi says whether there is a driver; CUDA_VISIBLE_DEVICES may hide devices"
        yield Finding("CUDA", "note", "a CUDA build, but no CUDA device can be used", advice)
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        facts = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        text = f"{facts.name}, {size(free)} of {size(total)} free, capability {facts.major}.{facts.minor}"
        yield Finding(f"cuda:{i}", "ok", text)
    if torch.backends.mps.is_available():
        yield Finding("mps", "ok", "Apple's GPU")


def _bf16_speed(torch: Any, device: Any) -> float:
    """How many times as fast a product in bf16 is as in float32; best of five each."""
    times = {}
    for kind in (torch.float32, torch.bfloat16):
        x = torch.ones(SIDE, SIDE, dtype=kind, device=device)
        took = []
        for _ in range(6):
            began = time.perf_counter()
            (x @ x)[0, 0].item()
            took.append(time.perf_counter() - began)
        times[kind] = min(took[1:])
    return times[torch.float32] / times[torch.bfloat16]


def _threads(torch: Any) -> Finding:
    used = torch.get_num_threads()
    cores = usable_cores()
    named = os.environ.get("OMP_NUM_THREADS", "not set")
    text = f"{used} of {cores} cores for one product (OMP_NUM_THREADS={named})"
    if used > cores:
        return Finding("threads", "note", text, f"more threads than cores are slow: OMP_NUM_THREADS={cores}")
    return Finding("threads", "ok", text)
