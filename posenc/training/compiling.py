"""`train.compile`: torch.compile of the decoder's blocks, one graph for all of them, in training alone."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch

from posenc.core.errors import UserError, first_line
from posenc.core.paths import cache_dir
from posenc.model.decoder import Decoder
from posenc.training.distributed import Stop, current

log = logging.getLogger(__name__)

CHOICES = ("auto", "true", "false")

# `auto` is off on a CPU: most runs there end before it pays. Every encoding against itself (nano, T = 64,
# fp32, two cores with AVX2): compiling takes up to 41 s, a step then 0.79 to 1.01 of its time, median 0.89;
# at T = 512 0.66 to 0.83 (nope, rope, t5, fox). In bf16 (AVX-512; alibi too) 0.82 to 0.85, and 0.77 to 0.96
# at 512. On a GPU it is on for runs that take minutes there: not measured yet, see scripts/check_gpu.py.
GPU_FLOPS = 1e14  # a second: what a run may be expected to get without it
PAYS_FROM_SECONDS = 200.0


def resolve_compile(setting: object, device: torch.device, *, flops: float) -> bool:
    """Decide `train.compile` from the run's size and the device, before it starts.

    `flops` are those of the whole training. Raises UserError for anything but auto, true and false.
    """
    word = str(setting).lower()
    if word not in CHOICES:
        raise UserError("train.compile", setting, "there is no such choice", allowed=CHOICES)
    if word != "auto":
        return word == "true"
    long = flops / GPU_FLOPS >= PAYS_FROM_SECONDS
    return device.type == "cuda" and long and shutil.which("cc") is not None  # Triton wants a C compiler


def compiler_works(device: torch.device, stop: Stop) -> bool:
    """Return `works` of the first process; a signal need not wait for it (seconds, the first time)."""
    group = current()
    with stop.at_once() if group.size == 1 else nullcontext():
        return group.first(lambda: works(device))


@cache
def works(device: torch.device) -> bool:
    """Whether torch.compile works for the device here: tried once. If not, a warning says why."""
    # compiled code is kept beside posenc's other caches, so that the runs of a sweep share it
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    try:
        torch.compile(lambda x: x.relu() + 1)(torch.ones(2, device=device))
    except Exception as error:  # compilers, linkers and Triton each raise their own
        log.warning("torch.compile does not work here, the model runs without it: %s", first_line(error))
        return False
    return True


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
