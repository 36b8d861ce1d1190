"""The cells of a comparison, from runs whose losses are known by hand: means, changes, verdicts and notes."""

import math

import pytest
from fake_runs import DOCUMENTS, T, compared, positions, record, rows_of, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest, protocols_of

BIT = math.log(2)
YARN = {"name": "yarn", "factor": 2.0, "ramp": "index", "mscale_all_dim": 0.0}
PROBE_UNIT = "nats per copied token"


# --- Means over seeds, and changes paired by seed
@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory):
    """One row of three seeds, whose losses grow from T to 8T by 0.5, 0.7 and 0.4."""
    root = tmp_path_factory.mktemp("seeds")
    for seed, (at_t, at_8t) in enumerate([(1.0, 1.5), (1.2, 1.9), (1.1, 1.5)]):
        write_run(root, seed=seed, losses={1: at_t, 8: at_8t})
    return compared(root)


def test_runs_that_differ_in_the_seed_are_one_row(three_seeds):
    (row,) = three_seeds.rows
    assert row.label == "rope"
    assert row.seeds == (0, 1, 2)


def test_columns_are_the_windows_that_were_measured(three_seeds):
    assert [column.window for column in three_seeds.columns] == [64, 512]


def test_a_cell_is_the_mean_over_seeds(three_seeds):
    at_t, far = three_seeds.rows[0].cells
    assert at_t.mean == pytest.approx(1.1)
    assert at_t.spread == pytest.approx(0.1)
    assert at_t.seeds == 3
    assert far.mean == pytest.approx(4.9 / 3)


def test_changes_are_paired_by_seed(three_seeds):
    far = three_seeds.rows[0].cells[1]
    assert far.change == pytest.approx(1.6 / 3)
    assert far.change_spread == pytest.approx(0.152753, abs=1e-6)  # of 0.5, 0.7 and 0.4


def test_the_interval_of_a_change_is_students_over_seeds(three_seeds):
    low, high = three_seeds.rows[0].cells[1].verdict_ci95
    expected_half = 4.3026527 * 0.152753 / math.sqrt(3) / BIT  # t of 2 degrees of freedom, in bits
    assert (high - low) / 2 == pytest.approx(expected_half, rel=1e-5)


def test_the_window_of_training_is_the_origin_of_changes_and_has_no_verdict(three_seeds):
    at_t, far = three_seeds.rows[0].cells
    assert at_t.change == 0.0
    assert at_t.verdict is None
    assert far.verdict_word == "worse"


def test_a_row_alone_has_no_best_one(three_seeds):
    assert three_seeds.rows[0].cells[1].versus_best is None


def test_parameters_are_counted_by_row_and_in_the_header(three_seeds):
    assert three_seeds.rows[0].parameters == 803_000
    assert three_seeds.header.parameters == (803_000, 803_000)


@pytest.mark.parametrize(("metric", "unit"), [("nats", 1.0), ("bpb", BIT)])
def test_one_seed_has_an_interval_over_documents(tmp_path, metric, unit):
    write_run(tmp_path, records=[record(64, 1.0), record(128, 1.2, wiggle=0.3), record(256, 1.2)])
    cell = compared(tmp_path, metric).rows[0].cells[1]
    assert cell.spread is None
    # The differences are 0.2 plus or minus 0.2 over 40 documents; 2.0226909 is t of 39 degrees of freedom.
    half = 2.0226909 * 0.2 / math.sqrt(DOCUMENTS - 1)
    assert cell.change * unit == pytest.approx(0.2)
    assert cell.change_ci95 == pytest.approx(((0.2 - half) / unit, (0.2 + half) / unit), rel=1e-6)


@pytest.mark.parametrize("metric", ["nats", "bpb", "ppl"])
def test_margins_are_in_bits_per_byte_whatever_the_metric(tmp_path, metric):
    """A token has two bytes, so that 0.025 nats a token are 0.018 bits a byte, within the margin."""
    two_bytes = [20] * DOCUMENTS
    records = [record(64, 1.0, bytes=two_bytes), record(128, 1.025, bytes=two_bytes)]
    write_run(tmp_path, records=records)
    far = compared(tmp_path, metric).rows[0].cells[1]
    assert far.verdict_word == "same"
    assert far.verdict_change == pytest.approx(0.025 / 2 / BIT)


def test_perplexity_that_overflows_is_infinite_without_a_change(tmp_path):
    for seed in (1, 2, 3):  # each fits a float, their sum and their squares do not
        write_run(tmp_path, seed=seed, losses={1: 1.0, 8: 709.5})
    cell = compared(tmp_path, "ppl").rows[0].cells[1]
    assert cell.mean == math.inf
    assert cell.change is None
    assert cell.spread is None
    assert cell.note is None


