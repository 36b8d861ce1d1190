"""Papers' numbers, and a comparison checked against their directions."""

import math
import random
from pathlib import Path

import pytest
from fake_runs import T, record, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.against import (
    FLAT,
    TRANSCRIBED,
    PaperComparison,
    Published,
    against,
    order,
    published,
    sign,
    tables,
)
from posenc.results.statistics import Sample

MULTIPLES = (1, 2, 4, 8)
# From 512 to 1024 tokens in alibi-table2 by nonoverlapping windows: sinusoidal 20.05 -> 43.54 (at 1012), ...
FOLLOWS = {"sinusoidal": (1.20, 2.0), "rope": (1.20, 1.26), "t5": (1.18, 1.13), "alibi": (1.19, 1.14)}
REVERSE = {"sinusoidal": (1.20, 0.5), "rope": (1.20, 1.10), "t5": (1.18, 1.25), "alibi": (1.19, 1.30)}


def number(encoding: str, multiple: int, value: float, spread: float | None = None) -> Published:
    facts = ("a-table", "A paper", "", "1M", "a corpus", "nonoverlapping")
    return Published(*facts, 100, 100 * multiple, encoding, "ppl", value, spread)


def change(by: float, noise: float = 0.01, count: int = 40) -> list[tuple[Sample, Sample]]:
    draw = random.Random(f"{by} {noise}")
    sides = []
    for loss, scale, n in ((1.0 + by, noise, count), (1.0, 0.0, count)):
        nats = [10 * (loss + draw.gauss(0, scale)) for _ in range(n)]
        sides.append({"document": list(range(n)), "nats": nats, "targets": [10] * n, "bytes": [10] * n})
    return [(Sample(sides[0]), Sample(sides[1]))]


@pytest.mark.parametrize(
    ("paper", "by", "noise", "outcome"),
    [
        ((20, 30), 0.4, 0.01, "pass"),
        ((20, 30), 3.0, 0.01, "pass"),  # never the size
        ((20, 30), -0.4, 0.01, "fail"),
        ((30, 20), -0.4, 0.01, "pass"),
        ((30, 20), 0.4, 0.01, "fail"),
        ((20, 30), 0.05, 0.5, "cannot tell"),  # the interval holds zero
        ((20, 30), 0.01, 0.001, "cannot tell"),  # clear of zero, and flat
        ((20, 20.1), 0.01, 0.001, "pass"),
        ((20, 20.1), 0.4, 0.01, "fail"),
        ((20, 20.1), -0.4, 0.01, "fail"),
        ((20, 20.1), 0.02, 0.03, "cannot tell"),
    ],
)
def test_a_sign_is_of_direction_alone(paper: tuple, by: float, noise: float, outcome: str) -> None:
    check = sign(number("rope", 1, paper[0]), number("rope", 4, paper[1]), 4, change(by, noise))
    assert check.outcome == outcome, check.reason
    assert check.published == pytest.approx(math.log(paper[1] / paper[0]))
    assert check.measured == pytest.approx(by, abs=4 * noise / math.sqrt(40))
    assert check.interval[0] < check.measured < check.interval[1]


def test_an_order_needs_a_clear_side_on_both() -> None:
    lower, higher = number("alibi", 4, 20), number("rope", 4, 30)
    outcomes = [order(lower, higher, 4, change(*one), 1).outcome for one in ((-0.4,), (0.4,), (-0.01, 0.001))]
    assert outcomes == ["pass", "fail", "cannot tell"]
    near = order(number("alibi", 4, 20), number("rope", 4, 20.3), 4, change(0.4), 1)
    assert near.outcome == "cannot tell" and near.measured is None
    assert "spread" in order(lower, number("rope", 4, 30, 15), 4, change(0.4), 1).reason
    alone, of_many = (order(lower, higher, 4, change(-0.4, 0.5), n).interval for n in (1, 300))
    assert of_many[0] < alone[0] and alone[1] < of_many[1]


def beside(root: Path, losses: dict, table: str = "alibi-table2", **changes) -> PaperComparison:
    for name, values in losses.items():
        for seed in range(3):
            records = [
                record(m * T, loss + 0.001 * seed, protocol="nonoverlapping", wiggle=0.01 * m, **changes)
                for m, loss in zip(MULTIPLES, values, strict=False)
            ]
            write_run(root, name, seed=seed, records=records)
    return against(load_runs([root]), table)


def outcomes(found: PaperComparison, kind: str) -> dict[str, str]:
    return {check.what: check.outcome for check in found.checks if check.kind == kind and "2x" in check.what}


