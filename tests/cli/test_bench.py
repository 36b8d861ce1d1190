"""`posenc bench`: cases, counts of operations, and a document that is measured; no times are judged."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode

from posenc.cli.bench import Case, base_name, cases, with_bases
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine
from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.model.decoder import (
    Decoder,
    ModelShape,
    count_parameters,
    forward_flops,
    product_weights,
    training_flops,
)
from posenc.report.bench import FORMATS, render
from posenc.running.build import build_model
from posenc.training.loop import NextTokenLoss, gradients

LENGTH, WINDOWS, VOCABULARY = 16, 3, 97
SHAPE = ModelShape("small", d_model=32, n_layers=2, n_heads=2, mlp_ratio=3)


def chosen(*overrides: str, lengths: str = "8x") -> list[Case]:
    jobs = compose_jobs("train", CommandLine([*overrides, "device=cpu"], True, None, False, False)).jobs
    return cases(jobs, repeats=3, lengths=lengths)


def model(*overrides: str) -> Decoder:
    (one,) = chosen(*overrides, f"context_length={LENGTH}")
    return build_model(one.asked["settings"], SHAPE, VOCABULARY)


def counted(subject: Decoder, *, training: bool) -> float:
    """Operations a token by torch's own count of what ran."""
    tokens = torch.randint(VOCABULARY, (WINDOWS, LENGTH), generator=torch.Generator().manual_seed(0))
    pos = subject.positions(LENGTH, generator_for(0, "test"))
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
def test_operations_are_those_that_run(overrides: list[str]) -> None:
    """Exactly in a forward pass; a step also makes the norms' gradients by products, under a hundredth."""
    subject = model(*overrides)
    assert counted(subject, training=False) == forward_flops(subject, LENGTH)
    in_training = counted(subject, training=True)
    assert training_flops(subject, LENGTH) <= in_training <= 1.01 * training_flops(subject, LENGTH)


def test_what_an_encoding_adds_is_not_counted() -> None:
    plain, heavy = model("encoding=nope"), model("encoding=transformer_xl")
    assert training_flops(heavy, LENGTH) == training_flops(plain, LENGTH)
    assert counted(heavy, training=False) > forward_flops(heavy, LENGTH)


def test_six_n_and_the_attention() -> None:
    """12 d^2 a layer at an MLP four times as wide, the embedding once; norms are not multiplied with."""
    subject = model("encoding=nope")
    norms = (2 * SHAPE.n_layers + 1) * SHAPE.d_model
    assert product_weights(subject) == count_parameters(subject)["total"] - norms
    expected = 6 * product_weights(subject) + 12 * SHAPE.n_layers * SHAPE.d_model * LENGTH
    assert training_flops(subject, LENGTH) == expected


def test_commas_make_cases_and_each_group_gets_its_base() -> None:
    found = with_bases(chosen("encoding=rope,alibi", "context_length=32,64"))
    told = [(one.label, one.asked["settings"]["context_length"], one.asked["windows"]) for one in found]
    base = base_name()
    assert told == [
        *[(name, 32, [256]) for name in (base, "rope", "alibi")],
        *[(name, 64, [512]) for name in (base, "rope", "alibi")],
    ]


def test_seeds_and_repetitions_make_no_case_of_their_own() -> None:
    assert len(chosen("encoding=rope,rope", "seed=0,1")) == 1
    assert len(with_bases(chosen(f"encoding={base_name()}"))) == 1


def test_labels_say_what_differs() -> None:
    labels = [one.label for one in chosen("encoding=rope", "encoding.base=100.0,500.0", "train.lr=1e-3")]
    assert labels == ["rope encoding.base=100.0", "rope encoding.base=500.0"]


def test_the_base_has_the_same_options_but_no_drawn_positions() -> None:
    (one,) = chosen("encoding=rope", "positions=randomized", "positions.max=600", "attention.window=8")
    own, base = one.asked["settings"], one.base().asked["settings"]
    assert own["positions"]["name"] == "randomized" and base["positions"] == {"name": "contiguous"}
    assert base["attention"] == own["attention"] and base["encoding"] == {"name": base_name()}


@pytest.mark.parametrize(
    ("lengths", "windows"), [("none", []), ("1x,8x", [64, 512]), ("[512, 64, 1x]", [64, 512]), ("0.5x", [32])]
)
def test_lengths(lengths: str, windows: list[int]) -> None:
    assert chosen("encoding=rope", lengths=lengths)[0].asked["windows"] == windows


def test_a_vocabulary_needs_no_corpus() -> None:
    def vocabulary(*overrides: str) -> Any:
        return chosen("encoding=rope", *overrides)[0].asked["vocab_size"]

    assert vocabulary() == 256
    assert vocabulary("tokenizer=bpe", "tokenizer.vocab_size=3000", "data=wikitext103") == 3000
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size"):
        vocabulary("tokenizer=bpe", "tokenizer.vocab_size=10")


