"""What is checked: a way to make fresh models of one encoding, and the forward passes that the laws share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.sum import Composed
from posenc.laws.verdict import NotApplicableError
from posenc.model.decoder import Decoder

LONGEST = 8  # times T, the longest window that is asked for
FAR = 65_536  # positions below it must be as good as those near zero


class Build(Protocol):
    """Makes a model with its initial values.

    `changes` are laid over the settings of the subject: `encoding`, `attention` and `positions` (mappings),
    `context_length`. Raises UserError for what does not go together.
    """

    def __call__(self, seed: int, **changes: Any) -> Decoder: ...


@dataclass(frozen=True)
class Subject:
    """An encoding at a size; `settings` are its parameters by name, the parts of a sum in a list."""

    name: str
    build: Build
    train_length: int  # T
    settings: Mapping[str, Any] = field(default_factory=dict)

    def fresh(self, seed: int = 0, **changes: Any) -> Decoder:
        """A new model. Parameters of the encoding that start at zero get values: zero hides faults.

        Of standard deviation 1, matrices as linear maps start: the last layer of a network of width 32 at 1
        would make 6 of every rounding.
        """
        model = self.build(seed, **changes)
        for number, parameter in enumerate(model.encoding.parameters()):
            if not parameter.detach().any():
                std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
                nn.init.normal_(parameter, std=std, generator=generator_for(seed, "law", number))
        return model

    @cached_property
    def _model(self) -> Decoder:
        """To ask what it declares; never run."""
        return self.build(0).eval()

    @property
    def declared(self) -> Encoding:
        """The encoding together with its options: whose declarations the laws hold it to."""
        return self._model.effective_encoding

    @cached_property
    def bounded(self) -> str | None:
        """Why no window is longer than T, where none is."""
        beyond = self._model.encoding.beyond
        if beyond in ("truncate", "refuse"):
            return f"{beyond=}: no number past T={self.train_length}"
        return None

    def windows(self, lengths: Iterable[int]) -> list[int]:
        """Those of the lengths that the model has positions for, ascending, each once."""
        return [n for n in sorted(set(lengths)) if self._reaches(n)]

    def longest(self, times: int = LONGEST) -> int:
        """The longest window of 1, 2, 4, ... up to `times` T that there are positions for."""
        doublings = range(times.bit_length())
        return max(self.windows(self.train_length * 2**i for i in doublings if 2**i <= times))

    def anywhere(self, model: Decoder) -> Decoder:
        """The model, its attention taking positions as they come: without this it counts on 0, 1, 2, ...

        Raises NotApplicableError where positions past T are refused.
        """
        if self.bounded:
            raise NotApplicableError(self.bounded)
        acting = model.effective_encoding
        if "positions" not in acting.hooks:
            model._effective = (Composed(acting.shape, (acting, Given(acting.shape))),)
        return model

    def _reaches(self, n: int) -> bool:
        if n > self.train_length and self.bounded:
            return False
        return has_positions(self._model, n)


class Given(Encoding):
    """Changes nothing; that it has the hook says that positions need not be 0, 1, 2, ..."""

    name = "given"
    relative = True
    uses_positions = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.arange(n)


def has_positions(model: Decoder, n: int) -> bool:
    """Whether a window of n tokens has positions: drawn ones end at a limit."""
    try:
        model.positions(n, generator_for(0, "law"))
    except ValueError:
        return False
    return True


def tokens(model: Decoder, n: int, batch: int = 2) -> Tensor:
    """Random tokens (batch, n), the same for every encoding."""
    generator = torch.Generator().manual_seed(n)
    return torch.randint(model.vocab_size, (batch, n), generator=generator)


@torch.no_grad()
def logits(model: Decoder, ids: Tensor, pos: Tensor | None = None, wanted: int | None = None) -> Tensor:
    """Logits (B, T, V) as in evaluation, at the model's own positions unless they are given."""
    model.eval()
    own = model.positions(ids.shape[1], generator_for(0, "law")) if pos is None else pos
    out: Tensor = model(ids, own, wanted)
    return out


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference; nan where one of them is not a number."""
    return (a - b).abs().max().item()
