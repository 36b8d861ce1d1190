"""Checks of direction: which published lengths stand beside ours, and when a check may pass or fail."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_runs import T, record, write_run

from posenc.results import load_runs
from posenc.results.against import Against, Entry, against
from posenc.results.directions import FLAT, Check, order, sign
from posenc.results.published import Published, table_rows
from posenc.results.records import PerDocument

MULTIPLES = (1, 2, 4, 8)


def published(encoding: str, multiple: int, value: float, spread: float | None = None) -> Published:
    facts = ("a-table", "A paper", "", "1M", "a corpus", "nonoverlapping")
    return Published(*facts, 100, 100 * multiple, encoding, "ppl", value, spread)


def scores(loss: float, noise: float = 0.0, count: int = 40) -> PerDocument:
    draw = random.Random(f"{loss} {noise}")
    nats = [10 * (loss + draw.gauss(0, noise)) for _ in range(count)]
    return {"document": list(range(count)), "nats": nats, "targets": [10] * count, "bytes": [10] * count}


def change(by: float, noise: float = 0.01, count: int = 40) -> list[tuple[PerDocument, PerDocument]]:
    return [(scores(1.0 + by, noise, count), scores(1.0, 0.0, count))]


def of(paper: tuple[float, float], measured: Sequence[tuple[PerDocument, PerDocument]] | str) -> Check:
    return sign(published("rope", 1, paper[0]), published("rope", 4, paper[1]), 4, measured)


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
def test_a_sign_is_of_direction_alone(
    paper: tuple[float, float], by: float, noise: float, outcome: str
) -> None:
    check = of(paper, change(by, noise))
    assert check.outcome == outcome, check.reason
    assert check.published == pytest.approx(math.log(paper[1] / paper[0]))
    assert check.measured == pytest.approx(by, abs=4 * noise / math.sqrt(40))
    assert check.interval is not None and check.interval[0] < check.measured < check.interval[1]


def test_a_sign_that_cannot_be_told_says_why() -> None:
    assert of((20, 30), "not measured").reason == "not measured"
    few = of((20, 30), change(0.4, count=20))
    assert few.outcome == "cannot tell" and "30 documents" in few.reason and few.interval is None
    other = of((20, 30), [(scores(1.4, count=40), scores(1.0, count=39))])
    assert other.outcome == "cannot tell" and "different targets" in other.reason
    noisy = sign(published("rope", 1, 20, 8), published("rope", 4, 30, 8), 4, change(0.4))
    assert noisy.outcome == "cannot tell" and "spread" in noisy.reason


def test_an_order_needs_a_clear_side_on_both() -> None:
    lower, higher = published("alibi", 4, 20), published("rope", 4, 30)
    assert order(lower, higher, 4, change(-0.4), 1).outcome == "pass"
    assert order(lower, higher, 4, change(0.4), 1).outcome == "fail"
    assert order(lower, higher, 4, change(-0.01, 0.001), 1).outcome == "cannot tell"
    assert order(lower, higher, 4, [], 1).reason == "no seed in common"
    near = order(published("alibi", 4, 20), published("rope", 4, 20.3), 4, change(0.4), 1)
    assert near.outcome == "cannot tell" and near.measured is None
    spread = order(lower, published("rope", 4, 30, 15), 4, change(0.4), 1)
    assert spread.outcome == "cannot tell" and "spread" in spread.reason


def test_orders_of_one_length_are_held_together() -> None:
    lower, higher = published("alibi", 4, 20), published("rope", 4, 30)
    measured = change(-0.4, 0.5)
    alone, of_many = (order(lower, higher, 4, measured, n).interval for n in (1, 300))
    assert alone is not None and of_many is not None
    assert of_many[0] < alone[0] and alone[1] < of_many[1]


def runs_of(root: Path, losses: dict[str, Sequence[float]], seeds: int = 3, spread: float = 0.0) -> Path:
    draw = random.Random(0)
    for name, values in losses.items():
        for seed in range(seeds):
            records = [
                record(m * T, loss + draw.gauss(0, spread), protocol="nonoverlapping", wiggle=0.01 * m)
                for m, loss in zip(MULTIPLES, values, strict=False)
            ]
            write_run(root, name, seed=seed, records=records)
    return root


def entries(found: Against, encoding: str) -> list[Entry]:
    return [e for block in found.blocks for e in block.entries if e.encoding == encoding]


def check_of(found: Against, what: str) -> Check:
    return next(check for check in found.checks if check.what == what)


def test_the_nearest_published_length_stands_beside_ours_and_says_which(tmp_path: Path) -> None:
    found = against(load_runs([runs_of(tmp_path, {"rope": (1.2, 1.3, 1.6, 2.0)})]), "alibi-table2")
    ours = entries(found, "rope")
    lengths = [row.eval_length for row in table_rows("alibi-table2") if row.encoding == "rope"]
    for entry in ours:
        assert entry.published_multiple == entry.published_length / 512
    beside = {e.multiple: e.published_length for e in ours if e.measured is not None}
    nearest = {m: min(lengths, key=lambda n: abs(math.log(n / 512 / m))) for m in MULTIPLES}
    assert beside == nearest
    further = [e for e in ours if e.measured is None]
    assert further and all(e.multiple == e.published_multiple > 8 for e in further)
    assert {e.sign for e in further} == {"cannot tell"}


def test_a_length_that_nobody_measured_is_a_check_that_cannot_tell(tmp_path: Path) -> None:
    found = against(load_runs([runs_of(tmp_path, {"alibi": (1.2, 1.2, 1.2, 1.2)})]), "small-scale-2022")
    check = check_of(found, "alibi falls from 1x to 16x")
    assert check.outcome == "cannot tell" and check.reason == "not measured by nonoverlapping"
    assert not [check for check in found.checks if check.kind == "order"]


def test_the_interval_is_of_seeds_and_documents(tmp_path: Path) -> None:
    tight = against(load_runs([runs_of(tmp_path / "a", {"rope": (1.2, 1.3)})]), "alibi-table2")
    loose = against(load_runs([runs_of(tmp_path / "b", {"rope": (1.2, 1.3)}, spread=0.1)]), "alibi-table2")
    one = against(load_runs([runs_of(tmp_path / "c", {"rope": (1.2, 1.3)}, seeds=1)]), "alibi-table2")
    halves = [entries(found, "rope")[1].measured_half for found in (tight, loose, one)]
    assert all(half is not None for half in halves)
    assert halves[1] > 5 * halves[0] and halves[2] > 0
    low, high = check_of(loose, "rope rises from 1x to 2x").interval or (0.0, 0.0)
    assert 2 * halves[1] == pytest.approx(high - low)
    assert check_of(tight, "rope rises from 1x to 2x").outcome == "pass"
    assert check_of(loose, "rope rises from 1x to 2x").outcome == "cannot tell"
    assert any("these models only" in note for note in one.notes)
    assert not any("these models only" in note for note in tight.notes)


def test_a_row_that_lost_a_seed_is_not_judged(tmp_path: Path) -> None:
    runs_of(tmp_path, {"rope": (1.2, 1.3), "sinusoidal": (1.2, 2.0)})
    write_run(tmp_path, "sinusoidal", seed=3, status="diverged", reason="loss is nan", results=False)
    found = against(load_runs([tmp_path]), "alibi-table2")
    lost = check_of(found, "sinusoidal rises from 1x to 2x")
    assert lost.outcome == "cannot tell" and "diverged" in lost.reason
    both = check_of(found, "rope below sinusoidal at 2x")
    assert both.outcome == "cannot tell" and "diverged" in both.reason
    assert check_of(found, "rope rises from 1x to 2x").outcome == "pass"


def test_mixed_runs_are_not_taken_for_the_papers(tmp_path: Path) -> None:
    for tokens in (1_000_000, 2_000_000):
        records = [record(m * T, 1.2 * m, protocol="nonoverlapping") for m in (1, 2)]
        write_run(tmp_path, "rope", records=records, facts={"tokens": tokens})
    found = against(load_runs([tmp_path]), "alibi-table2", allow_mixed=True)
    assert {entry.measured for entry in entries(found, "rope")} == {None}
    assert any("rope has no one row" in n and "tokens trained 2000000" in n for n in found.notes)


@pytest.mark.parametrize(
    ("table", "there", "shown", "note"),
    [
        ("alibi-table2", ["fixed-target", "nonoverlapping"], "nonoverlapping", None),
        ("alibi-table2", ["fixed-target", "sliding"], "fixed-target", "no run has measured nonoverlapping"),
        ("alibi-table2", ["sliding"], "sliding", "no run has measured nonoverlapping"),
        ("alibi-table15", ["sliding"], "sliding", "stride=1 there, sliding stride=16 here"),
        ("alibi-table15", ["nonoverlapping"], "nonoverlapping", "no run has measured sliding"),
        ("scale-invariant-table1", ["fixed-target"], "fixed-target", "validation loss there"),
        ("kazemnejad-appendixF", ["fixed-target"], "fixed-target", None),
    ],
)
def test_the_nearest_protocol_is_taken_and_a_difference_said(
    tmp_path: Path, table: str, there: list[str], shown: str, note: str | None
) -> None:
    records = [
        record(m * T, 1.2, protocol=name, stride=16 if name == "sliding" else None)
        for name in there
        for m in MULTIPLES
    ]
    write_run(tmp_path, "alibi", records=records)
    found = against(load_runs([tmp_path]), table)
    assert found.measured["protocol"] == shown
    said = [one for one in found.notes if one.startswith("protocols differ")]
    assert [note in one for one in said] == [True] if note else said == []


def test_losses_in_nats_are_not_taken_for_perplexities(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=[record(T, 1.2), record(4 * T, 1.9)])
    at_t, further, *_ = entries(against(load_runs([tmp_path]), "scale-invariant-table1"), "rope")
    assert further.published_change == pytest.approx(further.published - at_t.published)
    assert further.published_change > FLAT and further.sign == "pass"