def test_every_table_is_read_and_stands_beside_runs(tmp_path: Path) -> None:
    assert len(published()) > 500 and {row.metric for row in published()} == {"ppl", "nats"}
    assert all(row.value > 0 and row.eval_length >= row.train_length > 0 for row in published())
    assert set(tables()) >= TRANSCRIBED
    beside(tmp_path, FOLLOWS)
    for table in tables():
        for block in against(load_runs([tmp_path]), table).blocks:
            own = [r for r in published() if (r.table, r.train_length) == (table, block.train_length)]
            assert len(block.entries) + block.not_shown == len(own)
    with pytest.raises(UserError, match="did you mean: alibi-table2"):
        against(load_runs([tmp_path]), "alibi-tabel2")


def test_runs_that_follow_the_paper_pass_and_their_reverse_fails(tmp_path: Path) -> None:
    follows = beside(tmp_path / "follows", FOLLOWS)
    signs = outcomes(follows, "sign")
    assert signs == {
        f"{name} {verb} from 1x to 2x": "pass"
        for name, verb in (("alibi", "falls"), ("rope", "rises"), ("sinusoidal", "rises"), ("t5", "falls"))
    }
    assert outcomes(follows, "order")["rope below sinusoidal at 2x"] == "pass"
    assert "fail" not in {check.outcome for check in follows.checks}
    reverse = beside(tmp_path / "reverse", REVERSE)
    assert outcomes(reverse, "sign") == dict.fromkeys(signs, "fail")
    assert outcomes(reverse, "order")["rope below sinusoidal at 2x"] == "fail"
    (block,) = follows.blocks
    at_t, far = [entry for entry in block.entries if entry.encoding == "rope"][:2]
    values = {
        row.eval_length: row.value
        for row in published()
        if (row.table, row.encoding) == ("alibi-table2", "rope")
    }
    near = min(values, key=lambda length: abs(length - 1024))
    assert (far.multiple, far.published_length, far.published) == (2, near, values[near])
    assert far.published_change == pytest.approx(math.log(values[near] / values[512]))
    assert far.measured_change == pytest.approx(0.06) and far.measured_half > 0
    assert at_t.published_change is None and at_t.measured_change is None
    write_run(tmp_path / "follows", "rope", seed=9, status="diverged", reason="nan", results=False)
    lost = outcomes(against(load_runs([tmp_path / "follows"]), "alibi-table2"), "sign")
    assert lost["rope rises from 1x to 2x"] == "cannot tell"


def test_the_nearest_protocol_is_taken_and_a_difference_said(tmp_path: Path) -> None:
    write_run(
        tmp_path, "alibi", records=[record(m * T, 1.2, protocol="sliding", stride=16) for m in MULTIPLES]
    )
    runs = load_runs([tmp_path])
    notes = {
        table: " ".join(against(runs, table).notes)
        for table in ("alibi-table2", "alibi-table15", "kerple-table3")
    }
    assert "no run has measured nonoverlapping, so sliding" in notes["alibi-table2"]
    assert "stride=1 there, sliding stride=16 here" in notes["alibi-table15"]
    assert "transcription" in notes["kerple-table3"] and "one seed" in notes["kerple-table3"]
    check = next(c for c in against(runs, "small-scale-2022").checks if "16x" in c.what and "alibi" in c.what)
    assert check.reason == "not measured by sliding"


def test_extensions_settings_and_losses_in_nats(tmp_path: Path) -> None:
    yarn = {"name": "yarn", "factor": "auto", "ramp": "index", "mscale_all_dim": 0.0}
    records = [
        record(T, 1.2),
        record(4 * T, 3.0),
        record(4 * T, 1.4, extend=yarn),
        record(T, 1.2, extend=yarn),
    ]
    write_run(tmp_path, "rope", records=records)
    (block,) = against(load_runs([tmp_path]), "scale-invariant-table1").blocks
    measured = {e.encoding: e.measured for e in block.entries if e.multiple == 4}
    assert (measured["rope"], measured["rope+yarn"], measured["rope+ntk"]) == (3.0, pytest.approx(1.4), None)
    at_t, far = [e for e in block.entries if e.encoding == "rope"][:2]
    assert (
        far.published_change == pytest.approx(far.published - at_t.published) and far.published_change > FLAT
    )
    for base in (5.0, 6.0):  # neither is the one row of the paper
        write_run(tmp_path / "bases", "rope", records=records, params={"base": base})
    found = against(load_runs([tmp_path / "bases"]), "scale-invariant-table1")
    assert {e.measured for e in found.blocks[0].entries if e.encoding == "rope"} == {None}
    assert any("could be rope" in note and "base=5" in note for note in found.notes)
