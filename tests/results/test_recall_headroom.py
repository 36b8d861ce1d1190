"""Recall beside the losses: columns, gate, horizon, intervals and ranks, of counts that are known."""

import json
import math

import numpy as np
import pytest
from fake_runs import DOCUMENTS, T, compared, recall_records, record, rows_of, write_run

from posenc.core.errors import UserError
from posenc.report.columns import recovered_text
from posenc.report.formats import render
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs
from posenc.results.frame import cells_table
from posenc.results.recall import LEVEL
from posenc.results.statistics.proportions import wilson

LOSSES = [record(int(m * T), 1.3) for m in (1, 2, 4, 8)]


def write(root, name, found, seed=0, beyond=None, **changes):
    """A run that finds so many of 100 values at each distance, whatever the window, or others past T."""
    pairs = zip(recall_records(found), recall_records(beyond or found), strict=True)
    recall = [near if near["window"] <= T else far for near, far in pairs]
    write_run(root, name, seed=seed, records=[*LOSSES, *recall], **changes)


#        distances within T, then 1.75, 3.5 and 7 T
SURE = {8: 100, 32: 98, 56: 96, 112: 97, 224: 96, 448: 95}
FADES = {8: 100, 32: 100, 56: 91, 112: 62, 224: 49, 448: 5}
BLIND = {8: 95, 32: 90, 56: 84, 112: 88, 224: 87, 448: 86}  # 89.7% within T
FALLS = {8: 100, 32: 100, 56: 100, 112: 40, 224: 30, 448: 50}  # not monotone
ALL, NEAREST = dict.fromkeys(SURE, 100), dict.fromkeys(SURE, 0) | {8: 100}


@pytest.mark.parametrize(
    ("found", "far", "within", "beyond", "learned", "horizon"),
    [
        (SURE, SURE, 0.98, [0.97, 0.96, 0.95], True, (448, 7.0, True)),
        (FADES, FADES, 0.97, [0.62, 0.49, 0.05], True, (224, 3.5, False)),  # 0.49 is more than half of 0.97
        (BLIND, BLIND, 269 / 300, [0.88, 0.87, 0.86], False, None),
        (FALLS, FALLS, 1.0, [0.40, 0.30, 0.50], True, (448, 7.0, True)),
        (dict.fromkeys(SURE, 90), FADES, 0.9, [0.62, 0.49, 0.05], True, (224, 3.5, False)),  # just enough
        (ALL, NEAREST, 1.0, [0, 0, 0], True, (8, 1 / 8, False)),
    ],
)
def test_columns_gate_and_horizon(tmp_path, found, far, within, beyond, learned, horizon):
    assert LEVEL == 90
    write(tmp_path, "rope", found, beyond=far)
    for protocol in ("fixed-target", "recall"):
        comparison = compared(tmp_path, protocol=protocol)
        assert comparison.recall.multiples == (2, 4, 8)
        own = comparison.rows[0].recall
        assert own.within.accuracy == pytest.approx(within) and own.learned is learned
        assert [one.accuracy for one in own.beyond] == pytest.approx(beyond)
        assert [one.distance for one in own.beyond] == [112, 224, 448]
        last = own.horizon
        assert (last and (last.distance, last.multiple, last.longest)) == horizon
        # all lines of all windows, in JSON too
        assert len(own.grid) == 2 + 5 + 6 + 7 + 8
        assert [one.pairs for one in own.grid if (one.multiple, one.distance) == (8, 32)] == [1, 4, 16]
        plain = json.loads(json.dumps(comparison.to_dict()))["rows"][0]["recall"]
        assert plain["within"]["accuracy"] == own.within.accuracy and len(plain["grid"]) == len(own.grid)
    lines = [x for x in cells_table([comparison]) if x["recall"] is not None]
    assert len(lines) == len(own.grid)


def test_wilsons_interval_is_that_of_newcombes_table():
    """1998, table I, method 3; and one by symmetry."""
    table = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (1, 29): (0.0061, 0.1718)}
    for (found, count), limits in {**table, (0, 20): (0, 0.1611), (20, 20): (1 - 0.1611, 1)}.items():
        assert wilson(found / count, count) == pytest.approx(limits, abs=5e-5)


def test_intervals_are_over_windows_and_seeds(tmp_path):
    """Three distances within T do not make 300 windows of 100; two seeds add Student's t."""
    write(tmp_path / "one", "rope", FADES)
    own = compared(tmp_path / "one").rows[0].recall
    assert own.within.ci95 == pytest.approx(wilson(0.97, 100))
    assert (own.within.windows, own.within.spread) == (100, None)
    for seed, at in ((0, 40), (1, 60)):
        write(tmp_path / "two", "rope", FADES | {448: at}, seed=seed)
    far = compared(tmp_path / "two").rows[0].recall.beyond[-1]
    assert (far.accuracy, far.seeds, far.spread) == (0.5, 2, pytest.approx(math.sqrt(0.02)))
    assert far.ci95 == (0, 1)  # t(1) is 12.7
    write(tmp_path / "two", "rope", FADES | {448: 50}, seed=2)
    far = compared(tmp_path / "two").rows[0].recall.beyond[-1]
    seeds, windows = 4.302653 * 0.1 / math.sqrt(3), 0.5 - wilson(0.5, 100)[0]
    assert far.ci95 == pytest.approx([0.5 - math.hypot(seeds, windows), 0.5 + math.hypot(seeds, windows)])


