"""Several runs as one batched model: each is what it would have been alone, up to the order of its sums."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny_model import STEPS, T, build, training_of

from posenc.data import PlantedSampler, plant_of
from posenc.training.loop import alone
from posenc.training.stacked import train_stacked


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
    plant = plant_of({"share": 0.5, "pairs": 2, "cue": 1, "weight": 3.0}, store)
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
