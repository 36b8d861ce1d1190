"""Say what to see in a panel, by the numbers that it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from posenc.pictures.panels import FAR, Curves, KeyMask, Line, Numbers, VectorMap
from posenc.report.texts import share_text
from posenc.results.records import BREAK

TRAIN_FIRST = "To see: nothing yet, the values are random: train first, then posenc show run=DIR."
MOST_RANGES = 3  # of numbers of layers or heads, in a title
SAME = 1e-6  # of the largest number: smaller differences are rounding


def number_text(value: float) -> str:
    """Return a number with three digits, or as a whole number from 100 on."""
    value = value + 0.0  # it turns -0.0 into 0.0
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def count_text(count: int, total: int) -> str:
    """Return how many of a total, with the verb: `1 of 4 is`, `2 of 4 are`."""
    verb = "is" if count == 1 else "are"
    return f"{count} of {total} {verb}"


def value_at(line: Line, x: float) -> float:
    """Return y at the point of a line that is nearest to x."""
    return float(line.y[np.abs(line.x - x).argmin()])


# --- positions and vectors


def positions_sentence(panel: Curves) -> str:
    """Return how far the drawn positions reach."""
    ends = [line.y[-1] for line in panel.measured_lines]
    length = panel.y_marks["T"]
    reach = f"{number_text(min(ends))} to {number_text(max(ends))}"
    if max(ends) < length:
        return f"To see: the draws end at positions {reach}, so training sees none past T."
    return f"To see: the draws end at positions {reach}, so training sees positions past T = {length:g}."


def products_sentence(panel: Curves) -> str:
    """Return how the product falls with the offset, and whether it depends on the position as well."""
    line = panel.lines[0]
    peak = value_at(line, 0)
    end = float(line.x[-1])
    fall = f"the product is {number_text(peak)} at r = 0 and {number_text(line.y[-1])} at r = {end:g}"
    if len(panel.lines) == 1:
        return f"To see: {fall}."
    difference = _largest_difference(panel.lines)
    if difference <= 1e-3 * abs(peak):
        return f"To see: {fall}; the curves coincide, so the product depends on the distance only."
    return f"To see: {fall}; the curves differ by up to {number_text(difference)}, so it depends on t."


def _largest_difference(lines: list[Line]) -> float:
    """Return the largest difference of a line to the first one, where both have a point."""
    largest = 0.0
    for line in lines[1:]:
        # The curves of early and late positions end at different offsets, since there is nothing before
        # position 0.
        _, first, other = np.intersect1d(lines[0].x, line.x, return_indices=True)
        largest = max(largest, float(np.abs(lines[0].y[first] - line.y[other]).max(initial=0.0)))
    return largest


def vectors_sentence(panel: VectorMap, vectors: Numbers) -> str:
    """Return how the numbers change with the position, and how large they are past T.

    `vectors` (positions, dimensions) are those of every position: the panel shows some of them.
    """
    length = round(panel.marks["T"])
    within = vectors[:length]
    changes = np.array([_sign_changes(column) for column in within.T])  # (dimensions,)
    n_constant = int((changes == 0).sum())  # dimensions
    if n_constant == len(changes):
        text = "within T no number changes its sign"
    else:
        times = "at most once" if changes.max() == 1 else f"up to {changes.max()} times"
        text = f"within T a number changes its sign {times}, {n_constant} of {len(changes)} never"
    past = vectors[length:]
    size = _root_mean_square(within)
    if not len(past) or not size:
        return f"To see: {text}."
    ratio = _root_mean_square(past) / size
    if abs(ratio - 1) < 0.1:
        return f"To see: {text}; vectors past T are as long as those within."
    return f"To see: {text}; vectors past T are {ratio:.2g} times as long as those within."


def _sign_changes(values: Numbers) -> int:
    """Count how often values change their sign. A zero, such as sin(0), has none."""
    signs = np.sign(values)
    signs = signs[signs != 0]
    return int((signs[1:] != signs[:-1]).sum())


def _root_mean_square(values: Numbers) -> float:
    return float(np.sqrt(np.mean(values**2)))


# --- rotations


def arcs_sentence(panel: Curves) -> str:
    """Return how many pairs do not finish a turn within T, and whether they turn farther past T."""
    trained = panel.lines[0].y
    far = panel.lines[1].y
    is_unfinished = trained < 1
    count = int(is_unfinished.sum())
    if not count:
        return "To see: every pair finishes a turn within T, so no single angle past T is new."
    subject = "the only pair" if len(trained) == 1 else f"{count} of {len(trained)} pairs"
    is_one = count == 1
    verb = "does" if is_one else "do"
    unfinished = f"{subject} {verb} not finish a turn within T"
    # A pair that finished a turn has met every angle, so that only the others can meet a new one past T.
    goes_beyond = bool((far > trained * (1 + SAME))[is_unfinished].any())
    if goes_beyond:
        reach = "it reaches" if is_one else "they reach"
        return f"To see: {unfinished}; past T {reach} angles never trained."
    stay = "it stays" if is_one else "they stay"
    return f"To see: {unfinished}; up to {FAR}T {stay} within the angles of training."


def wavelengths_sentence(panel: Curves) -> str:
    """Return how many waves are longer than T."""
    waves = panel.lines[0].y
    longer = int((waves > panel.y_marks["T"]).sum())
    span = f"{number_text(waves.min())} to {number_text(waves.max())} tokens"
    return f"To see: waves of {span}; {count_text(longer, len(waves))} longer than T."


def score_sentence(panel: Curves) -> str:
    """Return the score at distance 0 and at T, and its range past T."""
    line = panel.lines[0]
    length = panel.marks["T"]
    past = line.y[line.x > length]
    subject = "the score" if len(panel.lines) == 1 else f"the score of {line.label}"
    falls = f"{subject} is {number_text(line.y[0])} at r = 0 and {number_text(value_at(line, length))} at T"
    return f"To see: {falls}; past T it is {number_text(past.min())} to {number_text(past.max())}."


# --- biases, masks and attention on random inputs


def bias_sentence(panel: Curves) -> str:
    """Return how much the bias of the drawn heads falls up to T, and from T to 8T."""
    length = panel.marks["T"]
    falls_to_t = []
    falls_past_t = []
    for line in panel.lines:
        at_t = value_at(line, length)
        falls_to_t.append(float(line.y[0] - at_t))
        falls_past_t.append(float(at_t - line.y[-1]))
    past = max(map(abs, falls_past_t))
    if past <= SAME * max(1.0, *map(abs, falls_to_t)):
        return "To see: past T the bias stays as it is at T, so all far keys count alike."
    if max(falls_to_t) <= 0 and max(falls_past_t) <= 0:
        return "To see: the bias does not fall with the distance, so far keys are not held back."
    to_t = number_text(max(falls_to_t))
    past_t = number_text(max(falls_past_t))
    return f"To see: the bias falls by up to {to_t} nats to T and by {past_t} more to {FAR}T."


def mask_sentence(panel: KeyMask) -> str:
    """Return how many keys the last query sees."""
    if panel.seen_by_last == panel.keys:
        return f"To see: the last query sees all {panel.keys} keys."
    return f"To see: the last query sees {panel.seen_by_last} of {panel.keys} keys."


def places_text(heads_by_layer: Mapping[int, Sequence[int]], n_layers: int, n_heads: int) -> str:
    """Return where a mask acts: `every layer`, `layers 1 to 3`, `heads 5 to 8, every layer`.

    Layers and heads are numbered from 1 on.
    """
    first_heads = next(iter(heads_by_layer.values()))
    layers = [layer for layer, heads in heads_by_layer.items() if heads == first_heads]
    text = "every layer" if len(layers) == n_layers else _numbers_text("layer", layers)
    if len(first_heads) < n_heads:
        text = f"{_numbers_text('head', first_heads)}, {text}"
    # A mask may be in other heads of other layers. All of them would not fit above a panel.
    return text if len(layers) == len(heads_by_layer) else f"{text}, ..."


def _numbers_text(noun: str, numbers: Sequence[int]) -> str:
    """Return rising numbers with their noun: `head 1`, `layers 1 to 3, 5`, `layers 1, 3, ..., 31`."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    ranges: list[tuple[int, int]] = []  # the first and the last of numbers that follow each other
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    if len(texts) > MOST_RANGES:
        texts = [*texts[:2], "...", str(numbers[-1])]
    return f"{noun}s {', '.join(texts)}"


