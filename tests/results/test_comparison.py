import math
from pathlib import Path

import pytest
from fake_runs import MULTIPLES, T, record, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.comparison import compare, protocols_of


def compared(tmp_path: Path, metric: str = "nats", allow_mixed: bool = False, protocol: str = "fixed-target"):
    return compare(load_runs([tmp_path]), protocol, metric, allow_mixed)


def row_of(comparison, label: str):
    return next(row for row in comparison.rows if row.label == label)


def test_seeds_are_averaged_and_changes_paired_by_seed(tmp_path: Path) -> None:
    for seed, (at_t, at_8t) in enumerate([(1.0, 1.5), (1.2, 1.9), (1.1, 1.5)]):
        write_run(tmp_path, seed=seed, losses={1: at_t, 8: at_8t})
    comparison = compared(tmp_path)
    (row,) = comparison.rows
    at, far = row.cells
    assert (row.label, row.seeds, [c.window for c in comparison.columns]) == ("rope", [0, 1, 2], [64, 512])
    assert (at.mean, at.spread, at.seeds) == (pytest.approx(1.1), pytest.approx(0.1), 3)
    assert (at.change, at.change_spread) == (0.0, 0.0)
    assert far.mean == pytest.approx(4.9 / 3)
    # changes 0.5, 0.7, 0.4: mean 0.5333, sd 0.15275
    assert far.change == pytest.approx(1.6 / 3)
    assert far.change_spread == pytest.approx(0.152753, abs=1e-6)
    assert row.crop == {"mean": pytest.approx(1.1), "spread": pytest.approx(0.1)}
    assert far.mark is None  # alone, nothing to be better than


def test_one_seed_has_an_interval_over_documents(tmp_path: Path) -> None:
    records = [record(64, 1.0), record(128, 1.2, wiggle=0.3), record(256, 1.2, count=20, wiggle=0)]
    write_run(tmp_path, records=records)
    cells = compared(tmp_path).rows[0].cells
    low, high = cells[1].change_ci95
    assert (low + high) / 2 == pytest.approx(0.2) == cells[1].change
    # differences 0.2 +- 0.2 over 40 documents: t(39) * 0.2 * sqrt(40 / 39) / sqrt(40)
    assert (high - low) / 2 == pytest.approx(2.0226909 * 0.2 / math.sqrt(39), rel=1e-6)
    assert cells[1].spread is None
    assert cells[2].change_ci95 is None  # the documents are not the same, whatever the hash says
    bits = compared(tmp_path, "bpb").rows[0].cells[1].change_ci95
    assert bits == [pytest.approx(low / math.log(2)), pytest.approx(high / math.log(2))]


def test_diverged_failed_and_running_runs_stay_visible(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.0, 8: 1.0})
        write_run(tmp_path, "alibi", seed=seed, losses={1: 2.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=2, losses={1: 0.1, 8: 0.1}, status="diverged", reason="nan at step 9")
    write_run(tmp_path, "t5", seed=0, status="failed", reason="boom", results=False)
    write_run(tmp_path, "alibi", seed=2, status="running", results=False)
    comparison = compared(tmp_path)
    rope, alibi, t5 = (row_of(comparison, name) for name in ("rope", "alibi", "t5"))
    assert (rope.cells[0].mean, rope.cells[0].seeds) == (1.0, 2)  # the diverged 0.1 is not averaged in
    assert rope.cells[0].note == "1 of 3 diverged"
    assert not any(cell.mark for row in comparison.rows for cell in row.cells)  # survivors win nothing
    assert "seed 2 diverged: nan at step 9" in rope.notes
    assert (alibi.cells[0].note, alibi.cells[0].seeds) == ("1 of 3 running", 2)
    assert (t5.cells[1].mean, t5.cells[1].note) == (None, "failed")
    assert "seed 0 failed: boom" in t5.notes
    assert "no run of seed 1, 2" in t5.notes


def test_notes_of_records_and_missing_lengths(tmp_path: Path) -> None:
    write_run(
        tmp_path, records=[record(64, 1.0), record(512, 0, note="oom at 512 tokens, batch 1: no memory")]
    )
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(128, 1.1)])
    comparison = compared(tmp_path)
    rope = row_of(comparison, "rope")
    assert [cell.note for cell in rope.cells] == [None, "not measured", "oom"]
    assert rope.notes == ["8x: oom at 512 tokens, batch 1: no memory"]
    assert row_of(comparison, "alibi").cells[2].note == "not measured"


