"""A whole run at the tiny size: what is on disk and on stdout, and what the same command does again."""

import re
import shutil

import pytest
import tiny
import yaml
from fake_runs import edit_json, only_run, read_json, stamps

from posenc.core.paths import conf_dir
from posenc.running.eval_job import stored_run

WINDOWS = [16, 32, 64]
CELLS = {
    *((protocol, window) for protocol in ("fixed-target", "nonoverlapping") for window in WINDOWS),
    ("positions", WINDOWS[-1]),
    ("trigram", 16),
}


@pytest.fixture
def run(trained_once):
    return only_run(trained_once)


def test_directory_holds_what_the_contract_says_plain_and_resolved(run, corpus):
    assert re.fullmatch(r"rope-d32L2H2M4-T16-s0-[0-9a-f]{8}", run.name)
    seen = " ".join(sorted(p.name for p in run.glob("[!.]*")))
    files = "config.yaml log.txt metrics.jsonl positions.json records results.json status.json"
    assert seen == f"checkpoints {files}"
    assert [p.name for p in (run / "checkpoints").iterdir()] == [f"step-{tiny.STEPS:08d}"]
    assert not [p for p in run.rglob("*") if p.suffix in (".tmp", ".pkl", ".pt")]
    names = [p.name for p in run.parent.rglob("*") if not p.name.startswith(".")]
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]+", name) for name in names)
    assert sorted(p.name for p in run.parent.parent.parent.iterdir()) == ["err.txt", "out.txt", "runs"]
    text = (run / "config.yaml").read_text()
    config, status = yaml.safe_load(text), read_json(run / "status.json")
    assert "${" not in text and "!!" not in text and "???" not in text and "hydra" not in config
    rope = {"name": "rope", "base": 10000.0, "layout": "interleaved", "fraction": 1.0, "drop_low": 0.0}
    assert config["encoding"] == rope
    assert config["train"]["tokens"] == tiny.STEPS * 128 and config["train"]["precision"] == "fp32"
    assert config["data"]["paths"] == str(corpus)
    assert (config["seed"], config["context_length"], config["device"]) == (0, 16, "cpu")
    assert (status["status"], status["reason"], status["step"]) == ("finished", None, tiny.STEPS)
    assert isinstance(status["pid"], int) and status["host"] and status["started"] <= status["updated"]
    assert {"python", "posenc", "torch", "numpy"} <= set(status["versions"])
    assert status["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", status["git_commit"])


def test_results_have_the_schema_and_are_the_records(run):
    results = read_json(run / "results.json")
    assert set(results) == {"schema_version", "run", "records"} and results["schema_version"] == 1
    facts, records = results["run"], results["records"]
    assert facts["name"] == run.name and facts["settings_hash"] == run.name[-8:]
    assert facts["tokens"] == tiny.STEPS * 128 and facts["steps"] == tiny.STEPS
    assert facts["parameters"] == {"total": 32_928, "embedding": 256 * 32, "encoding": 0, "options": 0}
    assert facts["encoding"]["name"] == "rope" and facts["corpus"]["name"] == "files"
    assert facts["peak_memory_bytes"] > 0 and facts["wall_seconds"] > 0 and facts["tokens_per_second"] > 0
    files = [read_json(path) for path in (run / "records").iterdir()]
    assert {(r["protocol"], r["window"]) for r in records} == CELLS and len(files) == len(records)
    assert all(record in files for record in records)
    reference = next(r for r in records if r["protocol"] == "trigram")
    at_t = next(r for r in records if r["protocol"] == "fixed-target" and r["window"] == 16)
    own, theirs = (one["per_document"] for one in (reference, at_t))
    assert all(own[key] == theirs[key] for key in ("document", "targets", "bytes"))
    assert reference["targets_hash"] == at_t["targets_hash"] and 0 < reference["nats"] < 5
    # the table is on stdout and nothing else is
    out, err = ((run.parent.parent.parent / name).read_text() for name in ("out.txt", "err.txt"))
    assert f"{records[0]['nats']:.3f}" in out and not re.search(r"\x1b\[", out + err)
    for text in ("training 40/40", "evaluating", "32,928 parameters"):
        assert text in err and text not in out


def test_other_lengths_measure_only_what_is_missing(train, run_copy):
    facts = read_json(run_copy / "results.json")["run"] | {"peak_memory_bytes": 123456789}
    edit_json(run_copy / "results.json", run=facts)
    kept = [stamps(run_copy / name) for name in ("records", "checkpoints")]
    result = train("encoding=rope", "eval.lengths=[0.5x,1x,4x]")
    assert result.code == 0 and re.search(r"^context +8 +16 = T +64$", result.out, re.M), result.out
    again = [stamps(run_copy / name) for name in ("records", "checkpoints")]
    assert kept[0].items() < again[0].items() and kept[1] == again[1]
    results = read_json(run_copy / "results.json")
    assert {r["window"] for r in results["records"]} == {8, *WINDOWS}
    assert results["run"] == facts  # the training's, not this process's
    assert read_json(run_copy / "status.json")["status"] == "finished"


def test_numbers_of_weights_that_are_gone_are_measured_anew(train, run_copy):
    (path,) = (run_copy / "records").glob("fixed-target-W32-*")
    stored = read_json(path)
    edit_json(path, nats=9.0)
    shutil.rmtree(run_copy / "checkpoints")
    assert train("encoding=rope", "eval.lengths=[0.5x,1x,2x,4x]").code == 0
    assert read_json(path)["nats"] == pytest.approx(stored["nats"], abs=1e-4)
    assert len(list((run_copy / "checkpoints").iterdir())) == 1


def test_a_file_of_ones_own_has_a_name_of_its_own(train, place):
    """Hydra would take posenc's and say nothing."""
    shipped = conf_dir() / "encoding" / "rope.yaml"
    mine = place / "conf" / "encoding" / "rope.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(shipped.read_text().replace("10000", "77"))
    refused = train("--config-dir", "conf", "encoding=rope")
    assert refused.code == 2 and "encoding/rope.yaml has the name" in refused.err, refused.err
    mine.rename(mine.with_name("my_rope.yaml"))
    (place / "conf" / "encoding" / "alibi.yaml").write_bytes((shipped.parent / "alibi.yaml").read_bytes())
    assert train("--config-dir", "conf", "encoding=my_rope").code == 0
    assert "base: 77" in (only_run(place / "runs") / "config.yaml").read_text()


def test_the_working_folder_may_be_the_run(trained_once, monkeypatch):
    (config,) = trained_once.rglob("config.yaml")
    monkeypatch.chdir(config.parent)
    assert stored_run(".", []).directory == config.parent
    monkeypatch.chdir(config.parent / "records")
    assert stored_run("..", []).directory.name == config.parent.name
