"""exact: are whole answers of a task right? The share of instances, and of the tokens of their answers.

A window of W inputs holds one instance, the largest that fits, from its first token on. A target is a token
of the answer; it is right if no other token has a higher logit. Instances are those of the test, the same for
every model and seed, and none of them is ever trained on.

With `eval.generate` the model also goes on from its own tokens. As long as these are right nothing differs,
so an instance is wholly right in both ways or in neither; behind a mistake the tokens differ.
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
from posenc.results.records import EXACT
from posenc.results.records import Exact as ExactCounts
from posenc.settings.numbers import Flag, Whole

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext


@dataclass(frozen=True, kw_only=True)
class TaskPlan(Plan):
    """The instances of a task that are asked for in every window."""

    task: TaskInstances
    split: str
    count: int  # for each window

    def encoded(self, window: int) -> EncodedInstances:
        """Return the instances of a window. Raises NotApplicableError if none fills it."""
        size = self.task.largest_size(window)
        name = self.task.task.name
        if size is None:
            raise NotApplicableError(f"n/a: no instance of {name} fills {window}")
        try:
            return encoded(self.task.held_out(self.split, size, self.count), window)
        except RunError as error:
            raise NotApplicableError(f"n/a: {error}") from error

    def tokens(self, window: int) -> int:
        return self.count * window

    def targets_in(self, window: int) -> int:
        return window


class Exact(Protocol[TaskPlan]):
    name = EXACT
    title = "whole answers"
    explain = "share of the instances of a task whose answer is wholly right"
    note = "instances of a task whose answer is wholly right"
    unit = "nats per token of the answer"
    sample_noun = "instance"
    of_tasks = True
    refuses_transformers = "asks for what posenc trained: bytes of a task"

    class Settings(ProtocolSettings):
        # runs that were stored before there were tasks do not name these
        instances: Annotated[Whole, Ge(1), Le(10**6)] = 256
        generate: Flag = False

    settings: Settings

    def plan(self, request: EvalRequest) -> TaskPlan:
        """Name the instances by the task, and by those of the training length."""
        task = request.store.task
        assert task is not None  # `of_tasks`
        count = self.settings.instances
        way = "generated" if self.settings.generate else "given"
        parts: list[object] = [self.name, count, way]
        size = task.largest_size(request.lengths.base_length)
        if size is not None:
            parts.append(
                encoded(task.held_out(request.split, size, count), request.lengths.base_length).tokens
            )
        return TaskPlan(hash=request.digest(*parts), task=task, split=request.split, count=count)

    def measure(self, context: EvalContext, plan: TaskPlan, window: int) -> LossSums:
        """Score the answers of all instances. Raises NotApplicableError where none fills the window."""
        instances = plan.encoded(window)
        is_target = instances.is_answer[:, 1:]  # (N, W)
        first_target = int(is_target.any(axis=0).argmax())
        is_target = is_target[:, first_target:]  # (N, targets)
        n_targets = is_target.shape[1]
        scores = context.window_scores(instances.tokens.__getitem__, plan.count, window, n_targets)
        is_right = scores.is_best & is_target
        counts = ExactCounts(
            size=int(plan.task.largest_size(window) or 0),
            instances=plan.count,
            right=int((is_right == is_target).all(axis=1).sum()),
            tokens=int(is_target.sum()),
            tokens_right=int(is_right.sum()),
        )
        if self.settings.generate:
            generated = context.generated(instances.tokens, instances.is_answer)
            is_same = (generated == instances.tokens) & instances.is_answer
            counts["generated_right"] = int((is_same == instances.is_answer).all(axis=1).sum())
            counts["generated_tokens_right"] = int(is_same.sum())
        return LossSums(
            documents=np.arange(plan.count),
            nats=(scores.nats * is_target).sum(axis=1),
            targets=is_target.sum(axis=1),
            bytes=np.zeros(plan.count, dtype=np.int64),
            of_text=False,
            extra={EXACT: counts},
        )
