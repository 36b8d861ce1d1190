"""Rows held against one of them, length by length: the paired difference, and whether it is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.results.ranking import Pair, Word
from posenc.results.records import Metric
from posenc.results.rows import Group, full_label, names_of
from posenc.results.statistics import Per, difference, on_shared_documents
from posenc.results.verdicts import CONFIDENCE


@dataclass
class Against:
    """A row minus the baseline at one window, on the same targets, over the seeds that both have."""

    difference: float  # in the comparison's metric
    ci95: list[float] | None  # of it, over seeds and documents (one seed: documents); not corrected
    seeds: list[int]
    word: Word  # the row is lower, higher, tied, or neither can be said; Holm-corrected over the column


def find_baseline(groups: Sequence[Group], asked: str) -> int:
    """The index of the row that `asked` names: its label, or an encoding with one row. Raises UserError."""
    for names in (
        [{full_label(group.label, group.mixed)} for group in groups],
        [{group.label} for group in groups],
        [names_of(group) for group in groups],
    ):
        found = [i for i, name in enumerate(names) if asked in name]
        if len(found) == 1:
            return found[0]
        if found:
            labels = [visible(full_label(groups[i].label, groups[i].mixed)) for i in found]
            raise UserError("--baseline", visible(asked), "stands for several rows", allowed=labels)
    labels = [visible(full_label(group.label, group.mixed)) for group in groups]
    hint = "it is held against rows that are shown: --rows and --where may have left it out"
    raise UserError("--baseline", visible(asked), "there is no such row", allowed=labels, hint=hint)


def against_baseline(
    pairs: Sequence[Pair],
    baseline: int,
    samples: Sequence[Mapping[int, Mapping[str, Any]] | None],
    metric: Metric,
) -> dict[int, Against]:
    """Of each row that may be compared with the baseline; `pairs` are those with it, judged."""
    per: Per = "bytes" if metric == "bpb" else "targets"
    found = {}
    for pair in pairs:
        other = pair.b if pair.a == baseline else pair.a
        ours, theirs = samples[other], samples[baseline]
        if not pair.seeds or ours is None or theirs is None:
            continue
        shared = [on_shared_documents(ours[seed], theirs[seed]) for seed in pair.seeds]
        if not all(shared):
            continue
        estimate = difference([one for one in shared if one], per)
        interval = estimate.interval(CONFIDENCE)
        turned: dict[Word, Word] = {"lower": "higher", "higher": "lower"}
        word = pair.word if pair.a == other else turned.get(pair.word, pair.word)
        found[other] = Against(
            estimate.value, None if interval is None else list(interval), list(pair.seeds), word
        )
    return found
