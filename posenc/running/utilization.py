"""Tell how much of what its devices can do a training uses: MFU, the model FLOPs utilization.

It is the FLOPs a second that the model needs, over the peak of the devices. What is computed again, and what
an encoding computes besides, does not count (arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posenc.core.device_peaks import peak_flops
from posenc.data import Stage, stage_of
from posenc.model.decoder import Decoder, training_flops
from posenc.running.job import Job
from posenc.training.distributed import current


@dataclass(frozen=True)
class Utilization:
    """Turn the speed of a training into its MFU."""

    precision: str  # bf16 or fp32, of the products
    stages: Sequence[Stage]
    flops_a_token: Mapping[int, int]  # by the length of the windows
    peak: float | None  # FLOPs a second of all devices together; None: not known, and so is MFU

    def at(self, step: int, tokens_per_second: float) -> float | None:
        """Return the MFU of the windows that update number `step` has."""
        stage = stage_of(self.stages, step)
        return self._share(self.flops_a_token[stage.length] * tokens_per_second)

    def of_all(self, tokens_per_second: float) -> float | None:
        """Return the MFU of the whole training, whose updates all have the same number of tokens."""
        flops_of_updates = 0
        previous_end = 0
        for stage in self.stages:
            flops_of_updates += self.flops_a_token[stage.length] * (stage.last_step - previous_end)
            previous_end = stage.last_step
        # Each update counts once, since all have as many tokens, whatever the length of their windows.
        return self._share(flops_of_updates / previous_end * tokens_per_second)

    def _share(self, flops_per_second: float) -> float | None:
        return None if self.peak is None else flops_per_second / self.peak


def utilization_of(job: Job, model: Decoder) -> Utilization:
    """Return what turns tokens a second into MFU, in all processes of a training together."""
    training = job.training
    assert training is not None
    peak = peak_flops(job.device, training.precision)
    return Utilization(
        precision=training.precision,
        stages=training.stages,
        flops_a_token={stage.length: training_flops(model, stage.length) for stage in training.stages},
        # Tokens a second are those of all processes together.
        peak=None if peak is None else current().size * peak,
    )


def mfu_text(mfu: float, precision: str) -> str:
    """Return `13% MFU (bf16)`: the precision says which of the device's peaks it is a share of."""
    return f"{mfu:.0%} MFU ({precision})"