def test_a_change_that_a_seed_lacks_is_none(tmp_path):
    write_run(tmp_path, seed=0, losses={1: 1.2, 8: 2.0})
    write_run(tmp_path, seed=1, records=[record(T, 0, note="oom"), record(8 * T, 3.0)])
    cell = compared(tmp_path).rows[0].cells[-1]
    assert cell.mean == 2.5
    assert cell.seeds == 2
    assert cell.change is None
    assert cell.note == "1 of 2 with 1x"


# --- Runs without numbers, and numbers that are missing
@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """The rows of three encodings: a seed of rope diverged, one of alibi still runs, t5 failed."""
    root = tmp_path_factory.mktemp("troubled")
    for seed in (0, 1):
        write_run(root, "rope", seed=seed, losses={1: 1.0, 8: 1.0})
        write_run(root, "alibi", seed=seed, losses={1: 2.0, 8: 2.0})
    write_run(root, "rope", seed=2, losses={1: 0.1, 8: 0.1}, status="diverged", reason="nan at step 9")
    write_run(root, "t5", seed=0, status="failed", reason="boom", results=False)
    write_run(root, "alibi", seed=2, status="running", results=False)
    return rows_of(compared(root))


def test_the_losses_of_a_diverged_run_are_not_averaged_in(troubled):
    cell = troubled["rope"].cells[0]
    assert cell.mean == 1.0
    assert cell.note == "1 of 3 diverged"


def test_the_seeds_that_survived_get_no_verdict(troubled):
    assert troubled["rope"].cells[1].verdict is None


@pytest.mark.parametrize("label", ["rope", "alibi", "t5"])
def test_a_table_with_a_diverged_run_ranks_nothing(troubled, label):
    assert [cell.versus_best for cell in troubled[label].cells] == [None, None]


def test_a_run_that_still_runs_is_counted_and_takes_no_verdict_away(troubled):
    at_t, far = troubled["alibi"].cells
    assert at_t.note == "1 of 3 running"
    assert at_t.seeds == 2
    assert far.verdict_word == "same"


def test_an_encoding_whose_only_run_failed_is_a_row(troubled):
    cell = troubled["t5"].cells[1]
    assert cell.mean is None
    assert cell.note == "failed"


@pytest.mark.parametrize(
    ("label", "note"), [("rope", "seed 2 diverged: nan at step 9"), ("t5", "seed 0 failed: boom")]
)
def test_a_row_tells_the_reason_of_a_run(troubled, label, note):
    assert note in troubled[label].notes


@pytest.mark.parametrize(
    "note", ["oom at 128", "failed to allocate 3 GiB", "unknown length: no table past T"]
)
def test_a_row_with_a_window_that_a_seed_could_not_score_is_not_ranked(tmp_path, note):
    """Whatever the first word of the note: `failed` and `unknown` are states of runs as well."""
    for seed in (0, 1):
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.0, 2: 1.1})
    write_run(tmp_path, "rope", seed=0, losses={1: 1.0, 2: 1.0})
    write_run(tmp_path, "rope", seed=1, records=[record(T, 1.0), record(2 * T, 0, note=note)])
    cell = rows_of(compared(tmp_path))["rope"].cells[1]
    assert cell.note == f"1 of 2 {note.split()[0]}"
    assert not cell.rankable
    assert cell.versus_best is None


@pytest.fixture(scope="module")
def incomplete(tmp_path_factory):
    """The rows of rope, whose seed 0 is there twice and ran out of memory at 8x, and of alibi, without 8x."""
    root = tmp_path_factory.mktemp("incomplete")
    out_of_memory = record(512, 0, note="oom at 512 tokens, batch 1: no memory")
    older = record(64, 2.0, checkpoint_step=400)
    write_run(root / "a", records=[older, record(64, 1.0), out_of_memory])
    write_run(root / "b", records=[record(64, 5.0)], name="copy")
    write_run(root, "alibi", records=[record(64, 1.0), record(128, 1.1)])
    return rows_of(compared(root))


@pytest.mark.parametrize(
    ("label", "notes"),
    [("rope", [None, "not measured", "oom"]), ("alibi", [None, None, "not measured"])],
)
def test_a_cell_without_a_number_says_why(incomplete, label, notes):
    assert [cell.note for cell in incomplete[label].cells] == notes


def test_the_reason_of_a_record_is_a_note_of_the_row(incomplete):
    assert "8x: oom at 512 tokens, batch 1: no memory" in incomplete["rope"].notes


