"""`posenc bench`: cases, operations, a document that is measured; no times are judged."""

import json
import statistics
from dataclasses import dataclass, replace

import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from posenc.cli import app
from posenc.cli.bench import render
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine
from posenc.model.decoder import ModelShape, forward_flops, training_flops
from posenc.running.bench.case import make_cases
from posenc.running.bench.timing import measure_figures
from posenc.running.bench.work import training_work
from posenc.running.model_parts import build_model
from posenc.training.loop import NextTokenLoss, gradients

LENGTH = 16
WINDOWS = 3
VOCABULARY = 97
SMALL = ("context_length=16", "train.precision=fp32")
PEAK = 1e9  # FLOPs a second of the device
SHAPE = ModelShape("small", d_model=32, n_layers=2, n_heads=2, mlp_ratio=3)


def cases_of(*overrides, lengths="8x"):
    jobs = compose_jobs("train", CommandLine([*overrides, "device=cpu"], multirun=True)).jobs
    return make_cases(jobs, lengths)


def operations_a_token(model, *, training):
    """Count by torch's own counter what runs."""
    tokens = torch.randint(VOCABULARY, (WINDOWS, LENGTH), generator=torch.Generator().manual_seed(0))
    pos = torch.arange(LENGTH)
    with FlopCounterMode(display=False) as counter:
        if training:
            gradients(NextTokenLoss(model), tokens, tokens, pos, precision="fp32", grad_clip=1.0)
        else:
            with torch.no_grad():
                model(tokens, pos)
    return counter.get_total_flops() / tokens.numel()


OPTIONS = [f"attention.{option}" for option in ("gate=head", "gate=element", "normalizer=asentmax")]


@pytest.fixture(params=["encoding=nope", "encoding=rope", "encoding=alibi", "attention=mla", *OPTIONS])
def model(request):
    (case,) = cases_of(request.param, f"context_length={LENGTH}")
    return build_model(case.step.settings, SHAPE, VOCABULARY)


def test_operations_of_a_forward_pass_are_those_that_run(model):
    assert operations_a_token(model, training=False) == forward_flops(model, LENGTH)


def test_operations_of_a_step_are_those_that_run_within_a_hundredth(model):
    """A step also makes the gradients of norms by products."""
    declared = training_flops(model, LENGTH)
    assert declared <= operations_a_token(model, training=True) <= 1.01 * declared


# --- cases


def test_commas_make_a_case_of_each_combination():
    cases = cases_of("encoding=rope,alibi", "context_length=32,64")
    assert [(case.label, *case.windows) for case in cases] == [
        ("rope", 256),
        ("rope", 512),
        ("alibi", 256),
        ("alibi", 512),
    ]


@pytest.mark.parametrize(
    ("overrides", "labels"),
    [
        (
            ("encoding.base=100.0,500.0,100.0", "seed=0,1"),
            ["rope encoding.base=100.0", "rope encoding.base=500.0"],
        ),
        (("optim=adamw,muon", "train.lr=1e-3,2e-3"), ["rope optim=adamw", "rope optim=muon"]),
    ],
    ids=["a seed costs nothing", "a rate costs nothing"],
)
def test_a_label_says_what_differs_and_costs_time(overrides, labels):
    assert [case.label for case in cases_of(*overrides)] == labels


def test_no_corpus_is_fetched_for_the_size_of_a_vocabulary():
    (case,) = cases_of("tokenizer=bpe", "tokenizer.vocab_size=3000", "data=wikitext103")
    assert case.vocab_size == 3000


def test_lengths_are_tokens_or_multiples_in_order():
    (case,) = cases_of("context_length=64", lengths="[512, 1x]")
    assert case.windows == [64, 512]


# --- a document


@pytest.fixture(scope="module")
def measured():
    """What one call measured, and its JSON, in samples of one call: two rows; the second refuses 4 T."""
    documents = []

    def render_and_keep(document, *arguments):
        documents.append(document)
        return render(document, *arguments)

    rows = ("encoding=learned", "encoding.beyond=clamp,refuse", "train.batch_tokens=128", "device=cpu")
    options = ("--eval-lengths", "1x,4x", "--repeats", "3", "--format", "json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posenc.running.bench.timing.SHORTEST", 0.0)
        patch.setattr("posenc.running.bench.document.peak_flops", lambda device, precision: PEAK)
        patch.setattr("posenc.cli.bench.render", render_and_keep)
        result = CliRunner().invoke(app, ["bench", *tiny.MODEL, *SMALL, *rows, *options])
    assert result.exit_code == 0, result
    return documents[0], json.loads(result.stdout)


@pytest.fixture(scope="module")
def document(measured):
    return measured[1]


@pytest.fixture(scope="module")
def row(document):
    return document["cells"][1]


def test_rows_name_themselves_and_their_base(document):
    base, row = document["cells"]
    assert base["label"] == base["base"] == row["base"] == "learned encoding.beyond=clamp"
    assert row["label"] == "learned encoding.beyond=refuse"


def test_the_machine_is_named(document):
    assert document["machine"]["cpu"]
    assert document["machine"]["threads"] == 1
    assert document["machine"]["device"] == "cpu"


def test_what_a_step_is_made_of(row):
    assert row["parameters"]["encoding"] == 16 * 32
    assert row["training"]["tokens"] == 128


@pytest.mark.parametrize("phase", ["training", "evaluation"])
def test_figures_are_medians_of_pairs(document, row, phase):
    figures = row["training"] if phase == "training" else row["evaluation"][0]
    ratios = [a / b for a, b in zip(figures["seconds"], figures["base_seconds"], strict=True)]
    assert len(ratios) == document["repeats"] == 3
    assert min(figures["seconds"]) > 0
    rate = figures["tokens"] / statistics.median(figures["seconds"])
    assert figures["tokens_per_second"] == pytest.approx(rate)
    assert figures["ratio"] == pytest.approx(statistics.median(ratios))
    assert figures["ratio_low"] <= figures["ratio"] <= figures["ratio_high"]


