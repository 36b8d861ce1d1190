"""The worth of far text to a model trained at 8T, and the share of it that a short-trained one recovers.

By losses that are known by hand.
"""

import json
import math

import numpy as np
import pytest
from fake_runs import DOCUMENTS, T, record, write_run

from posenc.report.cell_texts import recovered_text
from posenc.report.formats import render
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest

LONG = {"facts": {"context_length": 8 * T}, "config": {"context_length": 8 * T}}


def write_pair(root, at_t, far, long, *, long_at_t=1.5, seed=0, encoding="rope"):
    """Write a run trained at T, with losses at T and at 8T, and one trained at 8T with losses at both."""
    short = [record(T, at_t, wiggle=0.3), record(8 * T, far, wiggle=0.25)]
    write_run(root / "short", encoding, seed=seed, records=short)
    longer = [
        record(T, long_at_t, wiggle=0.3, train_length=8 * T),
        record(8 * T, long, train_length=8 * T),
    ]
    write_run(root / "long", encoding, seed=seed, records=longer, **LONG)


def tables_of(root, **options):
    return compare_runs(load_runs([root]), CompareRequest(**options))


def recovered(root):
    """Return what the row that was trained at T recovers."""
    return tables_of(root)[0].rows[0].recovered


def half_width(interval):
    low, high = interval
    return (high - low) / 2


# --- The share
SHARES = [
    pytest.param(1.5, 0.0, "0%", "0%", id="cropping recovers nothing"),
    pytest.param(1.0, 1.0, "100%", "100%", id="training long recovers all"),
    pytest.param(1.4, 0.2, "20%", "20%", id="a part"),
    pytest.param(1.7, -0.4, "-40%", "-40%", id="worse than cropping"),
    pytest.param(0.9, 1.2, "120%", "120%", id="better than training long"),
    pytest.param(2.1, -1.2, "-120%", "<-100%", id="much worse than cropping"),
]


@pytest.mark.parametrize(("far", "share", "in_sentence", "in_column"), SHARES)
def test_the_share_is_the_gain_past_t_over_the_worth(tmp_path, far, share, in_sentence, in_column):
    write_pair(tmp_path, 1.5, far, 1.0)
    assert recovered(tmp_path).share == pytest.approx(share)
    assert recovered(tmp_path).note is None


@pytest.mark.parametrize(("far", "share", "in_sentence", "in_column"), SHARES)
def test_the_table_of_one_row_says_the_share_in_a_line(tmp_path, far, share, in_sentence, in_column):
    write_pair(tmp_path, 1.5, far, 1.0)
    assert f"\nrecovered: {in_sentence} " in render(tables_of(tmp_path), "table")


@pytest.mark.parametrize(("far", "share", "in_sentence", "in_column"), SHARES)
def test_a_column_of_shares_ends_at_minus_100_per_cent(tmp_path, far, share, in_sentence, in_column):
    write_pair(tmp_path, 1.5, far, 1.0)
    assert recovered_text(recovered(tmp_path)) == in_column


def test_the_worth_is_what_the_long_trained_model_gains_from_far_text(tmp_path):
    write_pair(tmp_path, 1.5, 1.4, 1.0, long_at_t=1.3)
    share = recovered(tmp_path)
    assert share.worth == pytest.approx(0.3)
    assert share.reference == pytest.approx(1.0)
    assert share.multiple == 8
    assert share.window == 8 * T


def test_the_difference_of_the_two_models_at_t_is_no_part_of_the_worth(tmp_path):
    write_pair(tmp_path, 1.5, 1.47, 1.4, long_at_t=1.7)  # trained long it is worse with all text than short
    share = recovered(tmp_path)
    assert share.difference == pytest.approx(-0.2)
    assert share.worth == pytest.approx(0.3)
    assert share.share == pytest.approx(0.1)


