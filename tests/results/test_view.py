"""What is shown of a comparison: rows, columns, order, baseline, facets, extensions as columns."""

from pathlib import Path

import pytest
from fake_runs import MULTIPLES, T, positions, record, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.comparison import Comparison, View, compare, compare_facets
from posenc.results.statistics import Sample, difference

LOSSES = {"nope": 2.0, "rope": 1.2, "alibi": 1.3}


def sweep(root: Path, growth: dict[str, float] | None = None) -> Path:
    """Three encodings, three seeds; at 8x each is higher by its `growth`."""
    for name, loss in LOSSES.items():
        for seed in range(3):
            grown = (growth or {"nope": 1.0, "rope": 2.5, "alibi": 0.0})[name]
            losses = {m: loss + 0.01 * seed + (grown if m == 8 else 0.0) for m in (1, 8)}
            write_run(root, name, seed=seed, losses=losses)
    return root


def shown(root: Path, **view) -> Comparison:
    return compare(load_runs([root]), "fixed-target", "nats", False, View(**view))


def labels(comparison: Comparison) -> list[str]:
    return [row.label for row in comparison.rows]


def test_rows_in_the_order_asked_for_and_no_others_ranked(tmp_path: Path) -> None:
    comparison = shown(sweep(tmp_path), rows=["rope", "al*"])
    assert labels(comparison) == ["rope", "alibi"]
    assert [len(column.pairs) for column in comparison.columns] == [1, 1]
    assert labels(shown(tmp_path, rows=["*"])) == ["alibi", "nope", "rope"]
    with pytest.raises(UserError, match="did you mean: rope"):
        shown(tmp_path, rows=["ropes"])


def test_columns(tmp_path: Path) -> None:
    (column,) = shown(sweep(tmp_path), columns=[8]).columns
    assert column.multiple == 8
    row = shown(tmp_path, columns=[8]).rows[0]
    assert len(row.cells) == 1 and row.cells[0].change is not None  # the crop line is not lost
    assert row.effective_context is not None and row.effective_context.window == 8 * T
    with pytest.raises(UserError, match="allowed: 1x, 8x"):
        shown(tmp_path, columns=[4])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (None, "alibi nope rope"),
        ("name", "alibi nope rope"),
        ("-name", "rope nope alibi"),
        ("1x", "rope alibi nope"),
        ("-1", "nope alibi rope"),
        ("8x", "alibi nope rope"),
        ("-8x", "rope nope alibi"),
        ("change", "alibi nope rope"),
        ("-change@8x", "rope nope alibi"),
    ],
)
def test_sorting(tmp_path: Path, order: str | None, expected: str) -> None:
    assert labels(shown(sweep(tmp_path), sort=order)) == expected.split()


def test_pairs_follow_their_rows_when_sorted(tmp_path: Path) -> None:
    comparison = shown(sweep(tmp_path), sort="8x")
    for column in comparison.columns:
        for pair in column.pairs:
            assert pair.rows == [comparison.rows[pair.a].label, comparison.rows[pair.b].label]


def test_rows_without_the_number_come_last_either_way(tmp_path: Path) -> None:
    write_run(sweep(tmp_path), "aaa", losses={1: 0.5})
    assert labels(shown(tmp_path, sort="8x"))[-1] == "aaa" == labels(shown(tmp_path, sort="-8x"))[-1]


@pytest.mark.parametrize("order", ["loss", "3x", "", "changes", "8y", "change@3x"])
def test_orders_that_are_none(tmp_path: Path, order: str) -> None:
    with pytest.raises(UserError, match="cannot sort by this"):
        shown(sweep(tmp_path), sort=order)


def test_baseline_is_the_paired_difference(tmp_path: Path) -> None:
    comparison = shown(sweep(tmp_path), baseline="rope")
    assert comparison.header["baseline"] == "rope"
    found = {row.label: row.cells[-1].against for row in comparison.rows}
    assert found["rope"] is None
    by_hand = {"alibi": 1.3 - 3.7, "nope": 3.0 - 3.7}
    for name, value in by_hand.items():
        against = found[name]
        assert against is not None and against.difference == pytest.approx(value)
        assert (against.word, against.seeds) == ("lower", [0, 1, 2])
    assert [row.cells[0].against.word for row in comparison.rows if row.cells[0].against] == ["higher"] * 2


