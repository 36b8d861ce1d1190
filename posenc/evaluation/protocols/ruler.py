"""ruler: RULER's needle tasks, with its own prompts. What share of the hidden values does the model write?

A window of W inputs holds a prompt, which ends with the beginning of its answer, and room for 128 tokens that
the model writes. The prompt has no chat template, and the model writes its first choices. A value is found if
it stands anywhere in the written text, as in lm-evaluation-harness.

The loss is that of the right answer behind the prompt. If each of its tokens is the model's first choice, the
model would write exactly this answer, so it need not write at all.

The prompts are the same for every model with this tokenizer. They are not made of the corpus.

Source: Hsieh et al. 2024 (arXiv 2404.06654); posenc/data/ruler.py has the strings and their licence.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Le, MinLen

from posenc.core.errors import UserError
from posenc.core.paths import is_file, missing_path
from posenc.core.seeds import seed_for
from posenc.data.ruler import LEFT_OUT, NEW_TOKENS, TASKS, WORDS_PACKAGE, Sample, make_sample
from posenc.data.sources.formats import NOT_UTF8, RECODINGS, encoding_problem
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.request import EvalRequest, Plan
from posenc.evaluation.sums import LossSums
from posenc.results.beside.ruler import RulerCounts
from posenc.settings.base import Settings as SettingsGroup
from posenc.settings.numbers import AbsolutePath, Whole

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

REVISION = 1  # of the prompts, in their hash
SEED = 2404  # of the prompts; not the training seed, so that all runs see the same


class RulerSettings(SettingsGroup):
    """The group `eval.ruler`."""

    tasks: Annotated[list[str], MinLen(1)]
    samples: Annotated[Whole, Ge(1), Le(10**4)]  # of each task, for each window length
    essays: AbsolutePath | None  # a file


@dataclass(frozen=True, kw_only=True)
class RulerPlan(Plan):
    """The tasks. Their prompts are drawn only when a window is measured."""

    tasks: tuple[str, ...]
    count: int  # samples of each task
    tokenizer: Tokenizer
    essays: Sequence[str]  # the words of all essays, in their order
    keeps_keys = True

    def samples(self, name: str, window: int) -> Iterator[Sample]:
        """Yield the samples of a task for a window. Raises NotApplicableError if its prompt does not fit."""
        for number in range(self.count):
            yield self._sample(name, window, number)

    def _sample(self, name: str, window: int, number: int) -> Sample:
        """Return a sample whose haystack is as large as the window allows. Raises NotApplicableError."""

        def is_too_long(size: int) -> bool:
            return not self._fits(self._made(name, window, number, size), window)

        # A word has one token at least.
        largest_size = min(len(self.essays), window) if TASKS[name].haystack == "essays" else window
        # A prompt grows with its haystack, so a search by halves finds the largest in about 15 encodings.
        sizes = range(1, largest_size + 1)
        size = bisect.bisect_left(sizes, True, key=is_too_long)  # the largest that fits; 0: none
        if size == 0:
            raise _no_room(name, window)
        return self._made(name, window, number, size)

    def _made(self, name: str, window: int, number: int, size: int) -> Sample:
        """Make a sample with a haystack of this size. Its needles are the same at every size."""
        seed = seed_for(SEED, name, window, number)
        return make_sample(TASKS[name], size, Random(seed), self.essays)

    def _fits(self, sample: Sample, window: int) -> bool:
        """Tell whether a prompt leaves room for a BOS token and for what the model writes."""
        prompt_length = len(self.tokenizer.encode(sample.prompt))
        # Below and not at most: the place that is left is for a BOS token.
        return prompt_length + NEW_TOKENS < window

    def check_fits(self, window: int) -> None:
        n_words = len(self.essays)
        for name in self.tasks:
            for number in range(self.count):
                if not self._fits(self._made(name, window, number, size=1), window):
                    raise _no_room(name, window)
                if TASKS[name].haystack != "essays" or n_words >= window:
                    continue
                # A prompt of all words would be shorter than the window whose name it bears.
                largest = self._made(name, window, number, size=n_words)
                if self._fits(largest, window):
                    problem = f"n/a: eval.ruler.essays has too few words for {window} tokens: {n_words:,}"
                    raise NotApplicableError(problem)

    def tokens(self, window: int) -> int:
        """Count two passes over each sample: one scores the right answer, one reads the prompt to go on.

        A model that keeps no keys and values makes a pass for each token that it writes. This is not counted.
        """
        return 2 * len(self.tasks) * self.count * window

    def targets_in(self, window: int) -> int:
        return 1  # an answer has a few tokens, whose number is known only when it is drawn

    def count_targets(self, window: int) -> int:
        """Count the tokens of right answers; those of one of several keys may be of another key."""
        # By the smallest haystack: to find the largest one takes about 15 encodings of a whole window.
        n_targets = 0
        for name in self.tasks:
            for number in range(self.count):
                n_targets += len(right_answer(self.tokenizer, self._made(name, window, number, size=1)))
        return n_targets


def _read_essays(path: str) -> str:
    """Return the text of a file. Raises UserError if it is missing, cannot be read or is not UTF-8."""
    key = "eval.ruler.essays"
    if not is_file(path):
        raise missing_path(key, path, "file")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(key, path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8: byte {error.start + 1:,} is 0x{error.object[error.start]:02x}"
        hint = RECODINGS[encoding_problem(error.object) or NOT_UTF8]
        raise UserError(key, path, problem, hint=hint) from error
    if not text.strip():
        raise UserError(key, path, "has no text")
    return text


def _no_room(name: str, window: int) -> NotApplicableError:
    """Return the error for a task that cannot be asked in a window."""
    return NotApplicableError(f"n/a: no prompt of {name} leaves {NEW_TOKENS} of {window} tokens")


class Ruler(Protocol[RulerPlan]):
    name = "ruler"
    title = "RULER's needles"
    explain = "values that RULER's prompts hide and ask for, found in what the model writes"
    note = explain
    unit = "nats per token of the answer"
    sample_noun = "sample"
    needs_tokenizer = True
    count_key = "ruler.samples"

    class Settings(ProtocolSettings):
        ruler: RulerSettings

    settings: Settings

    @functools.cached_property
    def essays(self) -> str:
        """The text of the essays, which is read once; empty without a file. Raises UserError."""
        path = self.settings.ruler.essays
        return "" if path is None else _read_essays(path)

    def check(self, lengths: EvalLengths) -> None:
        """Raise UserError that names a task which cannot be made here, and what is missing."""
        settings = self.settings.ruler
        for name in settings.tasks:
            if name in LEFT_OUT:
                raise UserError("eval.ruler.tasks", name, LEFT_OUT[name], allowed=list(TASKS))
            if name not in TASKS:
                raise UserError("eval.ruler.tasks", name, "there is no such task", allowed=list(TASKS))
            if TASKS[name].haystack == "essays" and settings.essays is None:
                problem = "hides values in Paul Graham's essays, which posenc does not download"
                hint = "eval.ruler.essays=FILE, a text with them"
                raise UserError("eval.ruler.tasks", name, problem, hint=hint)
            if TASKS[name].draws_words and importlib.util.find_spec(WORDS_PACKAGE) is None:
                problem = f"draws keys from the package {WORDS_PACKAGE}, which is not installed"
                raise UserError("eval.ruler.tasks", name, problem, hint="pip install 'posenc[ruler]'")
        _ = self.essays  # read now: a training plans its targets after its last step

    def plan(self, request: EvalRequest) -> RulerPlan:
        """Take the tasks. The hash covers what the prompts are drawn from."""
        settings = self.settings.ruler
        tasks = list(dict.fromkeys(settings.tasks))  # a task that is named twice is asked once
        essays_digest = hashlib.sha256(self.essays.encode()).hexdigest()
        return RulerPlan(
            hash=request.digest(self.name, REVISION, tasks, settings.samples, essays_digest),
            tasks=tuple(tasks),
            count=settings.samples,
            tokenizer=request.tokenizer or Tokenizer("bytes"),
            essays=re.split(r"\s+", self.essays),
        )

    def measure(self, context: EvalContext, plan: RulerPlan, window: int) -> LossSums:
        """Ask for the values of every sample. Raises NotApplicableError if no prompt fills the window."""
        plan.check_fits(window)
        answers: list[Answer] = []
        counts = RulerCounts(task=[], samples=[], answers=[], correct=[])
        n_samples = len(plan.tasks) * plan.count
        for name in plan.tasks:
            n_before = len(answers)
            for sample in plan.samples(name, window):
                context_of_sample = context.part_of_cell(len(answers), n_samples)
                answers.append(answered(context_of_sample, plan.tokenizer, sample, window))
            counts["task"].append(name)
            counts["samples"].append(plan.count)
            counts["answers"].append(plan.count * TASKS[name].n_answers)
            counts["correct"].append(sum(answer.correct for answer in answers[n_before:]))
        nats = np.array([answer.nats for answer in answers])
        # A record holds finite numbers only: without the counts it says `diverged`.
        extra = {self.name: counts} if np.isfinite(nats).all() else {}
        return LossSums(
            documents=np.arange(n_samples),
            nats=nats,
            targets=np.array([answer.targets for answer in answers]),
            bytes=np.zeros(n_samples, dtype=np.int64),
            of_text=False,
            extra=extra,
        )


def right_answer(tokenizer: Tokenizer, sample: Sample) -> list[int]:
    """Return the tokens of the right answer, which are the targets of a sample."""
    # A space comes first, as in text, because the prompt ends with a word.
    return tokenizer.encode(f" {', '.join(sample.answers)}")


@dataclass(frozen=True)
class Answer:
    """What a model did with a sample."""

    nats: float  # loss of the right answer, summed over its tokens
    targets: int  # tokens of the right answer
    correct: int  # how many of the values the model wrote


def answered(context: EvalContext, tokenizer: Tokenizer, sample: Sample, window: int) -> Answer:
    """Score the right answer behind the prompt. Let the model write if that is not its first choice."""
    # here, since both import torch
    from posenc.evaluation.generation import inputs_of_whole_windows, write_text
    from posenc.evaluation.passes import WindowInputs, Windows

    # BOS goes before the prompt here, since the window is not cut from a text whose first token it could
    # replace.
    prompt = [*context.scorer.first_tokens, *tokenizer.encode(sample.prompt)]
    answer = right_answer(tokenizer, sample)
    text = np.array([*prompt, *answer], dtype=np.int64)
    # The right answer is scored with the encoding and the positions that the model would write it with: those
    # of the whole window, though this text is shorter.
    writing = inputs_of_whole_windows(context, window)
    windows = Windows.of_tokens(text[None], n_targets=len(answer))  # a single one
    scoring = WindowInputs(writing.encoding, [writing.draws[0][: windows.length]])
    scores = context.scores_of_new_pass(windows, scoring)
    n_answers = len(sample.answers)
    correct = n_answers
    if not scores.is_best.all():

        def has_all_answers(tokens: list[int]) -> bool:
            return sample.count_found(tokenizer.decode(tokens)) == n_answers

        # Once all values are written the rest cannot change the count, so it is not waited for.
        written = write_text(context, prompt, NEW_TOKENS, writing, has_all_answers)
        correct = sample.count_found(tokenizer.decode(written))
    return Answer(float(scores.nats.sum()), len(answer), correct)
