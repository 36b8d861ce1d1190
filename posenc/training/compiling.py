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
from torch import Tensor

from posenc.errors import UserError
from posenc.model.decoder import Decoder
from posenc.paths import cache_dir

log = logging.getLogger(__name__)

CHOICES = ("auto", "true", "false")

# `auto` compiles where the gain is surely larger than what compiling takes. On a CPU (two cores with AVX2,
# nano, fp32) that is 3 to 41 s, 3 when a run before had the same blocks; then a step takes 0.79 to 1.01 of
# its time at T = 64, median 0.89, and 0.66 to 0.83 at T = 512 (nope, rope, t5, fox). On a GPU it is not
# measured yet, see scripts/check_gpu.py.
FLOPS = {"cpu": 1e11, "cuda": 1e14}  # a second: what a run may be expected to get without it
PAYS_FROM_SECONDS = {"cpu": 600.0, "cuda": 200.0}
COMPILERS = {"cpu": ("g++", "clang++"), "cuda": ("cc",)}  # one of them; Triton wants one, too


def resolve_compile(setting: object, device: torch.device, *, flops: float) -> bool:
    """What `train.compile` means for a run: decided once, from its size alone, and stored with it.

    `flops` are the operations of the whole training. Raises UserError for anything but auto, true and false.
    """
    word = str(setting).lower()
    if word not in CHOICES:
        raise UserError("train.compile", setting, "there is no such choice", allowed=CHOICES)
    if word != "auto":
        return word == "true"
    if device.type not in FLOPS or not any(shutil.which(name) for name in COMPILERS[device.type]):
        return False
    return flops / FLOPS[device.type] >= PAYS_FROM_SECONDS[device.type]


@cache
def works(device: torch.device) -> bool:
    """Whether torch.compile makes code for the device here: tried once. If not, a warning says why."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    x = torch.tensor([-1.0, 2.0], device=device)
    try:
        found: Tensor = torch.compile(_tried)(x)
    except Exception as error:  # compilers, linkers and Triton each raise their own
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        log.warning("torch.compile does not work here, the model runs without it: %s", lines[0])
        return False
    return torch.equal(found, _tried(x))


def _tried(x: Tensor) -> Tensor:
    return x.relu() + 1


@contextmanager
def compiled_blocks(model: Decoder, enabled: bool) -> Iterator[None]:
    """Blocks compiled inside, plain again outside: an evaluation has a shape for every window it measures.

    Plain all along where the compiler does not work. What it made is kept beside posenc's other caches, so
    that the runs of a sweep share it.
    """
    blocks = list(model.blocks) if enabled and works(model.embedding.weight.device) else []
    # A block's number is read in it. Taken as a constant it would make a graph for each block, and Dynamo
    # gives up after 8.
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True) if blocks else nullcontext():
        warnings.filterwarnings("ignore", ".*code generation for complex operators", UserWarning)  # meant so
        for block in blocks:
            block.compile()
        try:
            yield
        finally:
            for block in blocks:
                block._compiled_call_impl = None