def test_the_last_checkpoint_of_the_first_copy_counts(incomplete):
    assert incomplete["rope"].cells[0].mean == pytest.approx(1.0)


def test_a_seed_that_is_there_twice_is_a_note_of_the_row(incomplete):
    notes = " ".join(incomplete["rope"].notes)
    assert "seed 0 is there more than once" in notes


def test_three_runs_of_one_seed_are_one_note(tmp_path):
    for name in ("a", "b", "c"):
        write_run(tmp_path, name=name)
    assert compared(tmp_path).rows[0].notes == ("seed 0 is there more than once, shown: a",)


def test_of_two_runs_of_one_seed_the_one_with_numbers_is_shown(tmp_path):
    write_run(tmp_path, name="a", status="failed", results=False)
    write_run(tmp_path, name="b")
    (row,) = compared(tmp_path).rows
    assert [member.run.name for member in row.members] == ["b"]


# --- Test-time extensions
@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The row of an extension that one of three seeds has; the others have the crop line or diverged."""
    root = tmp_path_factory.mktemp("extended")
    of_yarn = [record(512, 1.25, extend=YARN), record(64, 1.5, extend=YARN)]
    write_run(root, records=[record(64, 1.0), record(512, 2.5), *of_yarn])
    write_run(root, seed=1, records=[record(64, 1.0), record(512, 2.5)])
    write_run(root, seed=2, records=[], status="diverged", reason="nan")
    return rows_of(compared(root))["rope+yarn factor=2"]


def test_an_extension_is_compared_with_the_crop_line(extended):
    assert [cell.change for cell in extended.cells] == pytest.approx([0.5, 0.25])


def test_an_extension_says_what_happened_to_the_runs_it_extends(extended):
    assert extended.notes == ("seed 2 diverged: nan",)
    assert extended.cells[1].note == "1 of 2 diverged"
    assert not extended.cells[1].rankable


def test_two_tunings_of_an_extension_are_not_made_into_one_row(tmp_path):
    def tuned(multiple, loss, window):
        return record(multiple * T, loss, extend={"name": "window", "window": window, "tuned": ["window"]})

    as_trained = [record(multiple * T, 1.3) for multiple in (1, 2, 4, 8)]
    at_two_lengths = [tuned(multiple, 1.5, 16) for multiple in (1, 8)]
    at_four_lengths = [tuned(multiple, 1.4, 32) for multiple in (1, 2, 4, 8)]
    write_run(tmp_path, "rope", records=[*as_trained, *at_two_lengths, *at_four_lengths])
    comparison = compared(tmp_path)
    (row,) = [row for row in comparison.rows if row.extend]
    assert [cell.mean for cell in row.cells] == pytest.approx([1.4] * 4)
    assert comparison.header.left_out == 2


# --- The loss of a byte trigram as reference
@pytest.fixture
def beside_a_trigram(tmp_path):
    """Return a function: a row and its extension whose loss lies so many bits below the trigram's."""

    def comparison(below, wiggle):
        trigram = record(64, 1.81, protocol="trigram")
        of_other_targets = record(64, 0.1, protocol="trigram", targets_hash="else")
        loss = record(64, 1.81 - below * BIT, wiggle=wiggle)
        far = [record(512, 1.0), record(512, 1.0, extend=YARN)]
        write_run(tmp_path, records=[loss, *far, trigram, of_other_targets])
        return compared(tmp_path, "bpb")

    return comparison


@pytest.mark.parametrize(("below", "wiggle"), [(0.101, 0.1), (0.15, 0.1)])
def test_clearly_below_the_reference_nothing_is_undertrained(beside_a_trigram, below, wiggle):
    comparison = beside_a_trigram(below, wiggle)
    assert [row.undertrained for row in comparison.rows] == [None, None]


@pytest.mark.parametrize(
    ("below", "wiggle", "difference"),
    [
        pytest.param(0.099, 0.1, "-0.099", id="less than 0.1 below"),
        pytest.param(0.15, 0.3, "-0.150", id="wide interval"),
        pytest.param(-0.5, 0.1, "+0.500", id="above"),
    ],
)
def test_undertrained_is_what_is_not_clearly_below_the_reference(beside_a_trigram, below, wiggle, difference):
    rows = beside_a_trigram(below, wiggle).rows
    differences = [row.undertrained.partition(" bits per byte")[0] for row in rows]
    assert differences == [difference, difference]


def test_the_reference_is_of_the_targets_in_the_table(beside_a_trigram):
    assert beside_a_trigram(0.15, 0.1).header.reference.mean == pytest.approx(1.81 / BIT)


