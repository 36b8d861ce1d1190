"""One run by several processes: what `torchrun` starts, with PyTorch's DDP on gloo (CPU) or nccl (CUDA).

The first process (rank 0) decides, writes and speaks. What it decides goes to the others as JSON through the
store that torchrun keeps, where a wait may take as long as it takes and a signal is still heard; numbers go
through collectives. A batch, its order, its drawn positions and its gradient do not depend on how many there
are. PyTorch is imported where there are several, so that asking costs nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from posenc.core.errors import RunError, UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from posenc.training.process_group import Several

T = TypeVar("T")
HEARD = 20_000  # characters of what a process would have said


class Stop(Protocol):
    """Asked once a step: has somebody asked the run to stop?"""

    def requested(self) -> bool: ...

    def at_once(self) -> AbstractContextManager[None]:
        """Inside, a stop is asked for by an exception: there is nothing to save."""


class AnotherProcessFailedError(RunError):
    """The reason stands with another process of this run."""

    def __init__(self) -> None:
        hint = "what it said stands above; the same command continues from the last checkpoint"
        super().__init__("another process of this run has failed or was killed", hint=hint)


class Group:
    """The processes of a run: this one alone. Every question is answered without a message."""

    rank, size = 0, 1
    on_stop: Callable[[], None] = staticmethod(lambda: None)  # told when another process was asked to stop

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def connect(self, device: torch.device, run: str, batch_windows: int | None) -> None:
        """Once it is known what is to be done, and before anything is: open the way to the others.

        `batch_windows` of a training. Raises UserError where so many processes make no sense, RunError where
        they are not about to do the same `run`.
        """

    def rows(self, count: int) -> slice:
        """This process's windows of a batch of `count`."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def batches(self, rows: np.ndarray, size: int) -> np.ndarray:
        """This process's share of an evaluation's rows, in whole batches of `size`."""
        return rows

    def wrap(self, loss_of: nn.Module, batch_windows: int) -> nn.Module:
        """The loss whose gradient is that of the mean over all windows of a batch."""
        return loss_of

    def same_weights(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """The first process's weights and moments for all."""

    def agree(self, loss: Tensor, norm: Tensor, stop: Stop) -> tuple[float, float]:
        """The loss of the whole batch and the norm of its gradient; nats per token."""
        return loss.item(), norm.item()

    def stopping(self, stop: Stop) -> bool:
        """Whether all stop after this step."""
        return stop.requested()

    def first(self, do: Callable[[], T]) -> T:
        """Done by the first process; its result, plain JSON, for all. If it fails, all do."""
        return do()

    def in_turn(self, do: Callable[[], T]) -> T:
        """Done by the first process, then by the others, which find what it left in the caches."""
        return do()

    def sharing(
        self, losses: np.ndarray, check_stop: Callable[[], None], refused: type[Exception]
    ) -> AbstractContextManager[None]:
        """Inside, each fills in its part of `losses`; at the end all have the whole, or all raise alike.

        `refused` is what one process raises for all, such as that memory ran out.
        """
        return contextlib.nullcontext()

    def watched(self) -> AbstractContextManager[None]:
        """What PyTorch says when another process is gone becomes an AnotherProcessFailedError."""
        return contextlib.nullcontext()


_current = Group()


def current() -> Group:
    """The processes that this one belongs to."""
    return _current


def together(run: Callable[[], int]) -> int:
    """The exit code of `run`, in this process alone or as one of those that torchrun started.

    Of several only the first is heard; another one is when it fails and the first does not. Raises UserError.
    """
    size = _number("WORLD_SIZE", 1)
    if size == 1:
        return run()
    from posenc.training.process_group import Several

    group = Several(_number("RANK", None), size)
    return _as_first(run, group) if group.is_first else _as_another(run, group)


def alone() -> AbstractContextManager[None]:
    """Inside, what this process does is not shared with the others."""
    return _belonging_to(Group())


def _as_first(run: Callable[[], int], group: Several) -> int:
    with _belonging_to(group):
        try:
            return run()
        finally:
            group.end()


def _as_another(run: Callable[[], int], group: Several) -> int:
    with _belonging_to(group), _unheard() as held:
        try:
            code = run()
        except (UserError, RunError) as error:
            print(error.text(), file=sys.stderr)
            code = error.exit_code
        except Exception:
            traceback.print_exc()
            code = 1
        except BaseException:  # asked to stop
            group.ended_alike(128)
            raise
        own = not group.ended_alike(code) and code < 128  # a signal is no reason of its own
    if own:
        for line in held.getvalue()[-HEARD:].splitlines():
            print(f"process {group.rank}: {line}", file=sys.stderr, flush=True)
    return code


@contextmanager
def _belonging_to(group: Group) -> Iterator[None]:
    global _current
    before, _current = _current, group
    try:
        yield
    finally:
        _current = before


@contextmanager
def _unheard() -> Iterator[io.StringIO]:
    """What Python prints is kept."""
    held = _Latest()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(held):
        yield held


class _Latest(io.StringIO):
    """The last of what was written."""

    def write(self, text: str) -> int:
        if self.tell() > 2 * HEARD:
            kept = self.getvalue()[-HEARD:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return super().write(text)


def _number(name: str, default: int | None) -> int:
    """A whole number that torchrun put into the environment. Raises UserError."""
    said = os.environ.get(name, "")
    if not said and default is not None:
        return default
    if not said.isdecimal() or (name == "WORLD_SIZE" and said == "0"):
        hint = "several processes are started by torchrun: torchrun --nproc-per-node 2 train.py encoding=rope"
        raise UserError(name, said or None, "is not what torchrun sets", allowed="a whole number", hint=hint)
    return int(said)
