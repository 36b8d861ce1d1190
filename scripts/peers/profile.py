"""Where posenc's own training step spends its time, by torch.profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from peers.contestants import OURS, VOCABULARY, contestant, makers
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from posenc.cli.bench_cell import wait_for
from posenc.data import Split, TokenStore, WindowSampler
from posenc.model.decoder import ModelShape

WARM_UP = 3
TOP = 12
# Kinds by what an operator's own name holds, the first that fits. What nothing fits is element-wise.
KINDS = {
    "fused attention": ("scaled_dot_product", "flash_attention", "efficient_attention", "flex_attention"),
    "matrix products": (
        "::mm",
        "::bmm",
        "::addmm",
        "::baddbmm",
        "::matmul",
        "::linear",
        "mkldnn",
        "gemm",
        "xmma",
    ),
    "softmax and loss": ("softmax", "nll_loss", "cross_entropy"),
    "norms": ("rms_norm", "layer_norm", "rsqrt"),
    "casts and copies": (
        "copy",
        "::to",
        "clone",
        "contiguous",
        "::cat",
        "memcpy",
        "::fill",
        "zero",
        "empty",
        "memset",
    ),
    "views": (
        "view",
        "reshape",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "split",
        "unbind",
        "::t",
        "as_strided",
        "unfold",
        "detach",
        "unsqueeze",
    ),
    "clipping": ("foreach", "linalg_vector_norm", "::stack", "clip"),
    "embedding": ("embedding", "index"),
}
ABOVE = {
    "data": "data",
    "Optimizer.step": "optimizer",
    "rms_norm": "norms",
    "RmsNorm": "norms",
    "NormBackward": "norms",
}


def print_profile(
    shape: ModelShape,
    length: int,
    precision: str,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    encoding: str,
) -> None:
    """A table of kinds of work and one of the operators with most time of their own, in percent."""
    batches = list(batches)
    maker = next(one for one in makers([encoding]) if one.package == OURS)
    step = contestant(maker, shape, length, precision, device, compiled=False).step
    windows = len(batches[0][0])
    sampler = WindowSampler(_store(batches), length, 0)

    def run(number: int) -> None:
        with record_function("data"):
            inputs, targets = (torch.from_numpy(one).to(device) for one in sampler.batch(number, windows))
        step(inputs, targets)

    for i in range(WARM_UP):
        run(i)
    wait_for(device)
    began = perf_counter()
    for i in range(len(batches)):
        run(i)
    wait_for(device)
    plain = (perf_counter() - began) / len(batches)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as found:
        began = perf_counter()
        for i in range(len(batches)):
            run(i)
        wait_for(device)
        whole = (perf_counter() - began) / len(batches)
    print_kinds(found, len(batches), plain, whole, f"{maker.name} {precision}, T = {length}", device)


def print_kinds(found: Any, steps: int, plain: float, whole: float, title: str, device: torch.device) -> None:
    """On the CPU, what no operator accounts for is Python and the profiler itself."""
    cuda = device.type == "cuda"
    kinds: dict[str, float] = defaultdict(float)
    operators: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in found.events():
        own = (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6 / steps
        if own <= 0 or (event.name in ABOVE and event.name != "data"):
            continue
        kinds[_kind(event)] += own
        operators[event.name][0] += own
        operators[event.name][1] += 1 / steps
    kinds["Python, and what the profiler adds" if not cuda else "the GPU waits"] = whole - sum(kinds.values())
    console = Console(width=100, highlight=False)
    console.print(f"{title}: {1e3 * plain:.1f} ms a step, {1e3 * whole:.1f} under the profiler")
    table = Table("kind of work", box=None)
    table.add_column("% of the step", justify="right")
    for kind, seconds in sorted(kinds.items(), key=lambda one: -one[1]):
        table.add_row(kind, f"{100 * seconds / whole:.1f}")
    console.print(table)
    table = Table("operator", box=None)
    for head in ("% of the step", "calls"):
        table.add_column(head, justify="right")
    for name, (seconds, calls) in sorted(operators.items(), key=lambda one: -one[1][0])[:TOP]:
        table.add_row(name, f"{100 * seconds / whole:.1f}", f"{calls:.0f}")
    console.print(table)


def _kind(event: Any) -> str:
    """By what an operator runs below (the optimizer, a norm), else by its own name."""
    above = event
    while above is not None:
        for part, kind in ABOVE.items():
            if part == above.name or (part != "data" and part in above.name):
                return kind
        above = above.cpu_parent
    name = event.name
    for kind, parts in KINDS.items():
        if any(part in name for part in parts):
            return kind
    return "element-wise and sums"


def _store(batches: list[tuple[Tensor, Tensor]]) -> TokenStore:
    """The batches' tokens as one document."""
    tokens = torch.cat([inputs.flatten() for inputs, _ in batches]).cpu().numpy().astype(np.uint8)
    split = Split(["text"], np.array([0]), np.array([len(tokens)]))
    return TokenStore(tokens, None, "", VOCABULARY, {"name": "bytes"}, {"train": split})
