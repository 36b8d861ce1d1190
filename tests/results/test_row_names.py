"""Rows are named by what tells them apart, and by nothing else."""

import pytest
from fake_runs import compared, rows_of, write_run

from posenc.results import load_runs
from posenc.results.comparison import compare_runs

MHA = {"name": "mha", "window": None, "scale": "none"}
MLA = {"name": "mla", "kv_rank": 8, "window": None, "scale": "logn"}
GATED = {"name": "mha", "window": None, "scale": "none", "normalizer": "sink", "gate": "head"}
SMALL = {"model": {"name": "small", "d_model": 512}, "context_length": 256}


@pytest.fixture(scope="module")
def various(tmp_path_factory):
    """Runs that differ in attention, positions, an encoding's parameters, its parts or the training."""
    root = tmp_path_factory.mktemp("various")
    for config in (
        {"attention": MHA},
        {"attention": MLA},
        {"attention": GATED},
        {"positions": {"name": "randomized", "max": None}},
    ):
        write_run(root, config=config)
    for seed in (0, 1):
        write_run(root, "xpos", seed=seed, params={"base": 10000, "fraction": 1.0})
        write_run(root, "xpos", seed=seed, params={"base": 500000.0, "fraction": 1.0})
    write_run(root, "learned", params={"beyond": "untrained"}, config={"device": "cuda"})
    write_run(root, "sum", params={"parts": [{"name": "alibi"}, {"name": "rope", "base": 500.0}]})
    write_run(root, "t5", config={"train": {"lr": 0.01, "tokens": 1}})
    return compared(root)


def labels_with(comparison, start):
    return [row.label for row in comparison.rows if row.label.startswith(start)]


def test_attention_and_positions_are_named_where_they_are_not_the_plain_ones(various):
    labels = labels_with(various, "rope")
    assert labels == [
        "rope",
        "rope attention=mla scale=logn",
        "rope normalizer=sink gate=head",
        "rope positions=randomized",
    ]


def test_a_parameter_is_named_where_rows_differ_in_it(various):
    assert labels_with(various, "xpos") == ["xpos base=10000", "xpos base=500000"]


def test_seeds_of_one_parameter_are_one_row(various):
    assert rows_of(various)["xpos base=500000"].seeds == (0, 1)


@pytest.mark.parametrize("label", ["learned", "t5"])
def test_an_encoding_that_is_there_once_is_named_alone(various, label):
    assert labels_with(various, label) == [label]


def test_a_sum_is_named_by_its_parts(various):
    assert labels_with(various, "alibi") == ["alibi+rope"]


def test_rows_are_in_the_order_of_their_names(various):
    labels = [row.label for row in various.rows]
    assert labels == sorted(labels)
    assert len(labels) == 9


def test_a_setting_of_training_that_differs_is_told_in_the_header(various):
    assert various.header.also_differs["train.lr"] == ["0.003", "0.01"]


def test_without_a_config_a_row_is_named_by_the_facts_of_its_results(tmp_path):
    run = write_run(tmp_path, facts={"attention": {"name": "mha", "window": 16}})
    (run / "config.yaml").unlink()
    assert list(rows_of(compared(tmp_path))) == ["rope window=16"]


def test_without_a_config_earlier_runs_are_seeds_of_the_row_of_later_ones(tmp_path):
    """What they do not name, since there was no choice, is what it was then."""
    earlier = {"name": "mha", "window": None, "scale": "none"}
    later = earlier | {
        "normalizer": "softmax",
        "gate": "none",
        "key_offset": False,
        "token_shift": False,
        "output_norm": False,
    }
    for seed, attention in enumerate((earlier, later)):
        run = write_run(tmp_path, seed=seed, facts={"attention": attention})
        (run / "config.yaml").unlink()
    (row,) = compared(tmp_path).rows
    assert row.seeds == (0, 1)


