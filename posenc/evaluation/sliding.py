"""sliding: a window of W tokens moved on by S at a time; each step scores the S tokens that are new.

Every token of a span is scored once, with between W - S + 1 and W tokens of text before it (fewer only where
its document begins). S = 1 gives every token exactly W tokens, at W times the cost of one pass. The spans are
those of `nonoverlapping`: the difference of the two is the early-token curse and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posenc.evaluation.plans import Asked, Spans, plan_spans
from posenc.evaluation.subject import Subject, Sums, stopped_never, sums_by_document, window_losses

NAME = "sliding"


@dataclass(frozen=True)
class Plan:
    """Spans of text and the steps they are scored in."""

    spans: Spans
    stride: int

    @property
    def hash(self) -> str:
        """Of the targets: the stride does not change them."""
        return self.spans.hash


def plan(asked: Asked) -> Plan:
    """The spans of `plan_spans`, in steps of `stride`."""
    return Plan(plan_spans(asked), asked.stride)


def measure(
    subject: Subject, plan: Plan, window: int, check_stop: Callable[[], None] = stopped_never
) -> Sums:
    """Sum the loss of every target of every span; a step's window ends at the last token it scores."""
    spans, store = plan.spans, subject.store
    origins = store.splits[subject.split].starts[spans.documents]  # of the documents, in the store's tokens
    nats = np.zeros(len(origins))
    for first in range(0, spans.span, plan.stride):
        scored = min(plan.stride, spans.span - first)
        ends = spans.starts + 1 + first + scored  # exclusive, in tokens of the document
        contexts = np.minimum(window, ends - 1)  # W, or all there is
        for context in np.unique(contexts):
            rows = np.flatnonzero(contexts == context)
            stops = (origins + ends)[rows]

            def read(i: int, stops: np.ndarray = stops, context: int = int(context)) -> np.ndarray:
                return store.tokens[stops[i] - context - 1 : stops[i]]

            losses = window_losses(subject, read, len(rows), int(context), scored, check_stop)
            nats[rows] += losses.sum(axis=1)
    begins = origins + spans.starts
    targets = np.full(len(begins), spans.span)
    byte_counts = store.bytes_between(begins + 1, begins + 1 + spans.span)
    return sums_by_document(spans.documents, nats, targets, byte_counts)
