import math
from pathlib import Path

import numpy as np
import pytest
from fake_runs import record, write_run

from posenc.results import load_runs
from posenc.results.comparison import compare
from posenc.results.ranking import compare_pairs, holm, marks

DOCUMENTS = 60


def sample(loss: float, seeds=(0, 1, 2), seed_noise: float = 0.0, wiggle: float = 0.0):
    """`per_document` by seed, of a loss in bits per byte; `wiggle` differs from document to document."""
    sizes = np.full(DOCUMENTS, 100.0)
    found = {}
    for seed in seeds:
        bits = loss + seed_noise * (seed - 1) + wiggle * (-1.0) ** np.arange(DOCUMENTS)
        found[seed] = {"document": np.arange(DOCUMENTS), "nats": bits * sizes * math.log(2), "bytes": sizes}
    return found


def test_holm_by_hand() -> None:
    # 4 * 0.005, 3 * 0.01, 2 * 0.03, then 0.04 may not fall below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_words_of_pairs() -> None:
    rows = [sample(1.0), sample(1.3), sample(1.005), sample(1.1, seed_noise=0.05)]
    words = {(p.a, p.b): p.word for p in compare_pairs(["a", "b", "c", "d"], rows)}
    assert words == {
        (0, 1): "lower",
        (0, 2): "tie",
        (0, 3): "unclear",
        (1, 2): "higher",
        (1, 3): "unclear",
        (2, 3): "unclear",
    }


def test_sure_but_small_is_no_rank() -> None:
    (pair,) = compare_pairs(["a", "b"], [sample(1.0), sample(1.0199)])
    assert (pair.word, pair.p) == ("tie", 1.0)  # surely 0.0199 apart, within the margin of 0.02
    (pair,) = compare_pairs(["a", "b"], [sample(1.0), sample(1.0201)])
    assert pair.word == "lower" and pair.difference == pytest.approx(-0.0201)


def test_correction_takes_away_what_many_pairs_would_find() -> None:
    """p = 0.03 beyond the margin: a rank alone, none among six rows."""
    near, other = sample(1.0, wiggle=0.0), sample(1.0525, wiggle=0.115)
    (alone,) = compare_pairs(["a", "b"], [near, other])
    assert alone.word == "lower" and 0.02 < alone.p < 0.05
    low, high = alone.interval
    many = compare_pairs(list("abcdef"), [near, other, *[sample(1.0 + 1e-9 * i) for i in range(4)]])
    among = next(p for p in many if (p.a, p.b) == (0, 1))
    assert among.word == "unclear" and among.p == pytest.approx(min(1.0, 15 * alone.p))
    assert among.interval[0] < low and among.interval[1] > high  # of the level that is left
    assert next(p for p in many if (p.a, p.b) == (0, 2)).word == "tie"


def test_corrected_intervals_and_words_agree() -> None:
    rng = np.random.default_rng(4)
    rows = [sample(1 + rng.normal(0, 0.05), seed_noise=0.002, wiggle=rng.normal(0, 0.05)) for _ in range(8)]
    pairs = compare_pairs(list("abcdefgh"), rows)
    assert {pair.word for pair in pairs} == {"lower", "higher", "tie", "unclear"}
    for pair in pairs:
        low, high = pair.interval
        assert (pair.word == "lower") == (high < -0.02) and (pair.word == "higher") == (low > 0.02)
        assert (pair.word in ("lower", "higher")) == (pair.p < 0.05)


def test_only_shared_seeds_are_paired() -> None:
    (pair,) = compare_pairs(["a", "b"], [sample(1.0), sample(1.3, seeds=(1, 2, 3))])
    assert (pair.seeds, pair.word) == ([1, 2], "lower")
    (pair,) = compare_pairs(["a", "b"], [sample(1.0, seeds=(0,)), sample(1.3, seeds=(5,))])
    assert (pair.seeds, pair.difference, pair.p, pair.word) == ([], None, None, "unclear")
    assert compare_pairs(["a", "b", "c"], [sample(1.0), None, None]) == []


def test_marks_are_held_against_the_lowest() -> None:
    rows = [sample(1.3), sample(1.0), sample(1.005), sample(1.1, seed_noise=0.05)]
    assert marks(compare_pairs(list("abcd"), rows), 1) == {1: "lowest", 2: "tie", 3: "unclear"}


def column(tmp_path: Path, multiple: float = 1, **options):
    options = {"protocol": "fixed-target", "metric": "nats", "allow_mixed": False} | options
    comparison = compare(load_runs([tmp_path]), **options)
    i = [one.multiple for one in comparison.columns].index(multiple)
    return comparison.columns[i], {row.label: row.cells[i].mark for row in comparison.rows}


def test_a_column_marks_ties_and_leaves_the_higher_bare(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.2, 8: 2.0 + seed})
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.205, 8: 1.3})
        write_run(tmp_path, "nope", seed=seed, losses={1: 1.3, 8: 1.4})
        write_run(tmp_path, "fire", seed=seed, losses={1: 1.25 + 0.05 * seed, 8: 1.4})
    near, found = column(tmp_path)
    assert found == {"rope": "lowest", "alibi": "tie", "nope": None, "fire": "unclear"}
    assert len(near.pairs) == 6 and near.pairs[0].rows == ["alibi", "fire"]
    _, found = column(tmp_path, 8)
    assert found == {"alibi": "lowest", "nope": None, "fire": None, "rope": "unclear"}


def test_one_seed_ranks_these_models(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={1: 1.2})
    write_run(tmp_path, "alibi", losses={1: 1.3})
    near, found = column(tmp_path)
    assert found == {"rope": "lowest", "alibi": None} and near.pairs[0].seeds == [0]


def test_perplexity_and_few_documents_and_no_bytes_rank_nothing(tmp_path: Path) -> None:
    for name, loss in (("rope", 1.0), ("alibi", 3.0)):
        write_run(tmp_path / "a", name, losses={1: loss})
        write_run(tmp_path / "b", name, records=[record(64, loss, count=20)])
        write_run(tmp_path / "c", name, records=[record(64, loss, bytes=[0] * 40)])
    near, found = column(tmp_path / "a", metric="ppl")
    assert near.pairs == [] and set(found.values()) == {None}
    near, found = column(tmp_path / "b")
    assert found == {"rope": "lowest", "alibi": "unclear"} and near.pairs[0].interval is None
    near, found = column(tmp_path / "c")
    assert near.pairs == [] and set(found.values()) == {None}


def test_a_row_that_lost_a_seed_is_not_ranked(tmp_path: Path) -> None:
    for name, loss in (("rope", 1.0), ("alibi", 1.1), ("nope", 1.2)):
        for seed in (0, 1):
            write_run(tmp_path, name, seed=seed, losses={1: loss})
    write_run(tmp_path, "rope", seed=2, status="diverged", reason="nan", results=False)
    near, found = column(tmp_path)
    assert found == {"rope": None, "alibi": "lowest", "nope": None}
    assert [pair.rows for pair in near.pairs] == [["alibi", "nope"]]
