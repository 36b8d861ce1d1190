"""`posenc eval` with extensions, knobs that are tuned, other protocols; what it leaves on disk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from posenc.evaluation import PROTOCOLS
from posenc.evaluation.extend import list_extensions

Posenc = Callable[..., tiny.Result]


def records_of(run: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((run / "results.json").read_text())["records"]
    return records


def extended(run: Path, name: str) -> dict[int, dict[str, Any]]:
    return {
        r["window"]: r
        for r in records_of(run)
        if r["protocol"] == "fixed-target"
        and r["split"] == "test"
        and (r["extend"] or {}).get("name") == name
    }


def test_an_extension_is_a_row_of_its_own_beside_the_crop_line(posenc: Posenc, run_copy: Path) -> None:
    result = posenc("eval", f"run={run_copy}", "extend=pi", "eval.protocols=[fixed-target]")
    assert result.code == 0, result.err
    rows = [line.split()[0] for line in result.out.splitlines() if line.startswith("rope")]
    assert rows[:2] == ["rope", "rope+pi"]
    found, plain = (
        extended(run_copy, "pi"),
        {r["window"]: r for r in records_of(run_copy) if r["protocol"] == "fixed-target" and not r["extend"]},
    )
    assert {w: r["extend"]["resolved"] for w, r in found.items()} == {
        16: {"factor": 1.0},
        32: {"factor": 2.0},
        64: {"factor": 4.0},
    }
    assert found[16]["per_document"] == plain[16]["per_document"]  # nothing to extend at T
    assert found[64]["nats"] != plain[64]["nats"]
    assert len({r["targets_hash"] for r in [*found.values(), *plain.values()]}) == 1
    again = posenc("eval", f"run={run_copy}", "extend=pi", "eval.protocols=[fixed-target]")
    assert again.code == 0 and extended(run_copy, "pi") == found
    assert [line for line in again.err.splitlines() if "evaluating" in line and "(stored)" not in line] == []


def test_a_sweep_over_all_names_once_what_does_not_apply(posenc: Posenc, train: Posenc, place: Path) -> None:
    assert train("encoding=alibi").code == 0
    (run,) = (place / "runs" / "default").iterdir()
    result = posenc("eval", "-m", f"run={run}", "extend=glob(*)", "eval.protocols=[fixed-target]")
    assert result.code == 0, result.err
    measured = {(r["extend"] or {}).get("name") for r in records_of(run)} - {None}
    assert {"window", "logn", "drop"} <= measured and "pi" not in measured
    left_out = set(re.findall(r"^  (\w+): does not apply", result.err, re.M))
    assert left_out == set(list_extensions()) - measured
    assert len(re.findall(r"^  pi: ", result.err, re.M)) == 1
    assert result.out.count("alibi+window") >= 1


def test_alone_it_is_refused_with_those_that_apply(posenc: Posenc, train: Posenc, place: Path) -> None:
    assert train("encoding=alibi").code == 0
    (run,) = (place / "runs" / "default").iterdir()
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    result = posenc("eval", f"run={run}", "extend=yarn")
    assert result.code == 2 and "extend=yarn: does not apply to encoding=alibi" in result.err
    assert "allowed: " in result.err and "window" in result.err
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("extend=yran", "did you mean: yarn"),
        ("extend.beta_fats=3", "there is no such setting"),
        ("eval.stride=2x", "steps over tokens"),
        ("eval.stride=0", "not a positive whole number"),
        ("eval.protocols=[slidign]", "did you mean: sliding"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(
    posenc: Posenc, run_copy: Path, override: str, said: str
) -> None:
    more = ["eval.protocols=[sliding]"] if "stride" in override else []
    result = posenc("eval", f"run={run_copy}", override, *more)
    assert result.code == 2 and said in result.err


def test_knobs_are_chosen_on_validation_documents(posenc: Posenc, run_copy: Path) -> None:
    asked = [f"run={run_copy}", "extend=yarn", "extend.tune=true", "eval.protocols=[fixed-target]"]
    result = posenc("eval", *asked)
    assert result.code == 0, result.err
    assert "chosen on validation documents: yarn beta_fast=" in result.err
    tried = [r for r in records_of(run_copy) if r["split"] == "validation"]
    assert {r["extend"]["name"] for r in tried} == {"yarn"} and {r["window"] for r in tried} == {32, 64}
    losses: dict[float, float] = {}
    for r in tried:
        losses[r["extend"]["beta_fast"]] = losses.get(r["extend"]["beta_fast"], 0.0) + r["nats"]
    reported = extended(run_copy, "yarn")
    assert len(losses) > 1
    assert {r["extend"]["beta_fast"] for r in reported.values()} == {min(losses, key=lambda k: losses[k])}
    assert {r["extend"]["tuned_on"] for r in reported.values()} == {"validation"}
    wrong = posenc("eval", *asked, "eval.split=validation")
    assert wrong.code == 2 and "extend.tune" in wrong.err
    none = posenc("eval", f"run={run_copy}", "extend.tune=true")
    assert none.code == 2 and "no knob to choose" in none.err


def test_every_protocol_by_one_command(posenc: Posenc, run_copy: Path) -> None:
    protocols = ",".join(PROTOCOLS)
    result = posenc("eval", f"run={run_copy}", f"eval.protocols=[{protocols}]", "eval.lengths=[0.5x,1x,4x]")
    assert result.code == 0, result.err
    found = {(r["protocol"], r["window"]) for r in records_of(run_copy)}
    for protocol in set(PROTOCOLS) - {"positions"}:
        assert {(protocol, 8), (protocol, 16), (protocol, 64)} <= found, protocol
    assert {w for p, w in found if p == "positions"} == {64}
    (curve,) = json.loads((run_copy / "positions.json").read_text())["curves"]
    (record,) = [r for r in records_of(run_copy) if r["protocol"] == "positions"]
    assert curve["edges"][-1] == 65 and curve["nats"] == record["curve"]["nats"]
    assert curve["targets_hash"] == record["targets_hash"] and curve["window"] == 64
    strides = {r["stride"] for r in records_of(run_copy) if r["protocol"] == "sliding"}
    assert strides == {4}


def test_the_reference_stands_beside_the_fixed_targets(run_copy: Path) -> None:
    records = records_of(run_copy)
    (reference,) = [r for r in records if r["protocol"] == "trigram"]
    at_t = next(r for r in records if r["protocol"] == "fixed-target" and r["window"] == 16)
    assert reference["targets_hash"] == at_t["targets_hash"]
    ours, theirs = reference["per_document"], at_t["per_document"]
    assert [ours[k] for k in ("document", "targets", "bytes")] == [
        theirs[k] for k in ("document", "targets", "bytes")
    ]
    assert 0 < reference["nats"] < 5


def test_an_extended_run_is_drawn(posenc: Posenc, run_copy: Path) -> None:
    plain = posenc("show", f"run={run_copy}")
    pictured = posenc("show", f"run={run_copy}", "extend=pi")
    assert plain.code == pictured.code == 0, pictured.err
    assert "rope+pi" in pictured.out and "rope+pi" not in plain.out
    refused = posenc("show", f"run={run_copy}", "encoding=rope")
    assert refused.code == 2
