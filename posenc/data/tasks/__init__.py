"""Find tasks by their names. Each is a file of this folder; docs/tasks.md says how to add one.

A file of the user's own is a plug-in. Its tasks are known once it is imported, which happens only if the user
asks for it: the settings of a stored run may name such a task, but never make posenc import its code.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from posenc.core.plugins import modules_asked_for, named_classes_in

if TYPE_CHECKING:
    from posenc.data.tasks.base import Task

NOT_TASKS = ("base", "instances")  # modules of this folder without a task


@functools.cache
def own_tasks() -> tuple[str, ...]:
    """Return the names of posenc's own tasks in alphabetical order."""
    # By the names of files, so that help and errors list the tasks without importing them.
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    return tuple(sorted(name for name in modules if name not in NOT_TASKS))


def find_task(name: str) -> type[Task]:
    """Return the class of one of posenc's own tasks, or of an imported plug-in's. Raises KeyError."""
    if name in own_tasks():
        return tasks_in(importlib.import_module(f"{__name__}.{name}"))[name]
    return _tasks_of_plugins()[name]


def task_names() -> list[str]:
    """Return the names that `data.task` may have."""
    return sorted({*own_tasks(), *_tasks_of_plugins()})


def tasks_in(module: ModuleType) -> dict[str, type[Task]]:
    """Return the tasks that a module defines (and does not import) by `name`."""
    from posenc.data.tasks.base import Task

    return named_classes_in(module, Task)


def _tasks_of_plugins() -> dict[str, type[Task]]:
    """Return the tasks of imported plug-ins by `name`."""
    from posenc.data.tasks.base import Task

    # A file that was changed and imported again has several classes: the one that was asked for last counts.
    asked_for = modules_asked_for()
    of_plugins: list[type[Task]] = []
    for kind in _subclasses(Task):  # type: ignore[type-abstract]
        if hasattr(kind, "name") and kind.__module__ in asked_for:
            of_plugins.append(kind)
    of_plugins.sort(key=lambda kind: asked_for.index(kind.__module__))
    return {kind.name: kind for kind in of_plugins}


def _subclasses(base: type[Task]) -> Iterator[type[Task]]:
    """Yield all classes that are derived from a task, those derived from these included."""
    for kind in base.__subclasses__():
        yield kind
        yield from _subclasses(kind)
