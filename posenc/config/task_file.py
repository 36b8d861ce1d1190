"""Read `data.task=./mine.py`, a task in a file of the user's own, as the name of a plug-in's task."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.config.overrides import unquoted
from posenc.core.errors import UserError
from posenc.core.plugins import plugin_module
from posenc.data.tasks import own_tasks, tasks_in

OPTIONS = "data.options."


def expand_task(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides with the file of a task replaced by the task's name, and the files to import.

    A task's options are declared in its class alone, so the configuration does not have their keys yet:
    `data.options.unique=true` becomes Hydra's `++data.options.unique=true`. Raises UserError for a file that
    holds no task, or several.
    """
    expanded: list[str] = []
    files: list[str] = []
    for override in overrides:
        key, _, value = override.partition("=")
        file = unquoted(value)  # a path was quoted for Hydra
        if key == "data.task" and file.endswith(".py"):
            # The name and not the path is stored, so that the run is the same from another folder.
            expanded.append(f"{key}={_task_in(file)}")
            files.append(file)
        elif key.startswith(OPTIONS):
            expanded.append(f"++{override}")
        else:
            expanded.append(override)
    return expanded, files


def _task_in(file: str) -> str:
    """Return the name of the only task in a file. Raises UserError."""
    try:
        module = plugin_module(file)
    except UserError as error:
        raise error.about("data.task", file) from None
    names = sorted(tasks_in(module))
    if len(names) != 1:
        problem = "has several tasks" if names else "has no task: a class derived from Task, with a `name`"
        raise UserError("data.task", file, problem, hint="how to write one: docs/tasks.md")
    # A run stores the name alone, and would be found under the wrong task.
    if names[0] in own_tasks():
        problem = f"its task has the name of one of posenc's, {names[0]}"
        raise UserError("data.task", file, problem, hint="give it a `name` of its own")
    return names[0]
