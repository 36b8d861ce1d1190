"""recall: is the far text used? The value of a planted pair is asked for at the end of a window.

A window of W inputs is text of a test document with the pairs of `data.plant`, each once at a drawn place.
The asked pair stands exactly `distance` tokens before its cue comes again at the window's end, and its
value is the only target. A question is a distance and a number of pairs: every distance with as many pairs
as in training, and one distance within T also with other numbers. Texts, pairs and the asked pair are the
same in all questions and windows, and for every encoding.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le, MinLen

from posenc.core.errors import UserError
from posenc.core.seeds import permutations, raw_draws, seed_for
from posenc.data.planted import Plant, draw_cues, draw_values, plant_of
from posenc.evaluation.blocks import choose_blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths, nearest_length
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings, TextFacts
from posenc.evaluation.request import EvalRequest, Plan
from posenc.evaluation.sums import LossSums, sums_by_document
from posenc.results.records import Recall as RecallCounts
from posenc.settings.base import Settings as SettingsGroup
from posenc.settings.numbers import Whole, check_whole
from posenc.settings.tree import LARGEST_ALPHABET, LONGEST_CONTEXT, TokensOrMultiple

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

REVISION = 1  # of the targets
SEED = 2402  # of pairs and places, never the training seed: all runs see the same windows
IN_TEXT = np.uint64(1 << 63)  # added to the draw of a key that the text has, so that it is sorted last


class RecallSettings(SettingsGroup):
    """The group `eval.recall`."""

    distances: Annotated[list[TokensOrMultiple], MinLen(1)]
    pairs: Annotated[list[Annotated[Whole, Ge(1), Le(LARGEST_ALPHABET)]], MinLen(1)]
    windows: Annotated[Whole, Ge(1), Le(10**6)]  # for each window length, distance and number of pairs


class Question(NamedTuple):
    """A question asked in a window: at which distance, among how many pairs."""

    distance: int  # tokens between the two places of the asked cue
    pairs: int  # planted in the window


@dataclass(frozen=True, kw_only=True)
class PlantedTexts(Plan):
    """Texts and the pairs that are planted in them, the asked pair first."""

    documents: np.ndarray  # (N,) int64, index in the split
    ends: np.ndarray  # (N,) int64, exclusive, in tokens of the document
    cues: np.ndarray  # (N, most pairs, cue) int64
    values: np.ndarray  # (N, most pairs) int64
    questions: tuple[Question, ...]  # those with as many pairs as in training come first

    @property
    def cue(self) -> int:
        """Return the number of tokens before a value."""
        return self.cues.shape[2]

    def fitting(self, window: int) -> list[Question]:
        """Return the questions that fit into a window.

        Where the pairs of the training do not fit, fewer pairs are not asked either.
        """
        if not self.questions:
            return []
        trained_pairs = self.questions[0].pairs
        fitting = []
        for question in self.questions:
            room = len(self.free_places(window, question.distance)) + 1  # the asked pair has its own place
            is_inside = self.cue < question.distance <= window - self.cue
            if is_inside and room >= max(question.pairs, trained_pairs):
                fitting.append(question)
        return fitting

    def free_places(self, window: int, distance: int) -> np.ndarray:
        """Return the places for the other pairs: they tile the window, side by side with the asked pair."""
        size = self.cue + 1  # tokens of a pair
        asked_place = window - self.cue - distance
        places = np.arange(asked_place % size, window - 2 * self.cue, size)
        return places[places != asked_place]

    def tokens(self, window: int) -> int:
        return len(self.fitting(window)) * len(self.ends) * window

    def targets_in(self, window: int) -> int:
        return 1


class Recall(Protocol[PlantedTexts]):
    name = "recall"
    title = "planted values"
    explain = "values of planted pairs, asked for at the end of a window"
    note = "values of planted pairs, asked for at the end of a window"
    in_longer_windows = "the pairs may stand farther back"
    unit = "nats per value"
    refuses_given = "asks for what posenc planted in the training text"

    class Settings(ProtocolSettings):
        recall: RecallSettings

    settings: Settings

    def distances(self, lengths: EvalLengths) -> list[int]:
        """Return the distances in tokens, ascending; multiples of T are rounded to tokens."""
        key = "eval.recall.distances"
        distances = set()
        for distance in self.settings.recall.distances:
            if isinstance(distance, str):
                distances.add(max(2, nearest_length(key, distance, lengths.base_length)))
            else:
                distances.add(check_whole(key, distance, least=2, most=LONGEST_CONTEXT))
        return sorted(distances)

    def check(self, lengths: EvalLengths) -> None:
        self.distances(lengths)

    def check_text(self, text: TextFacts) -> None:
        """Raise UserError if there are fewer cues than pairs."""
        most = max(self.settings.recall.pairs)
        if text.plant is not None and most > text.plant.alphabet:
            problem = f"more than there are cues: data.plant.alphabet={text.plant.alphabet}"
            raise UserError("eval.recall.pairs", most, problem, allowed=f"1 to {text.plant.alphabet}")

    def plan(self, request: EvalRequest) -> PlantedTexts:
        """Choose texts and draw key-value pairs whose keys do not occur in them.

        Empty if no pairs were planted in the text that the model was trained on.
        """
        if request.plant is None:
            return no_texts(request)
        plant = plant_of(request.plant, request.store)
        longest = request.lengths.longest
        candidates = np.maximum(0, request.document_lengths - longest)  # ends that a document has
        documents, places = choose_blocks(candidates, self.settings.recall.windows)
        ends = longest + 1 + places
        questions = self.questions(request.lengths, plant.pairs)
        most_pairs = max(question.pairs for question in questions)
        cues, values = draw_pairs(request, plant, documents, ends, most_pairs)
        digest = request.digest(
            self.name, REVISION, documents, ends, cues, values, np.array(questions, dtype=np.int64)
        )
        return PlantedTexts(
            hash=digest, documents=documents, ends=ends, cues=cues, values=values, questions=questions
        )

    def questions(self, lengths: EvalLengths, trained_pairs: int) -> tuple[Question, ...]:
        """Return every distance with as many pairs as in training, and one within T/2 with other numbers."""
        distances = self.distances(lengths)
        near_distances = [distance for distance in distances if distance <= lengths.base_length / 2]
        probed_distance = max(near_distances, default=min(distances))
        other_numbers = sorted({*self.settings.recall.pairs} - {trained_pairs})
        questions = [Question(distance, trained_pairs) for distance in distances]
        questions += [Question(probed_distance, pairs) for pairs in other_numbers]
        return tuple(questions)

    def measure(self, context: EvalContext, plan: PlantedTexts, window: int) -> LossSums:
        """Ask every question that fits into the window. Raises NotApplicableError if none does."""
        count = len(plan.ends)
        if count == 0:
            raise NotApplicableError("n/a: recall is of a model trained with data.plant, on its own corpus")
        questions = plan.fitting(window)
        if not questions:
            raise NotApplicableError(f"n/a: no pair of eval.recall fits into {window}")
        nats = np.zeros(count)
        counts = RecallCounts(distance=[], pairs=[], windows=[], correct=[], nats=[])
        for question in questions:
            windows = windows_of(context, plan, window, question)
            scores = context.window_scores(windows.__getitem__, count, window, 1)  # (N, 1) each
            nats += scores.nats[:, 0]
            counts["distance"].append(question.distance)
            counts["pairs"].append(question.pairs)
            counts["windows"].append(count)
            counts["correct"].append(int(scores.is_best.sum()))
            counts["nats"].append(float(scores.nats[:, 0].mean()))
        targets = np.full(count, len(questions))
        sums = sums_by_document(plan.documents, nats, targets, np.zeros(count))
        if not np.isfinite(nats).all():
            return sums
        return dataclasses.replace(sums, extra={"recall": counts})


def no_texts(request: EvalRequest) -> PlantedTexts:
    """Return a plan without texts."""
    nothing = np.zeros(0, dtype=np.int64)
    return PlantedTexts(
        hash=request.digest(Recall.name, REVISION),
        documents=nothing,
        ends=nothing,
        cues=np.zeros((0, 0, 1), dtype=np.int64),
        values=np.zeros((0, 0), dtype=np.int64),
        questions=(),
    )


def draw_pairs(
    request: EvalRequest, plant: Plant, documents: np.ndarray, ends: np.ndarray, pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw cues (N, pairs, cue) and values (N, pairs). Keys that occur in the text are taken last of all."""
    n_key_draws = plant.cue * plant.alphabet
    raw = raw_draws(len(ends) * (n_key_draws + pairs), seed_for(SEED, Recall.name), 0)
    raw = raw.reshape(len(ends), -1) >> np.uint64(1)  # (N, draws) below IN_TEXT
    key_draws, value_draws = np.split(raw, [n_key_draws], axis=1)
    for row, (document, end) in enumerate(zip(documents, ends, strict=True)):
        text = request.store.document(request.split, document)[end - request.lengths.longest - 1 : end]
        is_in_text = np.tile(np.isin(plant.keys, text), plant.cue)
        key_draws[row, is_in_text] |= IN_TEXT
    return draw_cues(key_draws, plant, pairs), draw_values(value_draws, plant)


def windows_of(context: EvalContext, plan: PlantedTexts, window: int, question: Question) -> np.ndarray:
    """Return the windows of a question: (N, W + 1) int64, the asked value last."""
    distance, pairs = question
    stops = context.document_starts[plan.documents] + plan.ends
    texts = [context.store.tokens[stop - window - 1 : stop] for stop in stops]
    tokens = np.stack(texts).astype(np.int64)  # (N, W + 1)
    count = len(tokens)
    free = plan.free_places(window, distance)
    seed = seed_for(SEED, Recall.name, window, distance, pairs)
    order = permutations(raw_draws(count * len(free), seed, 0).reshape(count, -1))
    other_places = free[order[:, : pairs - 1]]  # (N, pairs - 1)
    last_place = np.full((count, 1), window - plan.cue)
    places = np.concatenate((last_place - distance, other_places, last_place), axis=1)  # (N, pairs + 1)
    pair_at = np.append(np.arange(pairs), 0)  # (pairs + 1,) the asked pair 0 comes first and last
    row = np.arange(count)[:, None]
    for i in range(plan.cue):
        tokens[row, places + i] = plan.cues[row, pair_at, i]
    tokens[row, places + plan.cue] = plan.values[row, pair_at]
    return tokens
