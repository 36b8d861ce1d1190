"""Tell whether a run fits into the memory of a device, for dry runs and for plans."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import psutil
import torch

from posenc.core.machine import free_memory
from posenc.evaluation.models.callables import CallableModel
from posenc.running.unloaded_model import UnloadedModel

# transformers, its module of one architecture, and a tokenizer, which a dry run of a plain checkpoint does
# without: 165 MB with Llama.
TRANSFORMERS_BYTES = 165e6


@dataclass(frozen=True)
class Room:
    """The memory that a process of its own finds on a device, once this process has ended."""

    free: float  # bytes
    loaded: float  # of these what every process loads before it makes a model

    @property
    def for_model(self) -> float:
        """Return the bytes that a model and its passes may take."""
        return self.free - self.loaded

    def needed(self, memory: float) -> float:
        """Return the bytes that a process takes whose model and passes take `memory`."""
        return memory + self.loaded

    def fits(self, memory: float) -> bool:
        """Tell whether such a process fits."""
        return self.needed(memory) <= self.free


def room_on(device: torch.device, model: CallableModel | None = None) -> Room:
    """Return the room on a device for a run, perhaps of a given model. A Mac's GPU shares the memory."""
    if device.type == "cuda":
        return Room(free=torch.cuda.mem_get_info(device)[0], loaded=0.0)
    # The dry run's own memory will be free by then, and the run will take as much for its libraries.
    own_bytes = psutil.Process().memory_info().rss
    loaded = float(own_bytes)
    if isinstance(model, UnloadedModel) and "transformers" not in sys.modules:
        loaded += TRANSFORMERS_BYTES
    return Room(free=free_memory() + own_bytes, loaded=loaded)
