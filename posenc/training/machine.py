"""What the bits of a training depend on beside the run's settings, kept with every checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from posenc.training.distributed import current

log = logging.getLogger(__name__)


def made_by(model: nn.Module) -> dict[str, Any]:
    """Plain JSON: PyTorch's build, the device, its threads where they matter, processes, compiled or not."""
    device = next(model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    threads = torch.get_num_threads() if device.type == "cpu" else None
    compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())
    return {
        "torch": torch.__version__,
        "device": name,
        "threads": threads,
        "processes": current().size,
        "compiled": compiled,
    }


def warn_of_changes(before: Any, now: Mapping[str, Any]) -> None:
    """Name what differs from `before`, what `made_by` said then; silent where that is not known."""
    known = before if isinstance(before, dict) else {}
    changed = [f"{key} {known[key]} -> {now[key]}" for key in now if known.get(key, now[key]) != now[key]]
    if changed:
        log.warning(
            "continued with another setting than before: %s; "
            "the weights will not be, bit for bit, those of a run without a stop",
            ", ".join(changed),
        )
