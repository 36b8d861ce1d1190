"""Models of the same shape from posenc and from packages of the index, and one training step of each.

A peer is left out, with a reason, where its package is not installed or refuses the setting.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peers.builders import VOCABULARY, gpt2, llama, nano_gpt, x_transformers
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.training.compiling import compiled_blocks
from posenc.training.optimizer import Optimization, build_optimizer
from posenc.training.precision import autocast
from posenc.training.step import NextTokenLoss, gradients, update

HOW = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 1.0)
OURS = "posenc"
COMPILED = ExitStack()  # of posenc's models, as long as this process lives
Step = Callable[[Tensor, Tensor], Tensor]  # inputs and targets (B, T) -> the loss, scalar


@dataclass(frozen=True)
class Maker:
    """A setting of a package: `build(shape, length)` gives a model that maps tokens (B, T) to logits."""

    package: str
    setting: str
    position: str  # its encoding, under posenc's name
    build: Callable[[ModelShape, int], nn.Module]

    @property
    def name(self) -> str:
        return f"{self.package} {self.setting}"


@dataclass
class Contestant:
    """A model that takes part, at one precision."""

    name: str
    package: str
    position: str
    precision: str
    parameters: int
    step: Step


def contestant(
    maker: Maker, shape: ModelShape, length: int, precision: str, device: torch.device, compiled: bool
) -> Contestant:
    """Build it. Its step is loss, backward, clipping to norm 1 and fused AdamW."""
    torch.manual_seed(0)
    model = maker.build(shape, length).to(device).train()
    step = (_our_step if isinstance(model, Decoder) else _peer_step)(model, precision, length, compiled)
    parameters = sum(one.numel() for one in model.parameters())
    name = f"{maker.name} {precision}"
    return Contestant(name, maker.package, maker.position, precision, parameters, step)


def _our_step(model: Decoder, precision: str, length: int, compiled: bool) -> Step:
    loss_of, optimizer = NextTokenLoss(model), build_optimizer(model, HOW)
    COMPILED.enter_context(compiled_blocks(model, compiled))

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        pos = model.positions(length, generator_for(0, "positions", 0))
        loss, _ = gradients(loss_of, inputs, targets, pos, precision=precision, grad_clip=HOW.grad_clip)
        update(optimizer, HOW.lr)
        return loss

    return step


def _peer_step(model: nn.Module, precision: str, length: int, compiled: bool) -> Step:
    """What nanoGPT's loop does: parameters with two dimensions decay, one optimizer, fused."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": HOW.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=HOW.lr, betas=HOW.betas, eps=HOW.eps, fused=True)
    forward = torch.compile(model) if compiled else model

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(precision, inputs.device):
            logits = forward(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, HOW.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def makers(names: list[str]) -> Iterator[Maker]:
    """Every contestant that can take part here; posenc with these encodings first."""
    for name in names:
        yield Maker(OURS, name, name, _ours(name))
    if _installed("x_transformers"):
        for attention in ("einsum", "flash"):
            for position in ("learned", "rope", "alibi", "t5"):
                if (attention, position) != ("flash", "t5"):  # it refuses this pair
                    setting = f"{position} {attention}"
                    yield Maker("x-transformers", setting, position, x_transformers(position, attention))
    if _installed("transformers"):
        for attention in ("eager", "sdpa"):
            yield Maker("transformers", f"GPT-2 {attention}", "learned", gpt2(attention))
            yield Maker("transformers", f"Llama {attention}", "rope", llama(attention))
    if _installed("nano_gpt"):
        yield Maker("nano-gpt", "learned", "learned", nano_gpt)


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _ours(name: str) -> Callable[[ModelShape, int], nn.Module]:
    def build(shape: ModelShape, length: int) -> nn.Module:
        encoding = build_encoding(
            name,
            d_model=shape.d_model,
            n_heads=shape.n_heads,
            head_dim=shape.head_dim,
            n_layers=shape.n_layers,
            train_length=length,
        )
        model = Decoder(shape, VOCABULARY, encoding)
        initialize(model, 0)
        return model

    return build
