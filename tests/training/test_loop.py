"""The loop: the same numbers again, also stopped and continued; no update that is not finite."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_model import OPTIMIZATION, STEPS, T, build, on_disk, run

from posenc.core.seeds import generator_for
from posenc.data import ScheduledSampler, WindowSampler
from posenc.encodings.registry import own_encodings
from posenc.model.attention import LatentAttention
from posenc.training.optimizer import build_optimizer, learning_rate


def test_an_update_is_adamw_on_the_mean_loss_with_the_clipped_gradient(store, tmp_path):
    """The same steps, written out again without the loop."""
    model, logged = build("rope", store), []
    run(model, store, tmp_path / "kept", on_log=logged.append, grad_clip=0.5)
    again = build("rope", store)
    optimizer = build_optimizer(again, OPTIMIZATION)
    sampler, pos, losses, norms = WindowSampler(store, T, 0), torch.arange(T), [], []
    for step in range(STEPS):
        inputs, targets = (torch.from_numpy(part) for part in sampler.batch(step, 4))
        loss = F.nll_loss(torch.log_softmax(again(inputs, pos), -1).flatten(0, 1), targets.flatten())
        gradients = torch.autograd.grad(loss, list(again.parameters()))
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in gradients)).item()
        for parameter, gradient in zip(again.parameters(), gradients, strict=True):
            parameter.grad = gradient * min(1.0, 0.5 / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, OPTIMIZATION)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    assert max(norms) > 0.5  # or nothing was clipped
    for (name, ours), theirs in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-4), name
    assert [p.step for p in logged] == [5, 10, STEPS]
    means = [np.mean(some) for some in (losses[:5], losses[5:10], losses[10:])]
    assert [p.loss for p in logged] == pytest.approx(means, abs=1e-4)
    assert [p.grad_norm for p in logged] == pytest.approx([norms[4], norms[9], norms[11]], rel=1e-3)
    assert [p.tokens for p in logged] == [5 * 4 * T, 10 * 4 * T, STEPS * 4 * T]
    assert [p.lr for p in logged] == [learning_rate(s - 1, STEPS, OPTIMIZATION) for s in (5, 10, STEPS)]


def test_every_step_draws_positions_of_its_own(store, tmp_path):
    """By (seed, step), so that a run that stopped draws the same ones again."""
    model, seen = build("rope", store, positions={"name": "offset", "max": None}), []
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    run(model, store, tmp_path, seed=3)
    assert len({pos.sum().item() for pos in seen}) > STEPS // 2
    drawn = [model.positions(T, generator_for(3, "positions", step)) for step in range(STEPS)]
    assert torch.equal(torch.stack(seen), torch.stack(drawn))


def growing(store, seed=3):
    stages = [(4, T // 4), (8, T // 2), (STEPS, T)]
    return ScheduledSampler(T, [(end, n, WindowSampler(store, n, seed)) for end, n in stages])


def test_windows_grow_and_batches_keep_their_tokens(store, tmp_path):
    model, seen, logged = build("rope", store), [], []
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append((args[0].shape[:2], args[1])))
    trained = run(model, store, tmp_path / "kept", sampler=growing(store), on_log=logged.append)
    assert [tuple(shape) for shape, _ in seen] == [(16, T // 4)] * 4 + [(8, T // 2)] * 4 + [(4, T)] * 4
    assert all(torch.equal(pos, torch.arange(shape[1])) for shape, pos in seen)
    assert trained.tokens == logged[-1].tokens == STEPS * 4 * T
    expected = WindowSampler(store, T // 2, 3).batch(5, 8)  # by seed and step alone, whatever the encoding
    assert all(np.array_equal(a, b) for a, b in zip(growing(store).batch(5, 4), expected, strict=True))


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_what_is_not_finite_stops_before_the_update(store, tmp_path, kind):
    model, seen = build("rope", store), []

    def poisoned(module, given, value):
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
        if len(seen) < 8:
            return value
        if kind == "loss":
            return value * float("nan")
        value.register_hook(lambda gradient: gradient * float("inf"))
        return value

    model.blocks[-1].register_forward_hook(poisoned)
    trained = run(model, store, tmp_path / "kept", checkpoint_seconds=0)
    assert (trained.status, trained.step) == ("diverged", 7)
    assert trained.reason == f"non-finite {kind} at step 8"
    assert all(torch.equal(p, seen[7][name]) for name, p in model.named_parameters())
    assert any(not torch.equal(seen[6][name], seen[7][name]) for name in seen[7])
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["step-00000006", "step-00000007"]


QUICK = {"rope", "learned", "t5", "fox", "dape", "sum"}  # a family each
ENCODINGS = [
    pytest.param(name, {}, {}, marks=[] if name in QUICK else [pytest.mark.slow]) for name in own_encodings()
]
RANDOMIZED, OFFSET = {"name": "randomized", "max": None, "dense": False}, {"name": "offset", "max": None}
CREAM = {"name": "cream", "max": None, "sigma": 3.0}
LATENT = partial(LatentAttention, kv_rank=None, q_rank=None, rope_dim=16)


@pytest.mark.parametrize(
    ("encoding", "how", "model"),
    [
        *ENCODINGS,
        pytest.param("t5", {"name": "muon"}, {}, id="muon"),
        pytest.param("t5", {"precision": "bf16"}, {}, id="bf16"),
        pytest.param("rope", {}, {"attention": LATENT}, id="mla"),
        pytest.param("rope", {}, {"positions": RANDOMIZED}, id="randomized"),
        pytest.param("rope", {"sampler": growing}, {}, id="growing"),
        pytest.param("rope", {"sampler": growing}, {"positions": CREAM}, id="growing-cream"),
        pytest.param("rope", {"sampler": growing}, {"positions": OFFSET}, id="growing-offset"),
    ],
)
def test_stopped_at_the_first_middle_and_last_step_is_not_stopped(store, tmp_path, encoding, how, model):
    if "sampler" in how:  # in three stages
        how = {**how, "sampler": how["sampler"](store)}
    run(build(encoding, store, **model), store, tmp_path / "whole", **how)
    whole = on_disk(tmp_path / "whole")
    for stop in (1, STEPS // 2, STEPS - 1):
        folder = tmp_path / f"stop-{stop}"
        stopped_at = build(encoding, store, **model)
        stopped = run(stopped_at, store, folder, stop_after=stop, **how)
        assert (stopped.status, stopped.step) == ("interrupted", stop)
        # another seed's model: everything comes from the checkpoint but the seed of settings (FoPE's series)
        other = build(encoding, store, seed=9, **model)
        other.encoding.seed = stopped_at.encoding.seed
        ended = run(other, store, folder, **how)
        assert (ended.status, ended.step) == ("finished", STEPS)
        assert on_disk(folder) == whole, stop
