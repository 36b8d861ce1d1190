"""What a law checks: models of one encoding at a size, and forward passes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import LONGEST_OF_LAWS, Encoding
from posenc.encodings.shared.composed import Composed
from posenc.laws.verdict import LawNotApplicableError
from posenc.model.decoder import Decoder

MULTIPLES = tuple(2**doubling for doubling in range(LONGEST_OF_LAWS.bit_length()))  # of T: 1, 2, 4, 8
FAR = 65_536  # positions below it must be as good as those near zero


class BuildModel(Protocol):
    """Build a model from a seed; `changes` replace groups of its settings, such as `encoding`."""

    def __call__(self, seed: int, **changes: Any) -> Decoder: ...


def with_numbers(model: Decoder) -> dict[str, nn.Parameter]:
    """Return the parameters of a model by name, without those of size 0."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.numel()}


def parameters_of_encodings(model: Decoder) -> dict[str, nn.Parameter]:
    """Return the parameters of the encoding and of its options, by their names in the model."""
    return {
        name: parameter
        for name, parameter in with_numbers(model).items()
        if name.startswith(("encoding.", "options."))
    }


def encoding_and_options(model: Decoder) -> list[Encoding]:
    """Return the encoding, then its options."""
    return [part for part in (model.encoding, *model.options) if isinstance(part, Encoding)]


@dataclass(frozen=True)
class Subject:
    """An encoding with its settings, as models of one size."""

    name: str
    build: BuildModel
    train_length: int  # T
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the encoding
    like: Encoding | None = None  # the encoding of posenc that a callable is compared with

    def fresh(self, seed: int = 0, **changes: Any) -> Decoder:
        """Return a new model whose parameters are not zero: zeros would hide faults."""
        model = self.build(seed, **changes)
        for number, parameter in enumerate(parameters_of_encodings(model).values()):
            is_zero = not parameter.detach().any()
            if is_zero:
                # So that a linear map keeps the variance of what it reads, and a vector has numbers near 1.
                std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
                nn.init.normal_(parameter, std=std, generator=generator_for(seed, "law", number))
        return model

    @cached_property
    def _model(self) -> Decoder:
        """Build a model to read declarations from; it is never run."""
        return self.build(0).eval()

    @property
    def declared(self) -> Encoding:
        """Return the encoding together with its options, to read its declarations."""
        return self._model.effective_encoding

    @cached_property
    def limited_to_train_length(self) -> str | None:
        """Return why windows must not be longer than T; None if they may be."""
        beyond = self._model.encoding.beyond
        if beyond in ("truncate", "refuse"):
            return f"beyond={beyond} declares no number past T={self.train_length}"
        return None

    def windows(self, lengths: Iterable[int]) -> list[int]:
        """Return those of the lengths that the model has positions for, ascending, each once."""
        allowed = sorted(set(lengths))
        if self.limited_to_train_length:
            allowed = [n for n in allowed if n <= self.train_length]
        return [n for n in allowed if has_positions(self._model, n)]

    def longest(self, most: int = LONGEST_OF_LAWS) -> int:
        """Return the longest window of MULTIPLES, up to `most` times T, that has positions."""
        return max(self.windows(multiple * self.train_length for multiple in MULTIPLES if multiple <= most))

    def accept_any_positions(self, model: Decoder) -> Decoder:
        """Make the model accept any positions and return it.

        Raises LawNotApplicableError if the encoding refuses positions past T.
        """
        if self.limited_to_train_length:
            raise LawNotApplicableError(self.limited_to_train_length)
        encoding = model.effective_encoding
        # An encoding with that hook is taken to accept any positions already.
        if "positions" not in encoding.hooks:
            parts = (encoding, AnyPositions(encoding.shape))
            model.replace_effective_encoding(Composed(encoding.shape, parts))
        return model

    def far_positions(self, model: Decoder) -> Tensor:
        """Return 2T positions up to FAR that the model accepts, (2T,).

        Half of them start at zero; if the model refuses so wide a window, all are just below FAR. Raises
        LawNotApplicableError if it refuses these, too.
        """
        self.accept_any_positions(model)
        near = torch.arange(self.train_length)
        # Near and far at once, so that queries far out also see keys at the beginning.
        near_and_far = torch.cat((near, FAR - self.train_length + near))
        if _refusal(model, near_and_far) is None:
            return near_and_far
        far = torch.arange(FAR - 2 * self.train_length, FAR)
        refusal = _refusal(model, far)
        if refusal is not None:
            raise LawNotApplicableError(refusal)
        return far


def _refusal(model: Decoder, pos: Tensor) -> str | None:
    """Return why the model refuses positions; None if it accepts them."""
    try:
        logits(model, tokens(model, len(pos)), pos)
    except ValueError as error:
        return f"refuses far positions: {error}"
    return None


class AnyPositions(Encoding):
    """Change nothing; an encoding with the `positions` hook gets positions other than 0, 1, 2, ..., too."""

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
    # By their number, so that laws that use the same length share their text.
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
    """Return the logits (B, T, V) of the last `n_targets` tokens, of all without it.

    Positions are the model's own unless they are given; the model is put into training or evaluation mode.
    """
    model.train(training)
    if pos is None:
        pos = model.positions(ids.shape[1], generator_for(0, "law"))
    output: Tensor = model(ids, pos, n_targets)
    return output


def changed_from(ids: Tensor, start: int, model: Decoder) -> Tensor:
    """Return a copy of the tokens with other ones from `start` on."""
    changed = ids.clone()
    # Each token becomes the next one of the vocabulary. Some of newly drawn ones could be the same as before.
    changed[:, start:] = (changed[:, start:] + 1) % model.vocab_size
    return changed
