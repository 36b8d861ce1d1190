"""One run by several processes: what `torchrun` starts, with PyTorch's DDP on gloo (CPU) or nccl (CUDA).

The first process (rank 0) decides, writes and prints. A batch, its order, its drawn positions and its
gradient do not depend on how many there are. Each holds the whole model; gradients are averaged.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posenc.core.errors import RunError, UserError
from posenc.training.optimizer import AdamW

T = TypeVar("T")

# Longer than the first process may tokenise or evaluate while the others wait. One that dies ends them at
# once (gloo), or when torchrun kills them, 30 s after it asked them to end (nccl).
TIMEOUT = timedelta(hours=24)
FIRST_ENDS = timedelta(seconds=30)  # to save and say why: torchrun kills it when another process goes
ENDED = "ended"
_runs = itertools.count()  # of this process


class Stop(Protocol):
    """A request to stop, in this process or in another one of the run."""

    elsewhere: bool  # another process was asked

    def requested(self) -> bool: ...
    def at_once(self) -> contextlib.AbstractContextManager[None]: ...


def _another_failed() -> RunError:
    hint = "its error stands above; the same command continues from the last checkpoint"
    return RunError("another process of this run has failed or was killed", hint=hint)


class ProcessGroup:
    """The processes of a run. With one process every method answers without a message."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """Connect to the other processes, if there are any. Raises RunError when they cannot be reached."""
        self.rank, self.size = rank, size
        if size == 1:
            return
        try:
            root, _, _ = next(dist.rendezvous("env://", rank, size, timeout=TIMEOUT))
            self._store = dist.PrefixStore(f"posenc/{next(_runs)}", root)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=self._store, rank=rank, world_size=size, timeout=TIMEOUT)
        except (ValueError, RuntimeError) as error:
            raise RunError(f"the processes of this run do not find each other: {error}") from error

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def connect(self, device: torch.device, run: str, batch_windows: int | None) -> None:
        """Check before anything is done that all processes do the same `run`, each on its own device."""
        if self.size == 1:
            return
        if batch_windows is not None and self.size > batch_windows:
            problem = f"{self.size} processes share batches of {batch_windows} windows"
            hint = "fewer processes, or a larger train.batch_tokens"
            raise UserError("train.batch_tokens", None, problem, hint=hint)
        if device.type != "cpu":
            if device.type != "cuda" or device.index is not None:
                hint = "each process takes the device of its number"
                raise UserError("device", device, "is one device", allowed=("auto", "cpu", "cuda"), hint=hint)
            processes, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
            if processes > devices:
                raise UserError("device", device, f"{processes} processes for {devices} devices of this node")
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if (firsts := self.first(lambda: run)) != run:
            hint = "the same versions, settings, texts and train.precision are needed on every node"
            raise RunError(f"this process would do {run}, the first one {firsts}", hint=hint)

    def rows(self, count: int) -> slice:
        """Return this process's windows of a batch of `count`."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def loss_weight(self, batch_windows: int) -> float:
        """Return this process's share of a batch over the mean share, by which DDP's mean is right."""
        rows = self.rows(batch_windows)
        return self.size * (rows.stop - rows.start) / batch_windows

    def data_parallel(self, loss_of: nn.Module) -> nn.Module:
        """Wrap a loss so that all have the first one's weights, and their gradient is averaged."""
        if self.size == 1:
            return loss_of
        import torch._dynamo
        from torch.nn.parallel import DistributedDataParallel

        # What is compiled is a block or less, so gradients are sent while others are computed as it is; the
        # cuts that Dynamo would make for that do not go with FlexAttention.
        torch._dynamo.config.optimize_ddp = False
        with warnings.catch_warnings():  # its new name is not in every version that we support
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(loss_of, broadcast_buffers=False, gradient_as_bucket_view=True)

    def share_moments(self, model: nn.Module, optimizer: AdamW) -> None:
        """Give every process the first one's moments."""
        state, parameters = optimizer.state, list(model.parameters())
        found = self.first(lambda: [{key: m.cpu() for key, m in state[p].items()} for p in parameters])
        if not self.is_first:
            for p, moments in zip(parameters, found, strict=True):
                state[p] = {key: moment.to(p.device) for key, moment in moments.items()}

    def agree(self, loss: Tensor, norm: Tensor, stop: Stop) -> tuple[float, float, bool]:
        """Return the whole batch's loss, nats per token, its gradient's norm, and whether all shall stop."""
        if self.size == 1:
            return loss.item(), norm.item(), stop.requested()
        sums = torch.stack([loss, norm, torch.full_like(loss, float(stop.requested()))]).double()
        dist.all_reduce(sums)
        loss_sum, norm_sum, stops = sums.tolist()
        if stops:
            stop.elsewhere = True
        return loss_sum / self.size, norm_sum / self.size, stops > 0

    def summed(self, parts: Tensor) -> list[list[float]]:
        """Return the sum of a small matrix over all processes."""
        if self.size > 1:
            dist.all_reduce(parts)
        return cast("list[list[float]]", parts.tolist())

    def first(self, do: Callable[[], T]) -> T:
        """Do something in the first process and return its result in all. If it fails, all fail."""
        if self.size == 1:
            return do()
        result: list[Any] = [None, True]
        try:
            if self.is_first:
                result = [do(), False]
        finally:
            with contextlib.suppress(RuntimeError) if self.is_first else self.watched():
                dist.broadcast_object_list(result, 0, device=torch.device("cpu"))
        if result[1]:
            raise _another_failed()
        return cast("T", result[0])

    def in_turn(self, do: Callable[[], T]) -> T:
        """Do something in the first process, then in the others, which find what it left in the caches."""
        if not self.is_first:
            self.first(lambda: None)
            return do()
        done: list[T] = []
        self.first(lambda: done.append(do()))
        return done[0]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn what PyTorch says when another process is gone into a RunError."""
        try:
            yield
        except RuntimeError as error:
            words = ("gloo", "nccl", "connection closed", "connection reset")
            if self.size == 1 or not any(word in str(error).lower() for word in words):
                raise
            raise _another_failed() from error

    def end(self) -> None:
        """Leave. Tell the others that the first process has written all that there is; else wait for that."""
        with contextlib.suppress(dist.DistError):
            if self.is_first:
                self._store.set(ENDED, "")
            else:
                self._store.wait([ENDED], FIRST_ENDS)
        dist.destroy_process_group()


_current = ProcessGroup()


def current() -> ProcessGroup:
    """Return the processes that this one belongs to."""
    return _current


def run_distributed(run: Callable[[], int]) -> int:
    """Return the exit code of `run`, here or as one of torchrun's; others' output is shown if they fail."""
    global _current
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return run()
    _current = group = ProcessGroup(int(os.environ.get("RANK", "0")), size)
    try:
        if group.is_first:
            return run()
        held = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(held):
            try:
                code = run()
            except (UserError, RunError) as error:
                print(error.text(), file=sys.stderr)
                code = error.exit_code
        if 0 < code < 128:  # not a signal
            for line in held.getvalue().splitlines():
                print(f"process {group.rank}: {line}", file=sys.stderr, flush=True)
        return code
    finally:
        group.end()
        _current = ProcessGroup()