def test_baseline_interval_is_that_of_the_statistics(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "rope", seed=seed, records=[record(T, 1.0 + 0.1 * seed, wiggle=0.3)])
        write_run(tmp_path, "alibi", seed=seed, records=[record(T, 1.2, wiggle=0.1)])
    runs = load_runs([tmp_path])
    sums = {(r.facts["encoding"]["name"], r.seed): Sample(r.records[0]["per_document"]) for r in runs}
    pairs = [(sums["alibi", seed], sums["rope", seed]) for seed in range(2)]
    for metric, per in (("nats", "targets"), ("bpb", "bytes")):
        comparison = compare(runs, "fixed-target", metric, False, View(baseline="rope"))
        against = comparison.rows[0].cells[0].against
        expected = difference(pairs, per)
        assert against.difference == pytest.approx(expected.value)
        assert against.ci95 == pytest.approx(expected.interval())


def test_baselines_that_are_none_or_several(tmp_path: Path) -> None:
    for base in (5, 6):
        write_run(tmp_path, "t5", params={"base": base})
    sweep(tmp_path)
    with pytest.raises(UserError, match="did you mean: nope"):
        shown(tmp_path, baseline="nop")
    with pytest.raises(UserError, match="stands for several rows"):
        shown(tmp_path, baseline="t5")
    assert shown(tmp_path, baseline="t5 base=5").header["baseline"] == "t5 base=5"


def test_a_facet_for_each_value_numbers_by_size(tmp_path: Path) -> None:
    for length in (64, 512, 128):
        config, facts = {"context_length": length}, {"context_length": length}
        write_run(tmp_path, name=f"T{length}", config=config, facts=facts)
    runs = load_runs([tmp_path])
    comparisons = compare_facets(runs, "context_length", "fixed-target", "nats", True, View())
    assert [c.header["facet"]["value"] for c in comparisons] == ["64", "128", "512"]
    assert [c.rows[0].runs for c in comparisons] == [[str(tmp_path / f"T{n}")] for n in (64, 128, 512)]
    with pytest.raises(UserError, match="did you mean: context_length"):
        compare_facets(runs, "contextlength", "fixed-target", "nats", True, View())
    with pytest.raises(UserError, match="where context_length is 64"):
        compare_facets(runs, "context_length", "fixed-target", "nats", True, View(baseline="alibi"))