def test_rows_that_differ_in_the_optimizer_are_named_by_it(tmp_path):
    write_run(tmp_path, config={"optim": {"name": "adamw", "beta1": 0.9}})
    write_run(tmp_path, config={"optim": {"name": "muon", "beta1": 0.95}})
    assert list(rows_of(compared(tmp_path))) == ["rope adamw", "rope muon"]


OF_TWO_RANKS = [{"attention": MLA | {"kv_rank": rank}} for rank in (16, 32)]
OF_TWO_DECAYS = [{"optim": {"name": "adamw", "weight_decay": decay}} for decay in (0.1, 0.3)]


@pytest.mark.parametrize(
    ("configs", "other_choice", "labels"),
    [
        pytest.param(
            OF_TWO_RANKS,
            {"attention": MHA},
            ["rope", "rope attention=mla scale=logn kv_rank=16", "rope attention=mla scale=logn kv_rank=32"],
            id="attention",
        ),
        pytest.param(
            OF_TWO_DECAYS,
            {"optim": {"name": "muon", "weight_decay": 0.3}},
            ["rope adamw optim.weight_decay=0.1", "rope adamw optim.weight_decay=0.3", "rope muon"],
            id="optimizer",
        ),
    ],
)
def test_a_parameter_in_which_rows_of_one_choice_differ_is_named_beside_another_choice(
    tmp_path, configs, other_choice, labels
):
    for config in (*configs, other_choice):
        write_run(tmp_path, config=config)
    assert list(rows_of(compared(tmp_path))) == labels


def test_runs_of_other_code_are_other_rows(tmp_path):
    for seed, code in ((0, "aa"), (1, "aa"), (1, "bb")):
        write_run(tmp_path, "mine", seed=seed, name=f"s{seed}-{code}", facts={"code": code})
    write_run(tmp_path, "mine", seed=2, name="without-code")
    comparison = compared(tmp_path)
    seeds = {row.label.partition(" [")[0]: row.seeds for row in comparison.rows}
    assert seeds == {"mine code=aa": (0, 1), "mine code=bb": (1,), "mine code=unknown": (2,)}
    assert comparison.header.also_differs == {}


@pytest.fixture
def two_sizes(tmp_path):
    """Two seeds of one size that finished, and one run of a larger size that diverged."""
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed)
    write_run(tmp_path, "rope", seed=1, status="diverged", results=False, config=SMALL)
    return tmp_path


def test_a_run_of_another_size_is_in_a_table_of_its_own(two_sizes):
    tables = compare_runs(load_runs([two_sizes]))
    assert [list(rows_of(table)) for table in tables] == [["rope"], ["rope"]]
    assert [table.header.context_length for table in tables] == [64, 256]
    assert tables[1].header.group["model.d_model"] == "512"


def test_a_diverged_run_of_a_rows_own_size_belongs_to_it(two_sizes):
    write_run(two_sizes, "rope", seed=4, status="diverged", results=False)
    assert rows_of(compared(two_sizes))["rope"].cells[-1].note == "1 of 3 diverged"


def test_runs_of_before_qk_norm_are_seeds_of_one_row_with_runs_without_it(tmp_path):
    write_run(tmp_path, seed=0, config={"attention": MHA})
    write_run(tmp_path, seed=1, config={"attention": MHA | {"qk_norm": False}})
    write_run(tmp_path, seed=1, config={"attention": MHA | {"qk_norm": True}})
    rows = rows_of(compared(tmp_path))
    assert {label: row.seeds for label, row in rows.items()} == {"rope": (0, 1), "rope qk_norm=true": (1,)}


def test_that_holds_without_a_config_too(tmp_path):
    for seed, attention in enumerate([MHA, MHA | {"qk_norm": False}]):
        run = write_run(tmp_path, seed=seed, facts={"attention": attention})
        (run / "config.yaml").unlink()
    assert rows_of(compared(tmp_path))["rope"].seeds == (0, 1)
