"""What a law checks: models of one encoding at a size, and forward passes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.encodings.shared.composed import Composed
from posenc.laws.verdict import NotApplicableError
from posenc.model.decoder import Decoder

LONGEST = 8  # times T, the longest window that is asked for
FAR = 65_536  # positions below it must be as good as those near zero


@dataclass(frozen=True)
class Subject:
    """An encoding at a size; `build(seed, **changes)` makes a model, with changes of its settings."""

    name: str
    build: Callable[..., Decoder]
    train_length: int  # T
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the encoding
    like: Encoding | None = None  # what a callable of somebody else is compared with

    def fresh(self, seed: int = 0, **changes: Any) -> Decoder:
        """Return a new model; what starts at zero gets values of std 1 or fan_in^-1/2: zero hides faults."""
        model = self.build(seed, **changes)
        for number, parameter in enumerate(model.encoding.parameters()):
            if not parameter.detach().any():
                std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
                nn.init.normal_(parameter, std=std, generator=generator_for(seed, "law", number))
        return model

    @cached_property
    def _model(self) -> Decoder:
        """A model whose declarations are read; it is never run."""
        return self.build(0).eval()

    @property
    def declared(self) -> Encoding:
        """The encoding together with its options, whose declarations are checked."""
        return self._model.effective_encoding

    @cached_property
    def bounded(self) -> str | None:
        """Why windows must not be longer than T; None if they may."""
        beyond = self._model.encoding.beyond
        if beyond in ("truncate", "refuse"):
            return f"{beyond=}: no number past T={self.train_length}"
        return None

    def windows(self, lengths: Iterable[int]) -> list[int]:
        """Return those of the lengths that the model has positions for, ascending, each once."""
        allowed = [n for n in sorted(set(lengths)) if n <= self.train_length or not self.bounded]
        return [n for n in allowed if has_positions(self._model, n)]

    def longest(self, times: int = LONGEST) -> int:
        """Return the longest window of 1, 2, 4, ... up to `times` T that there are positions for."""
        return max(self.windows(self.train_length * n for n in (1, 2, 4, 8) if n <= times))

    def anywhere(self, model: Decoder) -> Decoder:
        """Make the model accept any positions; NotApplicableError where those past T are refused."""
        if self.bounded:
            raise NotApplicableError(self.bounded)
        acting = model.effective_encoding
        if "positions" not in acting.hooks:
            model.train_with(Composed(acting.shape, (acting, AnyPositions(acting.shape))))
        return model

    def far_positions(self, model: Decoder) -> Tensor:
        """Return T positions from zero on and T below FAR, or 2T below FAR, (2T,), that the model accepts."""
        self.anywhere(model)
        near = torch.arange(self.train_length)
        reason = ""
        for pos in (
            torch.cat((near, FAR - self.train_length + near)),
            torch.arange(FAR - 2 * self.train_length, FAR),
        ):
            try:
                logits(model, tokens(model, len(pos)), pos)
            except ValueError as error:
                reason = f"refuses far positions: {error}"
            else:
                return pos
        raise NotApplicableError(reason)


class AnyPositions(Encoding):
    """Changes nothing; having the hook says that positions need not be 0, 1, 2, ..."""

    name = "given"
    relative = True
    uses_positions = False

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.arange(n)


def has_positions(model: Decoder, n: int) -> bool:
    """Tell whether a window of n tokens has positions: drawn ones end at a limit."""
    try:
        model.positions(n, generator_for(0, "law"))
    except ValueError:
        return False
    return True


def tokens(model: Decoder, n: int, batch: int = 2) -> Tensor:
    """Return random tokens (batch, n), the same for every encoding."""
    generator = torch.Generator().manual_seed(n)
    return torch.randint(model.vocab_size, (batch, n), generator=generator)


@torch.no_grad()
def logits(
    model: Decoder,
    ids: Tensor,
    pos: Tensor | None = None,
    *,
    n_targets: int | None = None,
    training: bool = False,
) -> Tensor:
    """Return logits (B, T, V) in evaluation mode, at the model's own positions unless they are given."""
    model.train(training)
    if pos is None:
        pos = model.positions(ids.shape[1], generator_for(0, "law"))
    logits: Tensor = model(ids, pos, n_targets)
    return logits


def changed_from(ids: Tensor, start: int, model: Decoder) -> Tensor:
    """Return a copy of the tokens with other ones from `start` on."""
    changed = ids.clone()
    changed[:, start:] = (changed[:, start:] + 1) % model.vocab_size
    return changed