def test_mfu_is_the_share_of_the_peak_that_the_model_needs(measured, row):
    (_, case) = cases_of("encoding=learned", "encoding.beyond=clamp,refuse", *tiny.MODEL, *SMALL)
    flops = training_flops(case.model(), LENGTH) * row["training"]["tokens_per_second"]
    assert row["training"]["mfu"] == pytest.approx(flops / PEAK)
    assert row["training"]["peak_flops"] == PEAK


def test_the_table_has_mfu_and_says_of_which_peak(measured, row):
    text = render(measured[0], "table", 120)
    assert f" {row['training']['mfu']:.1%} " in text
    assert "dense fp32 peak" in " ".join(text.split())


@pytest.mark.parametrize("format", ["table", "json"])
def test_a_device_without_a_known_peak_has_no_mfu(measured, format):
    document, _ = measured
    unknown = replace(document, rows=[replace(row, mfu=None) for row in document.rows])
    assert "mfu" not in render(unknown, format, 120).lower()


def test_a_length_that_an_encoding_refuses_has_a_reason_and_no_figures(row):
    beyond = row["evaluation"][1]
    assert beyond["window"] == 64
    assert "refuse" in beyond["reason"]
    assert "seconds" not in beyond


def test_memory_counts_weights_gradients_and_two_moments(document, row):
    weights = 4 * row["parameters"]["total"]
    assert row["training"]["tensor_bytes"] >= 4 * weights
    base_bytes = document["cells"][0]["training"]["tensor_bytes"]
    assert row["training"]["tensor_ratio"] == row["training"]["tensor_bytes"] / base_bytes


def test_the_table_fits_and_says_what_was_measured(measured, row):
    text = render(measured[0], "table", 80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert f" {row['training']['ratio']:.2f}x " in text
    assert "beyond=refuse, evaluation at 64: refused" in " ".join(text.split())


def test_markdown_has_the_same_figures(measured, row):
    assert f"| {row['training']['ratio']:.2f}x |" in render(measured[0], "markdown", 80)


@pytest.mark.parametrize("format", ["table", "markdown", "json"])
def test_control_characters_of_a_label_are_escaped(measured, format):
    document, _ = measured
    rows = [replace(row, label="a|[red]x\x1b[31m") for row in document.rows]
    evil = replace(document, rows=rows)
    assert "\x1b" not in render(evil, format, 80)
    assert format != "markdown" or "\\|" in render(evil, format, 80)


@dataclass
class FakeWork:
    """A work of one call, which fails if it has a problem."""

    problem: str | None = None
    tokens = 8
    device = torch.device("cpu")

    def run(self):
        if self.problem is not None:
            raise ValueError(self.problem)

    def seconds(self, calls):
        self.run()
        return 0.5

    def tensor_bytes(self):
        self.run()
        return 100


def test_a_base_that_fails_is_named_and_its_row_is_timed_without_a_ratio():
    figures = measure_figures(FakeWork, lambda: FakeWork("refuses the length"), repeats=3)
    assert figures.reason is None
    assert figures.base_reason == "refuses the length"
    assert figures.timing.seconds == [0.5, 0.5, 0.5]
    assert not {"ratio", "base_seconds", "tensor_ratio"} & figures.plain().keys()


def test_a_row_that_fails_is_not_blamed_on_its_base():
    figures = measure_figures(lambda: FakeWork("refuses the length"), FakeWork, repeats=3)
    assert figures.plain() == {"reason": "refuses the length"}


def test_the_table_says_whose_failure_leaves_out_a_ratio(measured):
    document, _ = measured
    base, row = document.rows
    alone = measure_figures(FakeWork, lambda: FakeWork("refuses it"), repeats=3)
    without_ratio = replace(row, evaluation=dict.fromkeys(row.evaluation, alone))
    text = " ".join(render(replace(document, rows=[base, without_ratio]), "table", 80).split())
    assert "evaluation at 64: no ratio, since learned encoding.beyond=clamp failed: refuses it" in text


# --- models of other packages

PACKAGES = ["nanoGPT-like", "transformers", "x-transformers"]


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(tiny.ROOT / "scripts" / "bench"))
    import peers

    return peers


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_peer_is_of_the_same_size_causal_and_learns(package, peers):
    if peers.installed().get(package, "") is None:
        pytest.skip(f"needs {package}")
    (case,) = cases_of(*tiny.MODEL, *SMALL, "train.batch_tokens=256", "train.lr=1e-2", lengths="none")
    for peer in peers.PEERS:
        if peer.package != package:
            continue
        for attention in peer.attentions:
            model = peers.peer_model(peer, attention, case)
            assert size_of(model) == pytest.approx(size_of(case.model()), rel=0.1)  # biases, positions
            assert_causal(model)
            losses = losses_of_training(case, model, peers.PeerLoss(model))
            assert 5 < losses[0] < 7, losses
            assert losses[-1] < losses[0] - 0.5, losses


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def assert_causal(model):
    """What changes after position 8 changes the logits there alone."""
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    later = (torch.arange(16) > 8).long()
    with torch.no_grad():
        before = model.eval()(tokens)  # (2, 16, 256)
        after = model((tokens + later) % 256)
    assert before.shape == (2, 16, 256)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-5)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


def losses_of_training(case, model, loss):
    losses = []
    loss.register_forward_hook(lambda module, inputs, output: losses.append(output.item()))
    work = training_work(case, model, lambda _: loss)
    for _ in range(20):
        work.run()
    return losses
