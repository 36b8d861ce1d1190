"""Measure the panels of a picture through the hooks of an encoding.

Which panels there are follows from `encoding.hooks`, so that an encoding of one's own is drawn, too.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from posenc.encodings.base import Encoding, float64
from posenc.encodings.shared.composed import Composed
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.blocks import evenly_spaced
from posenc.pictures import sentences
from posenc.pictures.attention import mean_weights, random_generator
from posenc.pictures.panels import (
    DISTANCE,
    FAR,
    POSITION,
    WEIGHT,
    Curves,
    KeyMask,
    Line,
    Numbers,
    Panel,
    VectorMap,
    in_lengths,
    length_marks,
)

MOST_POINTS = 1024  # in a curve
MOST_ROWS = 64  # in a map
MOST_COLUMNS = 128  # in a map of vectors
MOST_LINES = 6  # in a panel
MOST_RANDOM_LINES = 2  # in a panel with random parameters: more of them are a tangle
MOST_MASKS = 3  # in a picture
MOST_KEYS = 4096  # in an attention on random inputs
RANDOM_QUERIES = 64  # a score is the mean over so many
DRAWN_WINDOWS = 5  # in a panel of random positions
PARAMETERS_ARE_RANDOM = (
    "parameters that start at zero, where they change nothing, are drawn with random values"
)
INPUTS_ARE_RANDOM = "attention in layer 1; its queries, keys and inputs are random, of unit variance"
# Hooks that depend on the inputs, so that their effect is measured inside the attention.
INPUT_HOOKS = {"scores", "weights", "values"}
BIAS_HOOKS = {"bias", "distance_bias"}


@torch.no_grad()
def measure(
    encoding: Encoding, trained: Encoding | None = None, *, is_trained: bool = False
) -> tuple[list[Panel], list[str]]:
    """Return the panels of an encoding, and notes on them.

    The encoding comes with its options, as the attention sees it. `trained` is the encoding as it was
    trained, where a test-time extension acts. `is_trained` says that its parameters are those of a run.
    Without it, parameters of a bias or a score that are all zero are drawn with random values, since at zero
    there is nothing to see. The encoding itself is never changed.
    """
    hooks = encoding.hooks
    notes = []
    # What a run has left at zero is what it has learned, and is drawn as it is.
    are_random = not is_trained and bool(_zero_parameters(encoding))
    if are_random:
        # a copy, since the caller may go on to measure the model
        encoding = copy.deepcopy(encoding)
        _fill_randomly(_zero_parameters(encoding))
        notes.append(PARAMETERS_ARE_RANDOM)
    panels: list[Panel] = []
    if "positions" in hooks:
        panels.append(_positions_panel(encoding))
    if "embed" in hooks:
        panels += _embed_panels(encoding, is_trained)
    if "rotate" in hooks:
        panels += _rotation_panels(encoding, trained or encoding)
    if hooks & BIAS_HOOKS:
        panels.append(_bias_panel(encoding, are_random=are_random))
    if "visible" in hooks:
        masks = _distinct_masks(encoding)
        drawn_masks = _even_steps(len(masks) - 1, MOST_MASKS).tolist()
        panels += [_mask_panel(encoding, masks[index]) for index in drawn_masks]
        if len(drawn_masks) < len(masks):
            notes.append(f"{len(drawn_masks)} of {len(masks)} different masks are drawn")
    # An encoding without hooks, such as `nope`, still has a mask and a softmax, which this panel shows.
    if hooks & INPUT_HOOKS or not panels:
        # Last and at most once: it shows the whole attention, with every hook that acts in it.
        panels.append(_attention_panel(encoding))
        notes.append(INPUTS_ARE_RANDOM)
    return panels, notes


def _zero_parameters(encoding: Encoding) -> list[nn.Parameter]:
    """Return the parameters that are all zero, of an encoding that acts on scores alone."""
    if isinstance(encoding, Composed):
        # The parts of options are not registered as modules, so that `parameters()` would miss them.
        return [parameter for part in encoding.parts for parameter in _zero_parameters(part)]
    if not encoding.hooks <= {*BIAS_HOOKS, "scores", "prepare"}:
        return []
    return [parameter for parameter in encoding.parameters() if not parameter.any()]


def _fill_randomly(parameters: list[nn.Parameter]) -> None:
    """Fill parameters with the same random numbers every time."""
    for index, parameter in enumerate(parameters):
        # With this deviation a matrix maps unit variance to unit variance.
        std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
        nn.init.normal_(parameter, std=std, generator=random_generator("zeros", index))


# --- shared by the panels


def _array(tensor: Tensor) -> Numbers:
    """Convert a tensor to float64 on the CPU."""
    return tensor.detach().double().cpu().numpy()


def _even_steps(end: int, most: int) -> Tensor:
    """Return 0..end, all of them or `most` at even steps: (n,) int64."""
    return torch.from_numpy(evenly_spaced(end + 1, min(end + 1, most)))


def _distances(end: int) -> Tensor:
    """Return the distances 0..end. If they are many, the far ones have even logarithmic steps."""
    if end < MOST_POINTS:
        return torch.arange(end + 1)
    near = MOST_POINTS // 2
    # Even logarithmic steps, as the axes of distance mostly are: even steps would leave the near part empty.
    far = torch.logspace(np.log10(near), np.log10(end), near, dtype=torch.float64).round().long()
    distances = torch.cat((torch.arange(near), far, torch.tensor([end])))
    return distances.clamp_max(end).unique()


def _head_lines(values: Numbers, x: Tensor, most: int = MOST_LINES) -> list[Line]:
    """Return a line for each head of (heads, n) values over x, or for `most` heads from first to last."""
    # From the first to the last, since an encoding may order its heads, as ALiBi does by slope.
    heads = _even_steps(len(values) - 1, most).tolist()
    return [Line(f"head {head + 1}", _array(x), values[head]) for head in heads]


def _length_marks(encoding: Encoding) -> dict[str, float]:
    """Return the marks of T and 8T."""
    length = encoding.shape.train_length
    return length_marks(length, FAR * length)


# --- panels of positions, vectors and rotations


def _positions_panel(encoding: Encoding) -> Curves:
    """Draw the positions of a few windows of T tokens as training draws them."""
    length = encoding.shape.train_length
    generator = random_generator("positions")
    indices = _even_steps(length - 1, MOST_POINTS)
    x = _array(indices)
    lines = []
    for number in range(1, DRAWN_WINDOWS + 1):
        positions = encoding.positions(length, True, generator)[indices]
        lines.append(Line(f"draw {number}", x, _array(positions)))
    lines.append(Line("contiguous", x, x, is_reference=True))
    panel = Curves(
        title="Positions drawn in training",
        x_label="index in the window",
        y_label=POSITION,
        lines=lines,
        y_marks={"T": float(length)},
    )
    return replace(panel, sentence=sentences.positions_sentence(panel))


def _embed_panels(encoding: Encoding, is_trained: bool) -> list[Panel]:
    """Measure an `embed` hook: the vectors, unless they are random, and the products of two of them."""
    reach = _reach_of_vectors(encoding)
    is_random = _has_learned_vectors(encoding) and not is_trained
    products = _products_panel(encoding, reach)
    if is_random:
        return [replace(products, sentence=sentences.TRAIN_FIRST)]
    return [_vectors_panel(encoding, reach), products]


def _has_learned_vectors(encoding: Encoding) -> bool:
    """Tell whether training changes the vectors of positions."""
    if isinstance(encoding, Composed):
        return any(_has_learned_vectors(part) for part in encoding.parts)
    return "embed" in encoding.hooks and any(True for _ in encoding.parameters())


def _vectors_panel(encoding: Encoding, reach: int) -> VectorMap:
    """Draw the numbers of the vectors by position and dimension, up to 2T where there are so many."""
    length = encoding.shape.train_length
    end = min(2 * length, reach)
    vectors = _array(_vectors(encoding, torch.arange(end), reach))  # (positions, d_model)
    rows = _even_steps(end - 1, MOST_ROWS).numpy()
    columns = _pairs_of_columns(vectors.shape[1])
    panel = VectorMap(
        title="Vectors of positions",
        values=vectors[np.ix_(rows, columns)],
        positions=rows.astype(np.float64),
        dimensions=columns.astype(np.float64) + 1,
        marks={"T": float(length)},
    )
    return replace(panel, sentence=sentences.vectors_sentence(panel, vectors))


def _pairs_of_columns(width: int) -> NDArray[np.int64]:
    """Return the columns to draw: all, or pairs of neighbours at even steps, as sine and cosine are."""
    if width <= MOST_COLUMNS:
        return np.arange(width)
    # Sine and cosine of one frequency are neighbours. Every second column alone would show sines only.
    pairs = _even_steps(width // 2 - 1, MOST_COLUMNS // 2).numpy()
    return np.stack((2 * pairs, 2 * pairs + 1), axis=1).ravel()


def _products_panel(encoding: Encoding, reach: int) -> Curves:
    """Measure the inner products of the vectors of two positions, as far as the encoding has vectors."""
    length = encoding.shape.train_length
    half = max(1, min(length, reach) // 2)
    # Only positions with all offsets on both sides, so that the curves cover the same range.
    centres = [t for t in (length // 2, length, 2 * length, 4 * length) if half <= t < reach - half]
    offsets = torch.arange(-half, half + 1)
    lines = []
    if not centres:
        centres = [min(half, reach - 1)]
    for t in centres:
        positions = t + offsets
        positions = positions[(positions >= 0) & (positions < reach)]
        centre = _vectors(encoding, torch.tensor([t]), reach)  # (1, d_model)
        products = centre @ _vectors(encoding, positions, reach).T  # (1, n)
        lines.append(Line(f"t = {in_lengths(t, length)}", _array(positions - t), _array(products[0])))
    title = "PE(t) · PE(t+r)"
    if reach < FAR * length:
        title += f" (defined below {in_lengths(reach, length)})"
    panel = Curves(title, "offset r in tokens", "inner product", lines, is_ordered=True)
    return replace(panel, sentence=sentences.products_sentence(panel))


def _reach_of_vectors(encoding: Encoding) -> int:
    """Return the longest window of 8T, 4T, ... tokens that the encoding has vectors for."""
    length = encoding.shape.train_length
    reach = FAR * length
    # By halves: a table that ends at T has its answer after three tries, and a picture needs no exact end.
    while reach > length:
        try:
            _vectors(encoding, torch.tensor([0]), reach)
        except ValueError:  # a table with `beyond=refuse` ends before
            reach //= 2
        else:
            break
    return reach


def _vectors(encoding: Encoding, positions: Tensor, window: int) -> Tensor:
    """Return what layer 0 adds to a stream of zeros at these positions of a window: (n, d_model) float32.

    The encoding gets them in increasing order, together with the last one of the window.
    """
    # An encoding may look at the length of the window (`normalized` divides by it), so that the last position
    # is there.
    present = torch.cat((positions, torch.tensor([window - 1]))).unique()
    zeros = torch.zeros(1, len(present), encoding.shape.d_model)
    vectors = encoding.embed(zeros, present, 0)[0]
    return vectors[torch.searchsorted(present, positions)]


def _arcs_panel(encoding: Encoding, trained: Encoding) -> Curves | None:
    """Draw how far each pair turns within T in training, and within 8T, where an extension may act.

    Return None where no pair has a frequency.
    """
    frequencies = _frequencies(trained)
    acting = _frequencies(encoding)
    if frequencies is None or acting is None or len(frequencies) != len(acting):
        return None
    # A pair that stands still never turns, and a logarithmic axis has no place for it.
    turning = frequencies > 0
    if not bool(turning.any()):
        return None
    turns = encoding.shape.train_length / (2 * math.pi)
    in_training = _array(turns * frequencies[turning])
    far = _array(FAR * turns * acting[turning])
    pairs = np.arange(len(in_training), dtype=np.float64)
    panel = Curves(
        title="How far each pair turns",
        x_label="pair of numbers",
        y_label="turns",
        lines=[Line("within T, in training", pairs, in_training), Line(f"within {FAR}T", pairs, far)],
        y_scale="log",
        y_marks={"a turn": 1.0},
        has_points=True,
    )
    return replace(panel, sentence=sentences.arcs_sentence(panel))


def _rotation_panels(encoding: Encoding, trained: Encoding) -> list[Panel]:
    """Measure a `rotate` hook: arcs and wavelengths, if it has them, and the score with an equal key."""
    arcs = _arcs_panel(encoding, trained)
    panels: list[Panel] = [] if arcs is None else [arcs]
    frequencies = _frequencies(encoding)
    if frequencies is not None and bool((frequencies > 0).any()):
        panels.append(_wavelength_panel(encoding, frequencies))
    layer = _first_turning_layer(encoding)
    if layer is not None:
        panels.append(_self_score_panel(encoding, layer))
    return panels


def _wavelength_panel(encoding: Encoding, frequencies: Tensor) -> Curves:
    """Draw the wavelength of every pair that is rotated."""
    pairs = torch.nonzero(frequencies > 0)[:, 0]
    n_still = len(frequencies) - len(pairs)
    title = "Wavelength of each pair"
    if n_still:
        title += f" ({sentences.count_text(n_still, len(frequencies))} still)"
    panel = Curves(
        title=title,
        x_label="pair of numbers",
        y_label="wavelength in tokens",
        lines=[Line("", _array(pairs), _array(2 * math.pi / frequencies[pairs]))],
        y_scale="log",
        y_marks=_length_marks(encoding),
        has_points=True,
    )
    return replace(panel, sentence=sentences.wavelengths_sentence(panel))


def _first_turning_layer(encoding: Encoding) -> int | None:
    """Return the first layer in which queries are turned; some encodings turn them in every other layer."""
    shape = encoding.shape
    x = torch.ones(1, shape.n_heads, 2, shape.head_dim)
    # Position 0 is turned by no angle: an encoding that turns would look still there.
    positions = torch.tensor([1, 3])
    for layer in range(shape.n_layers):
        q, _ = encoding.rotate(x, x, positions, positions, layer)
        # An encoding that widens the heads, as `pope` does, turns them as well.
        if q.shape != x.shape or not torch.equal(q, x):
            return layer
    return None


def _frequencies(encoding: Encoding) -> Tensor | None:
    """Return the radians per token of each pair, (pairs,) float64; None where no part has frequencies."""
    if isinstance(encoding, Composed):
        for part in encoding.parts:
            frequencies = _frequencies(part)
            if frequencies is not None:
                return frequencies
        return None
    if "rotate" not in encoding.hooks:
        return None
    if isinstance(encoding, Rotary):
        return encoding.acting_frequencies()  # those of a test-time extension if one acts
    # An encoding may name its frequencies without being a Rotary.
    method = getattr(encoding, "frequencies", None)
    return float64(method(torch.device("cpu"))) if callable(method) else None


def _self_score_panel(encoding: Encoding, layer: int) -> Curves:
    """Draw the mean score of a key at distance r with a query of the same random numbers."""
    shape = encoding.shape
    r = _distances(FAR * shape.train_length)
    generator = random_generator("rotation")
    total = torch.zeros(shape.n_heads, len(r), dtype=torch.float64)  # (H, R)
    for _ in range(RANDOM_QUERIES):
        # All heads get the same numbers, so that what differs between them comes from the encoding.
        x = torch.randn(1, 1, 1, shape.head_dim, generator=generator).expand(1, shape.n_heads, len(r), -1)
        q, k = encoding.rotate(x, x, r, r, layer)
        # Key 0 is the one at position 0, and queries stand at r, so that the distance is r.
        products = (q.double() * k[:, :, :1].double()).sum(-1)[0]  # (H, R): with the key at distance r
        total += products * shape.head_dim**-0.5 / RANDOM_QUERIES
    mean = _array(total)
    heads_agree = bool((abs(mean - mean[:1]) < 1e-6).all())
    if heads_agree:
        lines = [Line(f"mean of {RANDOM_QUERIES} random q", _array(r), mean[0])]
    else:
        lines = _head_lines(mean, r)
    if encoding.hooks & {*BIAS_HOOKS, "scores", "weights"}:
        title = "Score with an equal key, by rotation alone"
    else:
        title = "Score of a query with an equal key"
    marks = _length_marks(encoding)
    panel = Curves(title, DISTANCE, "mean score (nats)", lines, "symlog", marks=marks, y_marks={"": 0.0})
    return replace(panel, sentence=sentences.score_sentence(panel))


# --- panels of biases, masks and attention weights


def _bias_panel(encoding: Encoding, *, are_random: bool) -> Curves:
    """Draw the bias of some heads in the first layer, for a query at position 8T."""
    i = FAR * encoding.shape.train_length
    r = _distances(i)
    title = "Bias"
    if "bias" in encoding.hooks:  # it may depend on the query's position, not only on the distance
        title += f" at i = {FAR}T"
        # The encoding gets the keys in rising order, the farthest first. The second flip undoes that.
        keys = (i - r).flip(0)
        bias = encoding.bias(torch.tensor([i]), keys, 0)[:, 0].flip(-1)  # (H, R)
    else:
        bias = encoding.distance_bias(r, 0)  # (H, R)
    lines = _head_lines(_array(bias), r, MOST_RANDOM_LINES if are_random else MOST_LINES)
    if len(lines) == len(bias):
        title += ", each head"
    else:
        title += f", {len(lines)} of {len(bias)} heads"
    # A logarithmic axis would bend straight lines.
    scale: Literal["linear", "symlog"] = "linear" if all(map(_is_straight, lines)) else "symlog"
    panel = Curves(title, DISTANCE, "added to the score (nats)", lines, scale, marks=_length_marks(encoding))
    sentence = sentences.TRAIN_FIRST if are_random else sentences.bias_sentence(panel)
    return replace(panel, sentence=sentence)


def _is_straight(line: Line) -> bool:
    """Tell whether all points lie on the line from the first to the last, up to the rounding of float32."""
    span = line.x[-1] - line.x[0]
    if not span or not np.isfinite(line.y).all():
        return False
    straight = line.y[0] + (line.y[-1] - line.y[0]) * (line.x - line.x[0]) / span
    return bool(np.abs(line.y - straight).max() <= 1e-5 * np.abs(line.y).max())


@dataclass(frozen=True)
class _Mask:
    """Hold one mask with its places: it is drawn once, however many layers and heads have it."""

    seen: Tensor  # (rows, T) bool, for the queries of `_mask_queries`
    heads_by_layer: dict[int, list[int]]  # both numbered from 1


def _mask_queries(length: int) -> Tensor:
    """Return the positions below T to draw, as queries and as keys: (rows,) int64."""
    return _even_steps(length - 1, MOST_ROWS)


def _distinct_masks(encoding: Encoding) -> list[_Mask]:
    """Return the masks of all layers and heads, equal ones as one, in the order of their first places."""
    shape = encoding.shape
    queries = _mask_queries(shape.train_length)
    # A mask may count keys, so it is asked for all of them. Some rows and columns are drawn.
    keys = torch.arange(shape.train_length)
    # The causal mask is the attention's, so that an encoding may leave it out of its own.
    causal = queries[:, None] >= keys[None, :]  # (rows, T)
    seen_by_content: dict[bytes, Tensor] = {}
    places_by_content: defaultdict[bytes, dict[int, list[int]]] = defaultdict(dict)  # heads by layer
    for layer in range(shape.n_layers):
        visible = encoding.visible(queries, keys, layer) & causal  # (rows, T) or (H, rows, T)
        for head, seen in enumerate(visible.expand(shape.n_heads, -1, -1), start=1):
            content = seen.numpy().tobytes()
            seen_by_content[content] = seen
            places_by_content[content].setdefault(layer + 1, []).append(head)
    return [_Mask(seen, places_by_content[content]) for content, seen in seen_by_content.items()]


def _mask_panel(encoding: Encoding, mask: _Mask) -> KeyMask:
    """Draw which keys a query sees in the layers and heads of a mask."""
    shape = encoding.shape
    queries = _mask_queries(shape.train_length)
    drawn = mask.seen[:, queries].double()  # (rows, rows)
    later = queries[:, None] < queries[None, :]
    places = sentences.places_text(mask.heads_by_layer, shape.n_layers, shape.n_heads)
    panel = KeyMask(
        title=f"Keys seen in {places}",
        seen=_array(drawn.masked_fill(later, torch.nan)),
        positions=_array(queries),
        seen_by_last=int(mask.seen[-1].sum()),
        keys=shape.train_length,
    )
    return replace(panel, sentence=sentences.mask_sentence(panel))


def _attention_panel(encoding: Encoding) -> Curves:
    """Draw where attention goes on random inputs, mean over heads, for windows of up to 8T tokens."""
    length = encoding.shape.train_length
    lines = []
    # Where T is long, several windows are cut to MOST_KEYS, and the set keeps one of them.
    for keys in sorted({min(times * length, MOST_KEYS) for times in (1, 2, 4, FAR)}):
        weights = mean_weights(encoding, keys).mean(0)  # (R,)
        distances = np.arange(len(weights), dtype=np.float64)
        lines.append(Line(f"n = {in_lengths(keys, length)}", distances, weights))
    panel = Curves(
        title="Attention of random inputs to n keys",
        x_label=DISTANCE,
        y_label=WEIGHT,
        lines=lines,
        x_scale="symlog",
        y_scale="log",
        marks=_length_marks(encoding),
        is_ordered=True,
    )
    return replace(panel, sentence=sentences.near_keys_sentence(panel))
