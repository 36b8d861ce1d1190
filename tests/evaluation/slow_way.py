"""Every protocol the slow, obvious way: one target at a time, float32, its own idea of what a window holds.

From a plan come the targets alone. A way yields (document, text, first, target, length): the target
text[target] after text[first:target], the earlier part of a window of `length` tokens, which an extension may
ask for.
"""

import math

import torch

from posenc.evaluation.protocols import recall


@torch.no_grad()
def loss_of(subject, inputs, target, length):
    """Nats of the target after `inputs`, the earlier part of a window of `length` tokens."""
    model = subject.model.eval()
    acting = None if subject.extension is None else subject.extension.effective_encoding(length)
    logits = model(torch.tensor([inputs]), torch.arange(len(inputs)), encoding=acting)[0, -1].double()
    shifted = logits - logits.max()
    return float(torch.log(torch.exp(shifted).sum()) - shifted[target])


def text_of(subject, document):
    return subject.store.document(subject.split, document).tolist()


def in_blocks(subject, plan, window):
    """The window of W inputs ends at the last target of a block."""
    for document, end in zip(plan.documents.tolist(), plan.ends.tolist(), strict=True):
        for target in range(end - plan.block, end):
            yield document, text_of(subject, document), end - 1 - window, target, window


def in_keys(subject, plan, window):
    """Those targets of the blocks that are key tokens."""
    targets = in_blocks(subject, plan, window)
    for target, is_key in zip(targets, plan.is_key.ravel().tolist(), strict=True):
        if is_key:
            yield target


def in_spans(window_of):
    """Make a way of `window_of(plan, window, start, target)`: first input and length of a target's window."""

    def way(subject, plan, window):
        starts = (plan.ends - 1 - plan.block).tolist()
        for document, start in zip(plan.documents.tolist(), starts, strict=True):
            for target in range(start + 1, start + plan.block + 1):
                first, length = window_of(plan, window, start, target)
                yield document, text_of(subject, document), first, target, length

    return way


def slid(plan, window, start, target):
    """A target is in the first window whose end, a stride apart from the last one's, reaches it."""
    end = start
    while end < target:
        end = min(end + plan.stride, start + plan.block)
    return max(0, end - window), min(end, window)


def cut(plan, window, start, target):
    """A target sees what came before it in its own window; the last window of a span may be shorter."""
    first = start + (target - start - 1) // window * window
    return first, min(window, start + plan.block - first)


def copied(subject, plan, window):
    """W inputs and a last target: both copies at the ends."""
    for i, copy in enumerate(plan.copies.tolist()):
        filler = plan.filler[i].tolist()
        filler = filler[len(filler) - (window + 1 - 2 * len(copy)) :]
        text = copy + filler + copy
        assert len(text) == window + 1
        for target in range(len(text) - len(copy) + 1, len(text)):
            yield i, text, 0, target, window


def recalled(subject, plan, window):
    """The last token of each window of every question."""
    for question in plan.questions_in(window):
        asked = plan.windows_asked(window, question)
        windows = recall.windows_of(subject, plan, window, question)[:asked].tolist()
        for document, text in zip(plan.documents[:asked].tolist(), windows, strict=True):
            yield document, text, 0, window, window


WAYS = {
    "fixed-target": in_blocks,
    "far-copy": in_blocks,
    "key-tokens": in_keys,
    "sliding": in_spans(slid),
    "nonoverlapping": in_spans(cut),
    "dispersion": in_blocks,
    "memory": in_blocks,
    "positions": in_spans(lambda plan, window, start, target: (start, window)),
    "induction": copied,
    "recall": recalled,
}


def furthest(subject, protocol, plan, window, sums):
    """The largest difference between two means by document, in nats a target; the counts must be equal."""
    slow = {}
    for document, text, first, target, length in WAYS[protocol.name](subject, plan, window):
        loss = loss_of(subject, text[first:target], text[target], length)
        slow.setdefault(document, []).append(loss)
    counts = dict(zip(sums.documents.tolist(), sums.targets.tolist(), strict=True))
    assert counts == {document: len(losses) for document, losses in slow.items()}
    differences = []
    for document, nats in zip(sums.documents.tolist(), sums.nats.tolist(), strict=True):
        losses = slow[document]
        differences.append(abs(nats - math.fsum(losses)) / len(losses))
    return max(differences)
