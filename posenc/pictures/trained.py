"""Measure and draw what a trained model does on text: where it looks, how far it spreads, where it breaks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from posenc.evaluation.attention import AttentionStatistics, watch_windows
from posenc.evaluation.blocks import Blocks, spread
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.positions import bin_edges
from posenc.pictures import sentences
from posenc.pictures.attention import smooth
from posenc.pictures.panels import DISTANCE, POSITION, Curves, Line, Numbers, Panel, in_lengths

MOST_TOKENS = 1 << 15  # in the windows of one length
FEWEST_WINDOWS = 4
MOST_LAYERS = 6  # with a line
SHORTER = (4, 2)  # windows of T/4 and T/2 are measured, too
WINDOW = "window in tokens"


@dataclass(frozen=True)
class Behaviour:
    """What a trained model does in windows of several lengths, which end at the same tokens."""

    context_length: int  # T
    windows: int  # of each length
    attention: dict[int, AttentionStatistics]  # by the length of the window in tokens, ascending
    queries: int  # the last ones of each window, whose attention is measured
    nats: Numbers  # (W,) mean loss at each position of the longest window, from 1 on


def behaviour_on_text(context: EvalContext, blocks: Blocks, longest: int) -> Behaviour:
    """Measure some of the blocks at windows from T/4 to `longest` tokens.

    Raises NotApplicableError, OutOfMemoryError.
    """
    length = context.context_length
    count = min(len(blocks.ends), max(FEWEST_WINDOWS, MOST_TOKENS // longest))
    stops = blocks.stops(context)[spread(len(blocks.ends), count)]
    attention = {}
    for window in _lengths(length, longest, blocks.block):
        watched = watch_windows(context, stops, window, blocks.block, with_distances=True)
        attention[window] = watched.attention
    nats = context.text_losses(stops, longest, longest).mean(axis=0)  # (W,)
    return Behaviour(length, len(stops), attention, blocks.block, nats)


def _lengths(length: int, longest: int, shortest: int) -> list[int]:
    """Return the windows to measure: T/4, T/2, T, 2T, 4T, ... and the longest one."""
    windows = {length // part for part in SHORTER} | {length, longest}
    multiple = 2
    while multiple * length < longest:
        windows.add(multiple * length)
        multiple *= 2
    return sorted(window for window in windows if shortest <= window <= max(length, longest))


def trained_panels(behaviour: Behaviour) -> list[Panel]:
    """Return attention by distance, its weight on the first token, its entropy, and the loss by position."""
    return [
        _distance_panel(behaviour),
        _first_token_panel(behaviour),
        _entropy_panel(behaviour),
        _loss_panel(behaviour),
    ]


def _marks(behaviour: Behaviour) -> dict[str, float]:
    """Return the marks of T and of the longest window."""
    length = behaviour.context_length
    longest = max(behaviour.attention)
    return {"T": float(length), in_lengths(longest, length): float(longest)}


def _distance_panel(behaviour: Behaviour) -> Curves:
    """Draw the weight on the key at each distance, at T and in the longest window.

    It is the mean over layers and heads. The distances are those that every measured query has.
    """
    length = behaviour.context_length
    lines = []
    for window in dict.fromkeys((length, max(behaviour.attention))):
        by_distance = behaviour.attention[window].by_distance  # (L, R)
        assert by_distance is not None
        reach = max(1, window - behaviour.queries + 1)
        means = smooth(by_distance.mean(axis=0, keepdims=True)[:, :reach])[0]  # (R,)
        lines.append(Line(in_lengths(window, length), np.arange(len(means), dtype=np.float64), means))
    panel = Curves(
        title="Attention of the trained model",
        x_label=DISTANCE,
        y_label="mean attention weight",
        lines=lines,
        x_scale="symlog",
        y_scale="log",
        marks=_marks(behaviour),
    )
    return replace(panel, sentence=sentences.far_keys_sentence(panel))


def _first_token_panel(behaviour: Behaviour) -> Curves:
    """Draw the weight on the first token of the window by the window's length, a line for each layer."""
    windows = np.array(list(behaviour.attention), dtype=np.float64)
    equal = Line("equal shares", windows, 1 / windows, is_reference=True)
    weights = np.stack([attention.first for attention in behaviour.attention.values()], axis=1)  # (L, n)
    panel = Curves(
        title="Attention on the first token",
        x_label=WINDOW,
        y_label="mean attention weight",
        lines=[*_layer_lines(weights, windows), equal],
        x_scale="symlog",
        marks=_marks(behaviour),
        is_ordered=True,
    )
    return replace(panel, sentence=sentences.first_token_sentence(panel))


def _entropy_panel(behaviour: Behaviour) -> Curves:
    """Draw the entropy of attention by the window's length, a line for each layer."""
    windows = np.array(list(behaviour.attention), dtype=np.float64)
    entropies = np.stack([attention.entropy for attention in behaviour.attention.values()], axis=1)  # (L, n)
    equal = Line("equal shares", windows, np.log(windows), is_reference=True)
    panel = Curves(
        title="Entropy of attention",
        x_label=WINDOW,
        y_label="entropy (nats)",
        lines=[*_layer_lines(entropies, windows), equal],
        x_scale="symlog",
        marks=_marks(behaviour),
        is_ordered=True,
    )
    return replace(panel, sentence=sentences.entropy_sentence(panel))


def _layer_lines(values: Numbers, windows: Numbers) -> list[Line]:
    """Return a line for each layer of (L, n) values over n windows, or for some from first to last."""
    layers = spread(len(values), min(len(values), MOST_LAYERS)).tolist()
    return [Line(f"layer {layer + 1}", windows, values[layer]) for layer in layers]


def _loss_panel(behaviour: Behaviour) -> Curves:
    """Draw the loss by position of the longest window; a point is the mean up to the one before it."""
    length = behaviour.context_length
    nats = behaviour.nats
    bins = list(itertools.pairwise(bin_edges(length, len(nats))))  # positions start .. stop - 1
    last_positions = np.array([stop - 1 for _, stop in bins], dtype=np.float64)
    means = np.array([nats[start - 1 : stop - 1].mean() for start, stop in bins])
    panel = Curves(
        title=f"Loss by position, windows of {in_lengths(len(nats), length)}",
        x_label=POSITION,
        y_label="loss (nats per token)",
        lines=[Line("", last_positions, means)],
        x_scale="symlog",
        marks=_marks(behaviour),
    )
    return replace(panel, sentence=sentences.loss_sentence(panel))