def test_the_reference_is_no_protocol(beside_a_trigram, tmp_path):
    beside_a_trigram(0.15, 0.1)
    assert protocols_of(load_runs([tmp_path])) == ["fixed-target"]


# --- Probes, whose targets have no bytes
@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """Two encodings measured by a probe whose targets have no bytes; alibi only to 4x."""
    root = tmp_path_factory.mktemp("probed")
    of_probe = {"protocol": "induction", "unit": PROBE_UNIT, "bytes": [0] * DOCUMENTS}
    for name, windows in (("rope", (64, 256, 512)), ("alibi", (64, 256))):
        records = [record(window, window / 100, **of_probe) for window in windows]
        write_run(root, name, records=[record(64, 1.0), *records])
    return root


def test_a_probe_has_its_unit_means_and_changes(probed):
    comparison = compared(probed, protocol="induction")
    cell = rows_of(comparison)["rope"].cells[1]
    assert comparison.header.unit == PROBE_UNIT
    assert cell.mean == pytest.approx(2.56)
    assert cell.change == pytest.approx(1.92)


@pytest.mark.parametrize("label", ["rope", "alibi"])
def test_a_probe_without_bytes_has_no_verdict_and_no_rank(probed, label):
    cells = rows_of(compared(probed, protocol="induction"))[label].cells
    assert {cell.verdict for cell in cells} == {None}
    assert {cell.versus_best for cell in cells} == {None}


def test_bits_per_byte_of_a_probe_without_bytes_say_so(probed):
    comparison = compared(probed, "bpb", protocol="induction", rows=["rope"])
    assert {cell.note for cell in comparison.rows[0].cells} == {"no bytes"}


# --- Curves by position
@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """The curves of three seeds of rope, the last one flat; alibi ran out of memory."""
    root = tmp_path_factory.mktemp("curves")
    flat = positions(slope=3e-3, breaks_at=None, flat=True)
    for seed, curve in enumerate((positions(), positions(shift=0.02, breaks_at=129), flat)):
        write_run(root, seed=seed, records=[curve])
    write_run(root, "alibi", records=[record(8 * T, 0, protocol="positions", note="oom at 512 tokens")])
    return compared(root, protocol="positions")


def test_the_columns_of_curves_are_bins_by_their_ends(curves):
    assert [column.window for column in curves.columns] == [8, 16, 32, 48, 64, 96, 128, 256, 512]
    assert [column.targets for column in curves.columns][:3] == [320, 320, 640]


def test_bins_between_powers_of_two_are_not_shown(curves):
    assert [column.window for column in curves.columns if not column.shown] == [48, 96]


def test_a_bin_is_averaged_over_seeds(curves):
    cell = rows_of(curves)["rope"].cells[6]
    assert cell.mean == pytest.approx((1.6 + 1.62 + 1) / 3)
    assert cell.change == pytest.approx(4.22 / 3 - 1.2)


def test_a_bin_of_several_seeds_has_no_interval_verdict_or_rank(curves):
    cell = rows_of(curves)["rope"].cells[6]
    assert cell.change_ci95 is None
    assert cell.verdict is None
    assert cell.versus_best is None


def test_a_row_says_where_the_curve_of_each_seed_breaks(curves):
    curve = rows_of(curves)["rope"].curve
    assert curve.breaks_at == (97, 129, None)
    assert curve.holds == (False, False, True)
    assert curve.train_length == T


def test_a_curve_that_could_not_be_measured_says_why_in_every_bin(curves):
    assert {cell.note for cell in rows_of(curves)["alibi"].cells} == {"oom"}


@pytest.fixture(scope="module")
def one_curve(tmp_path_factory):
    root = tmp_path_factory.mktemp("one_curve")
    extended = positions(shift=0.5) | {"extend": YARN}
    write_run(root, records=[positions(), record(T, 1.0), extended])
    return root


def test_a_bin_of_one_seed_has_the_interval_of_its_record(one_curve):
    row = compared(one_curve, protocol="positions").rows[0]
    assert row.cells[6].change_ci95 == pytest.approx((0.35, 0.45))


def test_curves_are_in_nats_alone(one_curve):
    with pytest.raises(UserError, match="nats per token"):
        compared(one_curve, "bpb", protocol="positions")


def test_among_all_protocols_curves_stay_in_nats(one_curve):
    tables = compare_runs(load_runs([one_curve]), CompareRequest("all", "ppl"))
    metrics = {table.header.protocol: table.header.metric for table in tables}
    assert metrics == {"fixed-target": "ppl", "positions": "nats"}
