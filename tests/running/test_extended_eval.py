"""`posenc eval` with extensions, knobs that are tuned, other protocols; what it leaves on disk."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from posenc.evaluation import PROTOCOLS
from posenc.evaluation.extensions import list_extensions

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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "asked",
    [
        # T itself is always measured, and is the shortest here
        ["eval.lengths=[4x,8x]", "eval.stride=2x", "eval.protocols=[sliding]"],
        # knobs are chosen by fixed-target, whatever else measures
        [
            "extend=yarn",
            "extend.tune=true",
            "eval.lengths=[2,2x]",
            "eval.protocols=[sliding]",
            "eval.stride=1",
        ],
    ],
)
def test_what_only_shows_at_some_length_is_refused_at_once(
    posenc: Posenc, run_copy: Path, asked: list[str]
) -> None:
    result = posenc("eval", f"run={run_copy}", *asked)
    assert result.code == 2, result.err
    assert "eval.stride=2x" in result.err or "eval.lengths=2" in result.err


def test_what_acts_within_the_training_length_does_something(posenc: Posenc, run_copy: Path) -> None:
    result = posenc("eval", f"run={run_copy}", "extend=drop", "eval.lengths=[0.5x,1x]")
    assert result.code == 0 and "changes nothing" not in result.err


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
    assert "rope+yarn (tuned: beta_fast)" in result.out
    reported = extended(run_copy, "yarn")
    assert len(losses) > 1
    assert {r["extend"]["beta_fast"] for r in reported.values()} == {min(losses, key=lambda k: losses[k])}
    assert {r["extend"]["tuned_on"] for r in reported.values()} == {"validation"}
    wrong = posenc("eval", *asked, "eval.split=validation")
    assert wrong.code == 2 and "extend.tune" in wrong.err
    nothing = posenc("eval", f"run={run_copy}", "extend=drop", "extend.tune=true")
    assert nothing.code == 0 and "extend=drop: no knob to choose" in nothing.err
    within = posenc("eval", f"run={run_copy}", "extend=yarn", "extend.tune=true", "eval.lengths=[1x]")
    assert within.code == 2 and "no length beyond" in within.err


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


@pytest.mark.slow
def test_a_sweep_shows_what_it_measured(posenc: Posenc, run_copy: Path) -> None:
    result = posenc("eval", "-m", f"run={run_copy}", "extend=pi,window", "eval.lengths=[1x,3x]")
    assert result.code == 0, result.err
    title, _, rest = result.out.partition("\n")
    assert title.startswith("fixed-target") and "3x" in rest.split("positions:")[0]
    assert "4x" not in rest.split("positions:")[0]  # measured before, on other targets
    for row in ("rope+pi", "rope+window"):
        assert row in result.out


def test_a_curve_of_another_longest_window_is_other_text(posenc: Posenc, run_copy: Path, place: Path) -> None:
    shutil.copytree(run_copy, place / "other" / run_copy.name)
    other = place / "other" / run_copy.name
    for path in (other / "records").iterdir():
        path.unlink()
    more = ["eval.lengths=[1x,2x]", "eval.protocols=[positions]"]
    assert posenc("eval", f"run={other}", *more).code == 0
    mixed = posenc("compare", str(run_copy), str(other), "--protocol", "positions")
    assert mixed.code == 2 and "targets" in mixed.err
    assert posenc("eval", f"run={run_copy}", *more).code == 0
    alone = posenc("compare", str(run_copy), "--protocol", "positions", "--length", "2x")
    assert alone.code == 0 and " 2x" in alone.out and "4x" not in alone.out
    both = posenc("compare", str(run_copy), "--protocol", "positions")
    assert both.code == 0 and "not shown: 1 record" in both.out


def test_a_rise_is_held_against_the_model_as_trained(posenc: Posenc, run_copy: Path) -> None:
    asked = [f"run={run_copy}", "extend=drop", "eval.protocols=[positions]"]
    assert posenc("eval", *asked).code == 0
    plain, dropped = sorted(
        (r for r in records_of(run_copy) if r["protocol"] == "positions"),
        key=lambda r: r["extend"] is not None,
    )
    # RoPE: the first T positions of a long pass are those of a short one
    assert dropped["curve"]["level"] == pytest.approx(plain["curve"]["level"], abs=1e-5)
    assert dropped["curve"]["nats"] != plain["curve"]["nats"]


def test_another_stride_can_be_chosen(posenc: Posenc, run_copy: Path) -> None:
    for stride in (4, 2):
        asked = [f"eval.stride={stride}", "eval.protocols=[sliding]"]
        assert posenc("eval", f"run={run_copy}", *asked).code == 0
    for stride in (4, 2):
        shown = posenc("compare", str(run_copy), "--protocol", "sliding", "--stride", str(stride))
        assert shown.code == 0 and f"stride {stride}" in shown.out


def test_the_papers_table_chooses_protocol_and_unit(posenc: Posenc, run_copy: Path) -> None:
    fine = posenc("compare", str(run_copy), "--against", "alibi-table2")
    assert fine.code == 0 and "published: alibi-table2" in fine.out
    wrong = posenc("compare", str(run_copy), "--against", "alibi-table2", "--metric", "bpb")
    assert wrong.code == 2 and "--against" in wrong.err
