"""`posenc bench`: cases, operations, a document that is measured; no times are judged."""

import json
import statistics

import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from posenc.cli import app
from posenc.cli.bench import cases, render, training
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine
from posenc.model.decoder import ModelShape, forward_flops, training_flops
from posenc.running.build import build_model
from posenc.training.loop import NextTokenLoss, gradients

LENGTH, WINDOWS, VOCABULARY = 16, 3, 97
SMALL = ("context_length=16", "train.precision=fp32")
SHAPE = ModelShape("small", d_model=32, n_layers=2, n_heads=2, mlp_ratio=3)


def chosen(*overrides, lengths="8x"):
    jobs = compose_jobs("train", CommandLine([*overrides, "device=cpu"], multirun=True)).jobs
    return cases(jobs, lengths)


def counted(subject, *, training):
    """Operations a token by torch's own count of what ran."""
    tokens = torch.randint(VOCABULARY, (WINDOWS, LENGTH), generator=torch.Generator().manual_seed(0))
    pos = torch.arange(LENGTH)
    with FlopCounterMode(display=False) as counter:
        if training:
            gradients(NextTokenLoss(subject), tokens, tokens, pos, precision="fp32", grad_clip=1.0)
        else:
            with torch.no_grad():
                subject(tokens, pos)
    return counter.get_total_flops() / tokens.numel()


@pytest.mark.parametrize(
    "overrides", [["encoding=nope"], ["encoding=rope"], ["encoding=alibi"], ["attention=mla"]]
)
def test_operations_are_those_that_run(overrides):
    """Exactly in a forward pass; a step also makes the norms' gradients by products, under a hundredth."""
    (case,) = chosen(*overrides, f"context_length={LENGTH}")
    subject = build_model(case.step.parts, SHAPE, VOCABULARY)
    assert counted(subject, training=False) == forward_flops(subject, LENGTH)
    in_training = counted(subject, training=True)
    assert training_flops(subject, LENGTH) <= in_training <= 1.01 * training_flops(subject, LENGTH)


def test_commas_make_cases_once_each_and_labels_say_what_differs():
    found = chosen("encoding=rope,alibi", "context_length=32,64")
    told = [(one.label, *one.windows) for one in found]
    assert told == [("rope", 256), ("rope", 512), ("alibi", 256), ("alibi", 512)]
    labels = [one.label for one in chosen("encoding.base=100.0,500.0,100.0", "seed=0,1")]
    assert labels == ["rope encoding.base=100.0", "rope encoding.base=500.0"]
    muon = [one.label for one in chosen("optim=adamw,muon", "train.lr=1e-3,2e-3")]
    assert muon == ["rope optim=adamw", "rope optim=muon"]  # a rate costs nothing
    bpe = ("tokenizer=bpe", "tokenizer.vocab_size=3000", "data=wikitext103")  # no corpus is fetched for it
    (one,) = chosen(*bpe, lengths="[512, 1x]")
    assert one.vocab_size == 3000 and one.windows == [64, 512]


@pytest.fixture(scope="module")
def document():
    """What one call measured, in samples of one call: two rows, the second of which refuses 4 T."""
    rows = ("encoding=learned", "encoding.beyond=clamp,refuse", "train.batch_tokens=128", "device=cpu")
    asked = ("--eval-lengths", "1x,4x", "--repeats", "3", "--format", "json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posenc.cli.bench.SHORTEST", 0.0)
        result = CliRunner().invoke(app, ["bench", *tiny.MODEL, *SMALL, *rows, *asked])
    assert result.exit_code == 0, result
    return json.loads(result.stdout)


def test_what_is_measured_is_named_and_every_format_says_the_same(document):
    (base, cell), machine = document["cells"], document["machine"]
    assert base["label"] == base["base"] == cell["base"] == "learned encoding.beyond=clamp"
    assert machine["cpu"] and machine["threads"] == 1 and machine["device"] == "cpu"
    assert cell["parameters"]["encoding"] == 16 * 32 and cell["training"]["tokens"] == 128
    at_t, beyond = cell["evaluation"]
    for one in (cell["training"], at_t):
        pairs = list(zip(one["seconds"], one["base_seconds"], strict=True))
        assert len(pairs) == document["repeats"] == 3 and min(one["seconds"]) > 0
        assert one["tokens_per_second"] == pytest.approx(one["tokens"] / statistics.median(one["seconds"]))
        assert one["ratio"] == pytest.approx(statistics.median(a / b for a, b in pairs))
        assert one["ratio_low"] <= one["ratio"] <= one["ratio_high"]
    assert beyond["window"] == 64 and "refuse" in beyond["reason"] and "seconds" not in beyond
    weights, held = 4 * cell["parameters"]["total"], cell["training"]["tensor_bytes"]
    assert held >= 4 * weights  # two moments and gradients as well
    assert cell["training"]["tensor_ratio"] == held / base["training"]["tensor_bytes"]
    ratio = document["cells"][1]["training"]["ratio"]
    text = render(document, "table", 80)
    assert all(len(line) <= 80 for line in text.splitlines()) and f" {ratio:.2f}x " in text
    assert "beyond=refuse, evaluation at 64: refused" in " ".join(text.split())
    assert f"| {ratio:.2f}x |" in render(document, "markdown", 80)
    assert json.loads(render(document, "json", 80)) == document
    evil = json.loads(json.dumps(document))
    evil["cells"][0]["label"] = "a|[red]x\x1b[31m"
    assert not any("\x1b" in render(evil, format, 80) for format in ("table", "markdown", "json"))
    assert "\\|" in render(evil, "markdown", 80)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["nanoGPT-like", "transformers", "x-transformers"])
def test_a_peer_is_of_the_same_size_causal_and_learns(package, monkeypatch):
    monkeypatch.syspath_prepend(str(tiny.ROOT / "scripts" / "bench"))
    import peers

    if peers.installed().get(package, "") is None:
        pytest.skip(f"needs {package}")
    (case,) = chosen(*tiny.MODEL, *SMALL, "train.batch_tokens=256", "train.lr=1e-2", lengths="none")
    every = [one for one in peers.PEERS if one.package == package]
    for peer, attention in [(one, attention) for one in every for attention in one.attentions]:
        model, ours = peers.peer_model(peer, attention, case), case.model()
        sizes = [sum(p.numel() for p in one.parameters()) for one in (model, ours)]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.1)  # biases, positions; of 27k weights
        tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
        later = (torch.arange(16) > 8).long()
        with torch.no_grad():
            before, after = model.eval()(tokens), model((tokens + later) % 256)
        assert before.shape == (2, 16, 256)
        assert torch.allclose(before[:, :9], after[:, :9], atol=1e-5)
        assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)
        losses, loss = [], peers.PeerLoss(model)
        loss.register_forward_hook(lambda module, given, found, told=losses: told.append(found.item()))
        work = training(case, model, lambda _, loss=loss: loss)
        for _ in range(20):
            work.run()
        assert 5 < losses[0] < 7 and losses[-1] < losses[0] - 0.5, losses
