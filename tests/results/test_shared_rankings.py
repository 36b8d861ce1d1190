"""Which runs share a table and a ranking, and which get a table of their own or a label."""

import pytest
from fake_runs import DOCUMENTS, T, compared, record, rows_of, write_run

from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest

BPE = {"tokenizer": {"name": "bpe", "vocab_size": 512}}
OTHER_FINGERPRINT = "e" * 64
LONG = {"facts": {"context_length": 128}, "config": {"context_length": 128}}


def rank_words(comparison):
    """Return the word beside the best row, by label, in the first column."""
    word_by_label = {}
    for row in comparison.rows:
        versus_best = row.cells[0].versus_best
        word_by_label[row.label] = None if versus_best is None else versus_best.word
    return word_by_label


def groups_by_label(tables):
    """Return by the label of its first row what tells each table from the others."""
    return {table.rows[0].label: table.header.group for table in tables}


# --- What keeps runs apart: the header's word, its value in a plain run and in the changed one, the change
SEPARATING = [
    pytest.param("tokenizer", "bytes", "bpe vocab_size=512", {"facts": BPE}, id="tokenizer"),
    pytest.param("model", "nano", "tiny", {"facts": {"model": {"name": "tiny"}}}, id="model"),
    pytest.param("context length", "64", "128", {"facts": {"context_length": 128}}, id="context length"),
    pytest.param(
        "corpus",
        f"sympy {'f' * 12}",
        f"x {'e' * 12}",
        {"facts": {"corpus": {"name": "x", "fingerprint": OTHER_FINGERPRINT}}},
        id="corpus",
    ),
    pytest.param(
        "evaluated on",
        f"sympy {'f' * 12}",
        f"sympy {'e' * 12}",
        {"records": [record(64, 1.0, fingerprint=OTHER_FINGERPRINT)]},
        id="corpus of the evaluation",
    ),
    pytest.param(
        "split", "test", "validation", {"records": [record(64, 1.0, split="validation")]}, id="split"
    ),
    pytest.param(
        "target set",
        "400 targets to 8x",
        "400 targets to 1x",
        {"records": [record(64, 1.0, targets_hash="b")]},
        id="targets",
    ),
    pytest.param(
        "tokens trained",
        "3276800",
        "1638400",
        {"records": [record(64, 1.0, checkpoint_step=400)]},
        id="length of training",
    ),
    pytest.param(
        "evaluated in",
        "its training's",
        "fp32",
        {"records": [record(64, 1.0, precision="fp32")]},
        id="precision",
    ),
]


@pytest.mark.parametrize(("key", "plain", "changed", "changes"), SEPARATING)
def test_runs_that_cannot_share_a_ranking_get_a_table_each(tmp_path, key, plain, changed, changes):
    write_run(tmp_path, "alibi")
    write_run(tmp_path, "rope", **changes)
    tables = compare_runs(load_runs([tmp_path]))
    assert groups_by_label(tables) == {"alibi": {key: plain}, "rope": {key: changed}}
    assert [table.header.mixed for table in tables] == [{}, {}]


@pytest.mark.parametrize(("key", "plain", "changed", "changes"), SEPARATING)
def test_in_one_table_runs_that_cannot_be_ranked_are_labelled(tmp_path, key, plain, changed, changes):
    write_run(tmp_path, "alibi")
    write_run(tmp_path, "rope", **changes)
    mixed = compared(tmp_path, allow_mixed=True)
    assert list(mixed.header.mixed) == [key]
    assert {row.label: row.mixed for row in mixed.rows} == {"alibi": {key: plain}, "rope": {key: changed}}


@pytest.mark.parametrize(("key", "plain", "changed", "changes"), SEPARATING)
def test_a_row_shown_alone_is_told_from_nothing(tmp_path, key, plain, changed, changes):
    write_run(tmp_path, "alibi")
    write_run(tmp_path, "rope", **changes)
    (table,) = compare_runs(load_runs([tmp_path]), CompareRequest(rows=["alibi"]))
    assert table.header.group == {}
    assert table.rows[0].mixed == {}


# --- The order of the tables
@pytest.fixture(scope="module")
def three_groups(tmp_path_factory):
    """Runs for three tables: rope and fire at 128 tokens, alibi at 64, nope with another set of targets."""
    root = tmp_path_factory.mktemp("groups")
    other_targets = [record(64, 1.1, targets_hash="b"), record(1024, 1.1, targets_hash="b")]
    null_option = {"model": {"name": "nano", "n_layers": 4, "short_conv": None}}  # older runs lack the option
    for seed, facts in enumerate(({}, null_option)):
        write_run(root, "rope", seed=seed, **LONG)
        write_run(root, "alibi", seed=seed, facts=facts)
    write_run(root, "fire", **LONG)
    write_run(root, "nope", records=other_targets)
    write_run(root, "alibi", seed=2, status="failed", results=False)
    write_run(root, "t5", status="failed", results=False, config=LONG["config"])
    write_run(root, "cope", status="failed", results=False, config={"model": {"d_model": 9}})
    return load_runs([root])