def test_a_facet_that_did_not_measure_the_protocol_keeps_its_runs(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", config={"model": {"name": "nano"}})
    write_run(
        tmp_path, "alibi", config={"model": {"name": "tiny"}}, facts={"model": {"name": "tiny"}}, losses={}
    )
    nano, tiny = compare_facets(load_runs([tmp_path]), "model", "fixed-target", "nats", True, View())
    assert nano.rows[0].cells and not tiny.columns and tiny.rows[0].label == "alibi"


def test_extensions_as_columns_or_rows(tmp_path: Path) -> None:
    plain = [record(int(m * T), 1.0 + m) for m in MULTIPLES]
    far = [
        record(8 * T, loss, extend={"name": name, **knobs})
        for name, loss, knobs in (("yarn", 1.5, {}), ("window", 1.75, {"window": 32}))
    ]
    write_run(tmp_path, "rope", records=plain + far)
    write_run(tmp_path, "alibi", records=plain)
    assert labels(shown(tmp_path)) == ["alibi", "rope", "rope+window window=32", "rope+yarn"]
    folded = shown(tmp_path, extensions="columns")
    assert labels(folded) == ["alibi", "rope"]
    assert [one.name for one in folded.extensions] == ["window window=32", "yarn"]
    alibi, rope = folded.rows
    assert alibi.extensions == [None, None]
    assert [(cell.mean, cell.change) for cell in rope.extensions] == [(1.75, -0.25), (1.5, -0.5)]
    assert all(len(column.pairs) == 1 for column in folded.columns)


def test_many_rows_are_held_against_the_lowest_and_corrected_for_all(tmp_path: Path) -> None:
    for i in range(45):
        write_run(tmp_path, "rope", params={"base": float(i)}, losses={1: 1.0 + 0.001 * i, 8: 2.0})
    comparison = shown(tmp_path)
    assert [len(column.pairs) for column in comparison.columns] == [44, 44]
    marks = [row.cells[0].mark for row in comparison.rows]
    assert marks.count("lowest") == 1 and None in marks and "tie" in marks


def test_an_extension_without_its_run_as_trained_stays_a_row(tmp_path: Path) -> None:
    write_run(tmp_path, "alibi", records=[record(8 * T, 1.5, extend={"name": "window", "window": 9})])
    write_run(tmp_path, "rope", losses={1: 1.0, 8: 2.0})
    folded = shown(tmp_path, extensions="columns")
    assert labels(folded) == ["alibi+window window=9", "rope"] and not folded.extensions


def test_every_variant_of_an_extension_has_a_column_named_by_its_own_knobs(tmp_path: Path) -> None:
    for base in (500.0, 10000.0):
        far = [record(8 * T, 1.5, extend={"name": "foo", "factor": n}) for n in (2, 4)]
        write_run(tmp_path, "rope", params={"base": base}, records=[record(T, 1.0), *far])
    folded = shown(tmp_path, extensions="columns")
    assert [one.name for one in folded.extensions] == ["foo factor=2", "foo factor=4"]
    assert all(cell is not None for row in folded.rows for cell in row.extensions)


def test_folded_curves_are_bins(tmp_path: Path) -> None:
    extended = {**positions(shift=0.5), "extend": {"name": "yarn"}}
    write_run(tmp_path, "rope", records=[positions(), extended])
    as_rows, as_columns = (
        compare(load_runs([tmp_path]), "positions", "nats", False, View(extensions=how))
        for how in ("rows", "columns")
    )
    assert as_columns.rows[0].extensions[0].mean == as_rows.rows[1].cells[-1].mean == pytest.approx(2.3)


def test_columns_are_those_of_the_rows_that_are_shown(tmp_path: Path) -> None:
    write_run(sweep(tmp_path), "long", losses={1: 1.0, 16: 1.0})
    assert [column.multiple for column in shown(tmp_path, rows=["rope", "nope"]).columns] == [1, 8]


def test_a_baseline_of_a_mixed_table_is_named_with_what_is_mixed(tmp_path: Path) -> None:
    for length in (64, 128):
        config, facts = {"context_length": length}, {"context_length": length}
        write_run(tmp_path, name=f"T{length}", config=config, facts=facts)
    runs = load_runs([tmp_path])
    with pytest.raises(UserError, match=r"rope \[context length 128\]"):
        compare(runs, "fixed-target", "nats", True, View(baseline="rope"))
    found = compare(runs, "fixed-target", "nats", True, View(baseline="rope [context length 64]"))
    assert found.header["baseline"] == "rope [context length 64]"


def test_a_length_of_other_targets_is_told(tmp_path: Path) -> None:
    longer = [record(m * T, 1.3, targets_hash="b" * 16) for m in (1, 16)]
    write_run(tmp_path, "rope", records=[*(record(m * T, 1.3) for m in (1, 2, 4, 8)), *longer])
    with pytest.raises(UserError, match="other targets: --length 16x"):
        shown(tmp_path, columns=[16.0])


def test_extensions_as_columns_say_which_seeds_they_lack(tmp_path: Path) -> None:
    plain = [record(m * T, 1.0 + m) for m in (1, 8)]
    write_run(tmp_path, "rope", records=[*plain, record(8 * T, 1.5, extend={"name": "yarn"})])
    write_run(tmp_path, "rope", seed=1, records=plain)
    (row,) = shown(tmp_path, extensions="columns").rows
    assert row.notes == ["+yarn not extended: seed 1"]