def ranks(root, **request):
    rows = compared(root, **request).rows
    return {row.label: row.recall.beyond[-1].rank for row in rows if row.recall}


def test_rows_that_learned_are_ranked(tmp_path):
    write(tmp_path, "alibi", SURE)
    write(tmp_path, "rope", SURE | {448: 88})
    write(tmp_path, "nope", SURE | {448: 70})
    write(tmp_path, "t5", BLIND)
    assert ranks(tmp_path) == {"alibi": "best", "nope": "below", "rope": "tied", "t5": None}
    assert ranks(tmp_path, recall_level=85.0)["t5"] == "tied"
    assert set(ranks(tmp_path, recall_level=99.0).values()) == {None}
    for sort, labels in {"-recall": "alibi rope nope t5", "recall": "nope rope alibi t5"}.items():
        assert [row.label for row in compared(tmp_path, sort=sort).rows] == labels.split()
    write(tmp_path, "alibi", SURE, seed=1, status="diverged")  # its other seed wins nothing
    assert ranks(tmp_path)["alibi"] is None
    other = [one | {"targets_hash": "b"} for one in recall_records(SURE)]
    write_run(tmp_path, "fire", records=[*LOSSES, *other])
    assert set(ranks(tmp_path).values()) == {None}  # other windows were asked
    for level in (-1.0, 101.0, math.nan):
        with pytest.raises(UserError, match="not a percentage"):
            compared(tmp_path, recall_level=level)


def test_beside_runs_without_records(tmp_path):
    """A row without recall, a seed without, windows that are hidden, other checkpoints."""
    write(tmp_path, "rope", FADES)
    write_run(tmp_path, "rope", seed=1, records=LOSSES)
    write(tmp_path, "nope", SURE)
    write(tmp_path, "nope", BLIND, seed=1)
    late = [one | {"checkpoint_step": 900} for one in LOSSES]
    write_run(tmp_path, "alibi", records=[*late, *recall_records(SURE)])
    comparison = compared(tmp_path)
    rows = rows_of(comparison)
    assert rows["alibi"].recall is None  # of another model
    rope, nope = rows["rope"].recall, rows["nope"].recall
    assert (rope.note, rope.beyond[0].seeds) == ("1 of 2 without", 1)
    assert (nope.note, nope.learned) == ("1 of 2 did not learn", True)
    assert compared(tmp_path, columns=[1, 8]).recall.multiples == (8,)
    found = {x["label"] for x in cells_table([comparison]) if x["protocol"] == "recall"}
    assert found == {"rope", "nope"}
    without = [one for one in load_runs([tmp_path]) if not any("recall" in r for r in one.records)]
    (plain,) = compare_runs(without, CompareRequest())
    assert plain.recall is None and not any("recall" in key for x in cells_table([plain]) for key in x)


def test_an_extension_learned_what_its_model_did(tmp_path):
    yarn = {"name": "yarn", "factor": 8.0}
    extended = [one | {"extend": yarn} for one in [*LOSSES, *recall_records({**FADES, 8: 0, 32: 0, 56: 30})]]
    write_run(tmp_path, records=[*LOSSES, *recall_records(SURE), *extended])
    own = compared(tmp_path).rows[1].recall
    assert own.within.accuracy == pytest.approx(0.1)
    assert own.learned and own.beyond[0].rank == "below"
    assert (own.horizon.distance, own.horizon.longest) == (448, True)  # half of the little it has within T


# --- The share of the room past T that a short-trained model recovers, by losses that are known by hand
LONG = {"facts": {"context_length": 8 * T}, "config": {"context_length": 8 * T}}


def write_pair(root, at_t, far, long, *, seed=0, encoding="rope", **changes):
    """A run trained at T and one trained at 8T; `changes` are of the long-trained one's record."""
    short = [record(T, at_t, wiggle=0.3), record(8 * T, far, wiggle=0.25)]
    write_run(root / "short", encoding, seed=seed, records=short)
    own = record(8 * T, long, **{"train_length": 8 * T, "wiggle": 0.1, **changes})
    write_run(root / "long", encoding, seed=seed, records=[own], **LONG)


def found(root, **request):
    return compare_runs(load_runs([root]), CompareRequest(**request))


def recovered(root):
    return found(root)[0].rows[0].recovered


