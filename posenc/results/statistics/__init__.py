"""Statistics of a comparison: intervals, verdicts, ranks. Every interval says what it is of.

Test data (documents) and training (seeds) are two sources of noise. `documents` has the first, `intervals`
joins both, `verdicts` and `ranking` turn them into words, `proportions` is about shares of windows.
"""

from posenc.results.statistics.documents import (
    FEW_DOCUMENTS,
    MIN_DOCUMENTS,
    MIN_GROUPS,
    difference,
    on_shared_documents,
    ratio_interval,
)
from posenc.results.statistics.intervals import CONFIDENCE, Estimate, mean_and_spread, p_beyond
from posenc.results.statistics.ranking import Method, Versus, compare_with
from posenc.results.statistics.verdicts import BETTER_WORD as BETTER
from posenc.results.statistics.verdicts import (
    COLLAPSED,
    COLLAPSED_WORD,
    REFERENCE,
    SAME,
    SAME_WORD,
    short_verdict,
    verdict,
)
from posenc.results.statistics.verdicts import WORSE_WORD as WORSE

__all__ = [
    "BETTER",
    "COLLAPSED",
    "COLLAPSED_WORD",
    "CONFIDENCE",
    "FEW_DOCUMENTS",
    "MIN_DOCUMENTS",
    "MIN_GROUPS",
    "REFERENCE",
    "SAME",
    "SAME_WORD",
    "WORSE",
    "Estimate",
    "Method",
    "Versus",
    "compare_with",
    "difference",
    "mean_and_spread",
    "on_shared_documents",
    "p_beyond",
    "ratio_interval",
    "short_verdict",
    "verdict",
]
