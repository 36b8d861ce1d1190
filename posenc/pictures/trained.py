"""Measure and draw what a trained model does on text: where it looks, how far it spreads, where it breaks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from posenc.evaluation.attention import AttentionStatistics, watch_windows
from posenc.evaluation.blocks import Blocks, evenly_spaced
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.positions import bin_edges
from posenc.pictures import sentences
from posenc.pictures.attention import smooth
from posenc.pictures.panels import (
    DISTANCE,
    POSITION,
    WEIGHT,
    Curves,
    Line,
    Numbers,
    Panel,
    in_lengths,
    length_marks,
)

MOST_TOKENS = 1 << 15  # in the windows of one length
FEWEST_WINDOWS = 4
MOST_LAYERS = 6  # with a line
SHORTER = (4, 2)  # windows of T/4 and T/2 are measured, too


@dataclass(frozen=True)
class Behaviour:
    """Hold what a trained model does in windows of several lengths, which end at the same tokens."""

    context_length: int  # T
    n_windows: int  # of each length
    attention: dict[int, AttentionStatistics]  # by the length of the window in tokens, ascending
    queries: int  # the last ones of each window, whose attention is measured
    nats: Numbers  # (W,) mean loss at each position of the longest window, from 1 on

    @property
    def longest(self) -> int:
        """Return the length of the longest windows in tokens."""
        return max(self.attention)

    @property
    def marks(self) -> dict[str, float]:
        """Return the marks of T and of the longest window."""
        return length_marks(self.context_length, self.longest)


def behaviour_on_text(context: EvalContext, blocks: Blocks, longest: int) -> Behaviour:
    """Measure some of the blocks at windows from T/4 to `longest` tokens.

    Raises NotApplicableError, OutOfMemoryError.
    """
    length = context.context_length
    # Fewer windows of longer texts, so that a picture takes about as long at every length.
    count = min(len(blocks.ends), max(FEWEST_WINDOWS, MOST_TOKENS // longest))
    chosen = evenly_spaced(len(blocks.ends), count)
    # Windows of every length end at the same tokens, as in `fixed-target`, so that only the text before them
    # differs.
    stops = blocks.stops(context)[chosen]
    attention = {}
    for window in _lengths(length, longest, blocks.block):
        watched = watch_windows(context, stops, window, blocks.block, with_distances=True)
        attention[window] = watched.attention
    nats = context.text_losses(stops, longest, longest).mean(axis=0)  # (W,)
    return Behaviour(length, count, attention, blocks.block, nats)


def _lengths(length: int, longest: int, shortest: int) -> list[int]:
    """Return the windows to measure: T/4, T/2, T, 2T, 4T, ... and the longest one, none below `shortest`."""
    windows = {length // part for part in SHORTER} | {length, longest}
    multiple = 2
    while multiple * length < longest:
        windows.add(multiple * length)
        multiple *= 2
    # A window must hold the queries that are measured at its end.
    return sorted(window for window in windows if shortest <= window)


def trained_panels(behaviour: Behaviour) -> list[Panel]:
    """Return attention by distance, its weight on the first token, its entropy, and the loss by position."""
    return [
        _distance_panel(behaviour),
        _first_token_panel(behaviour),
        _entropy_panel(behaviour),
        _loss_panel(behaviour),
    ]


def _distance_panel(behaviour: Behaviour) -> Curves:
    """Draw the weight on the key at each distance, at T and in the longest window.

    It is the mean over layers and heads. The distances are those that every measured query has.
    """
    length = behaviour.context_length
    lines = []
    for window in sorted({length, behaviour.longest}):
        by_distance = behaviour.attention[window].by_distance  # (L, R)
        assert by_distance is not None
        # The first of the measured queries sees so many keys. Farther distances would be means over fewer
        # queries.
        reach = max(1, window - behaviour.queries + 1)
        mean_of_layers = by_distance.mean(axis=0, keepdims=True)[:, :reach]  # (1, R)
        weights = smooth(mean_of_layers)[0]  # (R,)
        lines.append(Line(in_lengths(window, length), np.arange(len(weights), dtype=np.float64), weights))
    panel = Curves(
        title="Attention of the trained model",
        x_label=DISTANCE,
        y_label=WEIGHT,
        lines=lines,
        x_scale="symlog",
        y_scale="log",
        marks=behaviour.marks,
    )
    of_longest = behaviour.attention[behaviour.longest].by_distance  # (L, R), with all distances
    assert of_longest is not None
    # From all distances: the sum over the drawn ones would miss the first tokens, where a sink has its
    # weight.
    share_past = float(of_longest.mean(axis=0)[length:].sum())
    return replace(panel, sentence=sentences.far_keys_sentence(panel, share_past))


def _first_token_panel(behaviour: Behaviour) -> Curves:
    """Draw the weight on the first token of the window by the window's length, a line for each layer."""
    windows = np.array(list(behaviour.attention), dtype=np.float64)
    weights = np.stack([attention.first for attention in behaviour.attention.values()], axis=1)  # (L, n)
    layers = _layer_lines(windows, weights)
    lines = _drawn_lines(windows, layers, equal_shares=1 / windows)
    panel = _panel_by_window("Attention on the first token", WEIGHT, lines, behaviour)
    return replace(panel, sentence=sentences.first_token_sentence(panel, layers))


