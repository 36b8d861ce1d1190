"""Options that any encoding can carry: where positions come from, a window, a scale that knows the length.

Each is a small Encoding of its own, so attention sees hooks and nothing else. One that makes no sense with an
encoding is refused by name: the encoding says so in `refuses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options.positions import POSITIONS, check_positions, distance_limit, position_limit
from posenc.encodings.options.scale import SCALES
from posenc.encodings.options.window import Window

Scale = Literal["none", "logn", "ssmax"]

__all__ = ["Scale", "build_options", "check_positions", "distance_limit", "position_limit"]


def build_options(
    shape: Shape, encoding: Encoding, *, positions: Mapping[str, Any], window: int | None, scale: Scale
) -> list[Encoding]:
    """What acts beside `encoding`, in order; [] where nothing was asked for.

    Raises UserError for a value out of range and for an option that the encoding refuses.
    """
    options: list[Encoding] = []
    key, value = "", None  # of the option being made
    try:
        if positions["name"] in POSITIONS:
            key, value = "positions", positions["name"]
            _refuse(encoding, key, value)
            params = {key: value for key, value in positions.items() if key != "name"}
            options.append(POSITIONS[positions["name"]](shape, **params))
        if window is not None:
            key, value = "attention.window", window
            _refuse(encoding, key, value)
            options.append(Window(shape, window=window))
        if scale != "none":
            key, value = "attention.scale", scale
            _refuse(encoding, key, value)
            options.append(SCALES[scale](shape, counted=(encoding, *options)))
    except ValueError as error:
        raise UserError(key, value, str(error)) from error
    return options


def _refuse(encoding: Encoding, option: str, value: object) -> None:
    name = getattr(encoding, "name", type(encoding).__name__)
    reason = encoding.refuses.get(option)
    if reason is None and option == "positions" and not encoding.uses_positions:
        reason = "it reads no position, so nothing would change"
    if reason is not None:
        raise UserError(option, value, f"makes no sense with encoding={name}: {reason}")
