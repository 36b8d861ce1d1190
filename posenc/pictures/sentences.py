"""Say what to see in a panel, by the numbers that it shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posenc.pictures.panels import FAR, Curves, KeyMask, Line, Numbers, VectorMap
from posenc.report.texts import share_text
from posenc.results.records import BREAK

TRAIN_FIRST = "To see: nothing yet, the values are random: train first, then posenc show run=DIR."
SAME = 1e-6  # of the largest number: smaller differences are rounding


def number_text(value: float) -> str:
    """Return a number with three digits, or as a whole number from 100 on."""
    value = value + 0.0  # it turns -0.0 into 0.0
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


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
        return f"To see: {fall}; the curves coincide, so it tells the distance alone."
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
    text = f"within T a number changes its sign up to {changes.max()} times"
    text += f", {n_constant} of {len(changes)} never"
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
    verb = "do not finish a turn" if count > 1 else "does not finish a turn"
    subject = f"To see: {count} of {len(trained)} pairs {verb} within T"
    # A pair that finished a turn has met every angle, so that only the others can meet a new one past T.
    goes_beyond = bool((far > trained * (1 + SAME))[is_unfinished].any())
    if goes_beyond:
        return f"{subject}; past T they reach angles never trained."
    return f"{subject}; up to {FAR}T they stay within the angles of training."


def wavelengths_sentence(panel: Curves) -> str:
    """Return how many waves are longer than T."""
    waves = panel.lines[0].y
    longer = int((waves > panel.y_marks["T"]).sum())
    span = f"{number_text(waves.min())} to {number_text(waves.max())} tokens"
    return f"To see: waves of {span}; {longer} of {len(waves)} are longer than T."


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
    fall = f"falls by up to {max(falls_to_t):.3g} nats to T and by {max(falls_past_t):.3g} more to {FAR}T"
    return f"To see: the bias {fall}."


def mask_sentence(panel: KeyMask) -> str:
    """Return how many keys the last query sees."""
    if panel.seen_by_last == panel.keys:
        return f"To see: the last query sees all {panel.keys} keys."
    return f"To see: the last query sees {panel.seen_by_last} of {panel.keys} keys."


def near_keys_sentence(panel: Curves) -> str:
    """Return which share of the weight the nearest keys get, where there are fewest keys and where most."""
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


def loss_sentence(panel: Curves) -> str:
    """Return where past T the loss leaves its level, and where it ends."""
    line = panel.lines[0]
    length = panel.marks["T"]
    # From the same mean `posenc compare` takes the rise of a curve.
    level = float(line.y[(line.x > length / 2) & (line.x <= length)].mean())
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
