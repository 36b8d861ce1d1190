"""Runs split by one of their settings, a comparison each: contexts, sizes, corpora."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.errors import UserError, visible
from posenc.results.comparison import Comparison, check_asked, compare_checked
from posenc.results.filters import check_key, value_of_key
from posenc.results.load import Run
from posenc.results.records import Metric
from posenc.results.view import View

UNKNOWN = "unknown"
MOST = 24  # tables


def facets_of(runs: Sequence[Run], key: str) -> list[tuple[str, list[Run]]]:
    """The values of a key, numbers by size, and the runs that have them. Raises UserError."""
    check_key(runs, key, "--facet")
    found: dict[str, list[Run]] = {}
    for run in runs:
        value = value_of_key(run, key)
        found.setdefault(UNKNOWN if value is None else value, []).append(run)
    if len(found) > MOST:
        raise UserError("--facet", key, f"{len(found)} values are too many tables", allowed=f"at most {MOST}")
    return sorted(found.items(), key=lambda item: _order(item[0]))


def compare_facets(
    runs: Sequence[Run], key: str | None, protocol: str, metric: Metric, allow_mixed: bool, view: View
) -> list[Comparison]:
    """A comparison for each value of `key`, named in its header; one of all runs without a key.

    Raises UserError as `compare` and `facets_of` do, and for a facet that lacks what the view asks for.
    """
    check_asked(runs, protocol, metric)
    if key is None:
        return [compare_checked(runs, protocol, metric, allow_mixed, view)]
    comparisons = []
    for value, some in facets_of(runs, key):
        try:
            comparison = compare_checked(some, protocol, metric, allow_mixed, view)
        except UserError as error:
            raise error.within(f"where {key} is {visible(value)}") from None
        comparison.header["facet"] = {"key": key, "value": value}
        comparisons.append(comparison)
    return comparisons


def _order(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
