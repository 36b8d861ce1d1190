"""The loop: the same numbers again, also stopped and continued; no update that is not finite."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny_model import OPTIMIZATION, STEPS, T, build, on_disk, run, training_of

from posenc.core.paths import conf_dir
from posenc.core.seeds import generator_for
from posenc.data import PlantedSampler, ScheduledSampler, WindowSampler, plant_of
from posenc.model.mla import LatentAttention
from posenc.training.loop import alone
from posenc.training.optimizer import build_optimizer, learning_rate
from posenc.training.stacked import train_stacked

ENCODINGS_TRAINED = ("rope", "learned", "t5", "fox")
CREAM = {"max": None, "sigma": 3.0}


class Watched:
    """A sampler that remembers what it gave."""

    def __init__(self, store, seed):
        self.sampler, self.given = WindowSampler(store, T, seed), []

    def batch(self, step, size):
        self.given.append(self.sampler.batch(step, size))
        return self.given[-1]


def test_one_seed_gives_the_same_weights_and_another_seed_others(store, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert run(build("rope", store, seed), store, tmp_path / name, seed=seed).status == "finished"
    assert on_disk(tmp_path / "a") == on_disk(tmp_path / "b")
    assert on_disk(tmp_path / "a")[0] != on_disk(tmp_path / "c")[0]


def test_encodings_share_batches_and_initial_values(store, tmp_path):
    starts, batches = {}, {}
    for name in ENCODINGS_TRAINED:
        model, sampler = build(name, store, seed=3), Watched(store, 3)
        starts[name] = {k: p.detach().clone() for k, p in model.named_parameters() if "encoding." not in k}
        run(model, store, tmp_path / name, seed=3, sampler=sampler)
        batches[name] = np.stack([np.stack(pair) for pair in sampler.given])
    first = ENCODINGS_TRAINED[0]
    assert len(batches[first]) == STEPS
    assert not np.array_equal(batches[first][0], batches[first][1])
    other = np.stack(WindowSampler(store, T, 4).batch(0, 4))
    assert not np.array_equal(other, batches[first][0])  # another seed draws others
    for name in ENCODINGS_TRAINED:
        assert np.array_equal(batches[name], batches[first]), name
        assert starts[name].keys() == starts[first].keys()
        assert all(torch.equal(starts[name][k], starts[first][k]) for k in starts[first]), name


def test_an_update_is_adamw_on_the_mean_loss_with_the_clipped_gradient(store, tmp_path):
    """The same steps, written out again without the loop."""
    logged = []
    model = build("rope", store)
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
    assert [p.loss for p in logged] == pytest.approx(
        [np.mean(losses[:5]), np.mean(losses[5:10]), np.mean(losses[10:])], abs=1e-4
    )
    assert [p.grad_norm for p in logged] == pytest.approx([norms[4], norms[9], norms[11]], rel=1e-3)
    assert [p.tokens for p in logged] == [5 * 4 * T, 10 * 4 * T, STEPS * 4 * T]
    assert [p.lr for p in logged] == [learning_rate(s - 1, STEPS, OPTIMIZATION) for s in (5, 10, STEPS)]


def test_every_step_draws_positions_of_its_own(store, tmp_path):
    """By (seed, step), so that a run that stopped draws the same ones again."""
    seen = []
    for folder, stop in (("whole", None), ("parts", STEPS // 2), ("parts", None)):
        model = build("rope", store, positions={"name": "offset", "max": None})
        model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[1]))
        run(model, store, tmp_path / folder, seed=3, stop_after=stop)
    whole, parts = torch.stack(seen[:STEPS]), torch.stack(seen[STEPS:])
    assert len({pos.sum().item() for pos in whole}) > STEPS // 2
    assert torch.equal(whole, parts)
    drawn = [model.positions(T, generator_for(3, "positions", step)) for step in range(STEPS)]
    assert torch.equal(whole, torch.stack(drawn))


def growing(store, seed=3):
    stages = [(4, T // 4), (8, T // 2), (STEPS, T)]
    return ScheduledSampler(T, [(end, n, WindowSampler(store, n, seed)) for end, n in stages])


def test_windows_grow_and_batches_keep_their_tokens(store, tmp_path):
    seen, logged = [], []
    model = build("rope", store)
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append((args[0].shape[:2], args[1])))
    trained = run(model, store, tmp_path / "kept", sampler=growing(store), on_log=logged.append)
    assert [tuple(shape) for shape, _ in seen] == [(16, T // 4)] * 4 + [(8, T // 2)] * 4 + [(4, T)] * 4
    assert all(torch.equal(pos, torch.arange(shape[1])) for shape, pos in seen)
    assert trained.tokens == logged[-1].tokens == STEPS * 4 * T
    expected = WindowSampler(store, T // 2, 3).batch(5, 8)  # by seed and step alone, whatever the encoding
    assert all(np.array_equal(a, b) for a, b in zip(growing(store).batch(5, 4), expected, strict=True))


@pytest.mark.parametrize("positions", ["contiguous", "cream", "offset"])
def test_growing_windows_go_on_bit_for_bit(store, tmp_path, positions):
    drawn = {"name": positions, **{"contiguous": {}, "offset": {"max": None}}.get(positions, CREAM)}
    for folder, stops in (("whole", [None]), ("parts", [2, 6, None])):  # inside two stages
        for stop in stops:
            model = build("rope", store, positions=drawn)
            run(model, store, tmp_path / folder, seed=3, stop_after=stop, sampler=growing(store))
    assert on_disk(tmp_path / "whole") == on_disk(tmp_path / "parts")
    run(build("rope", store, positions=drawn), store, tmp_path / "plain", seed=3)
    assert on_disk(tmp_path / "plain") != on_disk(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_what_is_not_finite_stops_before_the_update(store, tmp_path, kind):
    model = build("rope", store)
    seen = []

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
    pytest.param(path.stem, {}, {}, marks=[] if path.stem in QUICK else [pytest.mark.slow])
    for path in sorted((conf_dir() / "encoding").glob("*.yaml"))
]


RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
LATENT = partial(LatentAttention, kv_rank=None, q_rank=None, rope_dim=16)


@pytest.mark.parametrize(
    ("encoding", "how", "model"),
    [
        *ENCODINGS,
        pytest.param("t5", {"name": "muon"}, {}, id="muon"),
        pytest.param("t5", {"precision": "bf16"}, {}, id="bf16"),
        pytest.param("rope", {}, {"attention": LATENT}, id="mla"),
        pytest.param("rope", {}, {"positions": RANDOMIZED}, id="randomized"),
    ],
)
def test_stopped_at_the_first_middle_and_last_step_is_not_stopped(store, tmp_path, encoding, how, model):
    run(build(encoding, store, **model), store, tmp_path / "whole", **how)
    whole = on_disk(tmp_path / "whole")
    for stop in (1, STEPS // 2, STEPS - 1):
        folder = tmp_path / f"stop-{stop}"
        stopped = run(build(encoding, store, **model), store, folder, stop_after=stop, **how)
        assert (stopped.status, stopped.step) == ("interrupted", stop)
        # another seed's model: everything has to come from the checkpoint
        ended = run(build(encoding, store, seed=9, **model), store, folder, **how)
        assert (ended.status, ended.step) == ("finished", STEPS)
        assert on_disk(folder) == whole, stop


# --- Several runs as one batched model: each is what it would have been alone, up to the order of its sums.


@pytest.mark.parametrize(
    ("encoding", "precision", "off"),
    [
        *((name, "fp32", 2e-5) for name in ("rope", "alibi", "t5", "fox", "cope", "learned")),
        ("t5", "bf16", 0.02),
    ],
)
def test_each_run_is_the_one_it_would_have_been_alone(store, tmp_path, encoding, precision, off):
    losses = {"alone": [], "stacked": []}

    def made(kind, seed):
        how = {"lr": 1e-3 * (seed + 1), "precision": precision, "seed": seed}
        model, folder = build(encoding, store, seed), tmp_path / f"{kind}-{seed}"
        return training_of(model, store, folder, on_log=lambda p: losses[kind].append(p.loss), **how)

    for seed in (0, 1):
        alone(made("alone", seed))
    said = []
    ended = train_stacked([made("stacked", seed) for seed in (0, 1)], said.append)
    assert not said
    assert [end.status for end in ended if not isinstance(end, Exception)] == ["finished"] * 2
    assert sorted(losses["stacked"]) == pytest.approx(sorted(losses["alone"]), abs=off)
    for seed in (0, 1):
        kept = [
            load_file(tmp_path / f"{kind}-{seed}" / f"step-{STEPS:08d}" / "model.safetensors")
            for kind in ("alone", "stacked")
        ]
        for name, value in kept[0].items():
            torch.testing.assert_close(kept[1][name], value, rtol=0, atol=10 * off)


def test_planted_runs_share_a_pass_and_log_both_losses(store, tmp_path):
    plant = plant_of({"share": 0.5, "pairs": 2, "cue": 1, "alphabet": 64, "weight": 3.0}, store)
    logged = {"alone": [], "stacked": []}

    def made(kind, seed):
        how = {"sampler": PlantedSampler(store, T, seed, plant), "on_log": logged[kind].append}
        return training_of(build("rope", store, seed), store, tmp_path / f"{kind}{seed}", seed=seed, **how)

    for seed in (0, 1):
        alone(made("alone", seed))
    said = []
    train_stacked([made("stacked", seed) for seed in (0, 1)], said.append)
    assert not said
    for key in ("loss", "natural_loss", "recall_loss"):
        by_kind = [sorted(one.metrics()[key] for one in some) for some in logged.values()]
        assert by_kind[1] == pytest.approx(by_kind[0], abs=5e-5)
    first = logged["alone"][0].metrics()
    assert first["recall_loss"] > first["natural_loss"] > 0  # never seen bytes


def test_one_that_diverges_ends_alone_and_what_cannot_share_goes_on_by_itself(store, tmp_path):
    said = []
    broken = build("dape", store, 0)
    with torch.no_grad():
        broken.blocks[0].mlp.up.weight[0, 0] = float("nan")
    models = [broken, build("dape", store, 1)]
    ends = train_stacked(
        [training_of(model, store, tmp_path / str(i), seed=i) for i, model in enumerate(models)], said.append
    )
    assert [getattr(end, "status", end) for end in ends] == ["diverged", "finished"]
    assert len(said) == 1  # dape has a backward pass of its own
    assert SimpleNamespace(**vars(ends[1])).step == STEPS
