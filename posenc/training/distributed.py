"""Train one run by several processes, which `torchrun` starts, with PyTorch's DDP on gloo or nccl (CUDA).

Each process holds the whole model and computes a part of every batch, and gradients are averaged. Batches and
positions do not depend on the number of processes. The first process (rank 0) decides, writes and prints.
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
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posenc.core.errors import RunError, UserError
from posenc.training.optimizer import AdamW

T = TypeVar("T")

# So long because the first process may tokenise or evaluate for hours while the others wait. A dead process
# is noticed sooner: with gloo the others end at once, with nccl torchrun ends them within 30 s.
TIMEOUT = timedelta(hours=24)
# How long the others wait at the end for the first process to save and to report. If one of them ended
# before, torchrun would kill it.
END_TIMEOUT = timedelta(seconds=30)
ENDED = "ended"  # the key by which the first process says in the store that it has written everything
FIRST_SIGNAL_CODE = 128  # exit codes from here on mean that a signal ended the process
_run_numbers = itertools.count()  # so that several runs of one process have different keys in the store


@dataclass(frozen=True)
class _Outcome:
    """The result of an action of the first process, as it is sent to the others."""

    result: Any = None
    failed: bool = False


class Stop(Protocol):
    """A request to stop (posenc.running has the class): of this process, or of another one of the run."""

    elsewhere: bool  # whether another process was asked to stop

    def requested(self) -> bool: ...  # whether this process was asked
    def at_once(self) -> contextlib.AbstractContextManager[None]: ...  # a context that a signal ends at once


class ProcessGroup:
    """The processes of a run. With one process every method answers without a message."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """Connect to the other processes, if there are any. Raises RunError if they cannot be reached."""
        self.rank = rank
        self.size = size
        if size == 1:
            return
        try:
            # rendezvous is a generator; its first item has the store that all processes share
            root, _, _ = next(dist.rendezvous("env://", rank, size, timeout=TIMEOUT))
            self._store = dist.PrefixStore(f"posenc/{next(_run_numbers)}", root)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=self._store, rank=rank, world_size=size, timeout=TIMEOUT)
        except (ValueError, RuntimeError) as error:
            raise RunError(f"the processes of this run do not find each other: {error}") from error

    @property
    def is_first(self) -> bool:
        """Tell whether this process decides, writes and prints."""
        return self.rank == 0

    def connect(self, device: torch.device, run_description: str, batch_windows: int | None) -> None:
        """Check that all processes are about to do the same run, and choose the device of this one.

        Raises UserError for a batch or device that cannot be shared, RunError if a process has another run.
        """
        if self.size == 1:
            return
        if batch_windows is not None and self.size > batch_windows:
            problem = f"{self.size} processes share batches of {batch_windows} windows"
            hint = "fewer processes, or a larger train.batch_tokens"
            raise UserError("train.batch_tokens", None, problem, hint=hint)
        if device.type != "cpu":
            _take_local_gpu(device)
        run_of_first = self.first(lambda: run_description)
        if run_of_first != run_description:
            hint = "the same versions, settings, texts and train.precision are needed on every node"
            problem = f"this process would do {run_description}, the first one {run_of_first}"
            raise RunError(problem, hint=hint)

    # --- Parts of a batch

    def rows(self, count: int) -> slice:
        """Return which of the `count` windows of a batch are this process's. Parts differ by at most one."""
        start = self.rank * count // self.size
        stop = (self.rank + 1) * count // self.size
        return slice(start, stop)

    def loss_weight(self, batch_windows: int) -> float:
        """Return the factor for this process's loss which makes DDP's mean the mean over all windows.

        DDP averages over processes, but their parts of a batch may differ by a window.
        """
        rows = self.rows(batch_windows)
        return self.size * (rows.stop - rows.start) / batch_windows

    def data_parallel(self, loss_module: nn.Module) -> nn.Module:
        """Wrap a loss so that all processes get the weights of the first one and an averaged gradient."""
        if self.size == 1:
            return loss_module
        import torch._dynamo
        from torch.nn.parallel import DistributedDataParallel

        # Dynamo would cut graphs so that some gradients are sent while others are computed. FlexAttention
        # does not compile with such cuts, and they are not needed: no graph is larger than a block.
        torch._dynamo.config.optimize_ddp = False
        # older versions of torch that posenc supports do not know the new name of `broadcast_buffers`
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(loss_module, broadcast_buffers=False, gradient_as_bucket_view=True)

    def share_moments(self, model: nn.Module, optimizer: AdamW) -> None:
        """Give every process the first one's moments."""
        parameters = list(model.parameters())

        # The moments are pickled to be sent. A pickled tensor of a GPU goes back to the GPU of its sender.
        def moments_on_cpu() -> list[dict[str, Tensor]]:
            moments = []
            for parameter in parameters:
                state = optimizer.state[parameter]
                moments.append({name: moment.cpu() for name, moment in state.items()})
            return moments

        moments = self.first(moments_on_cpu)
        if self.is_first:
            return
        for parameter, by_name in zip(parameters, moments, strict=True):
            on_device = {name: moment.to(parameter.device) for name, moment in by_name.items()}
            optimizer.state[parameter] = on_device

    # --- What all have to agree on

    def agree(self, loss: Tensor, norm: Tensor, stop: Stop) -> tuple[float, float, bool]:
        """Return the loss (nats per token) and gradient norm of the batch, and whether all must stop."""
        if self.size == 1:
            return loss.item(), norm.item(), stop.requested()
        wants_stop = torch.full_like(loss, float(stop.requested()))
        sums = torch.stack([loss, norm, wants_stop]).double()
        dist.all_reduce(sums)
        loss_sum, norm_sum, stop_count = sums.tolist()
        if stop_count:
            stop.elsewhere = True
        return loss_sum / self.size, norm_sum / self.size, stop_count > 0

    def summed(self, matrix: Tensor) -> list[list[float]]:
        """Sum a small matrix over all processes, in place, and return its rows."""
        if self.size > 1:
            dist.all_reduce(matrix)
        return cast("list[list[float]]", matrix.tolist())

    def first(self, action: Callable[[], T]) -> T:
        """Run an action in the first process, and return its result in all. If it fails, all fail."""
        if self.size == 1:
            return action()
        if not self.is_first:
            return self._receive_from_first()
        outcome = _Outcome(failed=True)
        try:
            outcome = _Outcome(result=action())
        finally:
            # Sent even if the action fails, since the others wait. Its own error is the one to report.
            with contextlib.suppress(RuntimeError):
                dist.broadcast_object_list([outcome], 0, device=torch.device("cpu"))
        return outcome.result

    def _receive_from_first(self) -> Any:
        """Wait for the outcome of an action of the first process, and return its result."""
        message: list[_Outcome | None] = [None]
        with self.watched():
            dist.broadcast_object_list(message, 0, device=torch.device("cpu"))
        (outcome,) = message
        if outcome is None or outcome.failed:
            raise _another_failed()
        return outcome.result

    def in_turn(self, action: Callable[[], T]) -> T:
        """Run an action in the first process, then in the others, which find its caches filled."""
        if not self.is_first:
            self.first(lambda: None)
            return action()
        results: list[T] = []

        def keep_result() -> None:  # returns nothing, since `first` would send a result that may be large
            results.append(action())

        self.first(keep_result)
        return results[0]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn the errors that PyTorch raises if another process is gone into a RunError."""
        try:
            yield
        except RuntimeError as error:
            # gloo raises a plain RuntimeError, as much else in torch does. Only the text tells them apart.
            text = str(error).lower()
            signs = ("gloo", "nccl", "connection closed", "connection reset")
            if self.size == 1 or not any(sign in text for sign in signs):
                raise
            raise _another_failed() from error

    def end(self) -> None:
        """Leave the group. The others wait until the first process says that it has written everything."""
        assert self.size > 1
        with contextlib.suppress(dist.DistError):
            if self.is_first:
                self._store.set(ENDED, "")
            else:
                self._store.wait([ENDED], END_TIMEOUT)
        dist.destroy_process_group()


def _take_local_gpu(device: torch.device) -> None:
    """Use the GPU whose number is that of this process on its node. Raises UserError."""
    if device.type != "cuda" or device.index is not None:
        hint = "each process takes the device of its number"
        raise UserError("device", device, "is one device", allowed=("auto", "cpu", "cuda"), hint=hint)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    devices = torch.cuda.device_count()
    if processes > devices:
        raise UserError("device", device, f"{processes} processes for {devices} devices of this node")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


def _another_failed() -> RunError:
    """Return the error of a process that cannot go on without another one."""
    hint = "its error stands above; the same command continues from the last checkpoint"
    return RunError("another process of this run has failed or was killed", hint=hint)


_current = ProcessGroup()


def current() -> ProcessGroup:
    """Return the group of processes that this one belongs to."""
    return _current


def run_distributed(run: Callable[[], int]) -> int:
    """Call `run` in this process, which may be one of several that torchrun started. Return its exit code.

    Only the first process prints. What another one prints on stderr is shown if it fails.
    """
    global _current
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return run()
    group = ProcessGroup(int(os.environ.get("RANK", "0")), size)
    _current = group
    try:
        return run() if group.is_first else _run_silently(run, group.rank)
    finally:
        group.end()
        _current = ProcessGroup()


def _run_silently(run: Callable[[], int], rank: int) -> int:
    """Call `run` without printing anything, except what it prints on stderr if it fails."""
    output = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output):
        try:
            code = run()
        except (UserError, RunError) as error:
            print(error.text(), file=sys.stderr)
            code = error.exit_code
    # A signal is no failure, and under torchrun the first process speaks of it for all.
    if 0 < code < FIRST_SIGNAL_CODE:
        for line in output.getvalue().splitlines():
            print(f"process {rank}: {line}", file=sys.stderr, flush=True)
    return code