def near_keys_sentence(panel: Curves) -> str:
    """Return the share of the weight on the nearest T/4 keys, for the shortest and the longest window."""
    near = _near(panel)
    fewest = panel.lines[0]
    most = panel.lines[-1]
    text = f"{_nearest_keys_get(near)} {_share_before(fewest, near)} of the weight where {fewest.label}"
    if len(panel.lines) == 1:
        return f"To see: {text}."
    return f"To see: {text}, and {_share_before(most, near)} where {most.label}."


def _near(panel: Curves) -> int:
    """Return how many keys count as near: T/4."""
    return max(1, round(panel.marks["T"]) // 4)


def _nearest_keys_get(near: int) -> str:
    return "the nearest key gets" if near == 1 else f"the nearest {near} keys get"


def _share_before(line: Line, distance: int) -> str:
    """Return the share of the weight that goes to keys nearer than a distance: `25%`."""
    return share_text(float(line.y[:distance].sum()))


# --- a trained model on text


def far_keys_sentence(panel: Curves, share_past: float) -> str:
    """Return how much weight goes to distances that no training window had, and to the nearest keys.

    `share_past` is that weight in the longest window. The panel ends before the distances of first tokens.
    """
    near = _near(panel)
    at_t = panel.lines[0]
    near_text = f"{_nearest_keys_get(near)} {_share_before(at_t, near)} at {at_t.label}"
    if len(panel.lines) == 1:  # no window is longer than T
        return f"To see: {near_text}."
    at_far = panel.lines[1]
    past = f"{share_text(share_past)} of the attention goes farther than any training window reached"
    near_text += f" and {_share_before(at_far, near)} at {at_far.label}"
    return f"To see: at {at_far.label}, {past}; {near_text}."


def first_token_sentence(panel: Curves, layers: Sequence[Line]) -> str:
    """Return the weight on the first token at T and at the longest window, in the layer that has most.

    `layers` are the lines of all layers: the panel shows some of them.
    """
    length = panel.marks["T"]
    # A sink may stand in one layer alone, and the mean over layers would hide it.
    most = max(layers, key=lambda line: value_at(line, length))
    at_t = share_text(value_at(most, length))
    equal = share_text(1 / length)
    text = f"the first token gets most in {most.label}, {at_t} at T (an equal share is {equal})"
    if _ends_at_t(panel):
        return f"To see: {text}."
    return f"To see: {text} and {share_text(float(most.y[-1]))} at {_last_mark(panel)}."


def entropy_sentence(panel: Curves, layers: Sequence[Line]) -> str:
    """Return to how many keys attention spreads, at T and at the longest window, mean over all layers."""
    # Entropies are averaged and then turned into keys: the mean of the keys would mostly be that of the most
    # spread layer.
    at_t = float(np.mean([value_at(line, panel.marks["T"]) for line in layers]))
    text = f"attention spreads like {number_text(np.exp(at_t))} equal keys at T"
    if _ends_at_t(panel):
        return f"To see: {text} ({at_t:.2f} nats, mean of the layers)."
    at_end = float(np.mean([line.y[-1] for line in layers]))
    text += f" and {number_text(np.exp(at_end))} at {_last_mark(panel)}"
    return f"To see: {text} ({at_t:.2f} and {at_end:.2f} nats, mean of the layers)."


def loss_sentence(panel: Curves, level: float) -> str:
    """Return where past T the loss leaves its level, the mean from T/2 to T, and where it ends."""
    line = panel.lines[0]
    length = panel.marks["T"]
    past = line.x > length
    start = f"the loss is {level:.2f} nats from T/2 to T"
    if not past.any():
        return f"To see: {start}."
    end = f"ends at {line.y[-1]:.2f}"
    is_high = line.y > level + BREAK
    if not is_high[-1]:
        return f"To see: {start}, and it {end}: it does not stay more than {BREAK:g} above that."
    # One bin alone may be high by chance: the break is where the loss rises and never comes back.
    is_low = past & ~is_high
    position = line.x[is_low][-1] if is_low.any() else length
    return f"To see: {start}; past position {position:,.0f} it stays more than {BREAK:g} above, and it {end}."


def _last_mark(panel: Curves) -> str:
    """Return the name of the longest marked length: `8T`."""
    return max(panel.marks, key=lambda name: panel.marks[name])


def _ends_at_t(panel: Curves) -> bool:
    """Tell whether no window is longer than T: then there is nothing to compare T with."""
    return _last_mark(panel) == "T"
