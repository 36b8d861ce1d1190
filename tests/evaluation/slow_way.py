"""Every protocol the slow, obvious way: one target at a time, float32, its own idea of what a window holds.

From a plan come the targets alone. Every function gives the losses of each document's targets. A target in
the middle of a window is scored from the earlier part of it; `length` is that of the whole window, which an
extension may ask for.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from posenc.evaluation import far_copy, fixed_target, induction, nonoverlapping, positions, sliding
from posenc.evaluation.forward_cache import EvalContext, LossSums

Losses = dict[int, list[float]]  # by document


@torch.no_grad()
def loss_of(subject: EvalContext, inputs: list[int], target: int, length: int) -> float:
    """Nats of the target after `inputs`, the earlier part of a window of `length` tokens."""
    model, extension = subject.model.eval(), subject.extension
    acting = None if extension is None else extension.effective_encoding(length)
    logits = model(torch.tensor([inputs]), torch.arange(len(inputs)), encoding=acting)[0, -1].double()
    shifted = logits - logits.max()
    return float(torch.log(torch.exp(shifted).sum()) - shifted[target])


def text_of(subject: EvalContext, document: int) -> list[int]:
    tokens: list[int] = subject.store.document(subject.split, document).tolist()
    return tokens


def fixed(subject: EvalContext, plan: fixed_target.Plan, window: int) -> Losses:
    """The window of W inputs ends at the last target of a block."""
    losses: Losses = {}
    for document, end in zip(plan.documents.tolist(), plan.ends.tolist(), strict=True):
        text, first = text_of(subject, document), end - 1 - window
        losses.setdefault(document, []).extend(
            loss_of(subject, text[first:place], text[place], window) for place in range(end - plan.block, end)
        )
    return losses


def slid(subject: EvalContext, plan: sliding.Plan, window: int) -> Losses:
    """A target is in the first window whose end, a stride apart from the last one's, reaches it."""
    losses: Losses = {}
    spans = plan.spans
    for document, start in zip(spans.documents.tolist(), spans.starts.tolist(), strict=True):
        text, of = text_of(subject, document), losses.setdefault(document, [])
        for place in range(start + 1, start + spans.span + 1):
            end = start
            while end < place:
                end = min(end + plan.stride, start + spans.span)
            first = max(0, end - window)
            of.append(loss_of(subject, text[first:place], text[place], end - first))
    return losses


def cut(subject: EvalContext, plan: nonoverlapping.Spans, window: int) -> Losses:
    """A target sees what came before it in its own window; the last window of a span may be shorter."""
    losses: Losses = {}
    for document, start in zip(plan.documents.tolist(), plan.starts.tolist(), strict=True):
        text, of = text_of(subject, document), losses.setdefault(document, [])
        for i in range(plan.span):
            first = start + i // window * window
            length = min(window, start + plan.span - first)
            of.append(loss_of(subject, text[first : start + i + 1], text[start + i + 1], length))
    return losses


def one_pass(subject: EvalContext, plan: positions.Spans, window: int) -> Losses:
    """Position p is the target after the first p tokens of the span."""
    losses: Losses = {}
    for document, start in zip(plan.documents.tolist(), plan.starts.tolist(), strict=True):
        text, of = text_of(subject, document), losses.setdefault(document, [])
        for p in range(1, plan.span + 1):
            of.append(loss_of(subject, text[start : start + p], text[start + p], window))
    return losses


def copied(subject: EvalContext, plan: induction.Plan, window: int) -> Losses:
    """W inputs and a last target: both copies at the ends."""
    losses: Losses = {}
    for i, copy in enumerate(plan.copies.tolist()):
        filler = plan.filler[i].tolist()
        while len(copy) + len(filler) + len(copy) > window + 1:
            filler = filler[1:]
        text = copy + filler + copy
        assert len(text) == window + 1
        second = range(len(text) - len(copy) + 1, len(text))
        losses[i] = [loss_of(subject, text[:place], text[place], window) for place in second]
    return losses


def far(subject: EvalContext, plan: far_copy.Plan, window: int) -> Losses:
    """Each target after the W tokens before it."""
    losses: Losses = {}
    for document, place in zip(plan.documents.tolist(), plan.places.tolist(), strict=True):
        text = text_of(subject, document)
        loss = loss_of(subject, text[place - window : place], text[place], window)
        losses.setdefault(document, []).append(loss)
    return losses


def furthest(sums: LossSums, slow: Losses) -> float:
    """The largest difference between two means by document, in nats a target; the counts must be equal."""
    assert dict(zip(sums.documents.tolist(), sums.targets.tolist(), strict=True)) == {
        document: len(losses) for document, losses in slow.items()
    }
    return max(
        abs(nats - math.fsum(slow[document])) / len(slow[document])
        for document, nats in zip(sums.documents.tolist(), sums.nats.tolist(), strict=True)
    )


WAYS: dict[Any, Any] = {
    fixed_target: fixed,
    sliding: slid,
    nonoverlapping: cut,
    positions: one_pass,
    induction: copied,
    far_copy: far,
}
