"""exact: what a plan says of the passes over the instances of a task."""

import pytest
import torch
from token_stores import request_for

from posenc.data.tasks import find_task
from posenc.data.tasks.instances import TaskInstances
from posenc.data.token_cache import task_store
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.exact import Exact

T = 32
TASKS = ["copy", "parity", "previous", "s5"]  # answers of half an instance, of single tokens, of the last one


@pytest.fixture
def plan_of():
    """The protocol for five instances of a task, its plan, and a model to measure."""

    def make(task):
        store = task_store("fingerprint", TaskInstances(find_task(task)(), "uniform"))
        context = EvalContext(
            model=CallableModel(lambda tokens: torch.zeros(*tokens.shape, 256), 256, T),
            context_length=T,
            seed=0,
            precision="fp32",
            device=torch.device("cpu"),
            store=store,
            split="test",
            batch_tokens=2 * T,
        )
        protocol = Exact(Exact.Settings(instances=5))
        return protocol, protocol.plan(request_for(store, [T, 2 * T], context_length=T)), context

    return make


@pytest.fixture
def measured_plan(plan_of, passes_made):
    """Measure a task in windows of one length, and return the plan and its passes."""

    def make(task, window):
        protocol, plan, context = plan_of(task)
        protocol.measure(context, plan, window)
        return plan, passes_made

    return make


@pytest.mark.parametrize("window", [T, 2 * T])
@pytest.mark.parametrize("task", TASKS)
def test_a_plan_counts_the_tokens_that_go_through_the_model(measured_plan, task, window):
    plan, passes = measured_plan(task, window)
    assert plan.tokens(window) == sum(made.inputs.numel() for made in passes)


@pytest.mark.parametrize("window", [T, 2 * T])
@pytest.mark.parametrize("task", TASKS)
def test_a_pass_scores_as_many_tokens_as_a_plan_says(measured_plan, task, window):
    plan, passes = measured_plan(task, window)
    assert {plan.targets_in(window)} == {made.n_targets for made in passes}


@pytest.mark.parametrize("window", [T, 2 * T])
@pytest.mark.parametrize("task", TASKS)
def test_a_plan_counts_the_tokens_of_the_answers(plan_of, task, window):
    protocol, plan, context = plan_of(task)
    assert plan.count_targets(window) == protocol.measure(context, plan, window).targets.sum()


def test_a_window_that_no_instance_fills_is_known_before_it_is_measured(plan_of):
    """The symbols of `mqar` end before such a window is full."""
    _, plan, _ = plan_of("mqar")
    with pytest.raises(NotApplicableError, match="no instance of mqar fills 4096"):
        plan.check_fits(4096)
    assert plan.count_targets(4096) == 0
