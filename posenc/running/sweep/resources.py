"""Tell how many tasks of a sweep the machine has room for, and which GPU and how many threads each gets."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Sequence
from queue import PriorityQueue
from typing import NamedTuple

from posenc.core.errors import UserError
from posenc.core.machine import THREADS, free_memory, threads_of_user, usable_cores
from posenc.running.sweep.task import SweepTask
from posenc.settings.tree import SweepSettings

GPUS = "CUDA_VISIBLE_DEVICES"

# sweep.slots=auto. On an H200 eight models of 0.8M weights trained at 4.2 to 7.3 times the speed of one.
SMALL_MODEL = 4_000_000  # block weights; a larger one keeps a GPU busy enough
SLOTS_FOR_SMALL_MODELS = 8
BYTES_OF_A_SLOT = 2e9  # of a GPU's memory: CUDA's own, and a step of a small model

# A job of a sweep pays 5 s of CPU for its imports and its settings (docs/log.md, 2026-11-22).
START_SECONDS = 5.0  # of a process that imports torch and checks its job, on a quiet machine


class GpuSlot(NamedTuple):
    """Stand for room for one task on a GPU. Slots are given out in the order of their numbers."""

    number: int
    gpu: str  # as CUDA_VISIBLE_DEVICES names it


def gpu_slots(gpus: Sequence[str], at_once: int) -> PriorityQueue[GpuSlot]:
    """Return a slot for each of `at_once` tasks, dealt out over the GPUs; no slots without a GPU."""
    # by priority: the lowest free slot comes first, so no GPU gets a second task while another has none
    slots: PriorityQueue[GpuSlot] = PriorityQueue()
    if not gpus:
        return slots
    for number in range(at_once):
        slots.put(GpuSlot(number, gpus[number % len(gpus)]))
    return slots


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    # torch counts what CUDA accepts. Of a list with a name that does
    # not exist, CUDA shows only the GPUs before it.
    count = torch.cuda.device_count()
    names = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    if names:
        return names[:count]
    return [str(number) for number in range(count)]


def tasks_at_once(tasks: Sequence[SweepTask], *, cores: int, free_bytes: float, gpu_slots: int) -> int:
    """Return how many tasks the machine has room for: by free memory, and by cores or slots on GPUs."""
    # Any mixture of the tasks may run at once, so all count as the largest.
    by_memory = free_bytes // max(task.memory for task in tasks)
    if all(task.device == "cpu" for task in tasks):
        room = cores // max(task.threads for task in tasks)
    else:
        room = gpu_slots
    return int(max(1, min(room, by_memory)))


def slots_of_a_gpu(
    tasks: Sequence[SweepTask],
    settings: SweepSettings,
    *,
    free_bytes: float = math.inf,
    cores: float = math.inf,
) -> int:
    """Return how many tasks share a GPU: as many as the settings say.

    By `auto` it is one, or several of small models as far as the GPU's `free_bytes` and the cores that the
    GPU may count on allow. A process of a small model keeps a core busy.
    """
    if settings.slots != "auto":
        return settings.slots
    # A single large model among the tasks is enough: it may share a GPU with any of them.
    if max(task.weights for task in tasks) > SMALL_MODEL:
        return 1
    return int(max(1, min(SLOTS_FOR_SMALL_MODELS, free_bytes // BYTES_OF_A_SLOT, cores)))


def least_free_gpu_memory() -> float:
    """Return the free bytes of the GPU, among those that this process may use, that has fewest."""
    import torch

    return min(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))


def tasks_at_once_here(tasks: Sequence[SweepTask], settings: SweepSettings) -> int:
    """Return how many tasks run at once on this machine: as many as the settings say, or as there is room."""
    at_once = settings.jobs
    if at_once is None:
        cores = usable_cores()
        at_once = tasks_at_once(
            tasks, cores=cores, free_bytes=free_memory(), gpu_slots=_gpu_slots_here(tasks, settings, cores)
        )
    # tasks of one run directory wait for each other
    directories = {task.directory for task in tasks}
    # More places than directories would only wait.
    return min(at_once, len(directories))


def _gpu_slots_here(tasks: Sequence[SweepTask], settings: SweepSettings, cores: int) -> int:
    """Return how many tasks the GPUs of this machine take at once; 0 for tasks on the CPU."""
    gpus = len(visible_gpus())
    named = {task.device for task in tasks}
    if all(":" in device for device in named):  # cuda:1 is a single one
        gpus = min(len(named), gpus)
    if gpus == 0 or all(task.device == "cpu" for task in tasks):
        return 0
    slots = slots_of_a_gpu(tasks, settings, free_bytes=least_free_gpu_memory(), cores=cores // gpus)
    return slots * gpus


def seconds_of_all(seconds: Sequence[float], at_once: int) -> float:
    """Return the time until the last of several tasks ends: each begins once one of those before it ends."""
    # A list of equal numbers is a heap already.
    ends = [0.0] * at_once  # of the last task in each place
    for task_seconds in seconds:
        # The task begins in the place that is free first.
        heapq.heapreplace(ends, ends[0] + task_seconds)
    return max(ends)


def threads_of(task: SweepTask) -> int:
    """Return the threads of a task: the number that the user has set, or one that suits its model.

    Raises UserError if what the user has set is no number of threads.
    """
    text = threads_of_user()
    if text is None:
        return task.threads
    # OpenMP takes a list: a number for each level of parallel regions
    # inside others, and torch has a single level.
    first_number = text.split(",")[0].strip()
    if not first_number.isdecimal() or int(first_number) == 0:
        hint = f"{THREADS}=4, or unset it: each job then gets as many threads as suit its model"
        raise UserError(THREADS, text, "is no number of threads", allowed="a whole number from 1", hint=hint)
    return int(first_number)
