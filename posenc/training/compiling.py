"""`train.compile`: torch.compile of the decoder's blocks, one graph for all of them, in training alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from posenc.errors import UserError
from posenc.model.decoder import Decoder
from posenc.paths import cache_dir

CHOICES = ("auto", "true", "false")

# `auto` is off on a CPU. Nano, T = 64, bf16, two cores of an AMD EPYC: compiling takes 6 to 14 s, a step with
# NoPE then 47 ms instead of 53, one with RoPE 77 instead of 56 (pairs of neighbours in bf16 are no vectors
# for the compiler). On a GPU it is on for runs that take minutes there: not measured yet, see check_gpu.py.
GPU_FLOPS = 1e14  # a second: what a run of this size may be expected to get without it
PAYS_FROM_SECONDS = 200.0


def resolve_compile(setting: object, device: torch.device, *, parameters: int, tokens: int) -> bool:
    """What `train.compile` means for a run: decided once, from sizes alone, and stored with it.

    Raises UserError for anything but auto, true and false.
    """
    word = str(setting).lower()
    if word not in CHOICES:
        raise UserError("train.compile", setting, "there is no such choice", allowed=CHOICES)
    if word != "auto":
        return word == "true"
    seconds = 6 * parameters * tokens / GPU_FLOPS
    return device.type == "cuda" and seconds >= PAYS_FROM_SECONDS and shutil.which("cc") is not None


@contextmanager
def compiled_blocks(model: Decoder, enabled: bool) -> Iterator[None]:
    """Blocks compiled inside, plain again outside: an evaluation has a shape for every window it measures.

    What the compiler made is kept beside posenc's other caches, so that the runs of a sweep share it.
    """
    if not enabled:
        yield
        return
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    # A block's number is read in it. Taken as a constant it would make a graph for each block, and Dynamo
    # gives up after 8.
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        for block in model.blocks:
            block.compile()
        try:
            yield
        finally:
            for block in model.blocks:
                block._compiled_call_impl = None
