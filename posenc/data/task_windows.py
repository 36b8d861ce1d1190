"""Draw training windows of a task, each with one instance. A batch depends on seed and step alone."""

from __future__ import annotations

import numpy as np

from posenc.data.tasks.instances import TaskInstances, encoded
from posenc.data.windows import Batch, WindowSampler


class TaskSampler(WindowSampler):
    """Draw training batches of a task."""

    def __init__(self, instances: TaskInstances, context_length: int, seed: int) -> None:
        # No `super().__init__`, which would number windows of a text that a task does not have.
        self._instances = instances
        self._context_length = context_length
        self._seed = seed

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of a step: `size` windows. Their loss is the mean over the answers' tokens."""
        window = self._context_length
        instances = self._instances.training_batch(size, window, self._seed, step)
        windows = encoded(instances, window)  # (size, T + 1)
        is_target = windows.is_answer[:, 1:]
        # The loss is the weighted sum over all tokens of the batch, divided by their number.
        weight = is_target.size / is_target.sum()
        weights = np.where(is_target, weight, 0).astype(np.float32)
        return Batch(inputs=windows.tokens[:, :-1], targets=windows.tokens[:, 1:], weights=weights)
