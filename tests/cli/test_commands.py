"""Commands in this process: what goes to stdout, what compare and the others print."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import yaml

import posenc as package
from posenc.core.paths import conf_dir

Posenc = Callable[..., tiny.Result]


@pytest.fixture
def two_runs(trained_once: Path, train: Posenc, place: Path) -> Path:
    """rope and alibi below runs/."""
    shutil.copytree(trained_once, place / "runs")
    assert train("encoding=alibi").code == 0
    return place / "runs"


def test_compare_in_every_format_from_disk(posenc: Posenc, two_runs: Path) -> None:
    results = [json.loads(p.read_text()) for p in two_runs.rglob("results.json")]
    nats = {
        (r["run"]["encoding"]["name"], c["window"]): c["nats"]
        for r in results
        for c in r["records"]
        if c["protocol"] == "fixed-target"
    }
    outputs = {f: posenc("compare", "--format", f) for f in ("table", "markdown", "csv", "json")}
    assert all(result.code == 0 and result.err == "" for result in outputs.values())

    document = json.loads(outputs["json"].out)  # one document and nothing else
    assert {row["label"] for row in document["rows"]} == {"rope", "alibi"}
    rows = list(csv.DictReader(io.StringIO(outputs["csv"].out)))
    assert len(rows) == 6
    for value in nats.values():
        assert f"{value:.3f}" in outputs["table"].out and f"{value:.3f}" in outputs["markdown"].out
        assert str(value)[:8] in outputs["csv"].out and str(value)[:8] in outputs["json"].out
    assert "| rope" in outputs["markdown"].out
    assert posenc("compare").out == outputs["table"].out
    assert posenc("compare", "runs/default", "--format", "json").out == outputs["json"].out


def test_compare_by_protocol_and_metric(posenc: Posenc, two_runs: Path) -> None:
    plain = posenc("compare", "--protocol", "nonoverlapping").out
    assert plain.startswith("nonoverlapping") and "papers only" in plain
    bits = posenc("compare", "--metric", "bpb").out
    assert "bits per byte" in bits
    assert "perplexity" in posenc("compare", "--metric", "ppl").out


def test_compare_refuses_to_mix_and_names_what_differs(posenc: Posenc, train: Posenc, two_runs: Path) -> None:
    assert train("encoding=alibi", "context_length=32", "eval.lengths=[1x,2x]").code == 0
    result = posenc("compare")
    assert (result.code, result.out) == (2, "")
    assert "context length: 16" in result.err and "--allow-mixed" in result.err
    assert posenc("compare", "--allow-mixed").code == 0


def test_compare_lists_what_did_not_finish_on_stderr(posenc: Posenc, two_runs: Path) -> None:
    run = next(two_runs.glob("default/alibi-*"))
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "status": "failed", "reason": "[red]no disk"}))
    result = posenc("compare", "--format", "json")
    json.loads(result.out)
    assert run.name in result.err and "[red]no disk" in result.err and "log.txt" in result.err


def test_cfg_prints_the_configuration_and_does_nothing(posenc: Posenc, place: Path) -> None:
    result = posenc("train", "encoding=alibi", "seed=3", "--cfg", "job")
    assert (result.code, result.err) == (0, "")
    config = yaml.safe_load(result.out)
    assert config["encoding"] == {"name": "alibi", "learned_slopes": False}
    assert config["seed"] == 3 and "hydra" not in config
    assert not list(place.iterdir())


def test_help_starts_with_examples(posenc: Posenc, place: Path) -> None:
    result = posenc("train", "--help")
    assert (result.code, result.err) == (0, "")
    out = result.out
    assert out.index("Examples") < out.index("Choices") < out.index("Settings")
    assert out.index("posenc train encoding=rope") < 300
    for group in ("encoding: alibi, binary, cable", "attention: mha, mla", "context_length=64"):
        assert group in out
    evaluation = posenc("eval", "--help")
    assert evaluation.code == 0 and "posenc eval run=" in evaluation.out
    assert not list(place.iterdir())


def test_general_help_and_version(posenc: Posenc) -> None:
    result = posenc("--help")
    assert result.code == 0
    for command in ("train", "eval", "compare", "encodings", "data"):
        assert command in result.out
    assert "posenc train encoding=rope" in result.out
    assert posenc("--version").out == f"posenc {package.__version__}\n"


def test_catalogue_and_corpora(posenc: Posenc) -> None:
    every = json.loads(posenc("encodings", "--json").out)
    assert {"nope", "learned", "sinusoidal", "rope", "alibi", "t5"} <= {entry["name"] for entry in every}
    one = posenc("encodings", "rope")
    assert one.code == 0 and "2104.09864" in one.out
    listed = posenc("data", "list")
    assert listed.code == 0 and "wikitext103" in listed.out and "sympy" in listed.out


def test_data_info_and_prepare(posenc: Posenc, corpus: Path) -> None:
    info = posenc("data", "info", "data=files", f"data.paths={corpus}")
    assert info.code == 0 and "fingerprint" in info.out and "validation" in info.out
    ready = posenc("data", "prepare", "data=files", f"data.paths={corpus}")
    assert ready.code == 0 and info.out in ready.out and "tokens of bytes" in ready.err
    assert posenc("data", "info", "data=nowhere").code == 2


def test_runs_dir_experiment_and_name_choose_the_place(train: Posenc, place: Path) -> None:
    result = train("runs_dir=out/here", "experiment_name=trial", "name=mine", "train.tokens=256")
    assert result.code == 0
    (run,) = (place / "out" / "here" / "trial").iterdir()
    assert run.name.startswith("mine-") and not (place / "runs").exists()


def test_smoke_preset_is_small(posenc: Posenc, corpus: Path) -> None:
    config = yaml.safe_load(posenc("train", "experiment=smoke", "--cfg", "job").out)
    assert config["experiment_name"] == "smoke" and config["train"]["tokens"] <= 100_000
    changed = yaml.safe_load(posenc("train", "experiment=smoke", "train.tokens=7", "--cfg", "job").out)
    assert changed["train"]["tokens"] == 7


def test_a_corpus_of_ones_own_is_told_of_and_prepared(posenc: Posenc, place: Path, corpus: Path) -> None:
    mine = place / "conf" / "data" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text((conf_dir() / "data" / "files.yaml").read_text().replace("name: files", "name: mine"))
    words = ("--config-dir", "conf", "data=mine", f"data.paths={corpus}")
    assert "mine" in posenc("data", "info", *words).out
    assert posenc("data", "prepare", *words).code == 0
