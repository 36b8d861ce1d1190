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

from posenc.cli.bench import Case, base_name, cases
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine
from posenc.core.seeds import generator_for
from posenc.model.decoder import (
    Decoder,
    ModelShape,
    forward_flops,
    training_flops,
)
from posenc.report.bench import FORMATS, render
from posenc.running.build import build_model
from posenc.training.loop import NextTokenLoss, gradients

LENGTH, WINDOWS, VOCABULARY = 16, 3, 97
SHAPE = ModelShape("small", d_model=32, n_layers=2, n_heads=2, mlp_ratio=3)


def chosen(*overrides: str, lengths: str = "8x") -> list[Case]:
    jobs = compose_jobs("train", CommandLine([*overrides, "device=cpu"], multirun=True)).jobs
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


def test_commas_make_cases_once_each_and_labels_say_what_differs() -> None:
    found = chosen("encoding=rope,alibi,rope", "context_length=32,64", "seed=0,1")
    told = [(one.label, *one.asked["windows"]) for one in found]
    assert told == [("rope", 256), ("rope", 512), ("alibi", 256), ("alibi", 512)]
    labels = [one.label for one in chosen("encoding=rope", "encoding.base=100.0,500.0", "train.lr=1e-3")]
    assert labels == ["rope encoding.base=100.0", "rope encoding.base=500.0"]


def test_what_a_case_asks_for() -> None:
    """A vocabulary without a corpus, windows, and a base with the same options but no drawn positions."""
    words = ["encoding=rope", "positions=randomized", "positions.max=600", "attention.window=8"]
    (one,) = chosen(
        *words, "tokenizer=bpe", "tokenizer.vocab_size=3000", "data=wikitext103", lengths="[512, 1x]"
    )
    assert one.asked["vocab_size"] == 3000 and one.asked["windows"] == [64, 512]
    own, base = one.asked["settings"], one.asked["base"]
    assert own["positions"]["name"] == "randomized" and base["positions"] == {"name": "contiguous"}
    assert base["attention"] == own["attention"] and base["encoding"] == {"name": base_name()}


Posenc = Callable[..., tiny.Result]
SMALL = (*tiny.MODEL, "context_length=16", "train.batch_tokens=128", "train.precision=fp32", "device=cpu")
REFUSING = ("encoding=learned", "encoding.beyond=refuse")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one call measured: an encoding that refuses 4 T."""
    command = ("bench", *SMALL, *REFUSING, "--eval-lengths", "1x,4x", "--repeats", "3", "--format", "json")
    process = tiny.start(*command, cwd=tmp_path_factory.mktemp("bench"), OMP_NUM_THREADS="1")
    result = tiny.finished(process, seconds=600)
    assert result.code == 0, result
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_what_is_measured_is_named_and_ratios_are_of_the_pairs(document: dict[str, Any]) -> None:
    (cell,), machine = document["cells"], document["machine"]
    assert (cell["label"], cell["base"], cell["batch_windows"]) == ("learned", "nope", 8)
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


def test_memory_holds_the_weights_and_mfu_is_a_share_of_the_measured_rate(document: dict[str, Any]) -> None:
    (cell,), (rate,) = document["cells"], document["rates"]
    weights, training = 4 * cell["parameters"]["total"], cell["training"]
    assert training["peak_bytes"] >= 3 * weights  # two moments as well
    assert training["tensor_bytes"] >= 4 * weights  # and gradients
    assert 1 < training["tensor_bytes"] / training["base_tensor_bytes"] == training["tensor_ratio"] < 2
    useful = 6 * cell["product_weights"] + 12 * 2 * 32 * 16  # layers, width, T
    assert cell["flops_per_token"] == useful
    assert training["mfu"] == pytest.approx(useful * training["tokens_per_second"] / rate["flops_per_second"])


def test_every_format_says_the_same_and_names_of_others_cannot_break_it(document: dict[str, Any]) -> None:
    ratio = document["cells"][0]["training"]["ratio"]
    text = render(document, "table", 80)
    assert all(len(line) <= 80 for line in text.splitlines()) and f" {ratio:.2f}x " in text
    assert "learned, evaluation at 64: refused" in " ".join(text.split())
    rows = list(csv.DictReader(io.StringIO(render(document, "csv", 80))))
    assert [row["window"] for row in rows] == ["16", "16", "64"]
    assert float(rows[0]["ratio"]) == ratio and rows[2]["reason"] and not rows[2]["ratio"]
    assert f"| {ratio:.2f}x |" in render(document, "markdown", 80)
    assert json.loads(render(document, "json", 80)) == document
    evil = json.loads(json.dumps(document))
    evil["cells"][0]["label"] = "=1+1|[red]x\x1b[31m"
    assert not any("\x1b" in render(evil, format, 80) for format in FORMATS)
    assert "'=1+1" in render(evil, "csv", 80) and "\\|" in render(evil, "markdown", 80)


def test_processes_that_die_are_cells_with_a_reason(
    posenc: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]
) -> None:
    """As when the kernel kills what takes too much memory: the others' figures stay, and the machine."""
    cell = f"""
import json, os, sys
if json.load(sys.stdin)["settings"]["encoding"]["name"] == "rope":
    os.kill(os.getpid(), 9)
print(json.dumps({{"machine": {document["machine"]}}}))
"""
    monkeypatch.setattr("posenc.cli.bench.CELL", cell)
    result = posenc("bench", *SMALL, "encoding=rope,alibi", "--format", "json")
    assert result.code == 1, result
    rope, alibi = json.loads(result.out)["cells"]
    assert rope["training"] == {"reason": "killed by SIGKILL: out of memory?"}
    assert "SIGKILL" in rope["evaluation"][0]["reason"] and alibi["training"] == {"reason": None}
