"""needle: does a model find a fact in a text? Sentences with a key and its value, in a window of real text.

A window of W inputs is text of a document into which sentences "The word for KEY is VALUE." were put. At its
end one of them begins again, "The word for KEY is", and the value is the target. There is no instruction, so
that a model that was never tuned to follow instructions can answer.

The asked sentence stands at a given depth: 0 is the beginning of the text, 1 its end. The sentences of other
keys stand anywhere. With several queries, several keys are asked for at the end, one after the other. Each
question comes after the right answers to the questions before it.

A word is a single token of the model's own tokenizer, of four to eight letters. Where the tokenizer has fewer
of them than a window needs, or hardly any (bytes), words of five letters are made up. A value is found if
each of its tokens is the model's first choice, so that greedy decoding would write it.

Texts, words and places are the same for every model with this tokenizer.

Source: Kamradt 2023 (needle in a haystack, a public script); several keys, values and queries as in RULER
(Hsieh et al. 2024, arXiv 2404.06654). Its instructions and its own words are not used here.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le, MinLen

from posenc.core.errors import UserError
from posenc.core.seeds import permutations, raw_draws, seed_for
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.blocks import choose_blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.request import EvalRequest, Plan
from posenc.evaluation.sums import LossSums, sums_by_document
from posenc.results.beside.needle import NeedleCounts
from posenc.settings.base import Settings as SettingsGroup
from posenc.settings.numbers import Number, Whole, check_whole

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

REVISION = 1  # of the targets, in their hash
SEED = 2404  # of words and places; not the training seed, so that all runs see the same
MOST_WORDS = 512
LEAST_WORDS = 64  # with fewer single tokens, words are made up, however few a window needs
# Tokenizers mark a space before a word by itself, by `▁` (SentencePiece) or by `Ġ` (bytes as letters).
WORD = re.compile(r"[ ▁Ġ]?[a-z]{4,8}")
BEFORE_KEY = "\nThe word for"
AFTER_KEY = " is"
AFTER_VALUE = ".\n"
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"


class NeedleSettings(SettingsGroup):
    """The group `eval.needle`."""

    depths: Annotated[list[Annotated[Number, Ge(0), Le(1)]], MinLen(1)]
    keys: Annotated[list[Annotated[Whole, Ge(1), Le(64)]], MinLen(1)]
    values: Annotated[Whole, Ge(1), Le(8)]  # words of a value
    queries: Annotated[Whole, Ge(1), Le(8)]  # keys that are asked for in a window
    windows: Annotated[Whole, Ge(1), Le(10**5)]  # for each window length, depth and number of keys


class Question(NamedTuple):
    """At which depth the asked sentence stands, and how many sentences there are.

    The hash of a plan covers the printed form of its questions, so that with another name of this class or of
    its fields stored records would not be found.
    """

    depth: float  # 0 is the beginning of the text, 1 its end
    keys: int  # sentences in the window


@dataclass(frozen=True, kw_only=True)
class SentenceTokens:
    """What sentences are made of: the words of a tokenizer, and the tokens between them."""

    words: np.ndarray  # (words, m) int64: all words have the same number of tokens
    before_key: np.ndarray
    after_key: np.ndarray
    after_value: np.ndarray

    def sentence(self, key: int, value: np.ndarray) -> np.ndarray:
        """Return the tokens of a sentence up to its value; `key` and `value` are indices of words."""
        return np.concatenate((self.before_key, self.words[key], self.after_key, self.words[value].ravel()))


@dataclass(frozen=True, kw_only=True)
class NeedleTexts(Plan):
    """N texts, and the words and places of their sentences. The first keys are asked for."""

    documents: np.ndarray  # (N,) int64, index in the split
    ends: np.ndarray  # (N,) int64, exclusive, in tokens of the document
    keys: np.ndarray  # (N, most keys) int64, index of a word
    values: np.ndarray  # (N, most keys, words of a value) int64
    places: np.ndarray  # (N, most keys) uint64, raw draws: where a sentence stands, modulo the text's length
    vocabulary: SentenceTokens
    queries: int  # keys that are asked for
    questions: tuple[Question, ...]

    @property
    def needle_length(self) -> int:
        """Return how many tokens a sentence has, its end included."""
        any_sentence = self.vocabulary.sentence(0, self.values[0, 0])
        return len(any_sentence) + len(self.vocabulary.after_value)

    @property
    def answer_length(self) -> int:
        """Return how many tokens a value has."""
        words_in_value = self.values.shape[2]
        tokens_in_word = self.vocabulary.words.shape[1]
        return int(words_in_value * tokens_in_word)

    @property
    def tail_length(self) -> int:
        """Return how many tokens the questions at the end of a window have, their answers included."""
        return self.queries * self.needle_length - len(self.vocabulary.after_value)

    def text_length(self, window: int, keys: int) -> int:
        """Return how many tokens of text are left in a window and its last target."""
        return window + 1 - keys * self.needle_length - self.tail_length

    def questions_in(self, window: int) -> list[Question]:
        """Return the questions that can be asked in a window: those that leave half of it to the text."""
        # Without a text there are no values, whose shape the lengths below are read from.
        if not len(self.ends):
            return []
        # With more sentences than text the window would be a list and no text with needles.
        least_text = window // 2
        questions = []
        for question in self.questions:
            if self.text_length(window, question.keys) >= least_text:
                questions.append(question)
        return questions

    def check_fits(self, window: int) -> None:
        if not self.questions_in(window):
            raise NotApplicableError(f"n/a: no sentence of eval.needle fits into {window} tokens of a text")

    def tokens(self, window: int) -> int:
        return len(self.questions_in(window)) * len(self.ends) * window

    def targets_in(self, window: int) -> int:
        return self.tail_length if len(self.ends) else 1

    def count_targets(self, window: int) -> int:
        n_windows = len(self.questions_in(window)) * len(self.ends)
        if n_windows == 0:
            return 0  # without a text there are no values, whose length is read below
        # Of a tail the values alone count, not the questions between them.
        return n_windows * self.queries * self.answer_length

    def answer_columns(self) -> np.ndarray:
        """Return the columns of the tail's tokens that are the answers: (queries, answer) int64."""
        sentences_after = np.arange(self.queries - 1, -1, -1)  # (queries,) how many follow in the tail
        ends = self.tail_length - sentences_after * self.needle_length  # (queries,) exclusive
        starts = ends - self.answer_length
        return starts[:, None] + np.arange(self.answer_length)


