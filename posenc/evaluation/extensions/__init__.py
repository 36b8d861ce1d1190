"""Test-time extensions, `extend=NAME`: what is done to a trained model at windows beyond its training length.

An extension is a class of a module here that has a `name`, and `conf/extend/<name>.yaml`. Nothing is trained,
and the trained model is never changed: an extension gives the encoding that the attention sees in its place.
T is the training length, W the window: how many tokens the model is given at once.
"""

import copy
import functools
import importlib
import itertools
import math
import pkgutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.paths import choice_file
from posenc.core.signature import between, check_choice
from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.registry import without_name as parameters
from posenc.encodings.shared.composed import Composed
from posenc.evaluation import resolve_length
from posenc.evaluation.foreign import Subject
from posenc.results.settings import own_yaml

NONE = "none"  # the model as trained
Length = int | str | None  # in tokens, or as a multiple of T such as 0.5x


class NotForThisEncodingError(UserError):
    """The extension does not apply to the trained encoding; a sweep may leave such a job out."""

    def __init__(self, extension: type["Extension"], encoding: str, reason: str) -> None:
        problem = f"does not apply to encoding={encoding}: {reason}"
        super().__init__("extend", extension.name, problem, hint=f"it is for {extension.applies}")


@dataclass(eq=False)
class Extension:
    """One extension, built for one trained model, which may be on the meta device; its knobs are fields.

    `__post_init__` raises `refusal(reason)` where it does not apply, UserError for a knob out of range.
    """

    model: Subject

    name: ClassVar[str]
    paper: ClassVar[str]
    formula: ClassVar[str]
    applies: ClassVar[str]  # to which encodings, in words
    revision: ClassVar[int] = 1  # raised when the formula changes: earlier cells keep a row of their own
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}  # knob -> values that `extend.tune=true` chooses from

    def __post_init__(self) -> None:
        self.trained = self.model.effective_encoding
        self.shape = self.trained.shape
        self.parts = leaves(self.trained)
        # How many positions a training window spanned: T, or the limit of positions drawn with gaps.
        # Contiguous ones from a drawn start count as T: by distance they show no more.
        self.reach = self.shape.distances
        self.lengths: dict[str, int] = {}  # knobs in tokens, resolved
        self.missing: str | None = None  # what it lacks, in words, and `extend.tune=true` would find
        self.settings: dict[str, Any] = {"name": self.name}  # as stored; the knobs are added when it is built

    def effective_encoding(self, window: int) -> Encoding:
        """Return what the attention sees at a window of W tokens: `self.trained` if nothing changes."""
        raise NotImplementedError

    def resolved(self, window: int) -> dict[str, Any]:
        """Return the values that the knobs resolve to at a window of W tokens."""
        return dict(self.lengths)

    def search(self, window: int) -> Generator[dict[str, Any], float, None]:
        """Yield knobs to try, each answered with its loss beyond T; W is the longest window.

        The product of the grid, but for knobs that the user gave.
        """
        usual = resolve_extend({"name": self.name, **default_knobs(self.name)})
        grid = {knob: values for knob, values in self.grid.items() if self.settings[knob] == usual[knob]}
        for values in itertools.product(*grid.values()) if grid else ():
            yield dict(zip(grid, values, strict=True))

    def refusal(self, reason: str) -> NotForThisEncodingError:
        """Return the error for a model that the extension does not apply to."""
        return NotForThisEncodingError(type(self), self.model.encoding.name, reason)

    def span(self, window: int) -> int:
        """Return how many positions a window of W tokens may span."""
        return max(window, self.shape.positions) if self.has_gaps() else window

    def has_gaps(self) -> bool:
        """Tell whether positions in evaluation are drawn so that neighbours may lie more than 1 apart."""
        pos = self.trained.positions(self.shape.train_length, False, torch.Generator().manual_seed(0))
        return int(pos[-1] - pos[0]) != len(pos) - 1

    def tokens(self, knob: str, value: Length, default: int, most: float = math.inf) -> int:
        """Resolve a length that the user gave to tokens; null is the default. UserError above `most`."""
        length = self.shape.train_length
        found = default if value is None else resolve_length(f"extend.{knob}", value, length)
        if found > most:
            allowed = f"1 to {most} tokens, distances that training shows"
            raise UserError(f"extend.{knob}", value, "too large", allowed=allowed)
        self.lengths[knob] = found
        return found

    def together(self, parts: Sequence[Encoding]) -> Encoding:
        """Compose the parts. A scale that counts visible keys counts those that these parts show."""
        acting = [copy.copy(part) if isinstance(part, LogN) else part for part in parts]
        for part in acting:
            if isinstance(part, LogN):
                part.counted = tuple(parts)  # the trained one goes on counting its own
        return Composed(self.shape, acting)

    def check_softmax(self) -> None:
        """Raise the refusal of a part that replaces the softmax."""
        for part in self.parts:
            if "weights" in part.hooks:
                raise self.refusal(f"{part.name} has no softmax")

    def check_range(self, knob: str, value: float, least: float, *, above: bool = False) -> None:
        """Raise UserError for a value that is not finite, below `least`, or (`above`) not above it."""
        between(f"extend.{knob}", value, least, open_low=above)


class Times(Encoding):
    """All logits, biases included, times one number. It goes last, behind everything else on the scores."""

    name = "times"
    acts_on = "scores"
    relative = True
    uses_positions = False

    def __init__(self, shape: Shape, times: float) -> None:
        super().__init__(shape)
        self.times = times

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.times  # (B, H, T, S)


def leaves(encoding: Encoding) -> tuple[Encoding, ...]:
    """Return the encodings and options that a composite is made of, in order; of a plain encoding itself."""
    if not isinstance(encoding, Composed):
        return (encoding,)
    return tuple(leaf for part in encoding.parts for leaf in leaves(part))


@functools.cache
def extensions() -> dict[str, type[Extension]]:
    """Return the classes of all names that `extend` may take, without `none`."""
    modules = [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    named = {cls.name: cls for cls in found if issubclass(cls, Extension) and "name" in vars(cls)}
    return dict(sorted(named.items()))


def resolve_extend(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the `extend` group and return it as a record stores it. Raises UserError."""
    choices: dict[str, type] = {NONE: object, **extensions()}  # `object` has no knobs
    return check_choice("extend", settings, choices, "there is no such extension")


def build_extension(settings: Mapping[str, Any], model: Subject, *, tune: bool = False) -> Extension | None:
    """Build the extension for this model, None for `none`; missing knobs come from its YAML. UserError.

    With `tune` what it lacks is found on validation documents before it acts.
    """
    usual = default_knobs(str(settings.get("name")))
    resolved = resolve_extend({**usual, **settings})
    if resolved["name"] == NONE:
        return None
    cls, knobs = extensions()[resolved["name"]], parameters(resolved)
    try:
        extension = cls(model, **knobs)
    except UserError as error:
        if isinstance(error, NotForThisEncodingError) or knobs != usual:
            raise  # the user's value is out of range, not a default
        raise NotForThisEncodingError(cls, model.encoding.name, f"{error.key}: {error.problem}") from error
    if extension.missing is not None and not tune:
        raise extension.refusal(extension.missing)
    extension.settings = resolved
    return extension


def default_knobs(name: str) -> dict[str, Any]:
    """Read the knobs of an extension from its YAML, the only place that has them."""
    path = choice_file("extend", name)
    return parameters(own_yaml(path)) if path else {}
