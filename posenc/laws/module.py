"""Somebody else's attention bias or rotary function as an encoding, so that the laws can judge it."""

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
from posenc.laws.subject import NotApplicableError, Subject, Verdict, bounded, largest, require, within

WIDTHS = {"heads": "n_heads", "n_heads": "n_heads", "num_heads": "n_heads", "H": "n_heads"}
WIDTHS |= {"dim": "head_dim", "head_dim": "head_dim", "dim_head": "head_dim", "D": "head_dim"}
KINDS: dict[tuple[str, ...], str] = {  # by the names of the first two parameters
    ("q_pos", "k_pos"): "bias",
    ("i", "j"): "lengths",
    ("x", "pos"): "rotary",
}
TAKES = "f(q_pos, k_pos) or f(i, j) -> (H, T, S), a bias of T queries and S keys; f(x, pos) -> x, turned"
EQUAL = 1e-3  # of float32 scores at 8T: angles in float32 are off by 1e-5; a wrong slope or base by 1e-1
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


def same(subject: Subject) -> Verdict:
    """Its scores are those of the encoding that it is compared with, up to 16T."""
    model, like = subject.fresh().eval(), subject.like
    assert like is not None
    if any(True for _ in like.parameters()):
        raise NotApplicableError(f"{like.name} has learned values")
    # bf16 has every whole number up to 256, 8T here: a bias that is rounded to it shows beyond
    own, pos, off = model.encoding, torch.arange(2 * subject.longest()), 0.0
    hooks = own.hooks & {"bias", "rotate"}
    theirs = {"bias" if hook == "distance_bias" else hook for hook in like.hooks}
    require(hooks == theirs, f"{like.name} acts on {', '.join(sorted(theirs))}")
    for layer in range(len(model.blocks)):
        a, b = (_scores(one, pos, layer) for one in (own, like))  # (H, S, S)
        reason = f"its scores are not those of {like.name}"
        off = max(off, within(largest(a, b), EQUAL, reason))
    return Verdict("pass", bounded(off, EQUAL), f"as {like.name}")


@torch.no_grad()
def _scores(encoding: Encoding, pos: Tensor, layer: int) -> Tensor:
    """Return what the encoding makes of scores, up to what the softmax takes away from each query."""
    if "rotate" in encoding.hooks:
        shape = (2, 1, encoding.shape.n_heads, len(pos), encoding.shape.head_dim)
        q, k = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        q, k = encoding.rotate(q, k, pos, pos, layer)
        return (q @ k.mT)[0].tril()  # (H, S, S)
    bias = encoding.bias(pos, pos, layer)  # (H, S, S)
    return (bias - bias.diagonal(dim1=1, dim2=2)[..., None]).tril()
