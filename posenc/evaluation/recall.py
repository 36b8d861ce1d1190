"""recall: is the far text used? The value of a planted pair is asked for at the end of a window.

A window of W inputs is text of a test document with the pairs of `data.plant`, each once at a drawn place;
the asked one exactly `distance` tokens before its cue comes again as the last input. Its value is the only
target.
Cells are windows W times distances, with the pairs of the training; at one distance within T also with other
numbers of pairs. Texts, pairs and the asked one are the same in all cells, and for every encoding.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from posenc.core.seeds import permutations, raw_draws, seed_for
from posenc.data.planted import Plant, draw_cues, draw_values, plant_of
from posenc.evaluation.forward_cache import (
    EvalContext,
    LossSums,
    NotApplicableError,
    sums_by_document,
    window_losses,
)
from posenc.evaluation.plans import EvalRequest, choose
from posenc.results.schema import Recall

NAME = "recall"
UNIT = "nats per value"
REVISION = 1  # of the targets
SEED = 2402  # of pairs and places, never the training seed: all runs see the same windows


@dataclasses.dataclass(frozen=True)
class Plan:
    """Texts with their pairs, the asked one first; lines are (distance, pairs), as in training first."""

    documents: np.ndarray  # (N,) int64, index in the split
    ends: np.ndarray  # (N,) int64, exclusive, in tokens of the document
    cues: np.ndarray  # (N, most pairs, cue) int64
    values: np.ndarray  # (N, most pairs) int64
    lines: list[tuple[int, int]]
    hash: str
    block: int = 1

    def fitting(self, window: int) -> list[tuple[int, int]]:
        """Return the lines that fit into a window, fewer pairs only where those of the training do."""
        cue, trained = self.cues.shape[2], self.lines[0][1] if self.lines else 0
        return [
            (distance, pairs)
            for distance, pairs in self.lines
            if cue < distance <= window - cue and len(self.free(window, distance)) >= max(pairs, trained) - 1
        ]

    def free(self, window: int, distance: int) -> np.ndarray:
        """Return the places of the other pairs, side by side with the asked one's first."""
        cue = self.cues.shape[2]
        first = window - cue - distance
        places = np.arange(first % (cue + 1), window - 2 * cue, cue + 1)
        return places[places != first]

    def tokens(self, window: int) -> int:
        """Count a window for each text and line."""
        return len(self.fitting(window)) * len(self.ends) * window


def plan(request: EvalRequest) -> Plan:
    """Choose texts and draw their pairs, of keys that the text has not; no text without `data.plant`."""
    none, settings = np.zeros(0, dtype=np.int64), request.plant
    if settings is None:
        return Plan(none, none, np.zeros((0, 0, 1)), np.zeros((0, 0)), [], request.digest(NAME, REVISION))
    plant, asked = plant_of(settings, request.store), request.recall
    assert asked is not None
    places = np.maximum(0, request.lengths - request.longest)  # ends that a document has
    documents, at = choose(places, asked.windows)
    ends = request.longest + 1 + at
    within = [d for d in asked.distances if d <= request.base / 2]
    usual = max(within, default=min(asked.distances))
    lines = [(d, plant.pairs) for d in asked.distances]
    lines += [(usual, pairs) for pairs in asked.pairs if pairs != plant.pairs]
    cues, values = _draw(request, plant, documents, ends, max(pairs for _, pairs in lines))
    digest = request.digest(NAME, REVISION, documents, ends, cues, values, np.array(lines))
    return Plan(documents, ends, cues, values, lines, digest)


def _draw(
    request: EvalRequest, plant: Plant, documents: np.ndarray, ends: np.ndarray, pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return cues (N, pairs, cue) and values (N, pairs); keys that are in the text come last of all."""
    raw = raw_draws(len(ends) * (plant.cue * plant.alphabet + pairs), seed_for(SEED, NAME), 0)
    raw = raw.reshape(len(ends), -1) >> np.uint64(1)
    keys, values = np.split(raw, [plant.cue * plant.alphabet], axis=1)
    for own, document, end in zip(keys, documents, ends, strict=True):
        text = request.store.document(request.split, document)[end - request.longest - 1 : end]
        own |= np.uint64(1 << 63) * np.tile(np.isin(plant.keys, text), plant.cue).astype(np.uint64)
    return draw_cues(keys, plant, pairs), draw_values(values, plant)


def windows_at(context: EvalContext, plan: Plan, window: int, distance: int, pairs: int) -> np.ndarray:
    """Return the windows of a line: (N, W + 1) int64, the asked value last."""
    stops = context.starts[plan.documents] + plan.ends
    tokens = np.stack([context.store.tokens[stop - window - 1 : stop] for stop in stops]).astype(np.int64)
    free, cue, row = plan.free(window, distance), plan.cues.shape[2], np.arange(len(tokens))[:, None]
    raw = raw_draws(len(tokens) * len(free), seed_for(SEED, NAME, window, distance, pairs), 0)
    others = free[permutations(raw.reshape(len(tokens), -1))[:, : pairs - 1]]  # (N, pairs - 1)
    asked = np.full((len(tokens), 1), window - cue)
    at = np.concatenate((asked - distance, others, asked), axis=1)  # of pairs 0, 1, ..., and 0 again
    pair = np.append(np.arange(pairs), 0)
    for i in range(cue):
        tokens[row, at + i] = plan.cues[row, pair, i]
    tokens[row, at + cue] = plan.values[row, pair]
    return tokens


def measure(context: EvalContext, plan: Plan, window: int) -> LossSums:
    """Ask for the values of every line that fits into the window; NotApplicableError where none does."""
    if not len(plan.ends):
        raise NotApplicableError("n/a: recall is of a model trained with data.plant, on its own corpus")
    lines = plan.fitting(window)
    if not lines:
        raise NotApplicableError(f"n/a: no pair of eval.recall fits into {window}")
    nats, found = np.zeros(len(plan.ends)), Recall(distance=[], pairs=[], windows=[], correct=[], nats=[])
    for distance, pairs in lines:
        read = windows_at(context, plan, window, distance, pairs).__getitem__
        scores = window_losses(context, read, len(nats), window, 1, hits=True)  # (N, 2)
        nats += scores[:, 0]
        found["distance"].append(distance)
        found["pairs"].append(pairs)
        found["windows"].append(len(nats))
        found["correct"].append(int(scores[:, 1].sum()))
        found["nats"].append(float(scores[:, 0].mean()))
    sums = sums_by_document(plan.documents, nats, np.full(len(nats), len(lines)), np.zeros(len(nats)))
    return dataclasses.replace(sums, recall=found if np.isfinite(nats).all() else None)
