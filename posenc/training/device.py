"""What this machine's device does: `auto` device and precision, torch.compile, memory that runs out."""

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
COMPILE_CHOICES = ("auto", "true", "false")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST = 32 * 1024 * 1024  # bytes; glibc takes no larger threshold


def resolve_device(name: str) -> torch.device:
    """Resolve `auto` to the first CUDA device, MPS or the CPU. Raises UserError if it is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    here = ["auto", "cpu", *(["cuda", *gpus] if gpus else []), *["mps"] * torch.backends.mps.is_available()]
    if name not in here:
        raise UserError("device", name, "there is no such device on this machine", allowed=here)
    return torch.device(name)


def has_hardware_bf16(device: torch.device) -> bool:
    """Whether bf16 products run in hardware there: emulated bf16 is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        able: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("amx") or able.get("bf16"))
    return False


def resolve_precision(name: str, device: torch.device) -> str:
    """Resolve `auto` to bf16 where the hardware has it, else fp32. Raises UserError."""
    if name not in PRECISIONS:
        raise UserError("train.precision", name, "there is no such precision", allowed=PRECISIONS)
    return name if name != "auto" else "bf16" if has_hardware_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Run products in bf16 for `bf16`; parameters, norms, scores and losses stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


# `auto` is off on a CPU: most runs there end before it pays. Every encoding against itself (nano, T = 64,
# fp32, two cores with AVX2): compiling takes up to 41 s, a step then 0.79 to 1.01 of its time, median 0.89;
# at T = 512 0.66 to 0.83 (nope, rope, t5, fox). In bf16 (AVX-512; alibi too) 0.82 to 0.85, and 0.77 to 0.96
# at 512. On a GPU it is on for runs that take minutes there: not measured yet, see scripts/checks/gpu.py.
def resolve_compile(setting: object, device: torch.device, *, flops: float) -> bool:
    """Decide `train.compile` before the run starts; `flops` are those of the whole training."""
    word = str(setting).lower()
    if word not in COMPILE_CHOICES:
        raise UserError("train.compile", setting, "there is no such choice", allowed=COMPILE_CHOICES)
    if word != "auto":
        return word == "true"
    long = flops >= 2e16  # 200 s on a GPU that does 1e14 a second
    return device.type == "cuda" and long and shutil.which("cc") is not None  # Triton wants a C compiler


@contextmanager
def compiled_blocks(model: Decoder, enabled: bool) -> Iterator[None]:
    """Compile the blocks inside, not outside: an evaluation has a shape for every window it measures."""
    if not enabled:
        yield
        return
    # A block's number is read in it. Taken as a constant it would make a graph for each block, and Dynamo
    # gives up after 8.
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
            # To Dynamo the blocks of all runs of a process are one function: when it meets a second length it
            # would make code for any (which takes minutes, or fails), and none after eight encodings.
            torch._dynamo.reset()


@cache
def _most_threads() -> int:
    return 1 if "OMP_NUM_THREADS" in os.environ else torch.get_num_threads()  # a sweep's, torchrun's


def fit_threads(device: torch.device) -> None:
    """Take as many threads as there are free cores, looked at every second.

    Threads that share a core wait for each other, spinning. Tokens/s of nano at T = 64 on two cores, quiet
    and beside one busy process: two threads 26k to 36k and 3k to 8k, one thread 20k and 18k. The last digits
    depend on the number: weights after two updates differ by 1e-7 to 2e-5 between one and two.
    """
    if (
        device.type == "cpu"
        and (most := _most_threads()) > 1
        and (load := load_meter().load(1.0)) is not None
    ):
        torch.set_num_threads(min(most, load.free))


@cache
def keep_freed_memory() -> None:
    """Tell glibc not to return freed tensors to the kernel; elsewhere do nothing.

    Measured at the nano shape on two CPU cores: 3400 to 7700 page faults a step without, 13 with, and the
    step 10-20% shorter.
    """
    with suppress(OSError, AttributeError):  # macOS, musl
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, 1 << 30)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch has an exception for it, or words that differ by device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


class LiveTensors(TorchDispatchMode):
    """Count the bytes of tensors made inside that are still held, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count these tensors."""
        self._known.update(tensor.untyped_storage() for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        given = {id(one.untyped_storage()) for one in inputs}
        for one in tree_iter(result):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                if storage not in self._known and id(storage) not in given:
                    self._known.add(storage)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._drop, storage.nbytes())
        return result

    def _drop(self, size: int) -> None:
        self.live -= size