# --- Its interval
def test_the_interval_is_a_jackknife_of_the_ratio_over_documents(tmp_path):
    write_pair(tmp_path, 1.5, 1.4, 1.0)
    sign = (-1.0) ** np.arange(DOCUMENTS)
    at_t = 1.5 + 0.3 * sign
    far = 1.4 + 0.25 * sign
    long = 1.0 + 0.1 * sign
    shares_without = []
    for document in range(DOCUMENTS):
        loss_at_t = np.delete(at_t, document).mean()
        gain = loss_at_t - np.delete(far, document).mean()
        worth = loss_at_t - np.delete(long, document).mean()  # the long-trained has the same losses at T
        shares_without.append(gain / worth)
    deviations = np.array(shares_without) - np.mean(shares_without)
    variance = (DOCUMENTS - 1) / DOCUMENTS * (deviations**2).sum()
    half = 2.0226909 * math.sqrt(variance)  # t of 39 degrees of freedom
    assert half_width(recovered(tmp_path).ci95) == pytest.approx(half, rel=1e-6)


@pytest.fixture
def of_three_seeds(tmp_path):
    """What three seeds recover: they gain 0.1, 0.3 and -0.1 of a worth of 0.5."""
    for seed, (at_t, far) in enumerate([(1.5, 1.4), (1.6, 1.3), (1.4, 1.5)]):
        write_pair(tmp_path, at_t, far, 1.0, seed=seed)
    return recovered(tmp_path)


def test_the_share_of_several_seeds_is_the_ratio_of_their_means(of_three_seeds):
    assert of_three_seeds.share == pytest.approx(0.1 / 0.5)
    assert of_three_seeds.seeds == 3
    assert of_three_seeds.reference_seeds == 3


def test_seeds_widen_the_interval(of_three_seeds):
    influences = np.array([0.1, 0.3, -0.1]) / 0.5
    # The long-trained seeds agree, which leaves 2 degrees of freedom. Documents add less than a hundredth.
    half_of_seeds = 4.3026527 * math.sqrt(influences.var(ddof=1) / 3)
    assert half_width(of_three_seeds.ci95) == pytest.approx(half_of_seeds, rel=0.01)


# --- Nothing to recover, or no reference
@pytest.mark.parametrize(
    "long",
    [
        pytest.param(1.49, id="less than the documents' 0.06"),
        pytest.param(2.0, id="far text harms the long-trained model"),
    ],
)
def test_where_far_text_is_worth_nothing_there_is_a_note_and_no_share(tmp_path, long):
    write_pair(tmp_path, 1.5, 1.4, long)
    assert recovered(tmp_path).note == "worth nothing"
    assert recovered(tmp_path).share is None


def test_without_a_long_trained_loss_at_t_there_is_a_note_and_no_worth(tmp_path):
    write_run(tmp_path / "short", records=[record(T, 1.5, wiggle=0.3), record(8 * T, 1.4)])
    write_run(tmp_path / "long", records=[record(8 * T, 1.0, train_length=8 * T)], **LONG)
    assert recovered(tmp_path).note == "trained long, not measured at T"
    assert recovered(tmp_path).worth is None


@pytest.mark.parametrize(
    ("window", "changes"),
    [
        pytest.param(8 * T, {"targets_hash": "b" * 16}, id="other targets"),
        pytest.param(4 * T, {"checkpoint_step": 900}, id="not measured at its own length"),
    ],
)
def test_without_a_reference_nothing_is_said(tmp_path, window, changes):
    write_run(tmp_path / "short", records=[record(T, 1.5, wiggle=0.3), record(8 * T, 1.4)])
    long = record(window, 1.0, train_length=8 * T, **changes)
    write_run(tmp_path / "long", records=[long], **LONG)
    for table in tables_of(tmp_path):
        assert [row.recovered for row in table.rows] == [None] * len(table.rows)


def write_early(root, *, step_of_short, step_of_long):
    """Write a pair measured on one text at these steps of 800, and the long one on another text at 800."""
    short = [record(T, 1.5, wiggle=0.3), record(8 * T, 1.4)]
    long = [record(T, 1.5, wiggle=0.3, train_length=8 * T), record(8 * T, 1.0, train_length=8 * T)]
    other_text = record(8 * T, 1.1, train_length=8 * T, fingerprint="e" * 64, targets_hash="b" * 16)
    for measured in short:
        measured["checkpoint_step"] = step_of_short
    for measured in long:
        measured["checkpoint_step"] = step_of_long
    write_run(root / "short", records=short)
    write_run(root / "long", records=[*long, other_text], **LONG)


