"""Checks of direction: does what was measured move, and stand, as a paper's numbers do? Never of size.

Sign: does the loss rise or fall from T on? Order: which of two encodings has the lower loss at a length? A
check passes or fails only where both sides are clear; else it cannot tell, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from posenc.results.published import Published
from posenc.results.statistics import difference, same_targets
from posenc.results.verdicts import CONFIDENCE

# 2% of the perplexity, in nats: a smaller published change is flat, a smaller difference no order; of what is
# measured, where the whole interval is smaller.
# The spreads that papers give are 0.6 to 3% of the perplexity at the training length.
FLAT = math.log(1.02)
Outcome = Literal["pass", "fail", "cannot tell"]
Scores = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]  # of each seed: `per_document` of both sides


@dataclass
class Check:
    """One direction that the paper states; differences are in nats per token."""

    kind: Literal["sign", "order"]
    what: str
    outcome: Outcome
    reason: str
    published: float  # of a sign the change from T on, of an order the lower one minus the higher one
    measured: float | None = None
    interval: list[float] | None = None  # of `measured`, over seeds and documents; of one seed: documents


def sign(base: Published, row: Published, multiple: float, scores: Scores | str) -> Check:
    """Whether the loss moves from T on as the paper's does. `scores` at `multiple` and at T, or why none.

    Flat is a published change of less than 2% of the perplexity, and a measured interval within 2%; the
    interval is the 95% interval.
    """
    published = row.nats - base.nats
    flat = abs(published) < FLAT
    word = "stays flat" if flat else ("rises" if published > 0 else "falls")
    check = Check("sign", f"{row.encoding} {word} from 1x to {multiple:.3g}x", "cannot tell", "", published)
    _measure(check, scores, CONFIDENCE)
    if abs(published) < _spread(base, row):
        check.reason = "published within its own spread"
    elif check.interval is not None and flat:
        low, high = check.interval
        if low > FLAT or high < -FLAT:
            check.outcome = "fail"
        elif low >= -FLAT and high <= FLAT:
            check.outcome = "pass"
        else:
            check.reason += f": partly beyond {FLAT:.2f}, so flat or not"
    else:
        _judge(check, rises=published > 0)
    return check


def order(lower: Published, higher: Published, multiple: float, scores: Scores | str, of: int) -> Check:
    """Whether the same one of two encodings has the lower loss. `scores` of the lower one and the higher one.

    `of` is how many orders are checked at this length; their intervals hold together in 95% of cases
    (Bonferroni), as a ranking's do.
    """
    what = f"{lower.encoding} below {higher.encoding} at {multiple:.3g}x"
    check = Check("order", what, "cannot tell", "", lower.nats - higher.nats)
    if not is_clear(lower, higher):
        check.reason = "published within 2%, or their spread"
        return check
    _measure(check, scores, 1 - (1 - CONFIDENCE) / of)
    _judge(check, rises=False)
    return check


def is_clear(a: Published, b: Published) -> bool:
    """Whether two published numbers stand in an order: by 2% of the perplexity and by their spread."""
    return abs(a.nats - b.nats) >= max(FLAT, _spread(a, b))


def _measure(check: Check, scores: Scores | str, confidence: float) -> None:
    """Put the measured difference and its interval into the check, or why there is none."""
    if isinstance(scores, str):
        check.reason = scores
    elif not scores:
        check.reason = "no seed in common"
    elif not all(same_targets(a, b) for a, b in scores):
        check.reason = "measured on different targets"
    else:
        estimate = difference(scores, "targets")
        interval = estimate.interval(confidence)
        check.measured = estimate.value
        check.reason = f"measured {estimate.value:+.3f}"
        if interval is None:
            check.reason += ": no interval below 30 documents"
        else:
            check.interval = list(interval)
            check.reason += f" [{interval[0]:+.3f}, {interval[1]:+.3f}]"


def _judge(check: Check, rises: bool) -> None:
    """Pass or fail where the interval lies on one side of zero and not all within what is flat."""
    if check.interval is None:
        return
    low, high = check.interval
    if low <= 0 <= high:
        check.reason += ": holds zero"
    elif max(-low, high) <= FLAT:
        check.reason += f": within {FLAT:.2f}, no direction"
    else:
        check.outcome = "pass" if (low > 0) == rises else "fail"


def _spread(a: Published, b: Published) -> float:
    """The standard deviation of the difference of two published numbers, in nats per token."""
    return math.hypot(a.spread_nats, b.spread_nats)
