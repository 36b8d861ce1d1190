"""What a law checks (fresh models of one encoding), what it returns, and forward passes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.encodings.sum import Composed
from posenc.model.decoder import Decoder

LONGEST = 8  # times T, the longest window that is asked for
FAR = 65_536  # positions below it must be as good as those near zero


@dataclass(frozen=True)
class Verdict:
    """`figure` is what was measured, with its bound; `reason` why the law fails or does not apply."""

    status: Literal["pass", "fail", "n/a"]
    figure: str = ""
    reason: str = ""


class ViolationError(Exception):
    """The law is broken: the reason, and what was measured."""


class NotApplicableError(Exception):
    """The law does not apply to this encoding; the message says why."""


def require(holds: bool, reason: str, figure: str = "") -> None:
    """Raise ViolationError unless it holds."""
    if not holds:
        raise ViolationError(reason, figure)


def within(figure: float, bound: float, reason: str) -> float:
    """Return the figure. Raises ViolationError unless it is below the bound (nan is not)."""
    require(figure < bound, reason, bounded(figure, bound))
    return figure


def identical(a: Tensor, b: Tensor, reason: str) -> None:
    """Raise ViolationError unless both are the same bit for bit."""
    require(torch.equal(a, b), reason, f"{largest(a, b):.1e}")


def bounded(figure: float, bound: float) -> str:
    return f"{figure:.1e} (bound {bound:.0e})"


@dataclass(frozen=True)
class Subject:
    """An encoding at a size; `build(seed, **changes)` makes a model, with changes of its settings."""

    name: str
    build: Callable[..., Decoder]
    train_length: int  # T
    settings: Mapping[str, Any] = field(default_factory=dict)
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
            model._effective = (Composed(acting.shape, (acting, AnyPositions(acting.shape))),)
        return model


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
    model: Decoder, ids: Tensor, pos: Tensor | None = None, wanted: int | None = None, training: bool = False
) -> Tensor:
    """Return logits (B, T, V) in evaluation mode, at the model's own positions unless they are given."""
    model.train(training)
    own = model.positions(ids.shape[1], generator_for(0, "law")) if pos is None else pos
    out: Tensor = model(ids, own, wanted)
    return out


def changed_from(ids: Tensor, start: int, model: Decoder) -> Tensor:
    """Return a copy of the tokens with other ones from `start` on."""
    changed = ids.clone()
    changed[:, start:] = (changed[:, start:] + 1) % model.vocab_size
    return changed


def largest(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; nan if one of them is not a number."""
    return (a - b).abs().max().item()