def test_only_failed_runs_are_a_comparison_without_columns(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", status="failed", reason="boom", results=False)
    damaged = write_run(tmp_path, "alibi", name="my run")
    (damaged / "results.json").write_text("{")
    comparison = compared(tmp_path)
    assert comparison.columns == []
    assert [row.label for row in comparison.rows] == ["alibi", "rope"]
    assert "damaged" in comparison.rows[0].notes[0]


def test_rows_of_one_encoding_are_named_by_what_differs(tmp_path: Path) -> None:
    for base in (10000, 500000):
        for seed in (0, 1):
            write_run(tmp_path, seed=seed, params={"base": base, "fraction": 1.0})
    write_run(tmp_path, "learned", params={"beyond": "untrained"}, config={"device": "cuda"})
    labels = {row.label: row.seeds for row in compared(tmp_path).rows}
    assert labels == {
        "rope base=10000": [0, 1],
        "rope base=500000": [0, 1],
        "learned (beyond: untrained)": [0],
    }


def test_options_are_part_of_a_rows_name_and_ordinary_ones_go_without_saying(tmp_path: Path) -> None:
    ordinary = {
        "attention": {"name": "mha", "window": None, "scale": "none"},
        "positions": {"name": "contiguous"},
    }
    latent = {"attention": {"name": "mla", "kv_rank": 8, "window": None, "scale": "logn"}}
    wider = {"attention": {**latent["attention"], "kv_rank": 16}}
    drawn = {"positions": {"name": "randomized", "max": None, "dense": False}}
    for config in (ordinary, ordinary | latent, ordinary | wider, ordinary | drawn):
        write_run(tmp_path, config=config)
    parts = [{"name": "alibi"}, {"name": "rope", "base": 500.0}]
    write_run(tmp_path, "sum", params={"parts": parts}, config=ordinary)
    comparison = compare(load_runs([tmp_path]), "fixed-target", "nats", False)
    assert [row.label for row in comparison.rows] == [
        "alibi+rope",
        "rope",
        "rope attention=mla scale=logn kv_rank=16",
        "rope attention=mla scale=logn kv_rank=8",
        "rope positions=randomized",
    ]
    assert not comparison.header["also_differs"]


def test_other_settings_make_other_rows_and_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, config={"train": {"lr": 0.001}})
    write_run(tmp_path, config={"train": {"lr": 0.01}})
    write_run(tmp_path, "alibi", config={"train": {"lr": 0.01}})
    comparison = compared(tmp_path)
    assert {row.label for row in comparison.rows} == {"rope train.lr=0.001", "rope train.lr=0.01", "alibi"}
    assert comparison.header["also_differs"] == {"train.lr": ["0.001", "0.01"]}


def test_an_extension_is_held_against_the_crop_line(tmp_path: Path) -> None:
    yarn = {"name": "yarn", "factor": 8}
    records = [
        record(64, 1.0),
        record(512, 2.5),
        record(512, 1.25, extend=yarn),
        record(64, 1.5, extend=yarn),
    ]
    write_run(tmp_path, records=records)
    comparison = compared(tmp_path)
    extended = row_of(comparison, "rope+yarn factor=8")
    assert [cell.change for cell in extended.cells] == [pytest.approx(0.5), pytest.approx(0.25)]
    assert extended.crop["mean"] == pytest.approx(1.0)
    assert row_of(comparison, "rope").cells[1].change == pytest.approx(1.5)


DIFFERENT = {
    "corpus": {"corpus": {"name": "stdlib", "fingerprint": "e" * 64}},
    "tokenizer": {"tokenizer": {"name": "bpe", "size": 4096}},
    "context length": {"context_length": 128},
    "tokens trained": {"tokens": 99},
    "model": {"model": {"name": "tiny", "n_layers": 6}},
}


@pytest.mark.parametrize("key", DIFFERENT)
def test_mixed_runs_are_refused_by_name(tmp_path: Path, key: str) -> None:
    write_run(tmp_path, "alibi")
    write_run(tmp_path, "rope", facts=DIFFERENT[key])
    with pytest.raises(UserError) as error:
        compared(tmp_path)
    text = str(error.value)
    assert f"  {key}: " in text and "--allow-mixed" in text and "rope-nano" in text
    assert sum(f"  {other}: " in text for other in DIFFERENT) == 1
    comparison = compared(tmp_path, allow_mixed=True)
    assert list(comparison.header["mixed"]) == [key]
    assert all(list(row.mixed) == [key] for row in comparison.rows)


