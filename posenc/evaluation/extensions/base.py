"""The base class of test-time extensions: each returns the encoding that acts at a given window.

T is the training length. W is the window: how many tokens the model reads at once.
"""

import copy
import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.attention_options.base import CountingOption
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.composed import Composed
from posenc.evaluation.lengths import resolve_length
from posenc.evaluation.models import MeasuredModel
from posenc.settings.numbers import check_between

Length = int | str | None  # in tokens, or as a multiple of T such as 0.5x


class NotForThisEncodingError(UserError):
    """The extension does not apply to the trained encoding. A sweep can leave such a job out."""

    def __init__(
        self, extension: type["Extension"], encoding: str, reason: str, *, hint: str | None = None
    ) -> None:
        problem = f"does not apply to encoding={encoding}: {reason}"
        super().__init__("extend", extension.name, problem, hint=hint or f"it is for {extension.applies}")


# Without `eq=False` it could not be hashed, but it is a part of the key under which passes are kept.
@dataclass(eq=False)
class Extension:
    """One extension, built for one trained model. Its knobs are fields of the dataclass.

    The model may be one without values, on the meta device. `__post_init__` raises `refusal(reason)` if the
    extension does not apply to the model, and UserError for a knob out of range.
    """

    model: MeasuredModel

    name: ClassVar[str]
    paper: ClassVar[str]
    formula: ClassVar[str]
    applies: ClassVar[str]  # to which encodings, in words
    revision: ClassVar[int] = 1  # raised when the formula changes: old records keep a row of their own
    # Knobs that were added later, each with the value that changes nothing. At that value a knob is left out
    # of the stored settings, so that they equal those of older records.
    later: ClassVar[Mapping[str, Any]] = {}
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}  # knob -> values that `extend.tune=true` chooses from

    def __post_init__(self) -> None:
        self.trained = self.model.effective_encoding
        self.shape = self.trained.shape
        self.parts = leaves(self.trained)
        # How many positions a training window spanned: T, or more if the positions were drawn with gaps.
        # Contiguous positions span T wherever they start.
        self.reach = self.shape.distances
        self.lengths: dict[str, int] = {}  # knobs in tokens, resolved
        self.missing: str | None = None  # for the error: which knob has no value yet; None if all have one
        self.hint_to_missing: str | None = None  # how it is given
        self.defaults: dict[str, Any] = {}  # knobs of its YAML, set when it is built
        self.settings: dict[str, Any] = {"name": self.name}  # as stored; the knobs are added when it is built

    def effective_encoding(self, window: int) -> Encoding:
        """Return the encoding that acts at a window of W tokens: `self.trained` if nothing changes.

        Where it is `self.trained`, it has to be at shorter windows as well: the record of the model as
        trained is taken over then, and a protocol may pass shorter windows besides its own.
        """
        raise NotImplementedError

    def resolved(self, window: int) -> dict[str, Any]:
        """Return the values that the knobs resolve to at a window of W tokens."""
        return dict(self.lengths)

    def search(self, window: int) -> Generator[dict[str, Any], float, None]:
        """Yield knobs to try; `window` is the longest one.

        After each, the loss beyond T is sent back, which a subclass may use to choose the next. By default
        these are all combinations of the grid. Knobs that differ from their default stay as they are.
        """
        free_knobs = [knob for knob in self.grid if self.settings[knob] == self.defaults[knob]]
        if not free_knobs:
            return
        # A knob that the user set has been chosen already, so the grid leaves it alone.
        choices_of_knobs = [self.grid[knob] for knob in free_knobs]
        for values in itertools.product(*choices_of_knobs):
            yield dict(zip(free_knobs, values, strict=True))

    def check_change(self, window: int) -> None:
        """Raise the refusal of an extension that leaves the model as trained at a window of W > T tokens.

        By default nothing is refused, since most extensions change something at every such window.
        """

    def refusal(self, reason: str, *, hint: str | None = None) -> NotForThisEncodingError:
        """Return the error that says why the extension does not apply to the model.

        Without a hint it says to which encodings the extension applies.
        """
        return NotForThisEncodingError(type(self), self.model.encoding.name, reason, hint=hint)

    def span(self, window: int) -> int:
        """Return how many positions a window of W tokens may span."""
        return max(window, self.shape.positions) if self.has_gaps() else window

    def has_gaps(self) -> bool:
        """Tell whether positions in evaluation are drawn so that neighbours may lie more than 1 apart."""
        is_training = False
        pos = self.trained.positions(self.shape.train_length, is_training, torch.Generator().manual_seed(0))
        # An offset moves all positions alike. It leaves no gaps, and training saw no longer distances by it.
        return int(pos[-1] - pos[0]) != len(pos) - 1

    def tokens(self, knob: str, value: Length, default: int, largest: float = math.inf) -> int:
        """Return a length that the user set, in tokens; None stands for `default`.

        Raises UserError above `largest`.
        """
        if value is None:
            tokens = default
        else:
            tokens = resolve_length(f"extend.{knob}", value, self.shape.train_length)
        if tokens > largest:
            allowed = f"1 to {largest} tokens, distances that training shows"
            raise UserError(f"extend.{knob}", value, "too large", allowed=allowed)
        self.lengths[knob] = tokens
        return tokens

    def compose(self, parts: Sequence[Encoding]) -> Encoding:
        """Return the parts as one encoding. Options that count visible keys count by these parts."""
        acting: list[Encoding] = []
        for part in parts:
            if isinstance(part, CountingOption):
                part = copy.copy(part)  # the trained one goes on counting its own parts
                part.counted = tuple(parts)
            acting.append(part)
        return Composed(self.shape, acting)

    def check_softmax(self) -> None:
        """Refuse an encoding that replaces the softmax. A sink only adds a key to it."""
        for part in self.parts:
            # The hook `weights` makes weights of scores, such as stick-breaking, entmax or a softmax with a
            # sink.
            if "weights" in part.hooks and "sink" not in part.hooks:
                raise self.refusal(f"{part.name} has no softmax")

    def check_range(self, knob: str, value: float, least: float, *, above: bool = False) -> None:
        """Raise UserError for a value that is not finite or below `least`. With `above` it must be larger."""
        check_between(f"extend.{knob}", value, least, above_low=above)


class Times(Encoding):
    """Multiply all scores, biases included, by a number, after all other changes of scores."""

    name = "times"
    acts_on = "scores"
    relative = True
    uses_positions = False

    def __init__(self, shape: Shape, factor: float) -> None:
        super().__init__(shape)
        self.factor = factor

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.factor  # (B, H, T, S)


def leaves(encoding: Encoding) -> tuple[Encoding, ...]:
    """Return the encodings and options that an encoding is composed of, in order, or the encoding alone."""
    if not isinstance(encoding, Composed):
        return (encoding,)
    leaves_of_parts: list[Encoding] = []
    for part in encoding.parts:
        leaves_of_parts += leaves(part)
    return tuple(leaves_of_parts)
