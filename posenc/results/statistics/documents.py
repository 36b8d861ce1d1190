"""Losses over documents: one division at the end, and the jackknife for what documents leave uncertain.

The independent units of the test data are documents. Where the corpus names at least MIN_GROUPS groups of
them (folders, books), the groups are the units instead, because texts of one folder are alike: by SymPy's
folders the standard error of RoPE's change at 8T was 1.45 times too small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired

from annotated_types import Ge, Gt, Lt
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.statistics.intervals import DocumentPart, Estimate, mean_and_spread

if TYPE_CHECKING:
    import numpy as np

# With 10 to 29 documents 93.8 to 96.0% of simulated 95% intervals cover the truth (docs/log.md, 2026-11-23).
MIN_DOCUMENTS = 10  # fewer: no interval, because it would promise more than it holds
FEW_DOCUMENTS = 30  # fewer: an interval, and callers warn
# With 19 groups or fewer, texts that are alike (ICC 0.2) are counted as independent, and an interval covers
# 72 to 80%. Fewer groups would say too little about their own variance (docs/reading-the-numbers.md).
MIN_GROUPS = 20  # fewer: documents count as independent
Per = Literal["targets", "bytes"]

Number = Annotated[float, Gt(-1e100), Lt(1e100)]  # sums and squares of more overflow
Count = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[int, Gt(0), Lt(2**63)]


class PerDocument(TypedDict):
    """Sums and counts by document, equally long lists; paired statistics are made from them later."""

    document: list[Count]  # the document's index in its split
    nats: list[Number]  # summed loss of its targets
    targets: list[Positive]
    bytes: list[Count]  # bytes of text that its targets stand for
    group: NotRequired[list[Count]]  # of the document (folder, book), where the corpus has groups


@dataclass(frozen=True, eq=False)
class Sample:
    """The sums of a PerDocument as arrays, (D,) each, by rising document. `Sample.of` makes one."""

    document: np.ndarray  # int64
    nats: np.ndarray  # float64
    # Counts are floats as well: they only divide, and a sum of integers could overflow.
    targets: np.ndarray
    bytes: np.ndarray
    group: np.ndarray | None = None  # int64; None where the corpus has no groups

    @classmethod
    def of(cls, sums: PerDocument) -> Sample:
        """Return the sums by document as arrays."""
        import numpy as np

        document = np.asarray(sums["document"], dtype=np.int64)
        group = np.asarray(sums["group"], dtype=np.int64) if "group" in sums else None
        sample = cls(
            document=document,
            nats=np.asarray(sums["nats"], dtype=np.float64),
            targets=np.asarray(sums["targets"], dtype=np.float64),
            bytes=np.asarray(sums["bytes"], dtype=np.float64),
            group=group,
        )
        # Samples are paired by place in these arrays. posenc writes sorted documents, but a file of others
        # may not be.
        is_sorted = bool((document[:-1] <= document[1:]).all())
        return sample if is_sorted else sample.at(np.argsort(document))

    def at(self, places: np.ndarray) -> Sample:
        """Return the documents at these places (indices, or whether each document stays), in their order."""
        return Sample(
            document=self.document[places],
            nats=self.nats[places],
            targets=self.targets[places],
            bytes=self.bytes[places],
            group=None if self.group is None else self.group[places],
        )

    @functools.cached_property  # a sample is divided again for each row that it is compared with
    def has_enough_groups(self) -> bool:
        """Tell whether it names at least MIN_GROUPS groups of documents, which then are its units."""
        return _are_enough(self.group)


def _are_enough(group: np.ndarray | None) -> bool:
    """Tell whether there are at least MIN_GROUPS groups."""
    import numpy as np

    return group is not None and len(np.unique(group)) >= MIN_GROUPS


@dataclass(frozen=True, eq=False)
class Ratio:
    """The loss of one record, sum by count, and what it is without one unit (document or group) each.

    It may also be the difference of two such losses (`change_of`).
    """

    units: int  # documents, or groups of them
    value: float
    left_out: np.ndarray  # (D,) in the order of documents or groups
    freedom: float  # effective number of units - 1


def ratio_of(sample: Sample, per: Per, by_group: bool = False) -> Ratio:
    """Return the loss in nats per token, or with per="bytes" in bits per byte.

    Raises ValueError where the counts are 0 (a probe of random tokens has no bytes).
    """
    group = sample.group if by_group else None
    if per == "targets":
        return _divided(sample.nats, sample.targets, group, per)
    return _divided(sample.nats, sample.bytes, group, per, scale=math.log(2))


def _divided(
    sums: np.ndarray, counts: np.ndarray, group: np.ndarray | None, per: Per, scale: float = 1.0
) -> Ratio:
    """Return sum(sums) / (scale sum(counts)) over documents, or over the groups that `group` names."""
    import numpy as np

    if group is not None:
        _, inverse = np.unique(group, return_inverse=True)
        sums = np.bincount(inverse, weights=sums)
        counts = np.bincount(inverse, weights=counts)
    counts = counts * scale
    total = sums.sum()
    size = counts.sum()
    if not size > 0:
        raise ValueError(f"no {per} to divide by")
    remaining_size = size - counts
    remaining_size[remaining_size <= 0] = np.nan  # without the only unit that has a count there is no loss
    # All D leave-one-out ratios come from one pair of sums, in place of D sums over the rest.
    left_out = (total - sums) / remaining_size
    # At least 1: if a single unit has all the counts, 0 is left, and Student's t has no quantile.
    freedom = max(float(size**2 / (counts**2).sum()) - 1, 1.0)
    return Ratio(len(sums), float(total / size), left_out, freedom)


def ratios_of(samples: Sequence[Sample], per: Per) -> list[Ratio]:
    """Return their ratios by group where every sample names at least MIN_GROUPS, else by document."""
    by_group = all(sample.has_enough_groups for sample in samples)
    return [ratio_of(sample, per, by_group) for sample in samples]


def change_of(ratio: Ratio, base: Ratio) -> Ratio:
    """Return the difference of two ratios of the same documents, which are left out of both at once."""
    return Ratio(
        units=ratio.units,
        value=ratio.value - base.value,
        left_out=ratio.left_out - base.left_out,
        # The smaller one makes the wider interval. The two agree unless two tokenizers cut the same text.
        freedom=min(ratio.freedom, base.freedom),
    )


def document_part(first: Sequence[Ratio], second: Sequence[Ratio] = ()) -> DocumentPart:
    """Return the jackknife variance of mean(first) - mean(second), and its degrees of freedom.

    All ratios are of the same units. Without `second` it is the variance of mean(first). The variance is None
    below MIN_DOCUMENTS, and where one unit has everything that is divided by.
    """
    import numpy as np

    # The mean over seeds is taken before the jackknife: all seeds saw the same documents, so that what a
    # document does to all of them does not average out.
    left_out = _mean_left_out(first)
    if second:
        left_out = left_out - _mean_left_out(second)
    freedom = min(ratio.freedom for ratio in (*first, *second))
    # Without the only document that has bytes there is no loss, so that the variance is not known.
    is_known = bool(np.isfinite(left_out).all())
    if first[0].units < MIN_DOCUMENTS or not is_known:
        return DocumentPart(None, freedom)
    return DocumentPart(jackknife_variance(left_out), freedom)


def _mean_left_out(ratios: Sequence[Ratio]) -> np.ndarray:
    """Return what the mean of the ratios is without one unit each."""
    left_out = [ratio.left_out for ratio in ratios]
    return sum(left_out[1:], start=left_out[0]) / len(ratios)


def jackknife_variance(left_out: np.ndarray) -> float:
    """Return the variance of a statistic from its values without one unit each."""
    n = len(left_out)
    return float((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())


def ratio_interval(
    sums: Sequence[float], counts: Sequence[float], groups: Sequence[int] | None = None
) -> list[float] | None:
    """Return the 95% interval of sum(sums) / sum(counts) over documents; None below MIN_DOCUMENTS.

    A jackknife-t: leave one document (or group) out at a time. The degrees of freedom are those of the
    effective number, (sum c)^2 / sum c^2 - 1, because a few long documents carry most of the counts: with 30
    of log-normal length (sigma 1.5) a simulated 95% interval covered 92%, with n - 1 it covered 88%.
    """
    import numpy as np

    sums_of_units: np.ndarray = np.asarray(sums, dtype=np.float64)
    counts_of_units: np.ndarray = np.asarray(counts, dtype=np.float64)
    group = None if groups is None else np.asarray(groups)
    ratio = _divided(sums_of_units, counts_of_units, group if _are_enough(group) else None, "targets")
    documents = document_part([ratio])
    estimate = Estimate(
        value=ratio.value,
        seed_variance=0.0,
        document_variance=documents.variance,
        document_freedom=documents.freedom,
    )
    interval = estimate.interval()
    return None if interval is None else list(interval)  # a list, as JSON has it


def difference(pairs: Sequence[tuple[Sample, Sample]], per: Per) -> Estimate:
    """Return the mean of a - b over seeds, paired by seed and document. `pairs` has (a, b) of each seed.

    Units as in ratio_of, which also says when it raises ValueError. Both samples of a pair have the same
    documents, and a document is left out of both at once, so that its own difficulty cancels. For two
    tokenizers it is the difference of two ratios over the same documents.
    """
    # In one call, so that either all samples are divided by group or none is: units of both kinds cannot be
    # paired.
    ratios = ratios_of([sample for pair in pairs for sample in pair], per)
    first = ratios[::2]  # the a of every pair
    second = ratios[1::2]  # the b
    changes = [a.value - b.value for a, b in zip(first, second, strict=True)]
    mean, spread = mean_and_spread(changes)
    seed_variance = (spread or 0.0) ** 2 / len(pairs)
    # One seed has no variance, so that its freedom counts for nothing. But Student's t has no quantile at 0.
    seed_freedom = max(len(pairs) - 1, 1)
    documents = document_part(first, second)
    return Estimate(
        value=mean,
        seed_variance=seed_variance,
        document_variance=documents.variance,
        document_freedom=documents.freedom,
        seed_freedom=seed_freedom,
    )


def difference_if_any(pairs: Sequence[tuple[Sample, Sample]], per: Per) -> Estimate | None:
    """Return the mean difference; None without pairs or without anything to divide by."""
    try:
        return difference(pairs, per) if pairs else None
    # A probe of random tokens has no bytes to divide by, and its cell then shows no verdict.
    except ValueError:
        return None


def on_shared_documents(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples cut to the documents that all of them have; an empty list without such documents."""
    import numpy as np

    documents = [sample.document for sample in samples]
    # The usual case, for which the samples need not be copied: rows of one ranking scored the same targets.
    if all(np.array_equal(documents_of_sample, documents[0]) for documents_of_sample in documents):
        return list(samples)
    shared = functools.reduce(np.intersect1d, documents)
    if len(shared) == 0:
        return []
    return [sample.at(np.isin(sample.document, shared)) for sample in samples]
