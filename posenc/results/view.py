"""What of a comparison is shown, and in which order: rows, columns, the row that others are held against."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from posenc.core.errors import UserError, visible

if TYPE_CHECKING:
    from posenc.results.comparison import Row

Extensions = Literal["rows", "columns"]  # of a test-time extension: a row of its own, or columns of its row
Labelled = TypeVar("Labelled")


@dataclass(frozen=True)
class View:
    """Choices of the reader; empty and None choose nothing, so everything is shown in the order of names."""

    rows: Sequence[str] = ()  # names of rows or encodings, globs; shown in this order
    columns: Sequence[float] = ()  # multiples of T
    sort: str | None = None  # name, 8x (the loss there), change or change@8x; `-` in front turns it round
    baseline: str | None = None  # the row that the others are held against
    extensions: Extensions = "rows"


def choose(
    things: Sequence[Labelled], patterns: Sequence[str], names: Callable[[Labelled], set[str]], key: str
) -> list[Labelled]:
    """The things that have a name which a pattern fits, in the order of the patterns; all without patterns.

    Raises UserError for a pattern that fits nothing.
    """
    if not patterns:
        return list(things)
    chosen: list[Labelled] = []
    for pattern in patterns:
        fits = re.compile(fnmatch.translate(pattern)).match
        found = [one for one in things if pattern in names(one) or any(fits(name) for name in names(one))]
        if not found:
            there = sorted({visible(name) for one in things for name in names(one)})
            raise UserError(key, visible(pattern), "there is no such row", allowed=there)
        chosen += [one for one in found if not any(one is other for other in chosen)]
    return chosen


def choose_multiples(
    there: Sequence[float], asked: Sequence[float], elsewhere: Sequence[float] = ()
) -> list[float]:
    """The columns that are asked for, shortest first; all without a wish.

    Raises UserError, which tells of lengths that were measured `elsewhere`: on other targets.
    """
    if not asked:
        return list(there)
    for multiple in asked:
        if not any(math.isclose(multiple, one, rel_tol=1e-4) for one in there):
            hint = "lengths are multiples of T, not tokens" if multiple > 4 * max(there, default=0) else None
            if any(math.isclose(multiple, one, rel_tol=1e-4) for one in elsewhere):
                hint = f"it was measured on other targets: --length {multiple:g}x"
            allowed = ", ".join(f"{one:g}x" for one in there)
            raise UserError("--columns", f"{multiple:g}x", "nobody measured it", allowed=allowed, hint=hint)
    return [one for one in there if any(math.isclose(multiple, one, rel_tol=1e-4) for multiple in asked)]


def sort_rows(rows: Sequence[Row], order: str | None) -> list[int]:
    """Indices of the rows in the order asked for; rows without that number come last. Raises UserError."""
    if order is None:
        return list(range(len(rows)))
    turned, key = order.startswith("-"), order.removeprefix("-")
    if key == "name":
        return sorted(range(len(rows)), key=lambda i: rows[i].label, reverse=turned)
    multiples = [cell.multiple for cell in rows[0].cells] if rows else []
    found = re.fullmatch(r"(change)?@?(?:([\d.]+)x?)?", key)
    multiple = max(multiples, default=None) if found and not found[2] else None
    if found and found[2] and _is_number(found[2]):
        near = [one for one in multiples if math.isclose(one, float(found[2]), rel_tol=1e-4)]
        multiple = near[0] if near else None
    if not key or found is None or (multiple is None and multiples):
        allowed = ["name", *(f"{one:g}x" for one in multiples), "change"]
        allowed += [f"change@{one:g}x" for one in multiples]
        raise UserError("--sort", visible(order), "cannot sort by this", allowed=allowed)
    at = multiples.index(multiple) if multiple in multiples else 0

    def number(i: int) -> float | None:
        cell = rows[i].cells[at] if rows[i].cells else None
        return None if cell is None else (cell.change if found[1] else cell.mean)

    have = [i for i in range(len(rows)) if number(i) is not None]
    lack = [i for i in range(len(rows)) if number(i) is None]
    return sorted(have, key=lambda i: number(i) or 0.0, reverse=turned) + lack


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
