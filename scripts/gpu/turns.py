"""Time cases in turns with a base case, each in a process of its own, so that a slow minute slows both."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from gpu.sizes import Sizes
from gpu.times import Case, Prepared, prepare, release, sample
from gpu.workers import Worker

SAMPLE_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True)
class Timed:
    """Hold what was measured of a case beside its base."""

    ms: float  # of one call, median
    base_ms: float
    over_base: float  # time over that of the base: median of the pairs
    over_base_low: float  # quartiles
    over_base_high: float
    tokens_per_second: float
    mfu: float | None  # model FLOPs over the dense peak of the device in this precision
    peak_gib: float | None
    first_seconds: float  # with compiled code on the disk, where a warm-up has left it
    parameters: int


class Turns:
    """Hold two workers: one for the base case, which stays prepared, one for the case beside it."""

    def __init__(self, log: Path, sizes: Sizes) -> None:
        self._log = log
        self._sizes = sizes
        self._base_worker: Worker | None = None
        self._worker: Worker | None = None
        self._base: Case | None = None

    def start(self) -> None:
        """Start the workers that do not run, without waiting for them."""
        if self._base_worker is None or not self._base_worker.is_running:
            self._base_worker = Worker(self._log)
            self._base = None
        if self._worker is None or not self._worker.is_running:
            self._worker = Worker(self._log)

    def stop(self) -> None:
        """End the workers."""
        for worker in (self._base_worker, self._worker):
            if worker is not None:
                worker.stop()
        self._base_worker = None
        self._worker = None

    def measure(self, case: Case, base: Case, timeout: float) -> Timed:
        """Time a case in turns with the base. Raises WorkerFailedError."""
        self.start()
        base_worker = self._base_worker
        worker = self._worker
        assert base_worker is not None
        assert worker is not None
        prepared = self._prepare(base_worker, worker, case, base, timeout)
        seconds: list[float] = []
        base_seconds: list[float] = []
        pairs = [(worker, seconds), (base_worker, base_seconds)]
        for _ in range(self._sizes.repeats):
            for timed_worker, samples in pairs:
                timed = timed_worker.call(sample, self._sizes.sample_seconds, timeout=SAMPLE_TIMEOUT)
                samples.append(timed)
            # The next pair has the other order, so that neither case always comes first.
            pairs.reverse()
        worker.call(release, timeout=timeout)
        return _timed(prepared, seconds, base_seconds)

    def _prepare(
        self, base_worker: Worker, worker: Worker, case: Case, base: Case, timeout: float
    ) -> Prepared:
        """Prepare the case, and the base at the same time where it is another one than before."""
        if self._base == base:
            prepared: Prepared = worker.call(prepare, case, timeout=timeout)
            return prepared
        self._base = None
        base_worker.begin(prepare, base)
        try:
            prepared = worker.call(prepare, case, timeout=timeout)
        finally:  # also where the case fails, since the answer must not be taken for that of another call
            base_worker.result(timeout)
            self._base = base
        return prepared


def _timed(prepared: Prepared, seconds: list[float], base_seconds: list[float]) -> Timed:
    ratios = [own / base for own, base in zip(seconds, base_seconds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    median = statistics.median(seconds)
    mfu = None
    if prepared.flops is not None and prepared.peak_flops is not None:
        mfu = prepared.flops / median / prepared.peak_flops
    return Timed(
        ms=1e3 * median,
        base_ms=1e3 * statistics.median(base_seconds),
        over_base=middle,
        over_base_low=low,
        over_base_high=high,
        tokens_per_second=prepared.tokens / median,
        mfu=mfu,
        peak_gib=prepared.peak_gib,
        first_seconds=prepared.first_seconds,
        parameters=prepared.parameters,
    )
