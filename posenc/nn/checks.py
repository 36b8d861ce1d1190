"""Refuse what an encoding in another model cannot be built for, or cannot be."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding


def check_whole(key: str, value: Any, *, least: int) -> None:
    """Raise UserError for anything but a whole number from `least` on: also for 4.0, "4" and True."""
    allowed = f"a whole number from {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        # 32 and "32" look alike in print, so that the error shows the quotes.
        shown = repr(value) if isinstance(value, str) else value
        meant = str(value).removesuffix(".0")
        hint = f"write {key}={meant}" if meant.isdecimal() else ""
        raise UserError(key, shown, "is not a whole number", allowed=allowed, hint=hint)
    if int(value) < least:
        raise UserError(key, value, "too small", allowed=allowed)


def head_width(d_model: int, n_heads: int) -> int:
    """Return the width of a head. Raises UserError if the heads do not share the model's width evenly."""
    check_whole("d_model", d_model, least=1)
    check_whole("n_heads", n_heads, least=1)
    if d_model % n_heads:
        raise UserError("n_heads", n_heads, f"does not divide d_model={d_model}")
    return d_model // n_heads


def check_encoding(encoding: object, *, allowed: str = "what posenc.nn.make_encoding returns") -> None:
    """Raise UserError for a name, a class, or any other thing that is not a built encoding."""
    if isinstance(encoding, Encoding):
        return
    if isinstance(encoding, str):
        name = f'"{encoding}"'
        shown = encoding
        problem = "is a name, and here the built encoding is needed"
    else:
        name = "NAME"
        shown = _short_name(encoding)
        problem = "is not an encoding"
    hint = f"make_encoding({name}, d_model=..., n_heads=..., n_layers=..., train_length=...)"
    raise UserError("encoding", shown, problem, allowed=allowed, hint=hint)


def _short_name(value: object) -> str:
    """Return the name of a class, or that of the class of a value; `None` for None."""
    if value is None:
        return "None"
    return value.__name__ if isinstance(value, type) else type(value).__name__


def check_shape(encoding: Encoding, *, layer: int = 0, **sizes: int) -> None:
    """Raise UserError for an encoding that was built for other sizes, or for too few layers."""
    name = encoding.name
    n_layers = encoding.shape.n_layers
    if layer >= n_layers:
        problem = f"{name} was made for n_layers={n_layers}; layers count from 0"
        hint = f"give the model's n_layers, {layer + 1} or more: make_encoding({name!r}, n_layers=...)"
        raise UserError("layer", layer, problem, hint=hint)
    for key, size in sizes.items():
        size_of_encoding = getattr(encoding.shape, key)
        if size != size_of_encoding:
            hint = f"give the model's {key}: make_encoding({name!r}, {key}={size}, ...)"
            raise UserError(key, size, f"{name} was made for {key}={size_of_encoding}", hint=hint)


def check_hooks(encoding: Encoding, unfit: set[str] | frozenset[str], problem: str) -> None:
    """Raise UserError if the encoding has one of these hooks."""
    if encoding.hooks & unfit:
        raise UserError("encoding", encoding.name, problem)


def check_carries_nothing(encoding: Encoding) -> None:
    """Raise UserError for an encoding that hands numbers from each layer to the next one.

    They would have to be forgotten between two passes, which an attention alone cannot see.
    """
    if encoding.for_one_pass() is not encoding:
        raise UserError("encoding", encoding.name, "it carries numbers from layer to layer")
