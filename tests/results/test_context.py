"""What stands beside the loss: effective context, uses-context, the trigram reference, probes."""

import math
from pathlib import Path

import pytest
from fake_runs import MULTIPLES, record, write_run

from posenc.results import load_runs
from posenc.results.comparison import compare, protocols_of

BIT = math.log(2)


def compared(tmp_path: Path, metric: str = "nats", protocol: str = "fixed-target"):
    return compare(load_runs([tmp_path]), protocol, metric, False)


def row_of(comparison, label: str):
    return next(row for row in comparison.rows if row.label == label)


@pytest.mark.parametrize(
    ("losses", "multiple", "longest"),
    [
        ((1.03, 1.0, 1.0199, 1.0, 1.0201), 4, False),
        ((1.03, 1.0, 1.0, 1.0, 1.0199), 8, True),
        ((1.03, 1.0, 1.5, 1.0, 1.5), 4, False),  # the largest, whatever lies between
        ((1.0, 1.1, 1.1, 1.1, 1.1), 0.5, False),
    ],
)
def test_effective_context(tmp_path: Path, losses, multiple: float, longest: bool) -> None:
    write_run(tmp_path, losses=dict(zip(MULTIPLES, losses, strict=True)))
    found = compared(tmp_path, "bpb").rows[0].effective_context  # nats, whatever the metric
    assert (found.multiple, found.window, found.longest) == (multiple, 64 * multiple, longest)


def test_effective_context_needs_the_same_seeds_and_targets(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={1: 1.0, 2: 1.0, 4: 0.9})
    write_run(
        tmp_path, "rope", seed=1, records=[record(64, 1.0), record(128, 1.0), record(256, 0, note="oom")]
    )
    write_run(tmp_path, "alibi", records=[record(64, 1.0, protocol="other"), record(64, 1.0)])
    comparison = compared(tmp_path)
    found = row_of(comparison, "rope").effective_context
    assert (found.multiple, found.longest) == (2, True)  # 4x is of one seed only: it may be more
    assert row_of(comparison, "alibi").effective_context is None  # one window
    other = [record(64 * m, 1.0, protocol="nonoverlapping", targets_hash=f"{m}") for m in (1, 2)]
    write_run(tmp_path / "n", records=other)
    assert compared(tmp_path / "n", protocol="nonoverlapping").rows[0].effective_context is None


@pytest.mark.parametrize(
    ("metric", "unit", "scale"), [("nats", "nats per token", 1), ("bpb", "bits per byte", BIT)]
)
def test_uses_context_over_seeds_and_documents(tmp_path: Path, metric: str, unit: str, scale: float) -> None:
    for seed, at_t in enumerate((1.0, 0.98, 1.02)):
        write_run(tmp_path, seed=seed, losses={0.5: 1.1, 1: at_t})
    found = compared(tmp_path, metric).rows[0].uses_context
    assert (found.change, found.seeds, found.unit) == (pytest.approx(-0.1 / scale), 3, unit)
    half = 4.3026527 * 0.02 / math.sqrt(3) / scale
    assert found.ci95 == pytest.approx([-0.1 / scale - half, -0.1 / scale + half], rel=1e-6)


def test_uses_context_of_perplexities_is_in_nats_and_needs_both_windows(tmp_path: Path) -> None:
    write_run(tmp_path / "a", losses={0.5: 1.1, 1: 1.0})
    found = compared(tmp_path / "a", "ppl").rows[0].uses_context
    assert (found.change, found.unit) == (pytest.approx(-0.1), "nats per token")
    write_run(tmp_path / "b", losses={1: 1.0, 2: 1.0})
    assert compared(tmp_path / "b").rows[0].uses_context is None


def with_reference(loss_at_t: float, reference: float, wiggle: float = 0.1, **changes):
    trigram = record(64, reference, protocol="trigram", **changes)
    return [record(64, loss_at_t, wiggle=wiggle), record(512, 1.0), trigram]


def test_reference_stands_in_the_header_and_is_no_protocol(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, seed=seed, records=with_reference(1.0, 1.81))
    comparison = compared(tmp_path, "bpb")
    expected = {"protocol": "trigram", "mean": pytest.approx(1.81 / BIT), "unit": "bits per byte"}
    assert comparison.header["reference"] == expected
    assert protocols_of(load_runs([tmp_path])) == ["fixed-target"]
    assert comparison.rows[0].notes == []
    write_run(tmp_path / "other", "alibi", records=with_reference(1.0, 1.81, targets_hash="b"))
    assert compared(tmp_path / "other").header["reference"] is None  # of other targets