def _entropy_panel(behaviour: Behaviour) -> Curves:
    """Draw the entropy of attention by the window's length, a line for each layer."""
    windows = np.array(list(behaviour.attention), dtype=np.float64)
    entropies = np.stack([attention.entropy for attention in behaviour.attention.values()], axis=1)  # (L, n)
    layers = _layer_lines(windows, entropies)
    lines = _drawn_lines(windows, layers, equal_shares=np.log(windows))
    panel = _panel_by_window("Entropy of attention", "entropy (nats)", lines, behaviour)
    return replace(panel, sentence=sentences.entropy_sentence(panel, layers))


def _layer_lines(windows: Numbers, values: Numbers) -> list[Line]:
    """Return a line over the n windows for each layer of values (L, n)."""
    return [Line(f"layer {layer}", windows, of_layer) for layer, of_layer in enumerate(values, start=1)]


def _drawn_lines(windows: Numbers, layers: list[Line], equal_shares: Numbers) -> list[Line]:
    """Return the lines of all layers, or of some from first to last, and a line to compare them with.

    `equal_shares` (n,) is that of attention that gives every key the same weight.
    """
    layer_indices = evenly_spaced(len(layers), min(len(layers), MOST_LAYERS)).tolist()
    lines = [layers[layer] for layer in layer_indices]
    return [*lines, Line("equal shares", windows, equal_shares, is_reference=True)]


def _panel_by_window(title: str, y_label: str, lines: list[Line], behaviour: Behaviour) -> Curves:
    """Return a panel, still without its sentence, with lines by the length of the window."""
    return Curves(
        title=title,
        x_label="window in tokens",
        y_label=y_label,
        lines=lines,
        x_scale="symlog",
        marks=behaviour.marks,
        is_ordered=True,
    )


def _loss_panel(behaviour: Behaviour) -> Curves:
    """Draw the mean loss by position in bins of the longest window, each at its last position."""
    length = behaviour.context_length
    nats = behaviour.nats
    bins = list(itertools.pairwise(bin_edges(length, len(nats))))  # positions start .. stop - 1
    last_positions = np.array([stop - 1 for _, stop in bins], dtype=np.float64)
    # nats[0] is the loss at position 1.
    means = np.array([nats[start - 1 : stop - 1].mean() for start, stop in bins])
    panel = Curves(
        title=f"Loss by position, windows of {in_lengths(len(nats), length)}",
        x_label=POSITION,
        y_label="loss (nats per token)",
        lines=[Line("", last_positions, means)],
        x_scale="symlog",
        marks=behaviour.marks,
    )
    # The mean over positions, from which `posenc compare` takes the rise of a curve. Bins differ in width.
    level = float(nats[length // 2 : length].mean())
    return replace(panel, sentence=sentences.loss_sentence(panel, level))
