"""Somebody else's attention bias or rotary function as an encoding, for `posenc check --module`."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.registry import file_module
from posenc.laws.verdict import require

# What a class may ask for when it is built -> where the shape has it.
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
KINDS: dict[tuple[str, ...], str] = {  # by the names of the first two parameters
    ("q_pos", "k_pos"): "bias",
    ("i", "j"): "lengths",
    ("x", "pos"): "rotary",
}
TAKES = "f(q_pos, k_pos) or f(i, j) -> (H, T, S), a bias of T queries and S keys; f(x, pos) -> x, turned"
MODULE = "posenc_given"  # holds the class, as a plug-in does
DECLARED = ("relative", "penalty", "prefix_stable", "uses_positions")  # as the encoding it is compared with


class Given(Encoding):
    """What is known of a callable: nothing but what it is said to be like."""

    acts_on = "bias"
    make: Callable[[Shape], Callable[..., Tensor]]

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        # What it draws outside of its parameters is the same each time that it is built.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            self.function = type(self).make(shape)


class GivenBias(Given):
    """A bias by positions, or by how many queries are the last of how many keys."""

    by_lengths = False

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        bias: Tensor = self._by_lengths(q_pos, k_pos) if self.by_lengths else self.function(q_pos, k_pos)
        bias = bias.reshape(-1, len(q_pos), len(k_pos)).expand(self.shape.n_heads, -1, -1)  # (H, T, S)
        return bias.float().masked_fill(k_pos[None] > q_pos[:, None], 0.0)  # it may mask the future itself

    def _by_lengths(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Ask a function of (queries, keys), whose queries are the last ones of the keys' tokens.

        A block of earlier queries is cut from all that come after it.
        """
        is_contiguous = bool((q_pos.diff() == 1).all()) and bool((k_pos.diff() == 1).all())
        earlier = int(q_pos[0] - k_pos[0]) if is_contiguous else len(k_pos) - len(q_pos)
        bias: Tensor = self.function(len(k_pos) - earlier, len(k_pos))
        return bias[..., : len(q_pos), :]


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
        module = file_module(path) if path.endswith(".py") else importlib.import_module(path)
        function = getattr(module, name)
    except (Exception, SystemExit) as error:
        problem = f"cannot be imported ({type(error).__name__}: {first_line(error)})"
        raise UserError("--module", text, problem, allowed="FILE.py:NAME or PACKAGE.MODULE:NAME") from error
    kind = _kind(text, function)
    label = f"module:{name}"
    attributes: dict[str, Any] = {
        "name": label,
        "make": staticmethod(_maker(text, function)),
        "__module__": MODULE,
    }
    if like is not None:
        attributes |= {key: getattr(like, key) for key in DECLARED}
    if kind == "lengths":  # it sees no position
        attributes |= {"uses_positions": False, "by_lengths": True}
    base = GivenRotary if kind == "rotary" else GivenBias
    cls = type(name, (base,), attributes)
    plugin = sys.modules[MODULE] = ModuleType(MODULE)
    setattr(plugin, name, cls)
    _try_out(text, cls)
    return label, MODULE


def _try_out(text: str, cls: type[Given]) -> None:
    """Raise UserError for a callable that gives nothing of the right shape at eight positions."""
    pos = torch.arange(8)
    try:
        encoding = cls(Shape(d_model=32, n_heads=4, head_dim=8, n_layers=2, train_length=32))
        if isinstance(encoding, GivenBias):
            encoding.bias(pos, pos, 0)
        else:
            q = torch.ones(1, 4, 8, 8)
            rotated, _ = encoding.rotate(q, q, pos, pos, 0)
            require(rotated.shape == q.shape, "x comes back in another shape")
    except Exception as error:
        problem = f"fails at 8 positions of 4 heads ({type(error).__name__}: {first_line(error)})"
        raise UserError("--module", text, problem, allowed=TAKES) from error


def _kind(text: str, function: Any) -> str:
    """Tell what a callable computes, by the names of its first two parameters. Raises UserError."""
    called = function
    if inspect.isclass(function):
        called = function.forward if issubclass(function, nn.Module) else function.__call__
    try:
        names = [name for name in inspect.signature(called).parameters if name != "self"]
    except (TypeError, ValueError):
        names = []
    kind = KINDS.get(tuple(names[:2]))
    if kind is None:
        raise UserError("--module", text, f"takes ({', '.join(names)})", allowed=TAKES)
    return kind


def _maker(text: str, function: Any) -> Callable[[Shape], Any]:
    """Return what makes the function for a shape: a class is built, with what its signature asks for."""
    if isinstance(function, nn.Module):
        return lambda shape: copy.deepcopy(function)
    if not inspect.isclass(function):
        return lambda shape: function
    parameters = inspect.signature(function).parameters.values()
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    unknown = [name for name in needed if name not in WIDTHS]
    if unknown:
        hint = "a function of your own that makes it and calls it"
        raise UserError("--module", text, f"needs {', '.join(unknown)}", allowed=", ".join(WIDTHS), hint=hint)
    return lambda shape: function(**{name: getattr(shape, WIDTHS[name]) for name in needed})