@pytest.mark.parametrize(
    ("far", "share", "text"),
    [
        (1.5, 0.0, "0%"),
        (1.0, 1.0, "100%"),
        (1.4, 0.2, "20%"),
        (1.7, -0.4, "-40%"),
        (0.9, 1.2, "120%"),
        (2.1, -1.2, "-120%"),
    ],
)
def test_cropping_recovers_nothing_and_training_long_all(tmp_path, far, share, text):
    write_pair(tmp_path, 1.5, far, 1.0)
    one = recovered(tmp_path)
    assert one.share == pytest.approx(share) and one.note is None
    assert (one.room, one.reference, one.multiple, one.window) == pytest.approx((0.5, 1.0, 8, 512))
    assert f"\nrecovered: {text} " in render(found(tmp_path), "table")
    assert recovered_text(one) == (text if share > -1 else "<-100%")  # in a table of several


def test_the_interval_is_a_jackknife_of_the_ratio_over_documents(tmp_path):
    write_pair(tmp_path, 1.5, 1.4, 1.0)
    one = recovered(tmp_path)
    sign = (-1.0) ** np.arange(DOCUMENTS)
    near, far, long = 1.5 + 0.3 * sign, 1.4 + 0.25 * sign, 1.0 + 0.1 * sign
    without = [
        (np.delete(near, i).mean() - np.delete(far, i).mean())
        / (np.delete(near, i).mean() - np.delete(long, i).mean())
        for i in range(DOCUMENTS)
    ]
    variance = (DOCUMENTS - 1) / DOCUMENTS * ((without - np.mean(without)) ** 2).sum()
    assert (one.ci95[1] - one.ci95[0]) / 2 == pytest.approx(2.0226909 * math.sqrt(variance), rel=1e-6)


def test_seeds_widen_the_interval_and_the_shares_are_of_their_means(tmp_path):
    for seed, (at_t, far) in enumerate([(1.5, 1.4), (1.6, 1.3), (1.4, 1.5)]):
        write_pair(tmp_path, at_t, far, 1.0, seed=seed)
    one = recovered(tmp_path)
    assert one.share == pytest.approx(0.1 / 0.5)
    assert (one.seeds, one.reference_seeds) == (3, 3)
    influences = np.array([0.1 - 0.2 * 0.5, 0.3 - 0.2 * 0.6, -0.1 - 0.2 * 0.4]) / 0.5
    seeds = 4.3026527 * math.sqrt(influences.var(ddof=1) / 3)  # the long-trained seeds agree: 2 degrees
    assert (one.ci95[1] - one.ci95[0]) / 2 == pytest.approx(seeds, rel=0.01)


@pytest.mark.parametrize(
    ("at_t", "window", "long", "changes", "note"),
    [
        (1.01, 8 * T, 1.0, {}, "no room"),  # 0.01 +- 0.06 of the documents
        (1.0, 8 * T, 1.5, {}, "no room"),  # training long is worse
        (1.5, 8 * T, 1.0, {"targets_hash": "b" * 16}, None),  # other targets
        (1.5, 4 * T, 1.0, {"checkpoint_step": 900}, None),  # not measured at its own T
    ],
)
def test_without_room_or_reference_there_is_no_share(tmp_path, at_t, window, long, changes, note):
    write_run(tmp_path / "short", records=[record(T, at_t, wiggle=0.3), record(8 * T, 1.4)])
    own = record(window, long, train_length=8 * T, **changes)
    write_run(tmp_path / "long", records=[own], **LONG)
    rows = [row for one in found(tmp_path) for row in one.rows]
    one = next((row.recovered for row in rows if row.recovered), None)
    assert (one and one.note) == note and (one is None or one.share is None)


def test_the_reference_is_of_the_same_settings_and_not_ranked_beside_the_row(tmp_path):
    write_pair(tmp_path, 1.5, 1.4, 1.0)
    write_pair(tmp_path, 1.6, 1.3, 1.2, encoding="alibi")
    other = {"facts": LONG["facts"], "config": {**LONG["config"], "train": {"lr": 0.1}}}
    own = record(8 * T, 0.5, train_length=8 * T)
    write_run(tmp_path / "other", "rope", seed=1, records=[own], **other)
    short, long = found(tmp_path)[:2]
    assert [one.header.context_length for one in (short, long)] == [T, 8 * T]  # references come last
    shares = {row.label: row.recovered.share for row in short.rows if row.recovered}
    assert shares == {"rope": pytest.approx(0.2), "alibi": pytest.approx(0.75)}
    assert not any(row.recovered for row in long.rows)
    (mixed,) = found(tmp_path, allow_mixed=True)
    assert not any(cell.versus_best for row in mixed.rows for cell in row.cells)
    table = render([short], "table").splitlines()
    head = next(line for line in table if line.startswith("encoding"))
    assert head.split() == ["encoding", "1x", "(T)", "8x", "recovered", "verdict", "at", "8x"]
    assert [line.split()[-2] for line in table if line.startswith(("rope ", "alibi "))] == ["75%", "20%"]
    assert json.loads(render([short], "json"))["rows"][0]["recovered"]["share"] == pytest.approx(0.75)
    assert "room_nats,room_nats_low" in render([short], "csv").splitlines()[0]
    full = render([short], "table", full=True, width=120)
    assert "room, nats/byte" in full and "75% ±" in full
