"""Draw the instances of a task for training (by seed and step) and evaluation (by size), and encode them.

A hash of its given pieces says whether an instance belongs to training, validation or test. One that was
drawn for another purpose is dropped. So no test instance is ever trained on, with any seed.
Shapes: N instances, W inputs of a window.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt

from posenc.core.errors import RunError
from posenc.core.seeds import seed_for
from posenc.data.tasks.base import Draws, Instance, Task, draws_of_rows

PADDING = 0  # the token that fills a window after a shorter instance; never a target
START = 1  # the token before every instance
SEED = 2305  # of validation and test; not the training seed, so that all runs see the same instances
HASHES = 16  # values of the hash: a sixteenth of all instances is for validation, another one for test
SPLIT_OF_HASH = {0: "validation", 1: "test"}  # all other values are for training
FIRST_CHARACTER = "\x02"  # after PADDING and START
LAST_CHARACTER = "\xff"  # a token is a byte
MOST_SIZES = 1 << 32  # no window has room for so many tokens
TRIES = 200  # how often an instance is drawn until one belongs to the wanted split

Lengths = Literal["uniform", "fixed"]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EncodedInstances:
    """The tokens of N windows with an instance at the beginning of each."""

    tokens: Ints  # (N, W + 1)
    is_answer: npt.NDArray[np.bool_]  # (N, W + 1)


@dataclass(frozen=True)
class TaskInstances:
    """The instances of a task with its options."""

    task: Task
    lengths: Lengths  # sizes in training: uniform up to the largest that fits a window, or always that one

    def largest_size(self, window: int) -> int | None:
        """Return the size of the largest instance that fits into a window of W inputs.

        None if the smallest one does not fit, or if an alphabet ends before the window is full.
        """
        if not self._fits(self.task.smallest, window):
            return None
        size = self.task.smallest
        step = 1
        # Windows may have millions of tokens, so the step is doubled while it fits, and then halved.
        while self._fits(size + step, window):
            size += step
            step *= 2
            if step > MOST_SIZES:
                self._refuse("tokens(size) does not grow with the size")
        while step:
            if self._fits(size + step, window):
                size += step
            step //= 2
        limit = self.task.largest
        # An instance that does not fill the window would ask nothing of its far end.
        if limit is not None and size > limit:
            return None
        return size

    def _fits(self, size: int, window: int) -> bool:
        """Tell whether START and all tokens but the last, which is only a target, fit into W inputs."""
        return self.task.tokens(size) <= window

    def held_out(self, split: str, size: int, count: int) -> list[Instance]:
        """Return the first `count` instances of a size for validation or test. Raises RunError."""
        seed = seed_for(SEED, self.task.name, split, size)
        instances: list[Instance] = []
        for counter in range(TRIES):
            for draws in draws_of_rows(count, seed, counter):
                instance = self._instance(draws, size)
                if split_of(instance) == split:
                    instances.append(instance)
                if len(instances) == count:
                    return instances
        raise RunError(f"{self.task.name}: hardly any instance of size {size} belongs to the {split} split")

    def of_any_split(self, size: int, count: int) -> list[Instance]:
        """Draw instances of a size, whatever their split: not to be scored, but to learn what they are like.

        Raises RunError.
        """
        # None is dropped, so that this takes a sixteenth of the time of `held_out`.
        seed = seed_for(SEED, self.task.name, size)
        return [self._instance(draws, size) for draws in draws_of_rows(count, seed, 0)]

    def _instance(self, draws: Draws, size: int) -> Instance:
        """Draw an instance. Raises RunError for one that is not what its task declares."""
        instance = self.task.instance(draws, size)
        pieces = instance.pieces
        most = self.task.tokens(size)
        if len(pieces) < 2:
            self._refuse(f"an instance of size {size} has no answer: given and answer come by turns")
        if not any(pieces[1::2]):
            self._refuse(f"an instance of size {size} has an empty answer: nothing would be learned")
        # Such an instance would be cut off at the end of its window, and the end of its answer never asked.
        if sum(map(len, pieces)) > most:
            self._refuse(f"an instance of size {size} has more tokens than tokens({size}) says, {most}")
        text = instance.text
        last = max(text, default=LAST_CHARACTER)
        if last > LAST_CHARACTER:
            self._refuse(f"{last!r} is not one of the 256 characters of Latin-1")
        first = min(text, default=FIRST_CHARACTER)
        # In an instance they would look like its end or the beginning of another one.
        if first < FIRST_CHARACTER:
            meaning = {PADDING: "the padding", START: "the start mark"}[ord(first)]
            self._refuse(f"{first!r} is {meaning} of a window; characters are U+0002 to U+00FF")
        return instance

    def _refuse(self, problem: str) -> NoReturn:
        raise RunError(f"the task {self.task.name}: {problem}", hint="how to write one: docs/tasks.md")

    def training_batch(self, count: int, window: int, seed: int, step: int) -> list[Instance]:
        """Return the instances of a training step. Raises RunError."""
        largest = self.largest_size(window)
        assert largest is not None  # checked when the run was planned
        smallest = largest if self.lengths == "fixed" else self.task.smallest
        instances = []
        for draws in draws_of_rows(count, seed_for(seed, "task"), step):
            for _ in range(TRIES):
                # Inside of the loop: if the size were kept, small sizes with few training instances would
                # fail more often.
                size = smallest + draws.below(largest - smallest + 1)
                instance = self._instance(draws, size)
                if split_of(instance) == "train":
                    instances.append(instance)
                    break
            else:
                problem = f"{self.task.name}: hardly any instance of size {largest} belongs to the training"
                raise RunError(problem, hint="a longer context_length")
        return instances


def split_of(instance: Instance) -> str:
    """Return the split that an instance belongs to, by its given pieces alone."""
    # By what is given and not by the answer, which a model could not know when it meets the same question
    # again.
    digest = hashlib.blake2b(instance.given.encode("latin-1"), digest_size=4).digest()
    return SPLIT_OF_HASH.get(int.from_bytes(digest, "little") % HASHES, "train")


def encoded(instances: list[Instance], window: int) -> EncodedInstances:
    """Return instances as tokens: a start mark, the instance, and padding up to W + 1 tokens."""
    tokens = np.full((len(instances), window + 1), PADDING, dtype=np.int64)
    is_answer = np.zeros((len(instances), window + 1), dtype=bool)
    tokens[:, 0] = START
    for row, instance in enumerate(instances):
        start = 1  # after the start mark
        for number, piece in enumerate(instance.pieces):
            end = start + len(piece)
            tokens[row, start:end] = np.frombuffer(piece.encode("latin-1"), dtype=np.uint8)
            is_answer[row, start:end] = number % 2 == 1  # given pieces and answers alternate
            start = end
    return EncodedInstances(tokens, is_answer)
