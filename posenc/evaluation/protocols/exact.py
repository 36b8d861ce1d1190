"""exact: are whole answers of a task right? The share of instances, and of the tokens of their answers.

A window of W inputs begins with one instance of the largest size that fits. A target is a token of the
answer, and it is right if it is the model's first choice. Instances are drawn for the split. They are the
same for every model and seed, and the model was trained on none of them.

With `eval.generate` the model also writes the answers itself: it reads its own tokens in place of the right
ones. Up to its first mistake these are the same, so that an instance is wholly right in both ways or in
neither. The share of right tokens can differ, since a mistake may lead to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Le

from posenc.core.errors import RunError
from posenc.data.tasks.instances import EncodedInstances, TaskInstances, encoded
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.request import EvalRequest, Plan
from posenc.evaluation.sums import LossSums
from posenc.results.beside.exact import ExactCounts
from posenc.settings.numbers import Flag, Whole

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

SKETCHED = 8  # instances by which a plan says where the answers of a window stand


@dataclass(frozen=True, kw_only=True)
class TaskPlan(Plan):
    """The task, and how many of its instances are scored at every window."""

    task: TaskInstances
    split: str
    count: int  # instances for each window

    def size(self, window: int) -> int:
        """Return the size of the instances of a window. Raises NotApplicableError if none fits into it."""
        size = self.task.largest_size(window)
        if size is None:
            raise NotApplicableError(f"n/a: no instance of {self.task.task.name} fills {window}")
        return size

    def instances(self, window: int) -> EncodedInstances:
        """Return the instances of a window as tokens. Raises NotApplicableError if there are too few."""
        try:
            instances = self.task.held_out(self.split, self.size(window), self.count)
        # Small sizes have few different instances, of which training has taken a part.
        except RunError as error:
            raise NotApplicableError(f"n/a: {error}") from error
        return encoded(instances, window)

    def tokens(self, window: int) -> int:
        # With `eval.generate` there are further passes, up to one for each token of an answer. They are not
        # counted.
        return self.count * window

    def check_fits(self, window: int) -> None:
        self.size(window)

    def targets_in(self, window: int) -> int:
        is_answer = self._sketched_answers(window)
        if not len(is_answer):
            return window
        return window - _first_target(is_answer)

    def count_targets(self, window: int) -> int:
        is_answer = self._sketched_answers(window)
        if not len(is_answer):
            return 0
        targets_in_instance = float(is_answer.sum(axis=1).mean())
        return round(self.count * targets_in_instance)

    def _sketched_answers(self, window: int) -> np.ndarray:
        """Return which tokens are answers in a few instances such as those of a window: (N, W) bool.

        There are none if no instance fits. In most tasks the answers of a size stand at the same places.
        """
        size = self.task.largest_size(window)
        if size is None:
            return np.zeros((0, window), dtype=bool)
        # To draw all held-out ones takes from a second to a minute, too long for an estimate.
        return _is_target(encoded(self.task.of_any_split(size, SKETCHED), window))


class Exact(Protocol[TaskPlan]):
    name = "exact"
    title = "whole answers"
    explain = "share of the instances of a task whose answer is wholly right"
    note = "instances of a task whose answer is wholly right"
    unit = "nats per token of the answer"
    sample_noun = "instance"
    of_tasks = True
    reason_against_transformers = "asks for what posenc trained: bytes of a task"

    class Settings(ProtocolSettings):
        # runs that were stored before there were tasks do not name these
        instances: Annotated[Whole, Ge(1), Le(10**6)] = 256
        generate: Flag = False

    settings: Settings

    def plan(self, request: EvalRequest) -> TaskPlan:
        """Take the task of the run. The hash covers the instances of the training length.

        Those of longer windows are drawn in the same way, but only when they are measured.
        """
        task = request.store.task
        assert task is not None  # it was checked that the corpus is a task
        count = self.settings.instances
        base_length = request.lengths.base_length
        # In the hash, so that a record without generated answers is not taken for one with them.
        tokens_before = "generated" if self.settings.generate else "given"
        parts: list[object] = [self.name, count, tokens_before]
        size = task.largest_size(base_length)
        # Not even T may have room for an instance, as with tasks whose smallest instance is long.
        if size is not None:
            instances = task.held_out(request.split, size, count)
            parts.append(encoded(instances, base_length).tokens)
        return TaskPlan(hash=request.digest(*parts), task=task, split=request.split, count=count)

    def measure(self, context: EvalContext, plan: TaskPlan, window: int) -> LossSums:
        """Score the answers of all instances. Raises NotApplicableError if none fits into the window."""
        instances = plan.instances(window)
        is_target = _is_target(instances)
        # Logits are made for the last tokens of a window, so those before all answers are left out.
        is_target = is_target[:, _first_target(is_target) :]  # (N, targets)
        n_targets = is_target.shape[1]
        scores = context.token_scores(instances.tokens, n_targets)
        # Chosen and not multiplied: an infinite loss of a token that nobody asked for, times 0, would be nan.
        answer_nats = np.where(is_target, scores.nats, 0.0)  # (N, targets)
        # Positions outside of the answers may be guessed right as well, and do not count.
        is_right = scores.is_best & is_target
        counts = ExactCounts(
            size=plan.size(window),
            instances=plan.count,
            right=_wholly_right(is_right, is_target),
            tokens=int(is_target.sum()),
            tokens_right=int(is_right.sum()),
        )
        if self.settings.generate:
            from posenc.evaluation.generation import generate  # here, since it imports torch

            generated = generate(context, instances.tokens, instances.is_answer)
            is_same = (generated == instances.tokens) & instances.is_answer
            counts["generated_right"] = _wholly_right(is_same, instances.is_answer)
            counts["generated_tokens_right"] = int(is_same.sum())
        return LossSums(
            documents=np.arange(plan.count),
            nats=answer_nats.sum(axis=1),
            targets=is_target.sum(axis=1),
            # No bytes, so that no table shows bits per byte beside those of real text.
            bytes=np.zeros(plan.count, dtype=np.int64),
            of_text=False,
            extra={self.name: counts},
        )


def _is_target(instances: EncodedInstances) -> np.ndarray:
    """Return which tokens are targets, (N, W) bool: those of answers. Nothing predicts the first token."""
    return instances.is_answer[:, 1:]


def _first_target(is_target: np.ndarray) -> int:
    """Return the first column of is_target (N, W) in which any answer begins."""
    return int(is_target.any(axis=0).argmax())


def _wholly_right(is_right: np.ndarray, is_answer: np.ndarray) -> int:
    """Count the instances whose answer tokens are all right; both arrays are (N, tokens) bool."""
    has_mistake = (is_answer & ~is_right).any(axis=1)
    return int((~has_mistake).sum())
