"""Compare logits and gradients of an encoding, by the kernels that posenc chooses, with blocks in float64.

A kernel may be off by 2.5 times what the blocks are in its precision, or by rounding. Blocks in float32 would
be no reference: they round sums of gates, and FoX's output is then further off than by FlexAttention.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from posenc.core.errors import UserError, first_line
from posenc.core.seeds import generator_for
from posenc.encodings.attention_options.window import Window
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.building import build_of_shape
from posenc.encodings.positions.offset import Offset
from posenc.encodings.positions.randomized import Randomized
from posenc.laws.float64 import Float64
from posenc.model import flex, kernels
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.model.inputs import Heads, Layer
from posenc.settings.tree import EncodingSettings
from posenc.training.device import autocast, compiled_blocks
from posenc.training.loop import NextTokenLoss, gradients

CHECKED = ModelShape("checked", d_model=256, n_layers=2, n_heads=4, mlp_ratio=4)
OPTIONS: dict[str, Callable[[Shape], list[Encoding]]] = {
    "plain": lambda shape: [],
    "window": lambda shape: [Window(shape, window=shape.train_length // 3)],
    "randomized": lambda shape: [Randomized(shape, max=None, dense=False)],
    "offset": lambda shape: [Offset(shape, max=None)],
}
GROUPS = {"plain": "-", "window": "attention.window", "randomized": "positions", "offset": "positions"}
VOCABULARY = 260
BATCH = 2
LAST = 16  # tokens whose logits are asked for alone
WORSE = 2.5  # times as far off as the blocks in the same precision
ROUNDING = {"fp32": 2e-5, "bf16": 1e-2}  # relative to the norm of a tensor; less is no mismatch
GRADIENT = "d "  # before the names of gradients
NO_GRADIENT = 1e-9  # of the largest one: what float64 makes of a gradient that is zero


@dataclass(frozen=True)
class Check:
    """Hold how far off an encoding is in one precision, in the tensor where it is worst."""

    option: str
    length: int
    precision: str
    compiled: bool
    is_bad: bool
    worst: str = ""  # name of the tensor
    off: float | None = None  # distance relative to its norm; None if it is not finite
    off_of_blocks: float | None = None  # that of the blocks in the same precision
    flex_calls: int | None = None  # attentions that FlexAttention computed; not counted if compiled
    failure: str = ""


def check_encoding(name: str, lengths: tuple[int, ...], device: str) -> dict[str, object]:
    """Check an encoding, not compiled: plain at every length, with each option that it accepts at the last.

    Each pair of option and length makes FlexAttention compile anew, so not all of them are checked.
    """
    checks: list[Check] = []
    for option in OPTIONS:
        for length in lengths if option == "plain" else lengths[-1:]:
            decoder = _decoder(name, option, length, torch.device(device))
            if decoder is not None:
                checks += _checks(decoder, option, length, compiled=False)
    return {"checks": [asdict(check) for check in checks]}


def check_compiled(name: str, length: int, device: str) -> dict[str, object]:
    """Check the gradients of an encoding whose blocks are compiled, as in a training."""
    decoder = _decoder(name, "plain", length, torch.device(device))
    checks = [] if decoder is None else _checks(decoder, "plain", length, compiled=True)
    return {"checks": [asdict(check) for check in checks]}


def _decoder(name: str, option: str, length: int, device: torch.device) -> Decoder | None:
    """Build a model whose encoding has moved off its start; None where encoding and option do not combine."""
    sizes = Shape(CHECKED.d_model, CHECKED.n_heads, CHECKED.head_dim, CHECKED.n_layers, length)
    options = OPTIONS[option](sizes)
    limit = getattr(options[0], "limit", None) if options else None
    with suppress(UserError, ValueError):
        encoding = build_of_shape(replace(sizes, position_limit=limit), EncodingSettings(name=name))
        if any(refused.startswith(GROUPS[option]) for refused in encoding.refuses):
            return None
        decoder = Decoder(CHECKED, VOCABULARY, encoding, options)
        initialize(decoder, 0)
        generator = torch.Generator().manual_seed(1)
        for parameter in encoding.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
        return decoder.to(device)
    return None


def _checks(decoder: Decoder, option: str, length: int, *, compiled: bool) -> list[Check]:
    """Compare the chosen kernels and the blocks, in each precision, with the blocks in float64."""
    device = decoder.embedding.weight.device
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (BATCH, length), generator=generator).to(device)
    exact = _exact_tensors(decoder, tokens, has_logits=not compiled)
    checks: list[Check] = []
    for precision, rounding in ROUNDING.items():
        with _blocks_alone():
            blocks = _distances(_tensors(decoder, tokens, precision, has_logits=not compiled), exact)
        check = Check(option, length, precision, compiled, is_bad=True)
        try:
            layers, tensors = _chosen_kernels(decoder, tokens, precision, compiled=compiled)
            off = _distances(tensors, exact)
        except Exception as failure:  # one kernel that does not compile must not hide the others
            checks.append(replace(check, failure=first_line(failure)))
            continue
        excess = {name: _excess(off[name], max(WORSE * blocks[name], rounding)) for name in off}
        worst = max(excess, key=excess.__getitem__)
        checks.append(
            replace(
                check,
                is_bad=excess[worst] > 1,
                worst=worst,
                off=_finite(off[worst]),
                off_of_blocks=_finite(blocks[worst]),
                flex_calls=None if compiled else len(layers),
            )
        )
    return checks


def _chosen_kernels(
    decoder: Decoder, tokens: Tensor, precision: str, *, compiled: bool
) -> tuple[list[int], dict[str, Tensor]]:
    """Return the layers that FlexAttention computed, and the tensors of a pass by the chosen kernels."""
    if compiled:  # as a training runs it, so nothing may be counted inside
        with compiled_blocks(decoder, True):
            return [], _tensors(decoder, tokens, precision, has_logits=False)
    with _flex_layers() as layers:
        return layers, _tensors(decoder, tokens, precision, has_logits=True)


def _exact_tensors(decoder: Decoder, tokens: Tensor, *, has_logits: bool) -> dict[str, Tensor]:
    """Return the tensors of a pass by blocks in float64."""
    # backward passes in this thread, too: a mode of torch is one of a thread
    with _blocks_alone(), Float64(), torch.autograd.set_multithreading_enabled(False):
        exact_decoder = copy.deepcopy(decoder).double()
        tensors = _tensors(exact_decoder, tokens, "fp32", has_logits=has_logits)
    return _without_inert(tensors, decoder.encoding)


def _without_inert(tensors: dict[str, Tensor], encoding: Encoding) -> dict[str, Tensor]:
    """Leave out gradients that are zero by declaration: in any other precision they are rounding alone.

    A table of which only some rows are inert stays.
    """
    gradient_norms = {name: tensor.norm() for name, tensor in tensors.items() if name.startswith(GRADIENT)}
    largest = max(gradient_norms.values())
    left_out = set()
    for parameter in encoding.inert:
        name = f"{GRADIENT}encoding.{parameter}"
        if name in gradient_norms and gradient_norms[name] < NO_GRADIENT * largest:
            left_out.add(name)
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}


def _tensors(decoder: Decoder, tokens: Tensor, precision: str, *, has_logits: bool) -> dict[str, Tensor]:
    """Return the loss, the gradient of every parameter and, if wanted, logits: all, and those of the last."""
    length = tokens.shape[1]
    pos = decoder.train().positions(length, generator_for(0, "check"))
    decoder.zero_grad(set_to_none=True)
    loss, _ = gradients(NextTokenLoss(decoder), tokens, tokens, pos, precision=precision, grad_clip=1e9)
    tensors = {"loss": loss}
    for name, parameter in decoder.named_parameters():
        if parameter.grad is not None:
            tensors[GRADIENT + name] = parameter.grad.clone()
    if has_logits:
        pos = decoder.eval().positions(length, generator_for(0, "check"))
        with torch.no_grad(), autocast(precision, tokens.device):
            tensors["logits"] = decoder(tokens, pos).float()
            tensors["last logits"] = decoder(tokens, pos, LAST).float()
    return tensors


def _distances(tensors: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Return each tensor's distance relative to its norm; a gradient below 1/1000 of all counts as that."""
    names = list(exact)
    norms = torch.stack([exact[name].norm() for name in names]).tolist()  # one transfer from the GPU
    differences = torch.stack([(tensors[name] - exact[name]).norm() for name in names]).tolist()
    squares = [norm**2 for name, norm in zip(names, norms, strict=True) if name.startswith(GRADIENT)]
    least_gradient = 1e-3 * math.sqrt(sum(squares))
    distances: dict[str, float] = {}
    for name, norm, difference in zip(names, norms, differences, strict=True):
        least = least_gradient if name.startswith(GRADIENT) else 0.0
        distances[name] = difference / max(norm, least, 1e-30)
    return distances


def _excess(off: float, allowed: float) -> float:
    """Return how many times as far off as allowed; what is not a number is worst of all."""
    return math.inf if math.isnan(off) else off / allowed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _blocks_alone() -> Iterator[None]:
    """Attend by blocks of queries, whatever the device."""

    def blocks(*inputs: object) -> str:
        return "blocks"

    with patch.object(kernels, "choose_kernel", blocks):
        yield


@contextmanager
def _flex_layers() -> Iterator[list[int]]:
    """Yield a list that gets the layer of each attention that FlexAttention computes."""
    layers: list[int] = []
    attend_flex = flex.attend_flex

    def counted(heads: Heads, layer: Layer, *others: Any) -> Tensor:
        layers.append(layer.number)
        return attend_flex(heads, layer, *others)

    with patch.object(flex, "attend_flex", counted):
        yield layers
