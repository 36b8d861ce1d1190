"""A whole run at the tiny size: what is on disk, on stdout, and what the same command does again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

Posenc = Callable[..., tiny.Result]
WINDOWS = [16, 32, 64]
DEFAULT_CELLS = {
    *((protocol, window) for protocol in ("fixed-target", "nonoverlapping") for window in WINDOWS),
    ("positions", WINDOWS[-1]),
    ("trigram", 16),
}


@pytest.fixture
def run(trained_once: Path) -> Path:
    """The trained run, to be read only."""
    return next((trained_once / "default").iterdir())


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_directory_holds_what_the_contract_says(run: Path) -> None:
    assert re.fullmatch(r"rope-d32L2H2M4-T16-s0-[0-9a-f]{8}", run.name)
    seen = sorted(p.name for p in run.iterdir() if not p.name.startswith("."))
    assert seen == [
        *("checkpoints", "config.yaml", "log.txt", "metrics.jsonl", "positions.json", "records"),
        *("results.json", "status.json"),
    ]
    assert [p.name for p in (run / "checkpoints").iterdir()] == [f"step-{tiny.STEPS:08d}"]
    assert not list(run.rglob("*.tmp")) and not list(run.rglob(".tmp*"))
    assert not list(run.rglob("*.pkl")) and not list(run.rglob("*.pt"))
    names = [p.name for p in run.parent.rglob("*") if not p.name.startswith(".")]
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]+", name) for name in names)
    assert sorted(p.name for p in run.parent.parent.parent.iterdir()) == ["err.txt", "out.txt", "runs"]


def test_config_is_plain_resolved_data(run: Path, corpus: Path) -> None:
    text = (run / "config.yaml").read_text()
    config = yaml.safe_load(text)
    assert "${" not in text and "!!" not in text and "???" not in text
    assert "hydra" not in config
    assert config["encoding"] == {
        "name": "rope",
        "base": 10000.0,
        "layout": "interleaved",
        "fraction": 1.0,
        "drop_low": 0.0,
    }
    assert config["train"]["tokens"] == tiny.STEPS * 128 and config["train"]["precision"] == "fp32"
    assert config["data"]["paths"] == str(corpus)
    assert (config["seed"], config["context_length"], config["device"]) == (0, 16, "cpu")


def test_status_says_how_where_and_with_what(run: Path) -> None:
    status = load(run / "status.json")
    assert status["status"] == "finished" and status["reason"] is None and status["step"] == tiny.STEPS
    assert isinstance(status["pid"], int) and status["host"]
    assert status["started"] <= status["updated"]
    assert {"python", "posenc", "torch", "numpy"} <= set(status["versions"])
    assert status["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", status["git_commit"])


def test_metrics_have_a_line_for_each_logged_step(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30, 40]
    assert [line["tokens"] for line in lines] == [1280, 2560, 3840, 5120]
    assert all(
        set(line) == {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_second"} for line in lines
    )
    assert lines[-1]["loss"] < lines[0]["loss"] < math.log(256) + 1


def test_results_have_the_schema_and_are_the_records(run: Path) -> None:
    results = load(run / "results.json")
    assert set(results) == {"schema_version", "run", "records"} and results["schema_version"] == 1
    facts = results["run"]
    wanted = {"encoding", "model", "parameters", "corpus", "tokenizer", "context_length", "tokens", "seed"}
    wanted |= {"precision", "device", "wall_seconds", "tokens_per_second", "peak_memory_bytes"}
    assert wanted <= set(facts)
    assert facts["name"] == run.name and facts["settings_hash"] == run.name[-8:]
    assert facts["tokens"] == tiny.STEPS * 128 and facts["steps"] == tiny.STEPS
    assert facts["parameters"] == {"total": 32_928, "embedding": 256 * 32, "encoding": 0, "options": 0}
    assert facts["encoding"]["name"] == "rope" and facts["corpus"]["name"] == "files"
    files = [load(path) for path in (run / "records").iterdir()]
    cells = {(r["protocol"], r["window"]) for r in results["records"]}
    assert cells == DEFAULT_CELLS and len(files) == len(results["records"]) == len(cells)
    assert all(record in files for record in results["records"])


@pytest.mark.parametrize("protocol", ["fixed-target", "nonoverlapping"])
def test_records_are_complete_and_add_up(run: Path, protocol: str) -> None:
    results = load(run / "results.json")
    records = [r for r in results["records"] if r["protocol"] == protocol]
    assert [r["window"] for r in records] == WINDOWS
    assert [r["multiple"] for r in records] == [1, 2, 4]
    fingerprint = results["run"]["corpus"]["fingerprint"]
    for record in records:
        documents = record["per_document"]
        nats = math.fsum(documents["nats"])
        assert record["nats"] == pytest.approx(nats / sum(documents["targets"]))
        assert record["bpb"] == pytest.approx(nats / math.log(2) / sum(documents["bytes"]))
        assert record["ppl"] == pytest.approx(math.exp(record["nats"]))
        assert record["targets"] == sum(documents["targets"]) <= 400
        assert record["documents"] == len(documents["document"]) > 1
        fixed = {"unit": "nats per token", "split": "test", "corpus": "files", "extend": None, "note": None}
        fixed |= {"checkpoint_step": tiny.STEPS, "stride": None, "beyond": None, "fingerprint": fingerprint}
        assert {key: record[key] for key in fixed} == fixed
        assert record["ci95"] is None  # below 30 documents
        assert 2 < record["nats"] < 6 and record["seconds"] >= 0
    assert len({r["targets_hash"] for r in records}) == len({r["targets"] for r in records}) == 1


def test_the_table_is_on_stdout_and_nothing_else_is(run: Path) -> None:
    out = (run.parent.parent.parent / "out.txt").read_text()
    err = (run.parent.parent.parent / "err.txt").read_text()
    for record in load(run / "results.json")["records"]:
        shown = record["curve"]["nats"][-1] if "curve" in record else record["nats"]
        assert f"{shown:.3f}" in out
    assert out.startswith("fixed-target: nats per token") and "nonoverlapping rewards longer windows" in out
    for text in ("training 40/40", "evaluating", "32,928 parameters"):
        assert text in err and text not in out
    assert not re.search(r"\x1b\[", out + err)


def test_the_same_command_recognises_the_run(train: Posenc, run_copy: Path) -> None:
    out = (run_copy / "checkpoints" / f"step-{tiny.STEPS:08d}" / "model.safetensors").stat()
    before = {p: p.stat().st_mtime_ns for p in run_copy.rglob("*") if p.is_file()}
    first = load(run_copy / "results.json")["records"][0]["nats"]
    result = train("encoding=rope")
    assert result.code == 0 and f"{first:.3f}" in result.out and "nonoverlapping" in result.out
    assert "already finished" in result.err and "training" not in result.err
    after = {p: p.stat().st_mtime_ns for p in run_copy.rglob("*") if p.is_file()}
    assert after == before
    assert (
        run_copy / "checkpoints" / f"step-{tiny.STEPS:08d}" / "model.safetensors"
    ).stat().st_ino == out.st_ino


def test_other_lengths_measure_only_what_is_missing(
    train: Posenc, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posenc.evaluation import forward_cache

    windows, forward = set(), forward_cache._forward

    def watched(*args: Any) -> Any:
        windows.add(args[1].shape[1] - 1)
        return forward(*args)

    monkeypatch.setattr(forward_cache, "_forward", watched)
    weights = run_copy / "checkpoints" / f"step-{tiny.STEPS:08d}" / "model.safetensors"
    before, metrics = weights.stat().st_mtime_ns, (run_copy / "metrics.jsonl").read_text()
    old = {path.name: path.read_text() for path in (run_copy / "records").iterdir()}
    result = train("encoding=rope", "eval.lengths=[0.5x,1x,4x]")
    assert result.code == 0, result.err
    assert windows == {8}
    losses = result.out.partition("positions: ")[0]
    assert "0.5x" in losses and "2x" not in losses  # what was asked for
    assert weights.stat().st_mtime_ns == before and (run_copy / "metrics.jsonl").read_text() == metrics
    assert {name: (run_copy / "records" / name).read_text() for name in old} == old
    results = load(run_copy / "results.json")
    assert {r["window"] for r in results["records"]} == {8, *WINDOWS}
    assert results["run"]["tokens"] == tiny.STEPS * 128
    assert load(run_copy / "status.json")["status"] == "finished"


def test_eval_adds_cells_to_a_run(posenc: Posenc, run_copy: Path) -> None:
    facts = load(run_copy / "results.json")["run"]
    result = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,4x,16x]", "eval.protocols=[fixed-target]")
    assert result.code == 0, result.err
    assert "16x" in result.out and "256" in result.out and "nonoverlapping" not in result.out
    results = load(run_copy / "results.json")
    assert results["run"] == facts
    assert {(r["protocol"], r["window"]) for r in results["records"]} == {
        *DEFAULT_CELLS,
        ("fixed-target", 256),
    }
    assert load(run_copy / "status.json")["status"] == "finished"
    again = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,4x,16x]", "eval.protocols=[fixed-target]")
    assert again.out == result.out and load(run_copy / "results.json") == results


def test_eval_on_another_corpus_is_kept_apart(posenc: Posenc, run_copy: Path, place: Path) -> None:
    other = tiny.write_corpus(place / "other", documents=40)
    own = load(run_copy / "results.json")["run"]["corpus"]["fingerprint"]
    result = posenc("eval", f"run={run_copy}", "data=files", f"data.paths={other}", "eval.lengths=[1x,2x]")
    assert result.code == 0, result.err
    prints = [r["fingerprint"] for r in load(run_copy / "results.json")["records"]]
    # two windows by two protocols and a curve; the trigram is of the corpus that was trained on
    assert prints.count(own) == len(DEFAULT_CELLS) and len(set(prints)) == 2
    assert len(prints) == len(DEFAULT_CELLS) + 5


def test_eval_equals_what_train_measured(posenc: Posenc, run_copy: Path) -> None:
    before = {(r["protocol"], r["window"]): r for r in load(run_copy / "results.json")["records"]}
    for path in (run_copy / "records").iterdir():
        path.unlink()
    (run_copy / "results.json").unlink()
    assert posenc("eval", f"run={run_copy}").code == 0
    after = load(run_copy / "results.json")
    assert {(r["protocol"], r["window"]): {**r, "seconds": 0} for r in after["records"]} == {
        cell: {**record, "seconds": 0} for cell, record in before.items()
    }
    assert after["run"]["settings_hash"] == run_copy.name[-8:] and after["run"]["tokens"] == tiny.STEPS * 128
