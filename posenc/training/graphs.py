"""Replay loss and gradients of a step as one CUDA graph.

A small model's step is hundreds of kernels that each take less time than Python takes to start them. A graph
starts them all at once, and computes the same numbers bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc.core.errors import first_line

log = logging.getLogger(__name__)

# Fill `grad` of all parameters; return the loss and the norm of the gradients. It takes inputs, targets,
# positions and the weights of the targets.
Step = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
WARM_UP_STEPS = 3  # before a capture, as torch asks for: libraries set themselves up in the first ones


@dataclass(frozen=True)
class _Captured:
    """Hold a graph, the tensors that it reads and writes, and the gradients that it leaves."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, Tensor]
    gradients: list[tuple[nn.Parameter, Tensor]]


class GraphedStep:
    """Compute loss and gradients as `step` does, by a graph that the first call with these shapes makes.

    Where a graph is impossible, since the encoding asks the device for a number in the middle of a pass,
    `step` itself is called.
    """

    def __init__(self, step: Step, model: nn.Module) -> None:
        """Take a step and its model. No parameter may have a gradient when the step is called."""
        self._step = step
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._captured: dict[tuple[torch.Size, ...], _Captured | None] = {}

    def __call__(
        self, inputs: Tensor, targets: Tensor, pos: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Fill the gradients; return the loss and their norm, both scalar.

        All of these tensors are the graph's own: the next call overwrites them.
        """
        tensors = (inputs, targets, pos) if weights is None else (inputs, targets, pos, weights)
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes not in self._captured:
            self._captured[shapes] = self._try_to_capture(tensors)
        captured = self._captured[shapes]
        if captured is None:
            return self._step(inputs, targets, pos, weights)
        for static, tensor in zip(captured.inputs, tensors, strict=True):
            static.copy_(tensor)
        captured.graph.replay()
        for parameter, gradient in captured.gradients:
            parameter.grad = gradient
        return captured.outputs

    def _try_to_capture(self, tensors: tuple[Tensor, ...]) -> _Captured | None:
        """Return the graph of a step with such tensors; None where there can be none."""
        try:
            return self._capture(tensors)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # so torch calls whatever cannot be captured
            log.info("no CUDA graph of this step: %s", first_line(error))
            self._drop_gradients()
            return None

    def _capture(self, tensors: tuple[Tensor, ...]) -> _Captured:
        static = tuple(tensor.clone() for tensor in tensors)
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UP_STEPS):
                self._run(static)
                self._drop_gradients()
            _check_never_waits(lambda: self._run(static))
            self._drop_gradients()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._run(static)
        # this memory is the graph's own: every replay fills it anew
        gradients = [(p, p.grad) for p in self._parameters if p.grad is not None]
        self._drop_gradients()
        return _Captured(graph, static, outputs, gradients)

    def _run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        inputs, targets, pos, *weights = tensors
        return self._step(inputs, targets, pos, weights[0] if weights else None)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _check_never_waits(call: Callable[[], object]) -> None:
    """Raise RuntimeError if a call waits for the device: such a step cannot be captured.

    A failed capture would leave the device's streams in a state that later work trips over.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode(before)
