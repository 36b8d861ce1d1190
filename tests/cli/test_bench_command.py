"""`posenc bench` as people call it. What is measured is real; no test says how long anything takes."""

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

from posenc.report.bench import FORMATS, render

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
    assert any(line.startswith("learned: refused") for line in lines)
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["encoding=rop"], ["encoding=rop", "did you mean: rope"]),
        (["encoding=rope,alibbi"], ["encoding=alibbi", "alibi"]),
        (["encoding=rope", "encoding.bas=3"], ["encoding.bas", "encoding.base"]),
        (["context_length=1"], ["context_length=1", "too small"]),
        (["context_length=64,4096"], ["train.batch_tokens=2048", "context_length=4096"]),
        (["--format", "jsn"], ["--format=jsn", "did you mean: json"]),
        (["--repeats", "0"], ["--repeats=0", "from 1"]),
        (["--eval-lengths", "8y"], ["--eval-lengths=8y", "multiples of context_length"]),
        (["--eval-lengths", "4"], ["--eval-lengths=4", "16 tokens"]),
        (["eval.lengths=[1x]"], ["eval.lengths", "--eval-lengths"]),
        (["device=cuda:99"], ["device=cuda:99", "no such device"]),
        (["train.compile=yes"], ["train.compile", "auto"]),
        (["train.precision=fp8"], ["train.precision=fp8", "bf16"]),
        (["model.n_heads=5"], ["model.n_heads=5", "model.d_model=128"]),
        (["encoding=alibi", "attention=mla"], ["attention=mla", "alibi"]),
        (["--cfg", "job"], ["posenc train --cfg job"]),
        (["--repeat", "3"], ["--repeat"]),
    ],
    ids=" ".join,
)
def test_wrong_input_is_refused_before_anything_is_measured(
    posenc: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: list[str]
) -> None:
    monkeypatch.setattr("posenc.cli.bench._answer", lambda asked: pytest.fail("measured"))
    result = posenc("bench", *arguments)
    assert result.code == 2 and result.out == "", result
    for text in says:
        assert text in result.err, result.err
    assert "Traceback" not in result.err and not list(place.iterdir())


def test_a_process_that_dies_is_a_cell_with_a_reason(
    posenc: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]
) -> None:
    """As when the kernel kills what takes too much memory."""
    rate = {"machine": document["machine"], "rate": document["rates"][0]}
    monkeypatch.setattr("posenc.cli.bench.CELL", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(
        "posenc.cli.bench._rates", lambda chosen: (rate["machine"], {chosen[0].yardstick: rate["rate"]})
    )
    result = posenc("bench", *SMALL, "--format", "json")
    assert result.code == 1, result
    cells = json.loads(result.out)["cells"]
    assert [cell["training"] for cell in cells] == [{"reason": "killed by SIGKILL: out of memory?"}] * 2
    assert all("SIGKILL" in one["reason"] for cell in cells for one in cell["evaluation"])
