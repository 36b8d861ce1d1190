"""The two protocols the slow, obvious way: one target at a time, one window at a time, float32."""

from __future__ import annotations

import math

import torch

from posenc.corpus import TokenStore
from posenc.model.decoder import Decoder


@torch.no_grad()
def loss_of(model: Decoder, window: list[int], target: int) -> float:
    """Nats of one target after its window."""
    logits = model(torch.tensor([window]), torch.arange(len(window)))[0, -1].double()
    shifted = logits - logits.max()
    return float(torch.log(torch.exp(shifted).sum()) - shifted[target])


def fixed_target(
    model: Decoder, store: TokenStore, documents: list[int], ends: list[int], block: int, window: int
) -> float:
    """Mean nats of the last `block` tokens before each end, in the window of W inputs that ends there."""
    losses = []
    for document, end in zip(documents, ends, strict=True):
        text = store.document("test", document).tolist()
        begin = end - window - 1  # of the window: W inputs and the last target
        for place in range(end - block, end):
            losses.append(loss_of(model, text[begin:place], text[place]))
    return math.fsum(losses) / len(losses)


def nonoverlapping(
    model: Decoder, store: TokenStore, documents: list[int], starts: list[int], span: int, window: int
) -> float:
    """Mean nats of every token of the spans; each sees only what came before it in its own window."""
    losses = []
    for document, start in zip(documents, starts, strict=True):
        text = store.document("test", document).tolist()
        for place in range(start + 1, start + span + 1):
            begin = start + (place - 1 - start) // window * window
            losses.append(loss_of(model, text[begin:place], text[place]))
    return math.fsum(losses) / len(losses)
