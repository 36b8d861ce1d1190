"""Somebody else's attention bias or rotary function as an encoding, for `posenc check --module`."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.core.plugins import user_module
from posenc.encodings.base import Encoding, Shape
from posenc.laws.verdict import require

# argument of a class's constructor -> attribute of the shape that it gets
WIDTHS = {
    "heads": "n_heads",
    "n_heads": "n_heads",
    "num_heads": "n_heads",
    "H": "n_heads",
    "dim": "head_dim",
    "head_dim": "head_dim",
    "dim_head": "head_dim",
    "D": "head_dim",
}
# names of a callable's first two parameters -> what it computes
KINDS: dict[tuple[str, ...], str] = {
    ("q_pos", "k_pos"): "bias",
    ("i", "j"): "lengths",
    ("x", "pos"): "rotary",
}
ALLOWED = "f(q_pos, k_pos) or f(i, j) -> (H, T, S), a bias of T queries and S keys; f(x, pos) -> x, turned"
MODULE = "posenc_given"  # the module that holds the class, so that it is found as a plug-in is
# declarations that are taken over from the encoding that the callable is compared with
DECLARED = ("relative", "penalty", "prefix_stable", "uses_positions")


class Given(Encoding):
    """A callable as an encoding, whose declarations are those of the encoding that it is compared with."""

    acts_on = "bias"
    make: Callable[[Shape], Callable[..., Tensor]]

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        # so that numbers which it draws outside of its parameters are the same in every model
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            self.function = type(self).make(shape)


class GivenBias(Given):
    """A bias by positions, or by how many queries are the last of how many keys."""

    by_lengths = False

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        function = self._bias_by_lengths if self.by_lengths else self.function
        bias: Tensor = function(q_pos, k_pos)
        pairs = (len(q_pos), len(k_pos))
        shape = tuple(bias.shape)
        # A bias that is too small in a dimension would be broadcast, and the error would come up much later.
        require(shape[-2:] == pairs, f"returns {shape}, which does not end in (T, S) = {pairs}")
        # Callables return (T, S), (H, T, S) or (1, H, T, S). All three become (H, T, S).
        bias = bias.reshape(-1, len(q_pos), len(k_pos)).expand(self.shape.n_heads, -1, -1)  # (H, T, S)
        is_future = k_pos[None] > q_pos[:, None]  # (T, S)
        return bias.float().masked_fill(is_future, 0.0)  # a callable that masks the future has -inf there

    def _bias_by_lengths(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Return the bias of a function of numbers: f(i, j) is the bias of the last i of j tokens.

        A block of queries in the middle of a window is the start of the bias of all queries from there on.
        """
        is_contiguous = bool((q_pos.diff() == 1).all()) and bool((k_pos.diff() == 1).all())
        tokens_before = len(k_pos) - len(q_pos)
        # With gaps no numbers of tokens describe the positions, so the queries are taken for the last ones.
        if is_contiguous:
            tokens_before = int(q_pos[0] - k_pos[0])
        bias: Tensor = self.function(len(k_pos) - tokens_before, len(k_pos))
        return bias[..., : len(q_pos), :]


class GivenRotary(Given):
    """A function that rotates queries and keys alike."""

    acts_on = "rotate"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.function(q, q_pos), self.function(k, k_pos)


def given_encoding(text: str, like: type[Encoding] | None) -> tuple[str, str]:
    """Make an encoding of the callable `PATH:NAME`; return its name and that of the plug-in with its class.

    The encoding declares what the class `like` declares, and nothing without such a class. Raises UserError.
    """
    path, _, name = text.rpartition(":")
    try:
        module = user_module(path)
        function = getattr(module, name)
    # A script without a guard may end the process when it is imported.
    except (Exception, SystemExit) as error:
        problem = f"cannot be imported ({type(error).__name__}: {first_line(error)})"
        raise UserError("--module", text, problem, allowed="FILE.py:NAME or PACKAGE.MODULE:NAME") from error
    kind = _kind(text, function)
    # With a colon, which no encoding has in its name, so that it hides none of posenc's own.
    label = f"module:{name}"
    attributes: dict[str, Any] = {
        "name": label,
        "make": staticmethod(_maker(text, function)),
        "__module__": MODULE,
    }
    if like is not None:
        attributes |= {key: getattr(like, key) for key in DECLARED}
    if kind == "lengths":  # such a function gets no positions
        attributes |= {"uses_positions": False, "by_lengths": True}
    base = GivenRotary if kind == "rotary" else GivenBias
    cls = type(name, (base,), attributes)
    plugin = ModuleType(MODULE)
    # A plug-in is found by importing its name, which takes the module from here.
    sys.modules[MODULE] = plugin
    setattr(plugin, name, cls)
    _try_out(text, cls)
    return label, MODULE


def _try_out(text: str, cls: type[Given]) -> None:
    """Raise UserError unless the callable returns the right shape for five queries of eight keys."""
    pos = torch.arange(8)
    try:
        encoding = cls(Shape(d_model=32, n_heads=4, head_dim=8, n_layers=2, train_length=32))
        if isinstance(encoding, GivenBias):
            # Fewer queries than keys: with equally many, a transposed bias would have the right shape.
            encoding.bias(pos[3:], pos, 0)
        else:
            q = torch.ones(1, 4, 8, 8)
            rotated, _ = encoding.rotate(q, q, pos, pos, 0)
            require(rotated.shape == q.shape, "x comes back in another shape")
    except Exception as error:
        problem = f"fails at 8 positions of 4 heads ({type(error).__name__}: {first_line(error)})"
        raise UserError("--module", text, problem, allowed=ALLOWED) from error


def _kind(text: str, function: Any) -> str:
    """Tell what a callable computes, by the names of its first two parameters. Raises UserError."""
    called = function
    if isinstance(function, nn.Module):
        called = function.forward
    elif inspect.isclass(function):
        called = function.forward if issubclass(function, nn.Module) else function.__call__
    try:
        names = [name for name in inspect.signature(called).parameters if name != "self"]
    except (TypeError, ValueError):  # no callable, or one of C without a signature
        names = []
    kind = KINDS.get(tuple(names[:2]))
    if kind is None:
        raise UserError("--module", text, f"takes ({', '.join(names)})", allowed=ALLOWED)
    return kind


def _maker(text: str, function: Any) -> Callable[[Shape], Any]:
    """Return a function that makes the callable for a shape.

    A class is constructed with those widths of the shape that its signature requires.
    """
    if isinstance(function, nn.Module):
        # A copy for each model: laws change the weights of one model and compare it with another.
        return lambda shape: copy.deepcopy(function)
    if not inspect.isclass(function):
        return lambda shape: function
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        is_starred = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_starred:
            required.append(parameter.name)
    unknown = [name for name in required if name not in WIDTHS]
    if unknown:
        hint = "a function of your own that makes it and calls it"
        raise UserError("--module", text, f"needs {', '.join(unknown)}", allowed=", ".join(WIDTHS), hint=hint)

    def construct(shape: Shape) -> Any:
        widths = {name: getattr(shape, WIDTHS[name]) for name in required}
        return function(**widths)

    return construct
