"""How a model is spread over processes: each holds all of it, gradients are averaged (DDP).

To shard the weights as well (FSDP2) is to change this file, and what `same_weights` and a checkpoint gather.
"""

from __future__ import annotations

import os
import warnings

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from posenc.core.errors import UserError


def data_parallel(loss_of: nn.Module, weight: float) -> nn.Module:
    """The mean loss of a process's windows, with the gradient of the mean over the whole batch.

    `weight`: how many windows it has, by how many a process has on average.
    """
    # What is compiled is a block or less, so gradients are sent while others are computed as it is; the cuts
    # that Dynamo would make for that do not go with FlexAttention.
    torch._dynamo.config.optimize_ddp = False
    with warnings.catch_warnings():  # its new name is not in every version that we support
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        averaged = DistributedDataParallel(loss_of, broadcast_buffers=False, gradient_as_bucket_view=True)
    return _Weighted(averaged, weight)


def backend_of(device: torch.device) -> str:
    """Of the collectives on a device, which is chosen for this process. Raises UserError."""
    if device.type == "cpu":
        return "gloo"
    here, there = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if device.type != "cuda" or device.index is not None:
        hint = "each process takes the device of its number"
        raise UserError("device", device, "is one device", allowed=("auto", "cpu", "cuda"), hint=hint)
    if here > there:
        hint = f"torchrun --nproc-per-node {there}; or device=cpu"
        raise UserError("device", device, f"{here} processes for {there} devices of this node", hint=hint)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cpu:gloo,cuda:nccl"


class _Weighted(nn.Module):
    """A process's mean loss by its share of the batch: DDP's mean over processes is that over windows."""

    def __init__(self, loss_of: nn.Module, weight: float) -> None:
        super().__init__()
        self.loss_of, self.weight = loss_of, weight

    def forward(self, inputs: Tensor, targets: Tensor, pos: Tensor) -> Tensor:
        loss: Tensor = self.loss_of(inputs, targets, pos)
        return loss if self.weight == 1 else loss * self.weight