class Needle(Protocol[NeedleTexts]):
    name = "needle"
    title = "facts in a text"
    explain = "words that stand somewhere in the text, asked for at its end"
    note = explain
    unit = "nats per token of the value"
    needs_tokenizer = True
    count_key = "needle.windows"

    class Settings(ProtocolSettings):
        needle: NeedleSettings

    settings: Settings

    def check(self, lengths: EvalLengths) -> None:
        """Raise UserError for more queries than keys, and for more words than any tokenizer has."""
        settings = self.settings.needle
        too_small = f"fewer keys than eval.needle.queries={settings.queries}"
        check_whole("eval.needle.keys", min(settings.keys), least=settings.queries, too_small=too_small)
        check_words(settings, MOST_WORDS)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if there are fewer words of this tokenizer than a window needs."""
        settings = self.settings.needle
        vocabulary = words_of(tokenizer, words_in_window(settings))
        check_words(settings, len(vocabulary.words))

    def plan(self, request: EvalRequest) -> NeedleTexts:
        """Choose texts, and draw words and places, the same for all windows.

        The tokenizer has enough words: `check_tokenizer` has seen to that.
        """
        settings = self.settings.needle
        longest = request.lengths.longest
        most_words = words_in_window(settings)
        vocabulary = words_of(request.tokenizer or Tokenizer("bytes"), most_words)
        assert len(vocabulary.words) >= most_words
        documents, ordinals = choose_blocks(request.count_window_ends(), settings.windows)
        ends = longest + 1 + ordinals
        count = len(ends)
        most_keys = max(settings.keys)
        # Not by the run's seed, so that one set of windows serves all models with this tokenizer.
        seed = seed_for(SEED, self.name)
        draws = raw_draws(count * len(vocabulary.words), seed, 0).reshape(count, -1)
        drawn_words = permutations(draws)[:, :most_words]  # no word twice in a window
        keys, values = np.split(drawn_words, [most_keys], axis=1)
        values = values.reshape(count, most_keys, settings.values)
        pairs = itertools.product(settings.depths, settings.keys)
        questions = tuple(Question(depth, number) for depth, number in dict.fromkeys(pairs))
        parts = [documents, ends, keys, values, vocabulary.words, questions]
        # A single query is not in the hash, so that earlier records are found. Of several queries only the
        # first stood at the depth then, so records of several must not be found.
        if settings.queries > 1:
            parts.append(settings.queries)
        digest = request.digest(self.name, REVISION, *parts)
        return NeedleTexts(
            hash=digest,
            documents=documents,
            ends=ends,
            keys=keys,
            values=values,
            places=raw_draws(count * most_keys, seed, 1).reshape(count, most_keys),
            vocabulary=vocabulary,
            queries=settings.queries,
            questions=questions,
        )

    def measure(self, context: EvalContext, plan: NeedleTexts, window: int) -> LossSums:
        """Ask every question that fits into the window. Raises NotApplicableError if none does."""
        plan.check_fits(window)
        questions = plan.questions_in(window)
        count = len(plan.ends)
        columns = plan.answer_columns()  # (queries, answer)
        nats = np.zeros(count)
        counts = NeedleCounts(depth=[], keys=[], answers=[], correct=[], nats=[], windows=[])
        for n_done, question in enumerate(questions):
            windows = windows_of(context, plan, window, question)
            part = context.part_of_cell(n_done, len(questions))
            scores = part.token_scores(windows, plan.tail_length)
            answer_nats = scores.nats[:, columns]  # (N, queries, answer)
            is_found = scores.is_best[:, columns].all(axis=2)  # (N, queries)
            nats += answer_nats.sum(axis=(1, 2))
            counts["depth"].append(question.depth)
            counts["keys"].append(question.keys)
            counts["answers"].append(is_found.size)
            counts["correct"].append(int(is_found.sum()))
            counts["nats"].append(float(answer_nats.mean()))
            counts["windows"].append(count)
        targets = np.full(count, len(questions) * columns.size)
        sums = sums_by_document(plan.documents, nats, targets, np.zeros(count))
        if not np.isfinite(nats).all():
            return sums  # a record holds finite numbers only: without these it says `diverged`
        return dataclasses.replace(sums, extra={self.name: counts})


def windows_of(context: EvalContext, plan: NeedleTexts, window: int, question: Question) -> np.ndarray:
    """Return the windows of a question: (N, W + 1) int64, the last word of the last answer last."""
    length = plan.text_length(window, question.keys)
    stops = context.document_starts[plan.documents] + plan.ends
    windows = []
    for row, stop in enumerate(stops):
        text = context.store.tokens[stop - length : stop].astype(np.int64)
        needles = []
        for number in range(question.keys):
            sentence = plan.vocabulary.sentence(plan.keys[row, number], plan.values[row, number])
            needles.append(np.concatenate((sentence, plan.vocabulary.after_value)))
        places = (plan.places[row, : question.keys] % np.uint64(length + 1)).astype(np.int64)
        # what is asked for stands at the depth of the question, one sentence after the other
        places[: plan.queries] = round(question.depth * length)
        asked_again = np.concatenate(needles[: plan.queries])
        tail = asked_again[: plan.tail_length]  # without the end of the last sentence
        windows.append(np.concatenate((with_needles(text, needles, places), tail)))
    return np.stack(windows)


def with_needles(text: np.ndarray, needles: list[np.ndarray], places: np.ndarray) -> np.ndarray:
    """Insert each needle into a text, before the token at its place."""
    pieces = []
    start = 0
    # A stable order keeps needles at the same place, as all that are asked for are, in their order.
    for number in np.argsort(places, kind="stable"):
        stop = int(places[number])
        pieces += [text[start:stop], needles[number]]
        start = stop
    return np.concatenate([*pieces, text[start:]])


def words_in_window(settings: NeedleSettings) -> int:
    """Return how many words a window with the most keys has: each key, and the words of its value."""
    return max(settings.keys) * (1 + settings.values)


def check_words(settings: NeedleSettings, available: int) -> None:
    """Raise UserError if a window needs more words than there are. No word comes twice in a window."""
    needed = words_in_window(settings)
    if needed > available:
        problem = f"needs {needed} different words with eval.needle.values={settings.values}"
        allowed = f"at most {available} words here, so {available // (1 + settings.values)} keys"
        raise UserError("eval.needle.keys", max(settings.keys), problem, allowed=allowed)


def words_of(tokenizer: Tokenizer, needed: int) -> SentenceTokens:
    """Return the words of a tokenizer, all of the same number of tokens, and the tokens between them.

    They are made up if fewer than `needed` of them are single tokens. There may be too few of these, too.
    """
    words = _single_tokens(tokenizer)
    if len(words) < max(needed, LEAST_WORDS):
        words = _made_up(tokenizer)
    return SentenceTokens(
        words=np.array(words[:MOST_WORDS], dtype=np.int64),
        before_key=_encoded(tokenizer, BEFORE_KEY),
        after_key=_encoded(tokenizer, AFTER_KEY),
        after_value=_encoded(tokenizer, AFTER_VALUE),
    )


def _single_tokens(tokenizer: Tokenizer) -> list[list[int]]:
    """Return the first words of the vocabulary that are a single token when they follow a space.

    The first words are the frequent ones, since a byte-pair vocabulary is in the order of its merges.
    """
    words: list[list[int]] = []
    for token in range(tokenizer.vocab_size):
        text = tokenizer.decode([token])
        # Decoded and encoded again: some tokens are never made of text, since merges prefer others.
        if WORD.fullmatch(text) and tokenizer.encode(f" {text.strip()}") == [token]:
            words.append([token])
            if len(words) == MOST_WORDS:
                break
    return words


def _made_up(tokenizer: Tokenizer) -> list[list[int]]:
    """Return made-up words such as "bafak" that have the same number of tokens, the commonest one."""
    spellings = itertools.product(CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)
    every_97th = itertools.islice(spellings, 0, None, 97)  # so that their beginnings differ
    by_length: dict[int, list[list[int]]] = defaultdict(list)
    for letters in every_97th:
        tokens = tokenizer.encode(f" {''.join(letters)}")
        by_length[len(tokens)].append(tokens)
    # Answers of different lengths could not stand at the same columns of all windows.
    return max(by_length.values(), key=len)


def _encoded(tokenizer: Tokenizer, text: str) -> np.ndarray:
    return np.array(tokenizer.encode(text), dtype=np.int64)
