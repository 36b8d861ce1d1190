"""The share of the room past T that a short-trained model recovers, by losses that are known by hand."""

import json
import math

import numpy as np
import pytest
from fake_runs import DOCUMENTS, T, record, write_run

from posenc.report.writers import render
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs

LONG = {"facts": {"context_length": 8 * T}, "config": {"context_length": 8 * T}}


def write_pair(root, at_t, far, long, *, seed=0, encoding="rope", **changes):
    """A run trained at T and one trained at 8T; `changes` are of the long-trained one's record."""
    short = [record(T, at_t, wiggle=0.3), record(8 * T, far, wiggle=0.25)]
    write_run(root / "short", encoding, seed=seed, records=short)
    own = record(8 * T, long, **{"train_length": 8 * T, "wiggle": 0.1, **changes})
    write_run(root / "long", encoding, seed=seed, records=[own], **LONG)


def found(root, **request):
    return compare_runs(load_runs([root]), CompareRequest(**request))


def recovered(root, label="rope"):
    return {row.label: row for row in found(root)[0].rows}[label].recovered


@pytest.mark.parametrize(
    ("far", "share", "text"),
    [(1.5, 0.0, "0%"), (1.0, 1.0, "100%"), (1.4, 0.2, "20%"), (1.7, -0.4, "-40%"), (0.9, 1.2, "120%")],
)
def test_cropping_recovers_nothing_and_training_long_all(tmp_path, far, share, text):
    write_pair(tmp_path, 1.5, far, 1.0)
    one = recovered(tmp_path)
    assert one is not None and one.share == pytest.approx(share) and one.note is None
    assert (one.room, one.reference, one.multiple, one.window) == pytest.approx((0.5, 1.0, 8, 512))
    lines = render(found(tmp_path), "table").splitlines()
    (line,) = [line for line in lines if line.startswith("recovered: ")]
    assert line.split()[1] == text


def test_the_interval_is_a_jackknife_of_the_ratio_over_documents(tmp_path):
    write_pair(tmp_path, 1.5, 1.4, 1.0)
    one = recovered(tmp_path)
    assert one is not None and one.ci95 is not None
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
    assert one is not None and one.share == pytest.approx(0.1 / 0.5)
    assert (one.seeds, one.reference_seeds) == (3, 3)
    influences = np.array([0.1 - 0.2 * 0.5, 0.3 - 0.2 * 0.6, -0.1 - 0.2 * 0.4]) / 0.5
    seeds = 4.3026527 * math.sqrt(influences.var(ddof=1) / 3)  # the long-trained seeds agree: 2 degrees
    assert one.ci95 is not None and (one.ci95[1] - one.ci95[0]) / 2 == pytest.approx(seeds, rel=0.01)


@pytest.mark.parametrize(
    ("at_t", "long", "changes", "note"),
    [
        (1.01, 1.0, {}, "no room"),  # 0.01 +- 0.06 of the documents
        (1.0, 1.5, {}, "no room"),  # training long is worse
        (1.5, 1.0, {"targets_hash": "b" * 16}, None),  # other targets
        (1.5, 1.0, {"checkpoint_step": 900, "window": 4 * T}, None),  # not measured at its own T
    ],
)
def test_without_room_or_reference_there_is_no_share(tmp_path, at_t, long, changes, note):
    changes = dict(changes)
    window = changes.pop("window", 8 * T)
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
    assert [one.header["context_length"] for one in (short, long)] == [T, 8 * T]  # references come last
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