def test_the_table_of_most_runs_is_first(three_groups):
    groups = [table.header.group for table in compare_runs(three_groups)]
    assert groups[0] == {"context length": "128"}
    assert groups[1] == {"context length": "64", "target set": "400 targets to 8x"}
    assert groups[2]["target set"] == "400 targets to 16x"
    assert groups[3]["model.d_model"] == "9"


def test_a_run_without_numbers_is_in_the_table_of_its_settings_or_in_one_of_its_size(three_groups):
    labels = [list(rows_of(table)) for table in compare_runs(three_groups)]
    assert labels == [["fire", "rope", "t5"], ["alibi"], ["nope"], ["cope"]]


def test_a_failed_seed_is_in_the_row_of_the_others(three_groups):
    small = compare_runs(three_groups)[1]
    assert small.rows[0].cells[0].note == "1 of 3 failed"


def test_rows_of_one_table_alone_need_no_group(three_groups):
    tables = compare_runs(three_groups, CompareRequest(rows=["rope", "fire"], baseline="fire"))
    assert tables[0].header.group == {}


def test_choices_that_fit_one_of_the_tables_are_no_mistake(three_groups):
    tables = compare_runs(three_groups, CompareRequest(columns=[16], sort="-16x", baseline="rope"))
    multiples = [[column.multiple for column in table.columns] for table in tables]
    assert [table.header.baseline for table in tables] == ["rope", None, None, None]
    assert multiples[1:] == [[0.5, 1, 2, 4, 8], [16], []]


def test_all_protocols_are_those_that_runs_have(three_groups):
    tables = compare_runs(three_groups, CompareRequest("all"))
    assert {table.header.protocol for table in tables} == {"fixed-target"}


# --- Across tokenizers
def write_two_tokenizers(root, shift=0):
    """Write runs of two tokenizers; the documents of the second one are moved on by `shift`."""
    shifted = record(64, 1.2, targets_hash="b", documents=range(shift, shift + DOCUMENTS))
    write_run(root, "alibi", records=[shifted], facts=BPE)
    write_run(root, "rope", records=[record(64, 1.0)])


@pytest.mark.parametrize("shift", [0, 5])
def test_across_tokenizers_bits_per_byte_of_shared_documents_are_ranked(tmp_path, shift):
    write_two_tokenizers(tmp_path, shift)
    assert rank_words(compared(tmp_path, "bpb", allow_mixed=True)) == {"alibi": "above", "rope": "best"}


def test_across_tokenizers_without_shared_documents_nothing_is_ranked(tmp_path):
    write_two_tokenizers(tmp_path, shift=1000)
    assert rank_words(compared(tmp_path, "bpb", allow_mixed=True)) == {"alibi": None, "rope": None}


@pytest.mark.parametrize("shift", [0, 5, 1000])
def test_across_tokenizers_nats_per_token_are_not_ranked(tmp_path, shift):
    write_two_tokenizers(tmp_path, shift)
    assert rank_words(compared(tmp_path, "nats", allow_mixed=True)) == {"alibi": None, "rope": None}


@pytest.mark.parametrize("shift", [0, 5, 1000])
def test_with_other_targets_of_the_same_tokenizer_nothing_is_ranked(tmp_path, shift):
    write_two_tokenizers(tmp_path, shift)
    write_run(tmp_path, "nope", records=[record(64, 1.0, targets_hash="c")])
    ranks = rank_words(compared(tmp_path, "bpb", allow_mixed=True))
    assert ranks == {"alibi": None, "rope": None, "nope": None}


def test_sliding_windows_of_other_strides_are_not_ranked(tmp_path):
    for name, stride in (("rope", 16), ("alibi", 32)):
        write_run(tmp_path, name, records=[record(T, 1.0, protocol="sliding", stride=stride)])
    ranks = rank_words(compared(tmp_path, allow_mixed=True, protocol="sliding"))
    assert ranks == {"alibi": None, "rope": None}


# --- Several sets of targets in one run
@pytest.fixture(scope="module")
def several_target_sets(tmp_path_factory):
    """Rope has two sets of targets: one that alibi shares, and a longer one."""
    root = tmp_path_factory.mktemp("targets")
    shared = [record(64, 1.0), record(512, 1.1)]
    longer = [record(window, 3.0, targets_hash="b") for window in (64, 512, 1024)]
    write_run(root, "rope", records=shared + longer)
    write_run(root, "alibi", records=shared)
    return root


def test_the_set_of_targets_that_most_runs_share_is_taken(several_target_sets):
    comparison = compared(several_target_sets)
    assert [column.window for column in comparison.columns] == [64, 512]
    assert rows_of(comparison)["rope"].cells[0].mean == pytest.approx(1.0)


def test_of_one_run_the_longest_curve_is_taken(several_target_sets):
    runs = [run for run in load_runs([several_target_sets]) if "rope" in run.name]
    (alone,) = compare_runs(runs)
    assert [column.window for column in alone.columns] == [64, 512, 1024]
    assert alone.header.left_out_by_reason == {"of other targets": 2}


def test_a_length_that_one_run_alone_has_is_in_a_table_of_its_own(several_target_sets):
    tables = compare_runs(load_runs([several_target_sets]), CompareRequest(columns=[16]))
    assert [list(rows_of(table)) for table in tables] == [["alibi", "rope"], ["rope"]]
    assert [column.multiple for column in tables[1].columns] == [16]
