"""What a law checks (models of one encoding, or somebody's own callable), what it returns, forward passes."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc.core.errors import UserError, first_line
from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.registry import file_module
from posenc.encodings.shared.composed import Composed
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


# --- float64 in the place of float32

NARROW = {torch.float32, torch.float16, torch.bfloat16}
CASTS: set[Any] = {Tensor.float, Tensor.half, Tensor.bfloat16}
# Random draws differ between float32 and float64: drawn in float32 and widened, they are the same numbers.
DRAWS: set[Any] = {torch.rand, torch.randn}


class Float64(TorchFunctionMode):
    """Inside, torch uses float64 for float32 or less; make the model inside, with its constants."""

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self._before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in DRAWS:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in kwargs.items()})


def _widened(value: Any) -> Any:
    # the type first: `in` would compare a tensor
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


# --- somebody else's attention bias or rotary function as an encoding

WIDTHS = {"heads": "n_heads", "n_heads": "n_heads", "num_heads": "n_heads", "H": "n_heads"}
WIDTHS |= {"dim": "head_dim", "head_dim": "head_dim", "dim_head": "head_dim", "D": "head_dim"}
KINDS: dict[tuple[str, ...], str] = {  # by the names of the first two parameters
    ("q_pos", "k_pos"): "bias",
    ("i", "j"): "lengths",
    ("x", "pos"): "rotary",
}
TAKES = "f(q_pos, k_pos) or f(i, j) -> (H, T, S), a bias of T queries and S keys; f(x, pos) -> x, turned"
MODULE = "posenc_given"  # holds the class, as a plug-in does


class Given(Encoding):
    """What is known of a callable: nothing but what it is said to be like."""

    acts_on = "bias"
    make: Callable[[Shape], Callable[..., Tensor]]

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        with torch.random.fork_rng(devices=()):  # its own draws: the same each time that it is built
            torch.manual_seed(0)
            self.function = type(self).make(shape)
        self.given = {name: one.detach().clone() for name, one in self.named_parameters()}

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.copy_(self.given[name])


class GivenBias(Given):
    """A bias by positions, or by how many queries are the last of how many keys."""

    by_lengths = False

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        if self.by_lengths:  # its queries are the last ones: a block of earlier ones is cut from all after it
            whole = all(bool((one.diff() == 1).all()) for one in (q_pos, k_pos))
            earlier = int(q_pos[0] - k_pos[0]) if whole else len(k_pos) - len(q_pos)
            found: Tensor = self.function(len(k_pos) - earlier, len(k_pos))[..., : len(q_pos), :]
        else:
            found = self.function(q_pos, k_pos)
        found = found.reshape(-1, len(q_pos), len(k_pos)).expand(self.shape.n_heads, -1, -1)  # (H, T, S)
        return found.float().masked_fill(k_pos[None] > q_pos[:, None], 0.0)  # it may mask the future itself


class GivenRotary(Given):
    """A function that turns queries and keys alike."""

    acts_on = "rotate"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.function(q, q_pos), self.function(k, k_pos)


def given_encoding(text: str, like: type[Encoding] | None) -> tuple[str, str]:
    """Make an encoding of the callable `PATH:NAME`; return its name and the plug-in that has it.

    It declares what the class `like` declares, without one nothing. Raises UserError.
    """
    path, _, name = text.rpartition(":")
    try:
        found = getattr(file_module(path) if path.endswith(".py") else importlib.import_module(path), name)
    except (Exception, SystemExit) as error:
        problem = f"cannot be imported ({type(error).__name__}: {first_line(error)})"
        raise UserError("--module", text, problem, allowed="FILE.py:NAME or PACKAGE.MODULE:NAME") from error
    kind, make = _kind(text, found), _maker(text, found)
    base = GivenRotary if kind == "rotary" else GivenBias
    same = ("relative", "penalty", "prefix_stable", "uses_positions") if like is not None else ()
    declared: dict[str, Any] = {key: getattr(like, key) for key in same}
    if kind == "lengths":  # it sees no position
        declared |= {"uses_positions": False, "by_lengths": True}
    module = sys.modules[MODULE] = ModuleType(MODULE)
    label = f"module:{name}"
    cls = type(name, (base,), {"name": label, "make": staticmethod(make), "__module__": MODULE, **declared})
    setattr(module, name, cls)
    _try_out(text, cls)
    return label, MODULE


def _try_out(text: str, cls: type[Given]) -> None:
    """Raise UserError for a callable that gives nothing of the right shape at eight positions."""
    shape, pos = Shape(32, 4, 8, 2, 32), torch.arange(8)
    try:
        one = cls(shape)
        if isinstance(one, GivenBias):
            one.bias(pos, pos, 0)
        else:
            q = torch.ones(1, 4, 8, 8)
            require(one.rotate(q, q, pos, pos, 0)[0].shape == q.shape, "x comes back in another shape")
    except Exception as error:
        problem = f"fails at 8 positions of 4 heads ({type(error).__name__}: {first_line(error)})"
        raise UserError("--module", text, problem, allowed=TAKES) from error


def _kind(text: str, found: Any) -> str:
    called = found.forward if inspect.isclass(found) and issubclass(found, nn.Module) else found
    called = called.__call__ if inspect.isclass(called) else called
    try:
        names = [name for name in inspect.signature(called).parameters if name != "self"]
    except (TypeError, ValueError):
        names = []
    if (kind := KINDS.get(tuple(names[:2]))) is None:
        raise UserError("--module", text, f"takes ({', '.join(names)})", allowed=TAKES)
    return kind


def _maker(text: str, found: Any) -> Callable[[Shape], Any]:
    """Return what makes the function for a shape: a class is built, with what its signature asks for."""
    if not inspect.isclass(found):
        return lambda shape: copy.deepcopy(found) if isinstance(found, nn.Module) else found
    parameters = inspect.signature(found).parameters.values()
    needed = [
        one.name for one in parameters if one.default is one.empty and one.kind.name.startswith(("PO", "KEY"))
    ]
    if unknown := [name for name in needed if name not in WIDTHS]:
        hint = "a function of your own that makes it and calls it"
        raise UserError("--module", text, f"needs {', '.join(unknown)}", allowed=", ".join(WIDTHS), hint=hint)
    return lambda shape: found(**{name: getattr(shape, WIDTHS[name]) for name in needed})
