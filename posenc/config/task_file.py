"""Read `data.task=./mine.py`, a task in a file of the user's own, as the name of a plug-in's task."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.config.overrides import key_of, quote
from posenc.core.errors import UserError
from posenc.core.plugins import plugin_module
from posenc.data.tasks import own_tasks, tasks_in

OPTIONS = "data.options."


def expand_task(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the file of a task replaced by the task's name, and added to `plugins`.

    A task's options are declared in its class alone, so the configuration does not have their keys yet:
    `data.options.unique=true` becomes Hydra's `++data.options.unique=true`. Raises UserError for a file that
    holds no task, or several.
    """
    expanded: list[str] = []
    files: list[str] = []
    for override in overrides:
        key, _, value = override.partition("=")
        file = value.strip("'\"")
        if key == "data.task" and file.endswith(".py"):
            expanded.append(f"{key}={_task_in(file)}")
            files.append(file)
        elif key.startswith(OPTIONS):
            expanded.append(f"++{override}")
        else:
            expanded.append(override)
    return _with_plugins(expanded, files) if files else expanded


def _task_in(file: str) -> str:
    """Return the name of the only task in a file. Raises UserError."""
    names = sorted(tasks_in(plugin_module(file)))
    if len(names) != 1:
        problem = "has several tasks" if names else "has no task: a class derived from Task, with a `name`"
        raise UserError("data.task", file, problem, hint="how to write one: docs/tasks.md")
    if names[0] in own_tasks():
        problem = f"its task has the name of one of posenc's, {names[0]}"
        raise UserError("data.task", file, problem, hint="give it a `name` of its own")
    return names[0]


def _with_plugins(overrides: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return the overrides with files added to `plugins`."""
    plugins_overrides = [override for override in overrides if key_of(override) == "plugins"]
    plugins = [quote(file) for file in files]
    if plugins_overrides:
        # the last one counts, as everywhere
        items = plugins_overrides[-1].partition("=")[2].strip("[]")
        plugins = [items, *plugins] if items else plugins
    other_overrides = [override for override in overrides if override not in plugins_overrides]
    return [*other_overrides, f"plugins=[{','.join(plugins)}]"]
