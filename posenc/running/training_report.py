"""Report how a training goes: in metrics.jsonl, to the tracker, and in the progress line."""

from __future__ import annotations

from pathlib import Path

from posenc.core.console import say
from posenc.core.progress import Progress
from posenc.running import run_directory
from posenc.running.utilization import Utilization, mfu_text
from posenc.tracking import Tracker
from posenc.training.tally import LoggedStep


class TrainingReport:
    """Report the steps of a training. Its methods are callbacks of the training."""

    def __init__(
        self, directory: Path, steps: int, utilization: Utilization, tracker: Tracker, progress: Progress
    ) -> None:
        self.directory = directory  # of the run
        self.steps = steps
        self.utilization = utilization
        self.tracker = tracker
        self.progress = progress
        self.last_validation_loss: float | None = None  # stays in the progress line until the next one

    def on_resume(self, step: int) -> None:
        """Drop what was logged after the step that the training continues from, and say which one it is."""
        # Steps after the checkpoint are made again, and would stand in the file twice.
        run_directory.drop_after(self.directory, step)
        self.progress.begin(step)
        if step:
            say(f"continuing at step {step} of {self.steps}")

    def on_log(self, logged: LoggedStep) -> None:
        """Report a logged step everywhere."""
        run_directory.append_metrics(self.directory, logged.metrics())
        self.tracker.log(logged.metrics(), logged.step)
        if logged.validation_loss is not None:
            self.last_validation_loss = logged.validation_loss
        self.progress.update(logged.step, self.progress_text(logged))

    def progress_text(self, logged: LoggedStep) -> str:
        """Return losses, rate and MFU: `loss 1.234  validation 1.301  48.0k tokens/s  13% MFU (bf16)`.

        With planted pairs there are the losses on text and on values. Without a known peak there is no MFU.
        """
        loss = logged.loss
        # Planted values weigh more in the loss that is trained, so that it compares with no other run's.
        if logged.recall_loss is not None and logged.natural_loss is not None:
            loss = logged.natural_loss
        parts = [f"loss {loss:.3f}"]
        if logged.recall_loss is not None:
            parts.append(f"recall {logged.recall_loss:.3f}")
        if self.last_validation_loss is not None:
            parts.append(f"validation {self.last_validation_loss:.3f}")
        parts.append(f"{logged.tokens_per_second / 1000:.1f}k tokens/s")
        mfu = self.utilization.at(logged.step, logged.tokens_per_second)
        if mfu is not None:
            parts.append(mfu_text(mfu, self.utilization.precision))
        return "  ".join(parts)
