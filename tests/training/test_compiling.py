"""`train.compile`: what auto means, and that compiled blocks are the same model with one graph."""

import json
import shutil

import pytest
import tiny
import tiny_model
import torch

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.encodings.registry import own_encodings
from posenc.running.checks import check_model
from posenc.running.model_parts import build_model, check_parts
from posenc.training.device import compiled_blocks, resolve_compile
from posenc.training.loop import NextTokenLoss, gradients

CPU = torch.device("cpu")
GPU = torch.device("cuda")
# FLOPs of an update of 32,768 tokens
NANO = 1.7e11
SMALL = 7e12
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")


@pytest.fixture
def has_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: name)


@pytest.mark.parametrize(
    ("steps", "flops", "compiles"),
    [
        pytest.param(3000, SMALL, True, id="100M tokens of a small model"),
        pytest.param(500, SMALL, False, id="half a minute of a small model"),
        pytest.param(7000, NANO, True, id="many updates, however small they are"),
        pytest.param(5000, NANO, False, id="50 s of small updates"),
    ],
)
def test_auto_is_for_runs_of_more_than_a_minute_on_a_gpu(has_compiler, steps, flops, compiles):
    assert resolve_compile("auto", GPU, steps=steps, step_flops=flops) is compiles


def test_auto_never_compiles_on_a_cpu(has_compiler):
    assert resolve_compile("auto", CPU, steps=10**6, step_flops=SMALL) is False


def test_auto_needs_a_c_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert resolve_compile("auto", GPU, steps=10**6, step_flops=SMALL) is False


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(("setting", "compiles"), [(True, True), (False, False)])
def test_a_setting_other_than_auto_is_taken_as_it_is(device, setting, compiles):
    assert resolve_compile(setting, device, steps=1, step_flops=NANO) is compiles


@pytest.mark.slow
def test_where_the_compiler_does_not_work_the_run_goes_on_without_it(working_folder, corpus, tmp_path):
    words = ("train", *tiny.TINY, f"data.paths={corpus}", "train.compile=true")
    broken = {"CXX": str(shutil.which("false")), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "code")}
    result = tiny.spawn(*words, cwd=working_folder, **broken)
    assert result.code == 0, result.err
    assert "torch.compile does not work here, the model runs without it" in result.err
    (path,) = working_folder.glob("runs/*/*/checkpoints/*/state.json")
    assert json.loads(path.read_text())["made_by"]["compiled"] is False


def gradients_by_name(model, ids, pos):
    """The loss of windows (B, T + 1), and the gradient of every parameter."""
    model.zero_grad()
    inputs, targets = ids[:, :-1], ids[:, 1:]
    loss, _ = gradients(NextTokenLoss(model), inputs, targets, pos, precision="fp32", grad_clip=1e9)
    gradients_by_parameter = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss, **gradients_by_parameter}


@pytest.mark.slow
@needs_a_compiler
@pytest.mark.parametrize("name", own_encodings())
def test_compiled_blocks_give_the_same_gradients(name, shared_cache, monkeypatch):
    """Every encoding, with the parameters of its YAML; four windows as training has them."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared_cache / "compiled"))
    (job,) = compose_jobs("train", parse([f"encoding={name}", "model=nano", "context_length=32"])).jobs
    settings = check_parts(job.settings)
    model = build_model(settings, check_model(settings.model), 64).train()
    ids = torch.randint(64, (4, 33), generator=torch.Generator().manual_seed(0))
    pos = model.positions(32, torch.Generator().manual_seed(0))

    plain = gradients_by_name(model, ids, pos)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with compiled_blocks(model, enabled=True):
        compiled = gradients_by_name(model, ids, pos)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    assert compiled.keys() == plain.keys()
    # What is added to all scores of a row (the last bias of an MLP) has a gradient of 0 but for rounding, so
    # the tolerance is one of the largest gradient of all.
    largest = max(float(value.abs().max()) for value in plain.values() if value.dim())
    for key, value in plain.items():
        assert torch.allclose(compiled[key], value, rtol=1e-3, atol=1e-6 * largest), key


@pytest.mark.slow
@needs_a_compiler
def test_compiled_and_stopped_is_compiled_and_not_stopped(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    store = tiny_model.tokens_of(corpus)

    def train(folder, seed, stop_after=None):
        model = tiny_model.build("rope", store, seed)
        with compiled_blocks(model, enabled=True):
            tiny_model.run(model, store, tmp_path / folder, stop_after=stop_after, precision="bf16")

    train("whole", seed=0)
    train("stopped", seed=0, stop_after=6)
    train("stopped", seed=9)  # another seed's model: everything has to come from the checkpoint
    assert tiny_model.on_disk(tmp_path / "stopped") == tiny_model.on_disk(tmp_path / "whole")