def test_other_targets_are_refused_and_never_ranked(tmp_path: Path) -> None:
    write_run(tmp_path, "alibi")
    write_run(tmp_path, "rope", records=[record(int(m * T), 1.0, targets_hash="b") for m in MULTIPLES])
    with pytest.raises(UserError, match=r"targets: .*eval\.lengths|targets: (.|\n)*eval\.lengths"):
        compared(tmp_path)
    mixed = compared(tmp_path, allow_mixed=True)
    assert not any(cell.mark for row in mixed.rows for cell in row.cells)


def test_across_tokenizers_only_bits_per_byte_are_ranked(tmp_path: Path) -> None:
    write_run(tmp_path, "alibi", losses={1: 1.2})
    write_run(tmp_path, "rope", records=[record(64, 1.0, targets_hash="b")], facts={"tokenizer": "bpe"})
    for metric, ranked in (("nats", False), ("ppl", False), ("bpb", True)):
        mixed = compared(tmp_path, metric, allow_mixed=True)
        marks = [cell.mark for row in mixed.rows for cell in row.cells]
        assert marks == [None, "lowest" if ranked else None]


def test_an_earlier_checkpoint_has_seen_fewer_tokens(tmp_path: Path) -> None:
    write_run(tmp_path, "alibi")
    write_run(tmp_path, "rope", records=[record(64, 1.0, checkpoint_step=400)])
    with pytest.raises(UserError, match=r"tokens trained: 3276800 .*1638400"):
        compared(tmp_path)


def test_the_set_of_targets_that_most_runs_share_is_taken(tmp_path: Path) -> None:
    shared = [record(64, 1.0), record(512, 1.1)]
    more = [record(w, 3.0, targets_hash="b") for w in (64, 512, 1024)]
    write_run(tmp_path, "rope", records=shared + more)
    write_run(tmp_path, "alibi", records=shared)
    comparison = compared(tmp_path)
    assert [column.window for column in comparison.columns] == [64, 512]
    assert row_of(comparison, "rope").cells[0].mean == pytest.approx(1.0)
    assert comparison.header["left_out"] == 3
    alone = compare([r for r in load_runs([tmp_path]) if "rope" in r.name], "fixed-target", "nats", False)
    assert [column.window for column in alone.columns] == [64, 512, 1024]  # then the longest curve


def test_last_checkpoint_and_duplicates(tmp_path: Path) -> None:
    both = [record(64, 2.0, checkpoint_step=400), record(64, 1.0)]
    write_run(tmp_path / "a", records=both)
    write_run(tmp_path / "b", records=[record(64, 5.0)], name="copy")
    (row,) = compared(tmp_path).rows
    assert (row.cells[0].mean, row.cells[0].seeds) == (pytest.approx(1.0), 1)
    assert any("seed 0 is there more than once" in note for note in row.notes)


def test_perplexity_overflows_to_infinity_not_to_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, losses={1: 1.0, 8: 800.0})
    cell = compared(tmp_path, "ppl").rows[0].cells[1]
    assert (cell.mean, cell.change, cell.spread) == (math.inf, None, None)
    for seed in (1, 2, 3):  # each fits a float, their sum and their squares do not
        write_run(tmp_path / "more", "alibi", seed=seed, losses={1: 1.0, 8: 709.5})
    assert compared(tmp_path / "more", "ppl").rows[0].cells[1].mean == math.inf


def test_wrong_names_are_the_users_mistake(tmp_path: Path) -> None:
    write_run(tmp_path)
    runs = load_runs([tmp_path])
    assert protocols_of(runs) == ["fixed-target"]
    with pytest.raises(UserError, match="did you mean: fixed-target"):
        compare(runs, "fixed-targets", "nats", False)
    with pytest.raises(UserError, match="nats, bpb, ppl"):
        compare(runs, "fixed-target", "nat", False)
    with pytest.raises(UserError, match="no runs"):
        compare([], "fixed-target", "nats", False)


def test_of_two_sets_that_all_share_the_larger_is_shown(tmp_path: Path) -> None:
    for encoding in ("rope", "alibi"):
        few = [record(m * 64, 1.0, targets_hash="b" * 16, count=35) for m in (1, 2)]
        many = [record(m * 64, 1.5, targets_hash="c" * 16, count=40) for m in (1, 2)]
        write_run(tmp_path, encoding, records=[*few, *many])
    cells = [cell for row in compared(tmp_path).rows for cell in row.cells]
    assert [cell.mean for cell in cells] == [pytest.approx(1.5)] * 4
