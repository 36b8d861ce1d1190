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

# Loss and norm of the gradients from (inputs, targets, positions, weights of the targets).
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
    """Compute loss and gradients as `step` does, from the second call with equal shapes on by a graph.

    Where a graph is impossible, since the encoding asks the device for a number in the middle of a pass,
    `step` itself is called.
    """

    def __init__(self, step: Step, model: nn.Module) -> None:
        """Take a step that fills `grad` of the model's parameters, which have none when it is called."""
        self._step = step
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._captured: dict[tuple[torch.Size, ...], _Captured | None] = {}

    def __call__(
        self, inputs: Tensor, targets: Tensor, pos: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the gradients' norm, both scalar, which the next call overwrites."""
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
        except RuntimeError as error:  # torch's for a synchronisation in a capture
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
            _refuse_synchronisation(lambda: self._run(static))
            self._drop_gradients()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._run(static)
        gradients = [(p, p.grad) for p in self._parameters if p.grad is not None]
        self._drop_gradients()
        return _Captured(graph, static, outputs, gradients)

    def _run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        inputs, targets, pos, *weights = tensors
        return self._step(inputs, targets, pos, weights[0] if weights else None)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _refuse_synchronisation(call: Callable[[], object]) -> None:
    """Raise RuntimeError where a call waits for the device: such a step cannot be captured.

    A failed capture would leave the device's streams in a state that later work trips over.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode(before)
