"""The plan of a training: how long, on what, in which precision, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posenc.training.checkpoint import CheckpointPlan
from posenc.training.validation import ValidationPlan


@dataclass(frozen=True)
class TrainingPlan:
    """How long to train, on what, in which precision, and what to keep."""

    steps: int
    batch_windows: int  # windows in one update, of all processes together
    context_length: int  # T, in tokens
    seed: int  # of batches and drawn positions
    precision: str  # fp32 | bf16, of the matrix products in the model and in Muon
    device: torch.device
    log_every: int  # steps
    checkpoints: CheckpointPlan
    cuda_graph: bool = False  # replay loss and gradients as one CUDA graph
    validation: ValidationPlan | None = None

    @property
    def batch_tokens(self) -> int:
        """Return how many tokens an update has. This stays the same if windows grow during the training."""
        return self.batch_windows * self.context_length

    def is_validated(self, step: int) -> bool:
        """Tell whether the loss on validation documents is measured after a step."""
        return self.validation is not None and self.validation.is_due(step, self.steps)

    def is_logged(self, step: int) -> bool:
        """Tell whether a step is logged: at intervals, if it is validated, and the last one."""
        return step % self.log_every == 0 or step == self.steps or self.is_validated(step)
