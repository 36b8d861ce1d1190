"""What the parts share: models, the choice of kernels, what is told, the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch

from posenc.cli.bench_cell import wait_for
from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import Offset, Randomized, Window
from posenc.model import flex, kernels
from posenc.model.decoder import Decoder, ModelShape, initialize

VOCABULARY = 260
OPTIONS: dict[str, Callable[[Shape], list[Encoding]]] = {
    "plain": lambda shape: [],
    "window": lambda shape: [Window(shape, window=shape.train_length // 3)],
    "randomized": lambda shape: [Randomized(shape, max=None, dense=False)],
    "offset": lambda shape: [Offset(shape, max=None)],
}
GROUPS = {"plain": "-", "window": "attention.window", "randomized": "positions", "offset": "positions"}
WARM_UP, REPEATS = 3, 10

found: list[dict[str, Any]] = []


def tell(part: str, bad: bool = False, **facts: Any) -> None:
    """One line on stdout, kept for the JSON file as well."""
    found.append({"part": part, "bad": bad, **facts})
    shown = (
        f"{key}={fact:.4g}" if isinstance(fact, float) else f"{key}={fact}" for key, fact in facts.items()
    )
    print("MISMATCH" if bad else "ok      ", part, *shown, flush=True)


@contextmanager
def blocks_alone() -> Iterator[None]:
    """No kernel but blocks of queries."""
    with patch.object(kernels, "choose", lambda *given: "blocks"):
        yield


@contextmanager
def flex_calls() -> Iterator[list[int]]:
    """A list that gets the layer of each attention that FlexAttention computed."""
    layers: list[int] = []
    own = flex.attend_flex

    def counted(*given: Any) -> torch.Tensor:
        layers.append(given[5])
        return own(*given)

    with patch.object(flex, "attend_flex", counted):
        yield layers


def decoder_of(
    name: str, shape: ModelShape, length: int, device: torch.device, option: str = "plain"
) -> Decoder | None:
    """A model whose encoding has moved off its start; None where encoding and option do not go together."""
    own = Shape(shape.d_model, shape.n_heads, shape.head_dim, shape.n_layers, length)
    options = OPTIONS[option](own)
    limit = getattr(options[0], "limit", None) if options else None
    with suppress(UserError, ValueError):
        encoding = build_encoding(
            name,
            d_model=shape.d_model,
            n_heads=shape.n_heads,
            head_dim=shape.head_dim,
            n_layers=shape.n_layers,
            train_length=length,
            position_limit=limit,
        )
        if any(refused.startswith(GROUPS[option]) for refused in encoding.refuses):
            return None
        decoder = Decoder(shape, VOCABULARY, encoding, options)
        initialize(decoder, 0)
        generator = torch.Generator().manual_seed(1)
        for parameter in encoding.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
        return decoder.to(device)
    return None


def tokens_of(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """(B, T) int64, the same each time."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(VOCABULARY, (batch, length), generator=generator).to(device)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of one call, until the device is done."""
    wait_for(device)
    began = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - began
