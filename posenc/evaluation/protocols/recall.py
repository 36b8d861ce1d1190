"""recall: does a model use far text? It is asked, at the end of a window, for a value planted farther back.

A pair is a cue (a few tokens) and the value after it. A window of W inputs is text from anywhere in a
document, with pairs of `data.plant` written over it, each once. At the end of the window the cue of one of
them comes again, exactly `distance` tokens after the first time, and its value is the only target.

A question is a distance and a number of pairs. Every distance is asked with as many pairs as in training, and
one distance within T also with other numbers of pairs. With `eval.recall.kind` the pairs are of another kind
than those that the model was trained on.

Texts and pairs are drawn by the run's seed. All encodings, questions and windows of a seed have the same
ones, and another seed has others, so that the mean over seeds does not depend on one draw. (Up to version 0.1
all runs had one draw. With it one model found 25% of the values, with three other draws 12, 14 and 15%.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le, MinLen

from posenc.core.errors import UserError
from posenc.core.seeds import permutations, raw_draws, seed_for
from posenc.data.planted import write_pairs
from posenc.data.plants import find_plant, plant_of
from posenc.data.plants.base import Plant
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths, nearest_length
from posenc.evaluation.protocols.base import MeasurementFacts, Protocol, ProtocolSettings
from posenc.evaluation.request import EvalRequest, Plan
from posenc.evaluation.sums import LossSums, sums_by_document
from posenc.results.beside.recall import RecallCounts
from posenc.settings.base import Settings as SettingsGroup
from posenc.settings.numbers import Text, Whole, check_whole
from posenc.settings.tree import LARGEST_ALPHABET, LONGEST_CONTEXT, PlantSettings, TokensOrMultiple

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

REVISION = 2  # of the targets, in their hash
# Tables show what is found within T and at the farthest distance. All other questions are asked of the first
# quarter of the texts: of all texts a measurement takes four times as long.
GRID_DIVISOR = 4
IN_TEXT = np.uint64(1 << 63)  # set in the draw of what occurs in the text, so that it is sorted last


class RecallSettings(SettingsGroup):
    """The group `eval.recall`."""

    distances: Annotated[list[TokensOrMultiple], MinLen(1)]
    pairs: Annotated[list[Annotated[Whole, Ge(1), Le(LARGEST_ALPHABET)]], MinLen(1)]
    windows: Annotated[Whole, Ge(1), Le(10**6)]  # up to T and at the farthest distance; elsewhere a quarter
    # The defaults serve stored runs whose settings do not have these keys.
    draw: Annotated[Whole, Ge(0), Le(10**6)] = 0  # which draw of the seed
    kind: Text | None = None  # of the plant


class RecallQuestion(NamedTuple):
    """How far back the asked pair stands, and among how many pairs."""

    distance: int  # tokens between the two places of the asked cue
    pairs: int  # planted in the window


@dataclass(frozen=True, kw_only=True)
class PlantedTexts(Plan):
    """N texts and the pairs that are planted in each, the asked pair first."""

    documents: np.ndarray  # (N,) int64, index in the split
    ends: np.ndarray  # (N,) int64, exclusive, in tokens of the document
    cues: np.ndarray  # (N, most pairs, cue_length) int64
    values: np.ndarray  # (N, most pairs) int64
    end: np.ndarray  # (e,) int64, tokens after every value except the asked one
    questions: tuple[RecallQuestion, ...]  # those with as many pairs as in training come first
    kind: str  # of the plant
    choices: int  # values that a pair may have
    seed: int  # of the places of pairs in the windows
    train_length: int  # T, tokens

    @property
    def cue_length(self) -> int:
        """Return the number of tokens before a value."""
        return self.cues.shape[2]

    @property
    def pair_length(self) -> int:
        """Return how many tokens a whole pair has."""
        return self.cue_length + 1 + len(self.end)

    def questions_in(self, window: int) -> list[RecallQuestion]:
        """Return the questions that can be asked in a window.

        Even a question with few pairs needs a window with room for as many pairs as in training.
        """
        if not self.questions:
            return []
        trained_pairs = self.questions[0].pairs
        questions = []
        for question in self.questions:
            most_pairs = 1 + len(self.free_places(window, question.distance))  # the asked one and the others
            is_inside = self.pair_length <= question.distance <= window - self.cue_length
            if is_inside and most_pairs >= max(question.pairs, trained_pairs):
                questions.append(question)
        return questions

    def check_fits(self, window: int) -> None:
        if len(self.ends) == 0:
            raise NotApplicableError("n/a: recall is of a model trained with data.plant, on its own corpus")
        if not self.questions_in(window):
            raise NotApplicableError(f"n/a: no pair of eval.recall fits into {window}")

    def free_places(self, window: int, distance: int) -> np.ndarray:
        """Return where the other pairs can stand: whole lengths of a pair before or after the asked pair."""
        size = self.pair_length
        last_place = window - self.cue_length  # where the asked cue comes again
        asked_place = last_place - distance
        # In steps of a pair's length from the asked pair, so that no two pairs overlap.
        places = np.arange(asked_place % size, last_place - size + 1, size)
        return places[places != asked_place]

    def windows_asked(self, window: int, question: RecallQuestion) -> int:
        """Return in how many windows a question is asked: in the first ones of the plan."""
        count = len(self.ends)
        trained_pairs = self.questions[0].pairs
        # Tables show recall at the farthest distance of a window, so it needs the narrowest interval.
        farthest = max(fitting.distance for fitting in self.questions_in(window))
        is_farthest = question == RecallQuestion(farthest, trained_pairs)
        if window <= self.train_length or is_farthest:
            return count
        return -(-count // GRID_DIVISOR)  # rounded up

    def tokens(self, window: int) -> int:
        return self.count_targets(window) * window

    def targets_in(self, window: int) -> int:
        return 1

    def count_targets(self, window: int) -> int:
        return sum(self.windows_asked(window, question) for question in self.questions_in(window))


class Recall(Protocol[PlantedTexts]):
    name = "recall"
    title = "planted values"
    explain = "values of planted pairs, asked for at the end of a window"
    note = explain
    why_loss_changes = "the pairs may stand farther back"
    unit = "nats per value"
    reason_against_given_models = "asks for what posenc planted in the training text"

    class Settings(ProtocolSettings):
        recall: RecallSettings

    settings: Settings

    def distances(self, lengths: EvalLengths) -> list[int]:
        """Return the distances in tokens, ascending. Multiples of T are rounded to whole tokens."""
        key = "eval.recall.distances"
        distances = set()
        for distance in self.settings.recall.distances:
            if isinstance(distance, str):
                # At distance 1 the value would stand where the cue comes again.
                distances.add(max(2, nearest_length(key, distance, lengths.base_length)))
            else:
                distances.add(check_whole(key, distance, least=2, most=LONGEST_CONTEXT))
        return sorted(distances)

    def check(self, lengths: EvalLengths) -> None:
        self.distances(lengths)
        if self.settings.recall.kind is not None:
            find_plant(self.settings.recall.kind, key="eval.recall.kind")

    def check_text(self, facts: MeasurementFacts) -> None:
        """Raise UserError if there are fewer cues than pairs, or the tokenizer does not have the tokens."""
        if facts.plant is None:
            return
        plant = self.asked_plant(facts.plant)
        kind = find_plant(plant.kind)
        kind.check(plant, facts.tokenizer)
        cues = kind.cue_count(plant)
        # As many pairs as in training are asked for, and another kind may have fewer cues.
        if plant.pairs > cues:
            pairs = f"data.plant.pairs={plant.pairs}"
            problem = f"has fewer cues ({cues}) than a training window has pairs: {pairs}"
            raise UserError("eval.recall.kind", plant.kind, problem)
        most_pairs = max(self.settings.recall.pairs)
        if most_pairs > cues:
            problem = f"more than there are cues: data.plant.alphabet={plant.alphabet}"
            raise UserError("eval.recall.pairs", most_pairs, problem, allowed=f"1 to {cues}")
        pair_length = kind.length_of_pair(plant)
        for distance in self.settings.recall.distances:
            # A multiple of T is left out where no pair fits, as a window is. A number of tokens is meant.
            if not isinstance(distance, str) and distance < pair_length:
                problem = f"is shorter than a planted pair of {pair_length} tokens"
                raise UserError("eval.recall.distances", distance, problem)

    def asked_plant(self, trained: PlantSettings) -> PlantSettings:
        """Return what is planted in the windows that ask: as in training, or of another kind."""
        kind = self.settings.recall.kind
        return trained if kind is None else trained.with_changes(kind=kind)

    def plan(self, request: EvalRequest) -> PlantedTexts:
        """Choose texts and draw key-value pairs whose keys do not occur in them.

        Empty if no pairs were planted in the text that the model was trained on.
        """
        if request.plant is None:
            return no_texts(request)
        plant = plant_of(self.asked_plant(request.plant), request.store)
        # The encoding is not in the seed, so that all encodings of a seed are asked the same.
        seed = seed_for(request.seed, self.name, self.settings.recall.draw)
        documents, ends = draw_texts(request, self.settings.recall.windows, seed)
        questions = self.questions(request.lengths, plant.settings.pairs)
        most_pairs = max(question.pairs for question in questions)
        cues, values = draw_pairs(request, plant, documents, ends, most_pairs, seed)
        return PlantedTexts(
            hash=self.digest(request, plant, questions),
            documents=documents,
            ends=ends,
            cues=cues,
            values=values,
            end=plant.end,
            questions=questions,
            kind=plant.name,
            choices=len(plant.values),
            seed=seed,
            train_length=request.lengths.context_length,
        )

    def digest(self, request: EvalRequest, plant: Plant, questions: Sequence[RecallQuestion]) -> str:
        """Hash what the windows are drawn from, not what one seed draws, so that all seeds share a hash."""
        settings = self.settings.recall
        pairs = plant.settings.pairs
        numbers = [request.lengths.longest, settings.windows, settings.draw, plant.settings.cue, pairs]
        arrays = [*plant.tokens(), np.array(questions, dtype=np.int64)]
        return request.digest(self.name, REVISION, *numbers, *arrays)

    def questions(self, lengths: EvalLengths, trained_pairs: int) -> tuple[RecallQuestion, ...]:
        """Return the questions: every distance with as many pairs as in training, one with other numbers.

        That one is the largest distance within T/2.
        """
        distances = self.distances(lengths)
        near_distances = [distance for distance in distances if distance <= lengths.base_length / 2]
        probed_distance = max(near_distances, default=min(distances))
        # That number has been asked at every distance already.
        other_numbers = sorted({*self.settings.recall.pairs} - {trained_pairs})
        questions = [RecallQuestion(distance, trained_pairs) for distance in distances]
        questions += [RecallQuestion(probed_distance, pairs) for pairs in other_numbers]
        return tuple(questions)

    def measure(self, context: EvalContext, plan: PlantedTexts, window: int) -> LossSums:
        """Ask every question that fits into the window. Raises NotApplicableError if none does."""
        # A model without planted pairs has no texts, as `plan` says, and fits nowhere.
        plan.check_fits(window)
        count = len(plan.ends)
        questions = plan.questions_in(window)
        nats = np.zeros(count)
        targets = np.zeros(count, dtype=np.int64)
        counts = RecallCounts(
            distance=[],
            pairs=[],
            windows=[],
            correct=[],
            nats=[],
            draw=self.settings.recall.draw,
            kind=plan.kind,
            choices=plan.choices,
        )
        for n_done, question in enumerate(questions):
            n_asked = plan.windows_asked(window, question)
            windows = windows_of(context, plan, window, question, n_asked)
            part = context.part_of_cell(n_done, len(questions))
            scores = part.token_scores(windows, n_targets=1)  # (n_asked, 1) each
            nats[:n_asked] += scores.nats[:, 0]
            targets[:n_asked] += 1
            counts["distance"].append(question.distance)
            counts["pairs"].append(question.pairs)
            counts["windows"].append(n_asked)
            counts["correct"].append(int(scores.is_best.sum()))
            counts["nats"].append(float(scores.nats[:, 0].mean()))
        sums = sums_by_document(plan.documents, nats, targets, np.zeros(count))
        if not np.isfinite(nats).all():
            return sums  # a record holds finite numbers only: without these it says `diverged`
        return dataclasses.replace(sums, extra={self.name: counts})


def no_texts(request: EvalRequest) -> PlantedTexts:
    """Return a plan without texts, for a model that was trained without pairs."""
    nothing = np.zeros(0, dtype=np.int64)
    return PlantedTexts(
        hash=request.digest(Recall.name, REVISION),
        documents=nothing,
        ends=nothing,
        cues=np.zeros((0, 0, 1), dtype=np.int64),
        values=np.zeros((0, 0), dtype=np.int64),
        end=nothing,
        questions=(),
        kind="",
        choices=0,
        seed=0,
        train_length=request.lengths.context_length,
    )


def draw_texts(request: EvalRequest, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the document of each window, and where in it the window ends (exclusive): (N,) int64 each.

    Documents that are long enough take turns, so that the numbers of their windows differ by at most one. A
    window may lie anywhere in its document. There are none if no document is long enough.
    """
    ends_of_documents = request.count_window_ends()
    eligible = np.flatnonzero(ends_of_documents)
    if not len(eligible):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # in random order, and from the beginning again if there are more windows than documents
    order = permutations(raw_draws(len(eligible), seed_for(seed, "documents"), 0))
    documents = eligible[order[np.arange(count) % len(eligible)]]
    # Unsigned like the draws: numpy turns a mixture of int64 and uint64 into floats.
    n_ends = ends_of_documents[documents].astype(np.uint64)
    ordinals = raw_draws(count, seed_for(seed, "ends"), 0) % n_ends
    return documents, request.lengths.longest + 1 + ordinals.astype(np.int64)


