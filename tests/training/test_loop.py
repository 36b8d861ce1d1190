"""The loop: the same numbers again, also stopped and continued; no update that is not finite."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_model import OPTIMIZATION, STEPS, T, build, on_disk, run
from token_stores import store_of

from posenc.core.seeds import generator_for
from posenc.data import PlantedSampler, ScheduledSampler, Stage, WindowSampler, plant_of
from posenc.encodings.registry import own_encodings
from posenc.model.attention import LatentAttention
from posenc.settings.tree import PlantSettings
from posenc.training.optimizer import build_optimizer, learning_rate

WINDOWS = 4  # in a batch
CLIP = 0.5


def trained_by_hand(model, store):
    """Train without the loop, in plain operations; return losses and norms of the gradient."""
    optimizer = build_optimizer(model, OPTIMIZATION, "fp32")
    sampler = WindowSampler(store, T, 0)
    losses, norms = [], []
    for step in range(STEPS):
        batch = sampler.batch(step, WINDOWS)
        logits = model(torch.from_numpy(batch.inputs), torch.arange(T))
        log_probabilities = torch.log_softmax(logits, -1).flatten(0, 1)
        loss = F.nll_loss(log_probabilities, torch.from_numpy(batch.targets).flatten())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.sqrt(sum((gradient.double() ** 2).sum() for gradient in gradients)).item()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient * min(1.0, CLIP / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, OPTIMIZATION)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms


@pytest.fixture
def by_hand(store):
    """A model that was trained without the loop, its losses and its norms."""
    model = build("rope", store)
    losses, norms = trained_by_hand(model, store)
    assert max(norms) > CLIP  # or nothing was clipped
    return model, losses, norms


@pytest.fixture
def by_the_loop(store, tmp_path):
    """The same, trained by the loop, and what it logged."""
    model = build("rope", store)
    logged = []
    run(model, store, tmp_path / "run", logged=logged, optimization=replace(OPTIMIZATION, grad_clip=CLIP))
    return model, logged


def test_an_update_is_adamw_on_the_mean_loss_with_the_clipped_gradient(by_the_loop, by_hand):
    trained = dict(by_the_loop[0].named_parameters())
    for name, expected in by_hand[0].named_parameters():
        assert torch.allclose(trained[name], expected, atol=2e-4), name


def test_a_log_has_the_mean_loss_since_the_last_one(by_the_loop, by_hand):
    _, losses, _ = by_hand
    assert [line.step for line in by_the_loop[1]] == [5, 10, STEPS]
    means = [np.mean(losses[:5]), np.mean(losses[5:10]), np.mean(losses[10:])]
    assert [line.loss for line in by_the_loop[1]] == pytest.approx(means, abs=1e-4)


def test_a_log_has_the_norm_before_clipping_of_its_last_step(by_the_loop, by_hand):
    _, _, norms = by_hand
    expected = [norms[4], norms[9], norms[11]]
    assert [line.grad_norm for line in by_the_loop[1]] == pytest.approx(expected, rel=1e-3)


def test_a_log_counts_tokens_from_the_start_of_the_run(by_the_loop):
    tokens = [5 * WINDOWS * T, 10 * WINDOWS * T, STEPS * WINDOWS * T]
    assert [line.tokens for line in by_the_loop[1]] == tokens


def test_a_log_has_the_rate_of_its_last_update(by_the_loop):
    rates = [learning_rate(step - 1, STEPS, OPTIMIZATION) for step in (5, 10, STEPS)]
    assert [line.lr for line in by_the_loop[1]] == rates


def test_the_final_loss_is_the_mean_of_the_last_tenth_of_the_steps(store, tmp_path):
    logged = []
    trained = run(build("rope", store), store, tmp_path, logged=logged, steps=20, log_every=1)
    assert trained.so_far.final_loss == (logged[-2].loss + logged[-1].loss) / 2


def test_every_step_draws_positions_of_its_own_by_seed_and_step(store, tmp_path):
    """So a run that stopped draws the same ones again."""
    model = build("rope", store, positions={"name": "offset", "max": None})
    drawn = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: drawn.append(args[1]))
    run(model, store, tmp_path, seed=3)
    assert len({pos.sum().item() for pos in drawn}) > STEPS // 2
    expected = [model.positions(T, generator_for(3, "positions", step)) for step in range(STEPS)]
    assert torch.equal(torch.stack(drawn), torch.stack(expected))


# --- Windows that grow


def growing(store, seed=3):
    """Windows of three lengths, four steps each."""
    stages = [Stage(4, T // 4), Stage(8, T // 2), Stage(STEPS, T)]
    samplers = {stage.length: WindowSampler(store, stage.length, seed) for stage in stages}
    return ScheduledSampler(stages, samplers)


def test_windows_grow_and_batches_keep_their_tokens(store, tmp_path):
    model = build("rope", store)
    shapes = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape[:2])))
    trained = run(model, store, tmp_path / "run", sampler=growing(store))
    assert shapes == [(16, T // 4)] * 4 + [(8, T // 2)] * 4 + [(4, T)] * 4
    assert trained.so_far.tokens == STEPS * WINDOWS * T


def test_positions_of_a_short_window_begin_at_zero(store, tmp_path):
    model = build("rope", store)
    drawn = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: drawn.append((args[0].shape[1], args[1])))
    run(model, store, tmp_path / "run", sampler=growing(store))
    assert len(drawn) == STEPS
    assert all(torch.equal(pos, torch.arange(length)) for length, pos in drawn)


def test_a_stage_has_the_batches_of_its_own_sampler(store):
    batch = growing(store).batch(5, WINDOWS)
    expected = WindowSampler(store, T // 2, 3).batch(5, 2 * WINDOWS)
    assert np.array_equal(batch.inputs, expected.inputs)
    assert np.array_equal(batch.targets, expected.targets)


# --- Numbers that are not finite


@pytest.fixture(params=["loss", "gradient"])
def poisoned(request, store):
    """A model whose loss or gradient is not finite in step 8, and its weights before each step."""
    model = build("rope", store)
    weights = []

    def poison(module, inputs, output):
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
        if len(weights) < 8:
            return output
        if request.param == "loss":
            return output * float("nan")
        output.register_hook(lambda gradient: gradient * float("inf"))
        return output

    model.blocks[-1].register_forward_hook(poison)
    return request.param, model, weights


def test_a_step_that_is_not_finite_ends_the_training_and_says_why(poisoned, store, tmp_path):
    kind, model, _ = poisoned
    trained = run(model, store, tmp_path)
    assert trained.status == "diverged"
    assert trained.so_far.step == 7
    assert trained.reason == f"non-finite {kind} at step 8"


def test_a_step_that_is_not_finite_is_not_applied(poisoned, store, tmp_path):
    _, model, weights = poisoned
    run(model, store, tmp_path)
    assert all(torch.equal(p, weights[7][name]) for name, p in model.named_parameters())
    assert any(not torch.equal(weights[6][name], weights[7][name]) for name in weights[7])


def test_checkpoints_before_a_step_that_is_not_finite_stay(poisoned, store, tmp_path):
    _, model, _ = poisoned
    run(model, store, tmp_path / "run", checkpoint_seconds=0)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["step-00000006", "step-00000007"]


# --- Stopped and continued


def with_assignments(store, seed=3):
    """Windows of 2T, half of them with a line NAME = VALUE, twice."""
    settings = PlantSettings(kind="assignments", share=0.5, pairs=1, cue=1, alphabet=2, weight=2.0)
    plant = plant_of(settings, store_of([b""], [b"a b c d"]))  # the tiny corpus has no words
    return PlantedSampler(store, 2 * T, seed, plant)


QUICK = {"rope", "learned", "t5", "fox", "dape", "sum"}  # a family each
ENCODINGS = [
    pytest.param(name, {}, {}, marks=[] if name in QUICK else [pytest.mark.slow]) for name in own_encodings()
]
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
OFFSET = {"name": "offset", "max": None}
CREAM = {"name": "cream", "max": None, "sigma": 3.0}
LATENT = partial(LatentAttention, kv_rank=None, q_rank=None, rope_dim=16)
MUON = replace(OPTIMIZATION, name="muon")


@pytest.mark.parametrize("stop", [1, STEPS // 2, STEPS - 1])
@pytest.mark.parametrize(
    ("encoding", "training", "parts"),
    [
        *ENCODINGS,
        pytest.param("t5", {"optimization": MUON}, {}, id="muon"),
        pytest.param("t5", {"precision": "bf16"}, {}, id="bf16"),
        pytest.param("rope", {}, {"attention": LATENT}, id="mla"),
        pytest.param("rope", {}, {"positions": RANDOMIZED}, id="randomized"),
        pytest.param("rope", {"sampler": growing}, {}, id="growing"),
        pytest.param("rope", {"sampler": with_assignments}, {}, id="assignments"),
        pytest.param("rope", {"sampler": growing}, {"positions": CREAM}, id="growing-cream"),
        pytest.param("rope", {"sampler": growing}, {"positions": OFFSET}, id="growing-offset"),
    ],
)
def test_stopped_and_continued_is_not_stopped(store, tmp_path, encoding, training, parts, stop):
    if "sampler" in training:
        training = {**training, "sampler": training["sampler"](store)}
    run(build(encoding, store, **parts), store, tmp_path / "whole", **training)

    first_model = build(encoding, store, **parts)
    stopped = run(first_model, store, tmp_path / "stopped", stop_after=stop, **training)
    # Another seed's model: everything comes from the checkpoint, but for the seed of the settings, by which
    # FoPE draws its series.
    second_model = build(encoding, store, seed=9, **parts)
    second_model.encoding.seed = first_model.encoding.seed
    continued = run(second_model, store, tmp_path / "stopped", **training)

    assert stopped.status == "interrupted"
    assert stopped.so_far.step == stop
    assert continued.status == "finished"
    assert continued.so_far.step == STEPS
    assert on_disk(tmp_path / "stopped") == on_disk(tmp_path / "whole")