Posenc = Callable[..., tiny.Result]
SMALL = (*tiny.MODEL, "context_length=16", "train.batch_tokens=128", "train.precision=fp32", "device=cpu")
REFUSING = ("encoding=learned", "encoding.beyond=refuse")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one call measured: an encoding that refuses 4 T, beside the base."""
    command = ("bench", *SMALL, *REFUSING, "--eval-lengths", "1x,4x", "--repeats", "3", "--format", "json")
    process = tiny.start(*command, cwd=tmp_path_factory.mktemp("bench"), OMP_NUM_THREADS="1")
    result = tiny.finished(process, seconds=600)  # it starts four processes
    assert result.code == 0, result
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_the_base_comes_first_and_everything_is_named(document: dict[str, Any]) -> None:
    assert [cell["label"] for cell in document["cells"]] == ["nope", "learned"]
    assert {cell["base"] for cell in document["cells"]} == {"nope"}
    machine = document["machine"]
    assert machine["cpu"] and machine["threads"] == 1 and machine["cores"] >= 1
    assert machine["device"] == "cpu" and machine["versions"]["torch"]
    base, learned = document["cells"]
    assert learned["parameters"]["encoding"] == 16 * 32 and base["parameters"]["encoding"] == 0
    assert learned["encoding"] == {"name": "learned", **learned["encoding"]} and learned["batch_windows"] == 8


def test_ratios_are_of_the_pairs_and_speeds_of_the_medians(document: dict[str, Any]) -> None:
    for cell in document["cells"]:
        measured = [cell["training"], *(one for one in cell["evaluation"] if "reason" not in one)]
        assert len(measured) >= 2
        for one in measured:
            pairs = list(zip(one["seconds"], one["base_seconds"], strict=True))
            assert len(pairs) == document["repeats"] == 3 and min(one["seconds"]) > 0
            middle = statistics.median(one["seconds"])
            assert one["median_seconds"] == middle
            assert one["tokens_per_second"] == pytest.approx(one["tokens"] / middle)
            assert one["ratio"] == pytest.approx(statistics.median(a / b for a, b in pairs))
            assert one["ratio_low"] <= one["ratio"] <= one["ratio_high"]
        assert cell["training"]["tokens"] == 128


def test_memory_holds_the_weights_and_is_relative_to_the_base(document: dict[str, Any]) -> None:
    base, learned = document["cells"]
    for cell in (base, learned):
        weights = 4 * cell["parameters"]["total"]
        assert cell["training"]["peak_bytes"] >= 3 * weights  # two moments as well
        assert cell["training"]["tensor_bytes"] >= 4 * weights  # and gradients
        assert cell["evaluation"][0]["peak_bytes"] >= weights
    for own, other in (
        (learned["training"], base["training"]),
        (learned["evaluation"][0], base["evaluation"][0]),
    ):
        assert own["tensor_ratio"] == pytest.approx(own["tensor_bytes"] / other["tensor_bytes"])
        assert own["peak_ratio"] == pytest.approx(own["peak_bytes"] / other["peak_bytes"])
    assert base["training"]["peak_ratio"] == 1


def test_mfu_is_useful_work_as_a_share_of_the_measured_rate(document: dict[str, Any]) -> None:
    (rate,) = document["rates"]
    assert rate["flops_per_second"] == max(one["flops_per_second"] for one in rate["shapes"])
    assert [128, 32, 96] in [one["shape"] for one in rate["shapes"]]  # queries, keys and values of this model
    for cell in document["cells"]:
        length, width, layers = 16, 32, 2
        useful = 6 * cell["product_weights"] + 12 * layers * width * length
        assert cell["flops_per_token"] == useful
        speed = cell["training"]["tokens_per_second"]
        assert cell["training"]["mfu"] == pytest.approx(useful * speed / rate["flops_per_second"])


def test_a_refused_length_is_a_cell_with_its_reason(document: dict[str, Any]) -> None:
    _, learned = document["cells"]
    at_t, beyond = learned["evaluation"]
    assert at_t["window"] == 16 and "reason" not in at_t
    assert beyond["window"] == 64 and "refuse" in beyond["reason"] and "seconds" not in beyond


def test_the_table_fits_80_columns_and_says_everything(document: dict[str, Any]) -> None:
    text = render(document, "table", 80)
    assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text
    lines = text.splitlines()
    assert sum(line.startswith("nope ") for line in lines) == 3  # training, and two windows
    assert any("learned" in line and "refused" in line for line in lines)
    assert "GFLOP/s" in text and "MFU" in text and document["machine"]["cpu"] in " ".join(text.split())


def test_markdown_and_csv_hold_the_same_figures(document: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(render(document, "csv", 80))))
    assert [(r["encoding"], r["phase"], r["window"]) for r in rows] == [
        (name, phase, window)
        for name in ("nope", "learned")
        for phase, window in (("training", "16"), ("evaluation", "16"), ("evaluation", "64"))
    ]
    learned = document["cells"][1]["training"]
    assert float(rows[3]["ratio"]) == learned["ratio"] and float(rows[3]["mfu"]) == learned["mfu"]
    assert rows[5]["reason"] and not rows[5]["ratio"]
    markdown = render(document, "markdown", 80)
    assert f"{learned['ratio']:.2f}x" in markdown and markdown.count("\n| --- |") == 3
    assert json.loads(render(document, "json", 80)) == document


def test_names_of_others_cannot_break_the_output(document: dict[str, Any]) -> None:
    evil = json.loads(json.dumps(document))
    evil["cells"][1]["label"] = "=1+1|[red]x\x1b[31m"
    for format in FORMATS:
        text = render(evil, format, 80)
        assert "\x1b" not in text
    assert "'=1+1" in render(evil, "csv", 80) and "\\|" in render(evil, "markdown", 80)
    assert "[red]x" in render(evil, "table", 80)


def test_a_process_that_dies_is_a_cell_with_a_reason(
    posenc: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]
) -> None:
    """As when the kernel kills what takes too much memory."""
    rate = {"machine": document["machine"], "rate": document["rates"][0]}
    monkeypatch.setattr("posenc.cli.bench.CELL", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(
        "posenc.cli.bench._rates", lambda chosen: (rate["machine"], {chosen[0].target: rate["rate"]})
    )
    result = posenc("bench", *SMALL, "--format", "json")
    assert result.code == 1, result
    cells = json.loads(result.out)["cells"]
    assert [cell["training"] for cell in cells] == [{"reason": "killed by SIGKILL: out of memory?"}] * 2
    assert all("SIGKILL" in one["reason"] for cell in cells for one in cell["evaluation"])
