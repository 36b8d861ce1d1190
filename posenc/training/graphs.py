"""Compute the loss and gradients of a step by replaying one CUDA graph.

A small model's step is hundreds of kernels that each take less time than Python takes to start them. A graph
starts them all at once. It computes the same numbers bit for bit, since a step draws no random numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc.core.errors import first_line

log = logging.getLogger(__name__)

# From inputs, targets, positions and weights of the targets to the loss and the norm of the gradients. A call
# also fills the `grad` of all parameters.
Step = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
WARM_UP_STEPS = 3  # before a capture, as torch asks for: libraries set themselves up in the first ones


@dataclass(frozen=True)
class _Captured:
    """A graph with the tensors that it reads and writes. They all lie in memory that it overwrites."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, Tensor]  # the loss and the norm of the gradients
    gradients: list[tuple[nn.Parameter, Tensor]]


class GraphedStep:
    """Compute loss and gradients as `step` does, by a graph.

    A graph is captured at the first call with each set of shapes; dtypes are always the same. If a step
    cannot be captured, `step` itself is called: for example if the encoding reads a number back from the
    device.
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

        Loss, norm and gradients live in the graph's memory: the next call overwrites them.
        """
        tensors = (inputs, targets, pos) if weights is None else (inputs, targets, pos, weights)
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes not in self._captured:
            # A failure (None) is kept, too. Otherwise it would be tried again at every step.
            self._captured[shapes] = self._try_to_capture(tensors)
        captured = self._captured[shapes]
        if captured is None:
            return self._step(inputs, targets, pos, weights)
        for static, tensor in zip(captured.inputs, tensors, strict=True):
            static.copy_(tensor)
        captured.graph.replay()
        # The capture, or the last update, dropped the gradients of all parameters.
        for parameter, gradient in captured.gradients:
            parameter.grad = gradient
        return captured.outputs

    def _try_to_capture(self, tensors: tuple[Tensor, ...]) -> _Captured | None:
        """Return the graph of a step with tensors of these shapes; None if it cannot be captured."""
        try:
            return self._capture(tensors)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # torch raises a plain RuntimeError for anything that it cannot capture. An error of another kind
            # is not lost: the plain step, which is called next, meets it again.
            log.info("no CUDA graph of this step: %s", first_line(error))
            self._drop_gradients()
            return None

    def _capture(self, tensors: tuple[Tensor, ...]) -> _Captured:
        """Return the graph of a step. Raises RuntimeError if the step cannot be captured."""
        static = tuple(tensor.clone() for tensor in tensors)
        # torch.cuda.graph captures on a stream other than the default one, and asks for warm-up steps on such
        # a stream. The two streams wait for each other, since neither sees the other's unfinished work.
        main_stream = torch.cuda.current_stream()
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(main_stream)
        try:
            with torch.cuda.stream(side_stream):
                self._warm_up(static)
        finally:
            main_stream.wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._run(static)
        # Every replay writes into these tensors, so they have to outlive the step.
        gradients = [(p, p.grad) for p in self._parameters if p.grad is not None]
        self._drop_gradients()
        return _Captured(graph, static, outputs, gradients)

    def _warm_up(self, tensors: tuple[Tensor, ...]) -> None:
        """Make steps without a graph. Raises RuntimeError if a step waits for the device."""
        for _ in range(WARM_UP_STEPS):
            self._run(tensors)
            self._drop_gradients()
        # Checked before the capture, because a failed capture leaves streams with which later work fails.
        _check_never_waits(lambda: self._run(tensors))
        self._drop_gradients()

    def _run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Make a step without a graph. The weights of targets are the fourth tensor, if there are any."""
        inputs, targets, pos, *weights = tensors
        return self._step(inputs, targets, pos, weights[0] if weights else None)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _check_never_waits(call: Callable[[], object]) -> None:
    """Raise RuntimeError if a call waits for the device. A call that waits cannot be captured."""
    mode_before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode(mode_before)
