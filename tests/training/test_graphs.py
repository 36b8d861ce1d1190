"""A step's loss and gradients as one CUDA graph: the bookkeeping around it, with a played device on a CPU."""

import contextlib

import pytest
import torch
from torch import nn

from posenc.core.errors import UserError
from posenc.training.device import resolve_cuda_graph
from posenc.training.graphs import GraphedStep

CPU = torch.device("cpu")
GPU = torch.device("cuda")


class PlayedStep:
    """A step whose loss is the sum of weight x input x target, and its capture.

    As with a real graph, a replay reads the inputs of the captured call and overwrites the tensors that this
    call made.
    """

    def __init__(self):
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.model.weight, 3.0)
        self.calls = 0
        self.waits_for_device = False
        self.captured = None

    def __call__(self, inputs, targets, pos, weights=None):
        assert self.model.weight.grad is None
        self.calls += 1
        if self.waits_for_device and torch.cuda.get_sync_debug_mode() == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        loss = torch.zeros(())
        gradient = torch.zeros(1, 1)
        tensors = (inputs, targets, weights)
        self.compute(tensors, loss, gradient)
        self.model.weight.grad = gradient
        self.captured = (tensors, loss, gradient)
        return loss, gradient.norm()

    def compute(self, tensors, loss, gradient):
        inputs, targets, weights = tensors
        product = inputs * targets if weights is None else inputs * targets * weights
        gradient.fill_(product.sum())
        loss.copy_(self.model.weight.detach().squeeze() * product.sum())


class PlayedStream:
    """A stream that notes which stream it waits for."""

    def __init__(self, name, waits):
        self.name = name
        self.waits = waits

    def wait_stream(self, other):
        self.waits.append((self.name, other.name))


class PlayedGraph:
    """A graph of the last call of a step."""

    def __init__(self, step):
        self.step = step
        self.call = None

    def replay(self):
        self.step.compute(*self.call)


@pytest.fixture
def step():
    return PlayedStep()


@pytest.fixture
def stream_waits():
    """The waits of played streams, each for another one: (name, name of the other one)."""
    return []


@pytest.fixture
def graphs(step, stream_waits, monkeypatch):
    """Play what `torch.cuda` does for graphs; list those that were captured."""
    captured = []
    sync_mode = ["default"]

    @contextlib.contextmanager
    def capture(graph):
        yield
        graph.call = step.captured
        captured.append(graph)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: PlayedGraph(step))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: PlayedStream("side", stream_waits))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: PlayedStream("main", stream_waits))
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: sync_mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: sync_mode.__setitem__(0, mode))
    return captured


def batch(value, windows=2):
    """Return inputs, targets and positions whose loss is 3 x `value` x the number of windows."""
    return torch.full((windows, 1), value), torch.ones(windows, 1), torch.arange(1)


def losses_of(step, *batches):
    """Return the loss of each batch in turn, by one GraphedStep; gradients are dropped after each."""
    graphed = GraphedStep(step, step.model)
    losses = []
    for tensors in batches:
        loss, _ = graphed(*tensors)
        losses.append(loss.item())
        step.model.weight.grad = None
    return losses


def test_a_replay_has_the_loss_of_its_own_inputs(step, graphs):
    assert losses_of(step, batch(1.0), batch(5.0), batch(2.0)) == [6.0, 30.0, 12.0]


def test_a_replay_gives_every_parameter_its_gradient(step, graphs):
    graphed = GraphedStep(step, step.model)
    for value in (1.0, 5.0):
        step.model.weight.grad = None
        graphed(*batch(value))
    assert step.model.weight.grad.item() == 10.0


def test_weights_of_targets_are_part_of_the_graph(step, graphs):
    ones = torch.ones(2, 1)
    assert losses_of(step, (*batch(1.0), ones), (*batch(1.0), ones / 2)) == [6.0, 3.0]


def test_equal_shapes_are_captured_once(step, graphs):
    graphed = GraphedStep(step, step.model)
    graphed(*batch(1.0))
    calls = step.calls
    graphed(*batch(2.0))
    assert len(graphs) == 1
    assert step.calls == calls


def test_every_shape_has_a_graph_of_its_own(step, graphs):
    assert losses_of(step, batch(1.0, 2), batch(1.0, 3), batch(5.0, 2)) == [6.0, 9.0, 30.0]
    assert len(graphs) == 2


def test_a_step_that_waits_for_the_device_is_called_itself(step, graphs):
    step.waits_for_device = True
    graphed = GraphedStep(step, step.model)
    loss, _ = graphed(*batch(5.0))
    assert loss.item() == 30.0
    assert step.model.weight.grad.item() == 10.0
    assert not graphs


def test_a_capture_that_failed_is_not_tried_again(step, graphs):
    step.waits_for_device = True
    graphed = GraphedStep(step, step.model)
    graphed(*batch(1.0))
    step.model.weight.grad = None
    calls = step.calls
    graphed(*batch(1.0))
    assert step.calls == calls + 1


@pytest.mark.parametrize("waits", [False, True])
def test_later_work_waits_for_the_steps_before_a_capture(step, graphs, stream_waits, waits):
    step.waits_for_device = waits
    GraphedStep(step, step.model)(*batch(1.0))
    assert stream_waits == [("side", "main"), ("main", "side")]


@pytest.mark.parametrize("waits", [False, True])
def test_a_wait_for_the_device_is_an_error_during_the_capture_alone(step, graphs, waits):
    step.waits_for_device = waits
    GraphedStep(step, step.model)(*batch(1.0))
    assert torch.cuda.get_sync_debug_mode() == "default"


def test_a_step_that_runs_out_of_memory_is_an_error(graphs):
    def step(*tensors):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        GraphedStep(step, nn.Linear(1, 1))(*batch(1.0))


# --- train.cuda_graph


@pytest.mark.parametrize(
    ("setting", "device", "has_graph"),
    [
        ("auto", GPU, True),
        ("auto", CPU, False),
        (True, GPU, True),
        (False, GPU, False),
        (False, CPU, False),
    ],
)
def test_auto_is_a_graph_on_a_gpu(setting, device, has_graph):
    assert resolve_cuda_graph(setting, device) is has_graph


def test_a_graph_on_a_cpu_is_refused():
    with pytest.raises(UserError, match=r"train\.cuda_graph=true: there are no CUDA graphs on device=cpu"):
        resolve_cuda_graph(True, CPU)