@pytest.mark.parametrize(
    ("below", "wiggle", "marked"),
    [
        (0.101, 0.1, False),
        (0.099, 0.1, True),
        (0.15, 0.1, False),
        (0.15, 0.3, True),  # documents that differ: not clearly
        (-0.5, 0.1, True),
    ],
)
def test_undertrained(tmp_path: Path, below: float, wiggle: float, marked: bool) -> None:
    write_run(tmp_path, records=with_reference(1.81 - below * BIT, 1.81, wiggle))
    notes = compared(tmp_path).rows[0].notes
    assert [note.startswith("undertrained: at 1x") for note in notes] == [True] * marked
    assert not marked or f"(it is at {-below:+.3f})" in notes[0]


def test_undertrained_names_its_seeds_and_speaks_of_the_trained_model(tmp_path: Path) -> None:
    yarn = record(512, 1.0, extend={"name": "yarn"})
    write_run(tmp_path, seed=0, records=[*with_reference(1.0, 1.81), yarn])
    write_run(tmp_path, seed=3, records=[*with_reference(1.8, 1.81), yarn])
    comparison = compared(tmp_path)
    (note,) = row_of(comparison, "rope").notes
    assert note.startswith("undertrained (seed 3): ")
    assert row_of(comparison, "rope+yarn").notes == []


def probed(far_at_8x: float, copies: dict[int, float]):
    """Losses with both probes: tokens of the induction have no bytes."""
    records = [record(64, 1.0), record(512, 1.1)]
    for window, loss in ((64, 2.0), (512, far_at_8x)):
        records.append(record(window, loss, protocol="far-copy", targets_hash="far"))
    for window, loss in copies.items():
        changes = {"unit": "nats per copied token", "targets_hash": "copies", "bytes": [0] * 40}
        records.append(record(window, loss, protocol="induction", **changes))
    return records


def test_probes_stand_beside_the_loss_at_their_longest_window(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=probed(1.7, {64: 0.5, 256: 5.0}))
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(512, 1.1)])
    comparison = compared(tmp_path, "bpb")
    columns = [(p.protocol, p.multiple, p.window, p.unit, p.same_targets) for p in comparison.probes]
    assert columns == [
        ("induction", 4, 256, "nats per copied token", True),
        ("far-copy", 8, 512, "nats per token", True),
    ]
    copy, far = row_of(comparison, "rope").probes
    assert (copy.cell.mean, copy.cell.change) == (pytest.approx(5.0), pytest.approx(4.5))
    assert copy.at_train_length == pytest.approx(0.5)
    assert (far.cell.mean, far.cell.change) == (pytest.approx(1.7), pytest.approx(-0.3))
    assert far.cell.verdict == "better" and far.cell.mark is None
    assert [p.cell.note for p in row_of(comparison, "alibi").probes] == ["not measured"] * 2
    assert {c.protocol for c in compared(tmp_path).probes} == {"induction", "far-copy"}


def test_a_probe_is_a_protocol_in_its_own_unit(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=probed(1.7, {64: 0.5, 256: 5.0}))
    write_run(tmp_path, "alibi", records=probed(2.5, {64: 0.6, 256: 0.6}))
    far = compared(tmp_path, protocol="far-copy")
    assert far.probes == [] and far.header["unit"] == "nats per token"
    assert [row.cells[1].verdict for row in far.rows] == ["collapsed", "better"]
    assert [row.cells[1].mark for row in far.rows] == [None, "lowest"]
    copy = compared(tmp_path, protocol="induction")
    assert copy.header["unit"] == "nats per copied token" and not copy.probes
    assert not any(cell.mark or cell.verdict for row in copy.rows for cell in row.cells)
    bits = compared(tmp_path, "bpb", "induction")
    assert {cell.note for row in bits.rows for cell in row.cells} == {"no bytes"}


def test_rows_probed_on_other_targets_say_so(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=probed(1.7, {}))
    others = [record(w, 1.0, protocol="far-copy", targets_hash="else") for w in (64, 512)]
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(512, 1.1), *others])
    (column,) = compared(tmp_path).probes
    assert not column.same_targets