def test_a_checkpoint_is_chosen_by_the_text_that_it_was_measured_on(tmp_path):
    """As in tables of losses: a later checkpoint that was measured on another text says nothing here."""
    write_early(tmp_path, step_of_short=400, step_of_long=400)
    recovereds = [row.recovered for table in tables_of(tmp_path) for row in table.rows]
    assert [recovered.share for recovered in recovereds if recovered] == [pytest.approx(0.2)]


@pytest.mark.parametrize(("step_of_short", "step_of_long"), [(800, 400), (400, 800)])
def test_models_with_other_numbers_of_tokens_are_not_held_together(tmp_path, step_of_short, step_of_long):
    write_early(tmp_path, step_of_short=step_of_short, step_of_long=step_of_long)
    assert [row.recovered for table in tables_of(tmp_path) for row in table.rows] == [None] * 3


# --- Two encodings at two lengths
@pytest.fixture(scope="module")
def two_encodings(tmp_path_factory):
    """Pairs of rope and alibi, and a long-trained rope with another learning rate, which is no reference."""
    root = tmp_path_factory.mktemp("room")
    write_pair(root, 1.5, 1.4, 1.0)
    write_pair(root, 1.6, 1.3, 1.2, encoding="alibi")
    config = LONG["config"] | {"train": {"lr": 0.1}}
    better = record(8 * T, 0.5, train_length=8 * T)
    write_run(root / "other", "rope", seed=1, records=[better], facts=LONG["facts"], config=config)
    return root


@pytest.fixture(scope="module")
def short_table(two_encodings):
    return tables_of(two_encodings)[0]


def test_the_reference_has_the_settings_of_the_row(short_table):
    shares = {row.label: row.recovered.share for row in short_table.rows if row.recovered}
    assert shares == {"rope": pytest.approx(0.2), "alibi": pytest.approx(1.0)}


def test_tables_of_references_come_last(two_encodings):
    lengths = [table.header.context_length for table in tables_of(two_encodings)]
    assert lengths[:2] == [T, 8 * T]


def test_a_reference_recovers_nothing_itself(two_encodings):
    long_table = tables_of(two_encodings)[1]
    assert [row.recovered for row in long_table.rows] == [None] * len(long_table.rows)


def test_a_reference_is_not_ranked_beside_the_row(two_encodings):
    (mixed,) = tables_of(two_encodings, allow_mixed=True)
    for row in mixed.rows:
        assert [cell.versus_best for cell in row.cells] == [None] * len(row.cells)


def test_shares_are_a_column_of_the_table(short_table):
    lines = render([short_table], "table").splitlines()
    (head,) = [line for line in lines if line.startswith("encoding")]
    shares = [line.split()[-2] for line in lines if line.startswith(("rope ", "alibi "))]
    assert head.split() == ["encoding", "1x", "(T)", "8x", "recovered", "verdict", "at", "8x"]
    assert shares == ["100%", "20%"]


def test_a_full_table_has_the_worth_and_the_interval(short_table):
    text = render([short_table], "table", full=True, width=120)
    assert "far text worth, nats/byte" in text
    assert "100% ±" in text


def test_json_has_the_share(short_table):
    row = json.loads(render([short_table], "json"))["rows"][0]
    assert row["recovered"]["share"] == pytest.approx(1.0)


def test_csv_has_the_worth_with_its_interval(short_table):
    head = render([short_table], "csv").splitlines()[0]
    assert "worth_nats,worth_nats_low" in head


def test_a_long_trained_model_counts_in_the_precision_of_the_row(tmp_path):
    write_run(tmp_path / "short", records=[record(T, 1.5), record(8 * T, 1.45)])
    in_training = [record(T, 1.5, train_length=8 * T), record(8 * T, 1.3, train_length=8 * T)]
    in_bf16 = [
        record(T, 1.5, train_length=8 * T, precision="bf16"),
        record(8 * T, 1.0, train_length=8 * T, precision="bf16"),
    ]
    write_run(tmp_path / "long", records=in_training + in_bf16, **LONG)
    assert recovered(tmp_path).worth == pytest.approx(0.2)
