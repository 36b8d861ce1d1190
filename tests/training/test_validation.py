"""The loss on validation documents while training: the same windows, nothing trained by it, resumed."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_model import STEPS, T, build, on_disk, run

from posenc.data import NumberedWindows
from posenc.training.distributed import current
from posenc.training.validation import (
    COST_SHARE,
    FORWARD_PASSES_PER_STEP,
    ValidationPlan,
    automatic_interval,
    plan_validation,
    validation_loss,
    window_count,
)

WINDOWS = 6


@pytest.fixture
def windows(store):
    return NumberedWindows(store, "validation", T).spread(WINDOWS)


OFFSET = {"name": "offset", "max": None}  # positions that are drawn


def trained(store, folder, windows, *, positions=None, stop_after=None):
    """Train, with a validation every four steps unless `windows` is None; return what was logged."""
    model = build("rope", store, positions=positions)
    logged = []
    plan = None if windows is None else ValidationPlan(4, windows)
    run(model, store, folder, logged=logged, validation=plan, stop_after=stop_after)
    return logged


def validated(logged):
    return {line.step: line.validation_loss for line in logged if line.validation_loss is not None}


@pytest.mark.parametrize("positions", [None, OFFSET], ids=["contiguous", "drawn"])
def test_validation_changes_no_bit_of_what_is_trained(store, tmp_path, windows, positions):
    trained(store, tmp_path / "with", windows, positions=positions)
    trained(store, tmp_path / "without", None, positions=positions)
    assert on_disk(tmp_path / "with") == on_disk(tmp_path / "without")


def test_validation_draws_nothing(store, windows):
    model = build("rope", store, positions=OFFSET)
    before = torch.get_rng_state()
    validation_loss(model, windows, "fp32", current())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_validated_step_is_logged(store, tmp_path, windows):
    logged = trained(store, tmp_path, windows)
    assert [line.step for line in logged] == [4, 5, 8, 10, STEPS]
    assert list(validated(logged)) == [4, 8, STEPS]


def test_a_continued_run_has_the_validation_of_a_whole_one(store, tmp_path, windows):
    whole = trained(store, tmp_path / "whole", windows)
    first_part = trained(store, tmp_path / "stopped", windows, stop_after=6)
    second_part = trained(store, tmp_path / "stopped", windows)
    assert validated(first_part) | validated(second_part) == validated(whole)


def test_the_loss_is_the_mean_over_all_targets(store, windows):
    model = build("rope", store)
    text = torch.from_numpy(windows)
    logits = model(text[:, :-1], torch.arange(T))
    expected = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).item()
    assert validation_loss(model, windows, "fp32", current()) == pytest.approx(expected, abs=1e-5)


def test_drawn_positions_are_the_same_in_every_validation(store, windows):
    model = build("rope", store, positions=OFFSET)
    losses = {validation_loss(model, windows, "fp32", current()) for _ in range(3)}
    assert len(losses) == 1


def test_the_model_goes_on_training_with_its_compiled_blocks(store, windows):
    model = build("rope", store).train()
    compiled = object()
    model.blocks[0]._compiled_call_impl = compiled
    validation_loss(model, windows, "fp32", current())
    assert model.blocks[0]._compiled_call_impl is compiled
    assert all(module.training for module in model.modules())


def test_a_model_in_evaluation_stays_in_it(store, windows):
    model = build("rope", store).eval()
    validation_loss(model, windows, "fp32", current())
    assert not any(module.training for module in model.modules())


# --- Which windows, and how often


def test_windows_lie_in_validation_documents_and_are_spread_over_them(store, windows):
    split = store.splits["validation"]
    texts = [store.document("validation", i).tobytes() for i in range(len(split.ids))]
    for window in windows:
        assert any(window.astype(store.tokens.dtype).tobytes() in text for text in texts)
    assert len(np.unique(windows, axis=0)) == WINDOWS


def test_without_a_document_that_is_long_enough_nothing_is_validated(store):
    longest = int(store.splits["validation"].lengths.max())
    plan = plan_validation(store, every=4, steps=100, batch_windows=8, context_length=longest)
    assert plan is None


@pytest.mark.parametrize(
    ("steps", "batch_windows", "context_length", "windows"),
    [
        pytest.param(1000, 32, 64, 96, id="2% of 1000 steps, 3 passes each, in 20 validations"),
        pytest.param(12, 32, 64, 23, id="one validation of 2% of 12 steps"),
        pytest.param(1, 8, 64, 1, id="one window at least"),
        pytest.param(1000, 512, 64, 256, id="16384 tokens at most"),
        pytest.param(1000, 512, 16384, 1, id="one window of the most tokens"),
    ],
)
def test_a_validation_has_as_many_windows_as_its_share_pays_for(
    steps, batch_windows, context_length, windows
):
    assert window_count(steps, batch_windows, context_length) == windows


@pytest.mark.parametrize("steps", [1, 12, 40, 195, 1953, 10**6])
@pytest.mark.parametrize("batch_windows", [32, 512])
def test_all_validations_together_cost_a_fixed_share_at_most(steps, batch_windows):
    validations = -(-steps // automatic_interval(steps, log_every=25))
    passes = validations * window_count(steps, batch_windows, context_length=64) / batch_windows
    fewest_passes = validations / batch_windows  # a validation has one window at least
    assert passes <= max(COST_SHARE * FORWARD_PASSES_PER_STEP * steps, fewest_passes)


@pytest.mark.parametrize(
    ("steps", "log_every", "interval"), [(40, 25, 25), (195, 10, 30), (1953, 25, 100), (10**6, 25, 1000)]
)
def test_the_automatic_interval_is_one_of_logged_steps(steps, log_every, interval):
    assert automatic_interval(steps, log_every) == interval