def draw_pairs(
    request: EvalRequest, plant: Plant, documents: np.ndarray, ends: np.ndarray, pairs: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw cues (N, pairs, cue_length) and values (N, pairs). Cues that occur in the text are taken last."""
    raw = raw_draws(len(ends) * (plant.cue_draws + pairs), seed_for(seed, "pairs"), 0)
    # The highest bit is cleared, so that it can mark draws below.
    raw = raw.reshape(len(ends), -1) >> np.uint64(1)  # (N, draws), all below IN_TEXT
    cue_draws, value_draws = np.split(raw, [plant.cue_draws], axis=1)
    for row, (document, end) in enumerate(zip(documents, ends, strict=True)):
        text = request.store.document(request.split, document)[end - request.lengths.longest - 1 : end]
        # small draws are taken first, and this bit makes a draw larger than all others
        cue_draws[row, plant.draws_of_used(text)] |= IN_TEXT
    return plant.draw_cues(cue_draws, pairs), plant.draw_values(value_draws)


def windows_of(
    context: EvalContext,
    plan: PlantedTexts,
    window: int,
    question: RecallQuestion,
    n_windows: int | None = None,
) -> np.ndarray:
    """Return the first N windows of a question, or all: (N, W + 1) int64, the asked value last."""
    distance, pairs = question
    stops = (context.document_starts[plan.documents] + plan.ends)[:n_windows]
    texts = [context.store.tokens[stop - window - 1 : stop] for stop in stops]
    # These are copies of the text, so pairs can be written over them.
    tokens = np.stack(texts).astype(np.int64)  # (N, W + 1)
    count = len(tokens)
    free = plan.free_places(window, distance)
    seed = seed_for(plan.seed, window, distance, pairs)
    order = permutations(raw_draws(count * len(free), seed, 0).reshape(count, -1))
    other_places = free[order[:, : pairs - 1]]  # (N, pairs - 1)
    last_place = np.full((count, 1), window - plan.cue_length)
    places = np.concatenate((last_place - distance, other_places), axis=1)  # (N, pairs)
    # The first ones of the most pairs, so that the asked pair is the same with every number of pairs.
    cues = plan.cues[:n_windows, :pairs]
    values = plan.values[:n_windows, :pairs]
    write_pairs(tokens, places, cues, values, plan.end)
    # the asked pair, which is the first one, comes again without its end: the window ends with its value
    write_pairs(tokens, last_place, cues[:, :1], values[:, :1], plan.end[:0])
    return tokens
