"""Track with TensorBoard: event files in the run directory. `tensorboard --logdir runs` shows them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.tracking import metrics as figures
from posenc.tracking.base import BaseTracker, Evaluation, Progress, TrackedRun, check_shared, refuse_without

FOLDER = "tensorboard"  # in the run directory; the steps of its folder `eval` are tokens of context
SKIPPED = ("tracking.", "eval.", "data.exclude")  # settings that nobody filters runs by


class TensorboardTracker(BaseTracker):
    """Write two folders of event files: training against steps, evaluation against window and position."""

    label = "TensorBoard"

    def __init__(self, run: TrackedRun, *, timeout: float, plots: list[str]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams  # `add_hparams` makes a run of its own of them

        super().__init__(run, "tensorboard", timeout, plots)
        folder = run.directory / FOLDER
        if self.resumed and not folder.is_dir():  # somebody deleted them
            self.progress, self.resumed = Progress(self.progress.id, self.progress.group), False
        self._training: Any = SummaryWriter(str(folder))
        self._measured: Any = SummaryWriter(str(folder / "eval"))
        if not self.resumed:
            config = json.dumps(run.config, indent=2, ensure_ascii=False, default=str)
            self._training.add_text("config", "\n".join(f"    {line}" for line in config.splitlines()))
            writer: Any = self._training.file_writer
            writer.add_summary(hparams(settings_of(run), {})[1])
            self._training.flush()
        self.save()

    @staticmethod
    def check(prefix: str, *, timeout: float, plots: list[str]) -> None:
        """Raise UserError for a missing package."""
        refuse_without("tensorboard", "tracking", "tensorboard", "tensorboard")
        check_shared(prefix, timeout, plots)

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        for name, value in row.items():
            self._training.add_scalar(name, value, step or 0, new_style=False)
        self._training.flush()  # what a kill leaves behind is what the progress says

    def send_evaluation(self, shown: Evaluation) -> None:
        import numpy as np
        from PIL import Image

        for rows, at in ((shown.windows, "eval/window"), (shown.positions, "eval/position")):
            for row in rows:
                for name in row.keys() - {at}:
                    self._measured.add_scalar(name, row[name], int(row[at]))
        last = max(self.progress.step, 0)
        for name, value in shown.summary.items():  # beside the hyperparameters: columns of their table
            self._training.add_scalar(name, value, last)
        for kind, png in shown.pictures.items():
            pixels = np.asarray(Image.open(io.BytesIO(png)))
            self._measured.add_image(f"plots/{kind}", pixels, last, dataformats="HWC")
        self._measured.add_text("evaluation", f"{shown.headline}\n\n{markdown(shown.table)}", last)
        self._training.flush()
        self._measured.flush()

    def end(self, status: str) -> None:
        self._training.add_text("status", status)
        self._training.close()
        self._measured.close()


TRACKER = TensorboardTracker


def settings_of(run: TrackedRun) -> dict[str, float | str]:
    """Return flat settings that a dashboard can filter by."""
    from posenc.results.settings import flatten

    found: dict[str, float | str] = {}
    for key, text in flatten(dict(run.config)).items():
        if not key.startswith(SKIPPED):
            try:
                found[key] = float(text)
            except ValueError:
                found[key] = text
    return found if run.group is None else {**found, "group": run.group}


def markdown(rows: Sequence[Sequence[Any]]) -> str:
    """Write the table of an evaluation."""
    lines = [figures.COLUMNS, ["---"] * len(figures.COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value).replace("|", "\\|")
