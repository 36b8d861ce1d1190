"""The source `task`: no text, but instances of a task that are drawn when they are needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.core.errors import UserError
from posenc.core.plugins import source_hash
from posenc.data.documents import Document, Notes
from posenc.data.sources.base import Source
from posenc.data.tasks import find_task, own_tasks, task_names
from posenc.data.tasks.instances import Lengths, TaskInstances
from posenc.results.numbers import as_text
from posenc.settings.signature import check_arguments, defaults_of


@dataclass(frozen=True, kw_only=True)
class TaskSource(Source):
    """A task and its options."""

    has_documents: ClassVar[bool] = False

    task: str
    lengths: Lengths
    options: dict[str, Any]

    def check(self) -> None:
        self.instances()

    def instances(self) -> TaskInstances:
        """Return the instances of the task. Raises UserError for a wrong name or option."""
        if self.task not in task_names():
            hint = f"one of your own: data.task=./{self.task}.py; of a run: plugins=[{self.task}.py]"
            raise UserError("data.task", self.task, "there is no such task", allowed=task_names(), hint=hint)
        kind = find_task(self.task)
        try:
            # A task raises ValueError, as an encoding does. The key of the setting is known here alone.
            task = kind(**check_arguments(kind, self.options, "data.options"))
        except ValueError as error:
            raise UserError("data.task", self.task, str(error)) from error
        return TaskInstances(task, self.lengths)

    @property
    def label(self) -> str:
        """Return the task with those options that are not at their default: `copy unique=true`."""
        defaults = defaults_of(find_task(self.task))
        parts = [self.task]
        if self.lengths == "fixed":
            parts.append("fixed")
        for name, value in sorted(self._all_options().items()):
            if value != defaults.get(name):
                parts.append(f"{name}={as_text(value)}")
        return " ".join(parts)

    def pinned_identity(self) -> dict[str, Any]:
        """Return what decides which instances there are."""
        kind = find_task(self.task)
        # posenc's own tasks raise their revision when they draw other instances, so their code is not hashed
        source = None if self.task in own_tasks() else source_hash(kind)
        return {
            "name": self.label,
            "task": self.task,
            "revision": kind.revision,
            "source": source,
            "lengths": self.lengths,
            "options": self._all_options(),
        }

    def _all_options(self) -> dict[str, Any]:
        """Return all options, with the defaults of those that the user did not set."""
        kind = find_task(self.task)
        return {**defaults_of(kind), **check_arguments(kind, self.options, "data.options")}

    def read(self, notes: Notes) -> Iterable[Document]:
        return []
