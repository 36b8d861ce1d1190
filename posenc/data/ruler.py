"""The needle tasks of RULER: prompts with their answers, in RULER's own words.

NEEDLE, FILLER, the templates and the prefixes are RULER's strings, since a benchmark is its strings:
Copyright (c) 2024, NVIDIA CORPORATION, Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).
They are quoted as lm-evaluation-harness 0.4.13 has them (`lm_eval/tasks/ruler`). If one answer is asked for,
both change "magic numbers are" into "magic number is" by replacing words; here the two forms are written out.

A prompt is a haystack of sentences with needles in it, a question, and the beginning of the answer. The draws
are made in the order of lm-evaluation-harness, so that the same draws give the same strings. Only keys
differ: lm-evaluation-harness lists all 6 million pairs of an adjective and a noun (36 s, 0.6 GB) and draws
one of them, and here the two words are drawn one after the other.

Source: Hsieh et al. 2024 (arXiv 2404.06654), https://github.com/NVIDIA/RULER.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
)
TEMPLATE_OF_ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What is the special magic {kind} for {query} mentioned in the provided text?"
)
PREFIX = "The special magic {kind} for {query} mentioned in the provided text are"
PREFIX_OF_ONE = "The special magic {kind} for {query} mentioned in the provided text is"
NEW_TOKENS = 128  # how many tokens a model may write
ORDER_SEED = 42  # of the order of needles, which is the same in every prompt
DEPTHS = [round(100 * step / 39) for step in range(40)]  # per cent of an essay that may stand before a needle
WORDS_PACKAGE = "wonderwords"

Kind = Literal["words", "numbers", "uuids"]


@dataclass(frozen=True)
class RulerTask:
    """What a task hides, and in what."""

    haystack: Literal["filler", "needles", "essays"]
    keys: Kind
    values: Kind
    n_keys: int = 1
    n_values: int = 1  # of each key
    n_queries: int = 1  # keys that are asked for

    @property
    def n_answers(self) -> int:
        """Return how many values are asked for."""
        return self.n_queries * self.n_values

    @property
    def draws_words(self) -> bool:
        """Tell whether it needs the lists of words."""
        return "words" in (self.keys, self.values)


TASKS = {
    "niah_single_1": RulerTask("filler", "words", "numbers"),
    "niah_single_2": RulerTask("essays", "words", "numbers"),
    "niah_single_3": RulerTask("essays", "words", "uuids"),
    "niah_multikey_1": RulerTask("essays", "words", "numbers", n_keys=4),
    "niah_multikey_2": RulerTask("needles", "words", "numbers"),
    "niah_multikey_3": RulerTask("needles", "uuids", "uuids"),
    "niah_multivalue": RulerTask("essays", "words", "numbers", n_values=4),
    "niah_multiquery": RulerTask("essays", "words", "numbers", n_keys=4, n_queries=4),
}
LEFT_OUT = {  # the other tasks of RULER, with what is missing
    "vt": "is no needle task",
    "cwe": "is no needle task",
    "fwe": "is no needle task",
    "qa_squad": "is made of SQuAD, which posenc does not download",
    "qa_hotpot": "is made of HotpotQA, which posenc does not download",
}


@dataclass(frozen=True)
class Sample:
    """A prompt up to the beginning of its answer, and the values that are asked for."""

    prompt: str
    answers: tuple[str, ...]

    def count_found(self, written: str) -> int:
        """Count the answers in a text that a model wrote, by lm-evaluation-harness's rule for strings."""
        printable = re.sub(r"[\x00-\x1f]", "\n", written.strip()).strip().lower()
        return sum(answer.lower() in printable for answer in self.answers)


@functools.cache
def word_lists() -> tuple[list[str], list[str]]:
    """Return the adjectives and nouns of keys. Raises ModuleNotFoundError without the package."""
    import wonderwords

    # The package has no public list of its words.
    categories = wonderwords.RandomWord()._categories
    return list(categories["adjectives"]), list(categories["nouns"])


def make_sample(task: RulerTask, size: int, random: Random, essays: Sequence[str] = ()) -> Sample:
    """Draw a sample with a haystack of `size` sentences, or of the first `size` words of `essays`."""
    keys = []
    values_by_key = []
    needles = []
    for _ in range(task.n_keys):
        key = _draw(task.keys, random)
        values = [_draw(task.values, random) for _ in range(task.n_values)]
        needles += [NEEDLE.format(kind=task.values, key=key, value=value) for value in values]
        keys.append(key)
        values_by_key.append(values)
    # A generator of its own: RULER shuffles with a fixed seed, whatever the sample.
    Random(ORDER_SEED).shuffle(needles)
    if task.haystack == "essays":
        context = _among_sentences(" ".join(essays[:size]), needles, random)
    else:
        context = _among_lines(_lines(task, size, random), needles, random)
    asked_keys = random.sample(range(task.n_keys), task.n_queries)  # by their number
    answers: list[str] = []
    for index in asked_keys:
        answers += values_by_key[index]
    query = _listed([keys[index] for index in asked_keys])
    template = TEMPLATE
    prefix = PREFIX
    kind = str(task.values)
    if task.n_answers == 1:
        template = TEMPLATE_OF_ONE
        prefix = PREFIX_OF_ONE
        kind = kind.removesuffix("s")
    question = template.format(kind=kind, context=context, query=query)
    return Sample(f"{question} {prefix.format(kind=kind, query=query)}", tuple(answers))


def _draw(kind: Kind, random: Random) -> str:
    """Draw a key or a value."""
    if kind == "numbers":
        return str(random.randint(10**6, 10**7 - 1))
    if kind == "uuids":
        # uuid4() takes its bits from the system, so the seed would not decide the sample.
        return str(uuid.UUID(int=random.getrandbits(128), version=4))
    adjectives, nouns = word_lists()
    return f"{random.choice(adjectives)}-{random.choice(nouns)}"


def _lines(task: RulerTask, size: int, random: Random) -> list[str]:
    """Return a haystack of lines: the filler again and again, or needles of other keys."""
    if task.haystack == "filler":
        return [FILLER] * size
    lines = []
    for _ in range(size):
        key = _draw(task.keys, random)
        lines.append(NEEDLE.format(kind=task.values, key=key, value=_draw(task.values, random)))
    return lines


def _among_lines(lines: list[str], needles: Sequence[str], random: Random) -> str:
    """Put each needle before a line that is drawn."""
    # From the last line to the first, since an insertion moves all lines behind it.
    indices = sorted(random.sample(range(len(lines)), len(needles)), reverse=True)
    for index, needle in zip(indices, needles, strict=True):
        lines.insert(index, needle)
    return "\n".join(lines)


def _among_sentences(text: str, needles: Sequence[str], random: Random) -> str:
    """Put needles between the sentences of a text, at depths that are drawn.

    A sentence ends with a full stop, a question mark or an exclamation mark before a space. (RULER uses a
    trained model of nltk, which has to be downloaded. It knows that `e.g.` does not end a sentence.)
    """
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())
    # Drawn without repetition, so that two needles never stand at one depth.
    depths = random.sample(DEPTHS, len(needles))
    ends = sorted(int(len(sentences) * (depth / 100)) for depth in depths)
    pieces = []
    start = 0
    for end, needle in zip(ends, needles, strict=True):
        pieces += [" ".join(sentences[start:end]), needle]
        start = end
    return " ".join([*pieces, " ".join(sentences[start:])])


def _listed(queries: Sequence[str]) -> str:
    """Return `a`, or `a, b, and c`."""
    if len(queries) == 1:
        return queries[0]
    return f"{', '.join(queries[:-1])}, and {queries[-1]}"
