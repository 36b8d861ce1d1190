"""Decide what a device does: `auto` device and precision, torch.compile, threads, memory that runs out."""

from __future__ import annotations

import ctypes
import os
import shutil
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from posenc.core.errors import UserError
from posenc.core.machine import load_meter
from posenc.model.decoder import Decoder

PRECISIONS = ("auto", "fp32", "bf16")
AUTO_TRUE_FALSE = ("auto", "true", "false")  # choices of `train.compile` and `train.cuda_graph`
# options of glibc's mallopt, from its malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024  # glibc takes no larger one
TRIM_THRESHOLD_BYTES = 1 << 30
# What `train.compile=auto` estimates the seconds of a training on a GPU by:
GPU_FLOPS_PER_SECOND = 1e14  # a plain step of 32M parameters made 1.3e14 on an H200 (bf16, T = 1024)
SHORTEST_STEP = 0.01  # seconds; Python starts the kernels of a plain nano step in no less
COMPILE_FROM = 60.0  # seconds of training; compiling takes up to 41 s, and would not pay off in a shorter one
# words in a RuntimeError of torch, which differ by device
OUT_OF_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


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
    """Tell whether the device has bf16 products in hardware: emulated ones are slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "amx", "bf16"))
    return False


def resolve_precision(name: str, device: torch.device) -> str:
    """Resolve `auto` to bf16 where the hardware has it, else fp32. Raises UserError."""
    if name not in PRECISIONS:
        raise UserError("train.precision", name, "there is no such precision", allowed=PRECISIONS)
    if name != "auto":
        return name
    return "bf16" if has_hardware_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Run products in bf16 for `bf16`; parameters, norms, scores and losses stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


# `auto` is off on a CPU, where most runs end before compiling pays off. It takes up to 41 s, and a compiled
# step takes this share of the time of a plain one (nano, two cores):
#   fp32, AVX2     T = 64: 0.79 to 1.01, median 0.89 (every encoding)   T = 512: 0.66 to 0.83 (four of them)
#   bf16, AVX-512  T = 64: 0.82 to 0.85 (five encodings)                T = 512: 0.77 to 0.96
# On a GPU it is on for every run longer than about a minute.
def resolve_compile(setting: object, device: torch.device, *, steps: int, step_flops: float) -> bool:
    """Decide `train.compile` before the run starts; `step_flops` are those of one update."""
    choice = str(setting).lower()
    if choice not in AUTO_TRUE_FALSE:
        raise UserError("train.compile", setting, "there is no such choice", allowed=AUTO_TRUE_FALSE)
    if choice != "auto":
        return choice == "true"
    seconds = steps * max(step_flops / GPU_FLOPS_PER_SECOND, SHORTEST_STEP)
    if device.type != "cuda" or seconds < COMPILE_FROM:
        return False
    return shutil.which("cc") is not None  # Triton wants a C compiler


def resolve_cuda_graph(setting: object, device: torch.device) -> bool:
    """Decide `train.cuda_graph` before the run starts.

    A step of nano takes 10.4 ms without a graph and 1.9 with one (H100, fp32, T = 64), a compiled step of 32M
    parameters 28.6 and 26.6 (bf16, T = 1024).
    """
    choice = str(setting).lower()
    if choice not in AUTO_TRUE_FALSE:
        raise UserError("train.cuda_graph", setting, "there is no such choice", allowed=AUTO_TRUE_FALSE)
    if choice == "true" and device.type != "cuda":
        problem = f"there are no CUDA graphs on device={device.type}"
        raise UserError("train.cuda_graph", setting, problem, allowed=("auto", "false"))
    return device.type == "cuda" if choice == "auto" else choice == "true"


@contextmanager
def compiled_blocks(model: Decoder, enabled: bool) -> Iterator[None]:
    """Compile the model's blocks within this context.

    Outside of it they are not compiled: an evaluation has other shapes for every window that it measures.
    """
    if not enabled:
        yield
        return
    # A block reads its own number. If Dynamo took it for a constant, it would make a graph for each block,
    # and it gives up after 8.
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True), warnings.catch_warnings():
        # the rotations' complex products are left to PyTorch on purpose
        warnings.filterwarnings("ignore", ".*code generation for complex operators", UserWarning)
        for block in model.blocks:
            block.compile()
        try:
            yield
        finally:
            for block in model.blocks:
                block._compiled_call_impl = None
            # To Dynamo the blocks of all runs of a process are one function. When it meets a second length,
            # it makes code for any length, which takes minutes or fails. After eight encodings it compiles no
            # more.
            torch._dynamo.reset()


@cache
def _most_threads() -> int:
    """Return how many threads torch may have at most."""
    # a sweep and torchrun set the variable: they have chosen the number
    return 1 if "OMP_NUM_THREADS" in os.environ else torch.get_num_threads()


def fit_threads(device: torch.device) -> None:
    """Give torch as many threads as there are free cores; call it at every step, it looks once a second.

    Threads that share a core wait for each other, spinning. On two cores nano trains 26k to 36k tokens/s with
    two threads (T = 64), but 3k to 8k while another process is busy. With one thread it is 20k and 18k. The
    last digits of the weights depend on the number: after two updates they differ by 1e-7 to 2e-5 between one
    and two.
    """
    if device.type != "cpu" or _most_threads() == 1:
        return
    load = load_meter().load(1.0)
    if load is not None:
        torch.set_num_threads(min(_most_threads(), load.free))


@cache
def keep_freed_memory() -> None:
    """Tell glibc not to return freed tensors to the kernel; elsewhere do nothing.

    Measured at the nano shape on two CPU cores: 3400 to 7700 page faults a step without, 13 with, and the
    step 10-20% shorter.
    """
    with suppress(OSError, AttributeError):  # macOS, musl
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out: on some devices torch has an exception for it, on others only words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(text in message for text in OUT_OF_MEMORY_MESSAGES)


class LiveTensors(TorchDispatchMode):
    """Count the bytes of tensors made inside that are still held, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count these tensors."""
        self._counted.update(tensor.untyped_storage() for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # a view, or a tensor that is changed in place, takes no memory of its own
        input_storages = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage not in self._counted and id(storage) not in input_storages:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._counted.add(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self.live -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    """Return the storages of all tensors in nested lists, tuples and dictionaries."""
    return [leaf.untyped_storage() for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]
