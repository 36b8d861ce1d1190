"""Print what `posenc data info data=task` says: what a task asks, and three of its instances."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from posenc.data import CorpusFacts, TaskInstances
from posenc.data.corpus_checks import largest_instance
from posenc.data.tasks.base import Instance

SHOWN = 3  # instances


@dataclass(frozen=True)
class ShownInstance:
    """An instance by the size that its task counts, with its pieces: given and answer by turns."""

    size: int
    pieces: tuple[str, ...]


def print_task(facts: CorpusFacts, task: TaskInstances, context_length: int, *, as_json: bool) -> None:
    """Print the task and three test instances, the last as large as a window of T holds. Raises UserError."""
    about = type(task.task)
    largest = largest_instance(task, context_length)
    instances = _test_instances(task, largest)
    if as_json:
        document: dict[str, Any] = {
            "name": facts.name,
            "fingerprint": facts.fingerprint,
            "identity": facts.identity,
            "about": about.about,
            "source": about.source,
            "largest": largest,
            "instances": [asdict(instance) for instance in instances],
        }
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return
    print(f"{facts.name}: {about.about} ({about.source})")
    for option, value in sorted(asdict(task.task).items()):
        print(f"  data.options.{option}={_as_written(value)}")
    print(f"sizes in training: {_sizes(task, largest)} (T = {context_length} tokens)")
    print("instances; the answer stands in [brackets]")
    for instance in instances:
        print(f"  {instance.size:>4}  {_bracketed(instance.pieces)}")
    print(f"fingerprint {facts.fingerprint}")


def _test_instances(task: TaskInstances, largest: int) -> list[ShownInstance]:
    """Return test instances of three sizes up to the largest."""
    smallest = task.task.smallest
    spread = largest - smallest
    instances = []
    for number in range(1, SHOWN + 1):
        # The last of them is the largest, which shows what a window of T has room for.
        size = smallest + spread * number // SHOWN
        # where all sizes are the same, each time another one
        instance: Instance = task.held_out("test", size, number)[-1]
        instances.append(ShownInstance(size, instance.pieces))
    return instances


def _sizes(task: TaskInstances, largest: int) -> str:
    if task.lengths == "fixed":
        return f"always {largest}"
    return f"{task.task.smallest} to {largest}, uniform"


def _bracketed(pieces: tuple[str, ...]) -> str:
    parts = []
    for number, piece in enumerate(pieces):
        # Pieces are given and answer by turns, and the first one is given.
        is_answer = number % 2 == 1
        bracketed = f"[{piece}]" if is_answer else piece
        parts.append(bracketed)
    return "".join(parts)


def _as_written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
