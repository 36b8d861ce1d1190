"""Losses summed by document: what every protocol measures. The record divides once, at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc.results.record_making import DocumentSums

if TYPE_CHECKING:
    from posenc.data import Split


@dataclass(frozen=True)
class LossSums:
    """The losses of N documents, each summed over its targets, and further fields of the record."""

    documents: np.ndarray  # (N,) int64, index in the split, each once
    nats: np.ndarray  # (N,) float64
    targets: np.ndarray  # (N,) int64, how many tokens were scored
    bytes: np.ndarray  # (N,) int64, how many bytes of text these tokens are
    of_text: bool = True  # False if `documents` are sequences that a probe made up
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields that the protocol adds to the record

    def for_record(self, split: Split) -> DocumentSums:
        """Return the sums that a record is made from, with the group of each document if there are groups.

        A group is a folder or a book. Its documents are alike, so the record's interval is made over groups.
        """
        groups = None
        if self.of_text and split.groups is not None:
            groups = split.groups[self.documents].tolist()
        return DocumentSums(
            documents=self.documents.tolist(),
            nats=self.nats.tolist(),
            targets=self.targets.tolist(),
            bytes=self.bytes.tolist(),
            groups=groups,
        )


def sums_by_document(
    documents: np.ndarray, nats: np.ndarray, targets: np.ndarray, byte_counts: np.ndarray
) -> LossSums:
    """Add up the numbers of windows by document. All arguments have a value for each window."""
    distinct, inverse = np.unique(documents, return_inverse=True)

    def added_up(values: np.ndarray) -> np.ndarray:
        # It adds in float64, in which counts of tokens and bytes are exact.
        return np.bincount(inverse, values, len(distinct))

    return LossSums(
        documents=distinct.astype(np.int64),
        nats=added_up(nats),
        targets=added_up(targets).astype(np.int64),
        bytes=added_up(byte_counts).astype(np.int64),
    )
