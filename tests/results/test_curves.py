from pathlib import Path

import pytest
from fake_runs import T, positions, record, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.comparison import compare, metric_for


def compared(tmp_path: Path, metric: str = "nats"):
    return compare(load_runs([tmp_path]), "positions", metric, False)


def test_columns_are_bins_and_cells_their_means_over_seeds(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, records=[positions()])
    write_run(tmp_path, seed=1, records=[positions(shift=0.02)])
    comparison = compared(tmp_path)
    assert [column.window for column in comparison.columns] == [8, 16, 32, 48, 64, 96, 128, 256, 512]
    assert [column.multiple for column in comparison.columns] == [0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8]
    assert [column.window for column in comparison.columns if not column.shown] == [48, 96]
    assert [column.targets for column in comparison.columns][:2] == [320, 320]
    cell = comparison.rows[0].cells[6]
    assert (cell.mean, cell.spread) == (pytest.approx(1.61), pytest.approx(0.02 / 2**0.5))
    assert (cell.change, cell.change_ci95, cell.seeds) == (pytest.approx(0.41), None, 2)
    assert cell.verdict is None and cell.mark is None and comparison.columns[6].pairs == []
    assert comparison.rows[0].crop is None and comparison.rows[0].effective_context is None


def test_one_seed_keeps_its_intervals(tmp_path: Path) -> None:
    write_run(tmp_path, records=[positions()])
    (row,) = compared(tmp_path).rows
    assert row.cells[0].change_ci95 is None
    assert row.cells[6].change_ci95 == [pytest.approx(0.35), pytest.approx(0.45)]
    assert (row.curve.slope, row.curve.slope_ci95) == (1e-3, [pytest.approx(8e-4), pytest.approx(1.2e-3)])
    assert (row.curve.breaks_at, row.curve.train_length) == ([97], T)


def test_slope_and_breaks_over_seeds(tmp_path: Path) -> None:
    for seed, breaks_at in enumerate((97, None, 129)):
        write_run(tmp_path, seed=seed, records=[positions(slope=1e-3 * (seed + 1), breaks_at=breaks_at)])
    found = compared(tmp_path).rows[0].curve
    assert (found.slope, found.slope_spread) == (pytest.approx(2e-3), pytest.approx(1e-3))
    assert (found.slope_ci95, found.breaks_at) == (None, [97, None, 129])
    write_run(tmp_path / "flat", records=[positions(slope=None, breaks_at=None)])
    assert compared(tmp_path / "flat").rows[0].curve.slope is None


def test_that_nothing_breaks_is_said_where_every_interval_says_it(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, records=[positions()])
    few = positions(breaks_at=None, flat=True)
    few["curve"]["rise_ci95"] = [None] * len(few["curve"]["nats"])
    write_run(tmp_path, seed=1, records=[few])
    write_run(tmp_path, seed=2, records=[positions(breaks_at=None, flat=True)])
    wide = positions(breaks_at=None, flat=True)
    wide["curve"]["rise_ci95"][-1] = [-0.2, 0.11]
    write_run(tmp_path, seed=3, records=[wide])
    at_t = positions(breaks_at=None, flat=True)
    at_t |= {"window": T, "multiple": 1.0}  # no bin lies past T
    at_t["curve"]["edges"] = [*range(1, 11)]
    write_run(tmp_path, seed=4, records=[at_t])
    assert compared(tmp_path).rows[0].curve.holds == [False, False, True, False, False]


def test_rows_without_a_curve_keep_their_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=[positions()])
    write_run(tmp_path, "alibi", records=[record(8 * T, 0, protocol="positions", note="oom at 512 tokens")])
    write_run(tmp_path, "nope", records=[record(T, 1.0)])
    rows = {row.label: row for row in compared(tmp_path).rows}
    assert {cell.note for cell in rows["alibi"].cells} == {"oom"} and rows["alibi"].curve is None
    assert {cell.note for cell in rows["nope"].cells} == {"not measured"}
    assert rows["rope"].cells[6].mean == pytest.approx(1.6)


def test_curves_are_in_nats(tmp_path: Path) -> None:
    write_run(tmp_path, records=[positions(), record(T, 1.0)])
    runs = load_runs([tmp_path])
    with pytest.raises(UserError, match="nats per token"):
        compared(tmp_path, "bpb")
    assert metric_for(runs, "positions", "ppl") == "nats"
    assert metric_for(runs, "fixed-target", "ppl") == "ppl"
