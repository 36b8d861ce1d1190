"""One of several processes: what `Group` promises, by PyTorch's collectives and the store of torchrun."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from posenc.core.errors import RunError, UserError
from posenc.training.data_parallel import backend_of, data_parallel
from posenc.training.distributed import AnotherProcessFailedError, Group, Stop

T = TypeVar("T")

# A process that hangs ends the others after this; a checkpoint or a batch of an evaluation takes less. One
# that dies ends them at once (gloo), or when torchrun kills them, 30 s after it asked them to end (nccl).
TIMEOUT = timedelta(minutes=10)
OWN_FAILURE = 5.0  # seconds for the first process to end of the same reason, before another one speaks
LAST_WORDS = 1.0  # seconds the first one has to say why: torchrun kills it when another one goes
ENDED = "ended"
REFUSED, STOPPED, FAILED = 1, 2, 3  # how a share of an evaluation ended
_runs = itertools.count()  # in this process


class Several(Group):
    """This process among `size`. It finds the others when it is made."""

    def __init__(self, rank: int, size: int) -> None:
        """Raises RunError when the others cannot be reached."""
        self.rank, self.size = rank, size
        self._parent = os.getppid()  # torchrun, without which nobody ends who waits
        self._asked = 0  # of the store, by every process alike
        self._stopping = False
        self._alike = False  # whatever ends this process ends the others
        try:
            root, _, _ = next(dist.rendezvous("env://", rank, size, timeout=TIMEOUT))
        except (ValueError, dist.DistError) as error:
            raise RunError(f"the processes of this run do not find each other: {error}") from error
        # What was said in an earlier run of these processes, or before torchrun started them again, is over.
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"posenc/{again}/{next(_runs)}", root)

    def connect(self, device: torch.device, run: str, batch_windows: int | None) -> None:
        if batch_windows is not None and self.size > batch_windows:
            raise UserError(
                "train.batch_tokens",
                None,
                f"{self.size} processes share batches of {batch_windows} windows",
                hint="fewer processes, or a larger train.batch_tokens",
            )
        backend = backend_of(device)
        if (same := self.first(lambda: run)) != run:
            hint = "the same versions, settings, texts and train.precision are needed on every node"
            raise RunError(f"this process would do {run}, the first one {same}", hint=hint)
        store = dist.PrefixStore("collectives", self._store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)

    def end(self) -> None:
        """The first process is done, well or not, and has written all that there is."""
        with contextlib.suppress(dist.DistError):
            self._store.set(ENDED, "")
        _disconnect()

    def ended_alike(self, code: int) -> bool:
        """Wait for the first process. False if this one failed (`code` is not 0) of a reason of its own."""
        alike = code == 0 or self._alike
        last = time.monotonic() + (TIMEOUT.total_seconds() if alike else OWN_FAILURE)
        try:
            while not self._store.check([ENDED]) and time.monotonic() < last:
                if os.getppid() != self._parent:
                    break
                time.sleep(0.02)
            alike = alike or self._store.check([ENDED])
        except dist.DistError:
            alike = True  # the store went with its process
        if 0 < code < 128 and alike:
            time.sleep(LAST_WORDS)
        _disconnect()
        return alike

    def batches(self, rows: np.ndarray, size: int) -> np.ndarray:
        # whole batches: the numbers are bit for bit those of one process
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        turn = (self.rank - int(rows[0])) % self.size if len(rows) else 0  # rows of 16 draws come one by one
        return np.concatenate([rows[:0], *parts[turn :: self.size]])

    def wrap(self, loss_of: nn.Module, batch_windows: int) -> nn.Module:
        rows = self.rows(batch_windows)
        return data_parallel(loss_of, self.size * (rows.stop - rows.start) / batch_windows)

    def same_weights(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for parameter in parameters.values():
                dist.broadcast(parameter, 0)
        if optimizer is None:
            return
        state = optimizer.state
        kept = self.first(
            lambda: [
                (name, key, list(value.shape))
                for name, parameter in parameters.items()
                for key, value in state.get(parameter, {}).items()
            ]
        )
        for name, key, shape in kept:
            moments = state[parameters[name]]
            if not self.is_first:
                moments[key] = torch.zeros(shape, device=parameters[name].device)
            dist.broadcast(moments[key], 0)

    def agree(self, loss: Tensor, norm: Tensor, stop: Stop) -> tuple[float, float]:
        asked = torch.full_like(loss, float(stop.requested()))
        told = torch.stack([loss, norm, asked]).double()
        dist.all_reduce(told)
        loss_sum, norm_sum, stops = told.tolist()
        self._stopping = stops > 0
        self._alike = self._stopping or not (math.isfinite(loss_sum) and math.isfinite(norm_sum))
        if self._stopping:
            self.on_stop()
        return loss_sum / self.size, norm_sum / self.size

    def stopping(self, stop: Stop) -> bool:
        return self._stopping

    def first(self, do: Callable[[], T]) -> T:
        key = self._next()
        if not self.is_first:
            told = self._wait_for(key)
            if "failed" in told:
                raise self._another_failed()
            value: T = told["value"]
            return value
        try:
            done = do()
        except BaseException:
            with contextlib.suppress(dist.DistError):  # the first reason matters
                self._store.set(key, json.dumps({"failed": True}))
            raise
        self._store.set(key, json.dumps({"value": done}))
        return done

    def in_turn(self, do: Callable[[], T]) -> T:
        if not self.is_first:
            self.first(lambda: None)
            return do()
        done: list[T] = []
        self.first(lambda: done.append(do()))
        return done[0]

    @contextmanager
    def sharing(
        self, losses: np.ndarray, check_stop: Callable[[], None], refused: type[Exception]
    ) -> Iterator[None]:
        losses[...] = 0  # the others' part
        own: BaseException | None = None
        try:
            yield
        except BaseException as error:  # also that a stop was asked for
            own = error
        how = _how(own, check_stop, refused)
        sums = torch.from_numpy(np.append(losses, np.arange(4) == how))
        dist.all_reduce(sums)
        ended = sums[-4:].tolist()
        if not any(ended[REFUSED:]):
            losses[...] = sums[:-4].numpy().reshape(losses.shape)
            return
        if ended[FAILED]:
            raise own if own is not None and how == FAILED else self._another_failed()
        if ended[STOPPED]:
            self._alike = True
            self.on_stop()
            check_stop()
        texts = self._from_each(str(own) if how == REFUSED else None)
        raise own if own is not None else refused(next(text for text in texts if text is not None))

    @contextmanager
    def watched(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not _is_lost(error):
                raise
            raise self._another_failed() from error

    def _from_each(self, value: Any) -> list[Any]:
        """What every process gave, plain JSON, by rank."""
        key = self._next()
        self._store.set(f"{key}/{self.rank}", json.dumps({"value": value}))
        return [self._wait_for(f"{key}/{rank}")["value"] for rank in range(self.size)]

    def _next(self) -> str:
        self._asked += 1
        return f"told/{self._asked}"

    def _wait_for(self, key: str) -> dict[str, Any]:
        pause = 0.001
        while not self._store.check([key]):
            if self._store.check([ENDED]) or os.getppid() != self._parent:
                raise self._another_failed()
            time.sleep(pause)  # a signal is heard in between
            pause = min(0.05, 2 * pause)
        told: dict[str, Any] = json.loads(self._store.get(key))
        return told

    def _another_failed(self) -> AnotherProcessFailedError:
        self._alike = True
        return AnotherProcessFailedError()


def _how(own: BaseException | None, check_stop: Callable[[], None], refused: type[Exception]) -> int:
    try:
        check_stop()
    except BaseException:  # the caller's own
        return STOPPED
    if own is None:
        return 0
    return REFUSED if isinstance(own, refused) else FAILED


def _is_lost(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or any(
        word in str(error).lower() for word in ("gloo", "nccl", "connection closed")
    )


def _disconnect() -> None:
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
