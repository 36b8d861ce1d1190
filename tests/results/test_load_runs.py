import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import edit_json, record, write_run

from posenc.core.errors import UserError
from posenc.results import load as load_module
from posenc.results import load_runs
from posenc.results.comparison import compare


def test_finds_runs_at_any_depth_once(tmp_path: Path) -> None:
    a = write_run(tmp_path / "runs" / "default", "rope")
    b = write_run(tmp_path / "runs" / "other" / "deep", "alibi")
    write_run(tmp_path / "runs" / ".sweeps", "t5")
    write_run(a / "inside", "nope")  # within a run: not a run of its own
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    found = load_runs([tmp_path / "runs", str(a), str(tmp_path / "runs" / "*"), a / "results.json"])
    assert [run.path for run in found] == [a, b]
    assert [run.facts["encoding"]["name"] for run in found] == ["rope", "alibi"]
    assert all(run.state == "finished" and run.problem is None for run in found)
    assert [record["window"] for record in found[0].records] == [32, 64, 128, 256, 512]
    assert found[0].config["encoding"] == {"name": "rope"}


def test_a_path_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    for path in ("nowhere", "nowhere/*"):
        with pytest.raises(UserError, match="nowhere"):
            load_runs([tmp_path / path])
    assert load_runs([tmp_path]) == []


def test_a_run_that_failed_early_has_only_a_status(tmp_path: Path) -> None:
    write_run(tmp_path, seed=3, status="failed", reason="boom", results=False)
    (run,) = load_runs([tmp_path])
    assert (run.state, run.facts, run.records, run.seed, run.problem) == ("failed", None, [], 3, None)


DAMAGE = {
    "cut": lambda p: p.write_text(p.read_text()[:200]),
    "empty": lambda p: p.write_text(""),
    "list": lambda p: p.write_text("[]"),
    "binary": lambda p: p.write_bytes(b"\xff\xfe\x00"),
    "deep": lambda p: p.write_text("[" * 200_000),
    "version": lambda p: edit_json(p, schema_version=99),
    "no facts": lambda p: edit_json(p, run=None),
    "facts": lambda p: edit_json(p, run={"encoding": "rope"}),
    "records": lambda p: edit_json(p, records={"a": 1}),
    "foreign record": lambda p: edit_json(p, records=[{"protocol": "x"}]),
    "nan": lambda p: p.write_text(p.read_text().replace('"nats": 1.3', '"nats": NaN')),
    "infinite": lambda p: p.write_text(p.read_text().replace('"nats": 1.3', '"nats": 1e999')),
    "long int": lambda p: p.write_text('{"schema_version": ' + "9" * 5000 + "}"),
    "directory": lambda p: (p.unlink(), p.mkdir()),
    "fifo": lambda p: (p.unlink(), os.mkfifo(p)),
    "dangling": lambda p: (p.unlink(), p.symlink_to(p.parent / "gone")),
    "outside": lambda p: (p.rename(p.parents[1] / "moved"), p.symlink_to(p.parents[1] / "moved")),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_a_problem_never_an_exception(tmp_path: Path, how: str) -> None:
    run_dir = write_run(tmp_path, losses={1: 1.3})
    DAMAGE[how](run_dir / "results.json")
    (run,) = load_runs([tmp_path])
    assert run.problem and (run.state, run.records, run.facts) == ("damaged", [], None), run.problem


def test_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path)
    monkeypatch.setattr(load_module, "LARGEST_RESULTS", 300)
    (run,) = load_runs([tmp_path])
    assert "too large" in run.problem


def test_the_configuration_is_data(tmp_path: Path) -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    for name, text in (("object", "a: !!python/object/apply:os.getcwd []"), ("bomb", bomb), ("cut", "a: [")):
        run = write_run(tmp_path / name)
        (run / "config.yaml").write_text(text)
        (found,) = load_runs([run])
        assert "config.yaml" in found.problem
    run = write_run(tmp_path / "fine", config={"name": "${oc.env:HOME}"})
    (found,) = load_runs([run])
    assert found.config["name"] == "${oc.env:HOME}"


def test_strange_extensions_and_names_do_not_stop_a_comparison(
    tmp_path: Path, posenc: Callable[..., Any]
) -> None:
    write_run(tmp_path, "alibi")
    write_run(tmp_path, seed=9, records=[record(64, 1.3), record(64, 1.2, extend={"name": "語" * 90})])
    long = write_run(tmp_path, records=[record(64, 1.3), record(64, 1.2, extend={"name": "x" * 300})])
    for i, tuned in enumerate((5, [[1]], {"a": 1}), start=1):
        run = write_run(tmp_path, seed=i)
        edit_json(run / "results.json", records=[record(64, 1.2, extend={"name": "yarn", "tuned": tuned})])
    found = {run.seed: run for run in load_runs([tmp_path]) if "rope" in run.name}
    assert found[0].path == long and found[0].problem is None
    assert all("record.extend.tuned" in str(found[i].problem) for i in (1, 2, 3))
    compare(load_runs([tmp_path]), "fixed-target", "nats", False)
    for name in ("y" * 300, "語" * 90):
        config = {"encoding": {"name": name}}
        write_run(tmp_path / "failed", status="failed", reason="boom", config=config, results=False)
    assert posenc("compare", str(tmp_path)).code == 0
    assert posenc("runs", str(tmp_path)).code == 0


def test_strange_facts_do_not_stop_a_comparison(tmp_path: Path) -> None:
    deep: dict = {}
    for _ in range(500):
        deep = {"a": deep}
    run = write_run(tmp_path / "deep")
    edit_json(
        run / "results.json", run={"encoding": {"name": "x", "y": deep}, "context_length": 64, "seed": 0}
    )
    (found,) = load_runs([run])
    assert "recursion" in found.problem
    odd = {
        "parameters": {"total": [1]},
        "corpus": {"name": {"a": 1}},
        "tokenizer": [1],
        "model": {"name": [2]},
    }
    run = write_run(tmp_path / "odd", facts=odd)
    with (run / "config.yaml").open("a") as file:
        file.write(f"1:\n  2: 0x{'f' * 5000}\n")
    comparison = compare(load_runs([tmp_path / "odd"]), "fixed-target", "nats", False)
    assert comparison.rows[0].parameters is None


def test_status_of_another_shape(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "status.json").write_text(json.dumps({"status": ["x"], "reason": {"a": 1}}))
    (found,) = load_runs([run])
    assert found.state == "finished"
