"""Tell whether a run fits into the memory of a device, for dry runs."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from posenc.core.machine import free_memory


@dataclass(frozen=True)
class Room:
    """The memory that a process of its own finds on a device, once this process has ended."""

    free: float  # bytes
    loaded: float  # of these what every process loads before it makes a model

    def needed(self, memory: float) -> float:
        """Return the bytes that a process takes whose model and passes take `memory`."""
        return memory + self.loaded

    def fits(self, memory: float) -> bool:
        """Tell whether such a process fits."""
        return self.needed(memory) <= self.free


def room_on(device: torch.device) -> Room:
    """Return the room on a device. A Mac's GPU shares the memory of the machine."""
    if device.type == "cuda":
        return Room(free=torch.cuda.mem_get_info(device)[0], loaded=0.0)
    # The dry run's own memory will be free by then, and the run will take as much for its libraries.
    loaded = psutil.Process().memory_info().rss  # this process loads what any other one loads
    return Room(free=free_memory() + loaded, loaded=loaded)
