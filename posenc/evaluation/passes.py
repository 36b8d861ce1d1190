"""Passes over windows of text, each made once in an evaluation, whichever protocols ask for it.

What a pass gives is decided by the model, the text, its windows in their order and the targets scored in
them. A protocol that asks for what was asked for before gets the same numbers, bit for bit: `positions` asks
for the longest windows of `nonoverlapping`, as does `sliding` by whole windows; windows that begin where a
document does come again at every longer window of `sliding`; an encoding that truncates sees one text at all
windows beyond T.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np

from posenc.evaluation.subject import Subject, context_for, stopped_never, window_losses

MOST_BYTES = 1 << 26  # of losses kept: 8 million targets


class Passes:
    """Losses of the latest passes, for one evaluation: a subject is known by its address."""

    def __init__(self) -> None:
        self._losses: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> np.ndarray | None:
        """The losses stored under a key, read only."""
        return self._losses.get(key)

    def keep(self, key: Hashable, losses: np.ndarray) -> None:
        """Store, and let the oldest go where it is too much."""
        losses.setflags(write=False)
        self._losses[key] = losses
        self._bytes += losses.nbytes
        while self._bytes > MOST_BYTES:
            _, oldest = self._losses.popitem(last=False)
            self._bytes -= oldest.nbytes


def text_losses(
    subject: Subject,
    stops: np.ndarray,
    window: int,
    wanted: int,
    check_stop: Callable[[], None] = stopped_never,
) -> np.ndarray:
    """Loss in nats of the last `wanted` targets of windows of text: (count, wanted) float64, read only.

    Window i has `window` inputs; its last target is the token before stops[i] (count,) of the store. Raises
    what `window_losses` raises.
    """
    passes, tokens = subject.passes, subject.store.tokens

    def read(i: int) -> np.ndarray:
        return tokens[stops[i] - window - 1 : stops[i]]

    if passes is None:
        return window_losses(subject, read, len(stops), window, wanted, check_stop)
    key = _key(subject, stops, window, wanted)
    losses = passes.get(key)
    if losses is None:
        losses = window_losses(subject, read, len(stops), window, wanted, check_stop)
        passes.keep(key, losses)
    return losses


def _key(subject: Subject, stops: np.ndarray, window: int, wanted: int) -> Hashable:
    """All that the losses depend on and that may differ within an evaluation."""
    acting = subject.acting(window)
    context = context_for(acting, window, wanted)
    extended = acting is not subject.model.acting
    drawn = "positions" in acting.hooks  # by the window's length, whatever is kept of it
    return (
        id(subject.model),
        id(subject.store),
        (id(subject.extension), window) if extended else None,
        hashlib.sha256(stops.astype(np.int64).tobytes()).digest(),
        window if drawn else context,
        context,
        wanted,
    )
