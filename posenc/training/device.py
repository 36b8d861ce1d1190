"""Decide the device, its precision, and whether to use torch.compile, a CUDA graph, and how many threads."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from posenc.core.errors import UserError
from posenc.core.machine import load_meter, threads_of_user
from posenc.model.decoder import Decoder
from posenc.settings.tree import AutoOrBool, Precision

# By these `train.compile=auto` estimates how long a training on a GPU takes, and decides.
GPU_FLOPS_PER_SECOND = 1e14  # a plain step of 32M parameters made 1.3e14 on an H200 (bf16, T = 1024)
SHORTEST_STEP = 0.01  # seconds that Python needs to start the kernels of a plain step of nano
COMPILE_FROM = 60.0  # seconds; compiling takes up to 41 s, which a shorter training would not save


def resolve_device(name: str) -> torch.device:
    """Resolve `auto` to the first CUDA device, MPS or the CPU. Raises UserError if it is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    available = ["auto", "cpu"]
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if gpus:
        available += ["cuda", *gpus]
    if torch.backends.mps.is_available():
        available.append("mps")
    if name not in available:
        raise UserError("device", name, "there is no such device on this machine", allowed=available)
    return torch.device(name)


def has_hardware_bf16(device: torch.device) -> bool:
    """Tell whether the device has bf16 products in hardware. Emulated ones are slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "amx", "bf16"))
    return False


def resolve_precision(name: Precision, device: torch.device) -> str:
    """Resolve `auto` to bf16 where the hardware has it, else fp32."""
    if name != "auto":
        return name
    return "bf16" if has_hardware_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return a context in which `bf16` runs products in bf16. All else stays float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


# `auto` does not compile on a CPU. It takes up to 41 s there, and most runs end before that pays off, since a
# compiled step takes this share of the time of a plain one (nano, two cores):
#   fp32, AVX2     T = 64: 0.79 to 1.01, median 0.89 (every encoding)   T = 512: 0.66 to 0.83 (four of them)
#   bf16, AVX-512  T = 64: 0.82 to 0.85 (five encodings)                T = 512: 0.77 to 0.96
# On a GPU `auto` compiles for every run that is longer than about a minute.
def resolve_compile(setting: AutoOrBool, device: torch.device, *, steps: int, step_flops: float) -> bool:
    """Decide `train.compile` before the run starts; `step_flops` is how many FLOPs an update has."""
    if setting != "auto":
        return setting
    seconds = steps * max(step_flops / GPU_FLOPS_PER_SECOND, SHORTEST_STEP)
    if device.type != "cuda" or seconds < COMPILE_FROM:
        return False
    return shutil.which("cc") is not None  # Triton wants a C compiler


def resolve_cuda_graph(setting: AutoOrBool, device: torch.device) -> bool:
    """Decide `train.cuda_graph` before the run starts. Raises UserError if the device has no such graphs.

    On an H100, a step of nano takes 10.4 ms without a graph and 1.9 ms with one (fp32, T = 64). For a
    compiled step of 32M parameters it is 28.6 and 26.6 ms (bf16, T = 1024).
    """
    if setting == "auto":
        return device.type == "cuda"
    if setting and device.type != "cuda":
        problem = f"there are no CUDA graphs on device={device.type}"
        raise UserError("train.cuda_graph", setting, problem, allowed=("auto", "false"))
    return setting


@contextmanager
def compiled_blocks(model: Decoder, enabled: bool) -> Iterator[None]:
    """Compile the model's blocks inside this context.

    Outside they are not compiled, since each window of an evaluation has another shape.
    """
    if not enabled:
        yield
        return
    # A block reads the number of its layer. Without this option Dynamo takes the number for a constant, makes
    # a graph for each block, and gives up after 8.
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True), warnings.catch_warnings():
        # It warns that it leaves complex products to PyTorch, which rotations have on purpose.
        warnings.filterwarnings("ignore", ".*code generation for complex operators", UserWarning)
        for block in model.blocks:
            block.compile()
        try:
            yield
        finally:
            for block in model.blocks:
                block._compiled_call_impl = None
            # To Dynamo the blocks of all runs of a process are one function. For a second length it makes
            # code for any length, which takes minutes or fails. After eight encodings it gives up.
            torch._dynamo.reset()


@cache
def _most_threads() -> int:
    """Return how many threads torch takes by itself. Later calls do not see what `fit_threads` set."""
    return torch.get_num_threads()


def _may_choose_threads(device: torch.device) -> bool:
    """Tell whether posenc decides the number of threads."""
    # whoever sets this variable, such as a sweep or torchrun, has decided the number
    return device.type == "cpu" and threads_of_user() is None


def fit_threads(device: torch.device) -> None:
    """Give torch as many threads as there are free cores. Call it at every step: it looks once a second.

    Threads that share a core wait for each other in busy loops. On two cores nano trains 26k to 36k tokens/s
    with two threads (T = 64), but 3k to 8k while another process is busy. With one thread it trains 20k, and
    18k beside another process. The last digits of the weights depend on the number of threads.
    """
    if not _may_choose_threads(device) or _most_threads() == 1:
        return
    load = load_meter().load(1.0)
    if load is not None:
        torch.set_num_threads(min(_most_threads(), load.free))
