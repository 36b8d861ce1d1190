"""Words for differences: verdicts at their borders, pairs of rows, marks of a column."""

import math
from pathlib import Path

import numpy as np
import pytest
from fake_runs import compared, record, rows_of, write_run

from posenc.results.ranking import (
    COLLAPSED,
    MORE_DOCUMENTS,
    MORE_SEEDS,
    SAME,
    compare_pairs,
    holm,
    marks,
    verdict,
)
from posenc.results.statistics import Estimate, Sample

BIT = math.log(2)
NEAR = 1e-6
DOCUMENTS = 60


def estimate(value: float, half: float, seeds: int) -> Estimate:
    """One whose 95% interval has this half-width, all of it from documents (t with 40 degrees: 2.0210754)."""
    return Estimate(value, seeds, 41, None if seeds == 1 else 0.0, (half / 2.0210753903) ** 2, 40.0)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("value", "half", "word"),
    [
        (0.0, SAME - NEAR, "same"),
        (0.0, SAME + NEAR, MORE_DOCUMENTS),
        (-SAME / 2, SAME / 2 + NEAR, MORE_DOCUMENTS),
        (0.05, 0.05 - SAME - NEAR, "worse"),
        (0.05, 0.05 - SAME + NEAR, MORE_DOCUMENTS),
        (-0.05, 0.05 - SAME - NEAR, "better"),
        (-0.05, 0.05 - SAME + NEAR, MORE_DOCUMENTS),
        (0.6, 0.6 - COLLAPSED - NEAR, "collapsed"),
        (0.6, 0.6 - COLLAPSED + NEAR, "worse"),
        (-0.6, 0.01, "better"),
    ],
)
def test_words_at_their_borders(value: float, half: float, word: str, seeds: int) -> None:
    assert verdict(estimate(value, half, seeds)) == word


def test_unclear_says_what_would_narrow_the_interval() -> None:
    assert verdict(Estimate(0.0, 3, 40, 0.01**2, 0.02**2, 39.0, 2)) == MORE_SEEDS  # t(2) makes it the wider
    assert verdict(Estimate(0.0, 9, 40, 0.01**2, 0.02**2, 39.0, 8)) == MORE_DOCUMENTS
    assert verdict(Estimate(0.0, 1, 40, None, 0.02**2, 39.0)) == MORE_DOCUMENTS
    assert verdict(Estimate(5.0, 3, 8, 0.01**2, None, 7.0, 2)) == MORE_DOCUMENTS  # too few for an interval


def sample(loss: float, seeds=(0, 1, 2), seed_noise: float = 0.0, wiggle: float = 0.0) -> dict[int, Sample]:
    """A row's samples of a loss in bits per byte; `wiggle` differs from document to document."""
    found = {}
    for seed in seeds:
        bits = loss + seed_noise * (seed - 1) + wiggle * (-1.0) ** np.arange(DOCUMENTS)
        nats = list(bits * 100 * BIT)
        found[seed] = Sample({"document": list(range(DOCUMENTS)), "nats": nats, "bytes": [100.0] * DOCUMENTS})
    return found


def test_holm_by_hand() -> None:
    # 4 * 0.005, 3 * 0.01, 2 * 0.03, then 0.04 may not fall below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, 0.04], unseen=2) == pytest.approx([0.04, 0.12])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_words_of_pairs_and_marks() -> None:
    rows = [sample(1.0), sample(1.3), sample(1.005), sample(1.1, seed_noise=0.05)]
    pairs = compare_pairs(["a", "b", "c", "d"], rows)
    assert [p.word for p in pairs] == ["lower", "tie", "unclear", "higher", "unclear", "unclear"]
    assert [(p.a, p.b) for p in pairs] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert marks(pairs, 0) == {0: "lowest", 2: "tie", 3: "unclear"}


def test_correction_takes_away_what_many_pairs_would_find() -> None:
    """p = 0.03 beyond the margin: a rank alone, none among six rows."""
    near, other = sample(1.0), sample(1.0525, wiggle=0.115)
    (alone,) = compare_pairs(["a", "b"], [near, other])
    assert alone.word == "lower" and 0.02 < alone.p < 0.05
    rows = [near, other, *[sample(1.0 + 1e-9 * i) for i in range(4)]]
    for only in (None, 0, 1):  # corrected for all pairs, also where only some are made
        among = next(p for p in compare_pairs(list("abcdef"), rows, only) if (p.a, p.b) == (0, 1))
        assert among.word == "unclear" and among.p == pytest.approx(min(1.0, 15 * alone.p))
        assert among.interval[0] < alone.interval[0] and among.interval[1] > alone.interval[1]
    chosen = compare_pairs(list("abcdef"), rows, 0, chosen=True)
    assert len(chosen) == 5 and chosen[0].p == pytest.approx(5 * alone.p)


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


def marks_at(root: Path, i: int = 0, **options) -> tuple[list, dict]:
    comparison = compared(root, **options)
    return comparison.columns[i].pairs, {row.label: row.cells[i].mark for row in comparison.rows}


def test_a_column_marks_ties_and_leaves_the_higher_bare(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.2, 8: 2.0 + seed})
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.205, 8: 1.3})
        write_run(tmp_path, "nope", seed=seed, losses={1: 1.3, 8: 1.4})
        write_run(tmp_path, "fire", seed=seed, losses={1: 1.25 + 0.05 * seed, 8: 1.4})
    pairs, found = marks_at(tmp_path)
    assert found == {"rope": "lowest", "alibi": "tie", "nope": None, "fire": "unclear"}
    assert len(pairs) == 6 and pairs[0].rows == ["alibi", "fire"]
    assert marks_at(tmp_path, 1)[1] == {"alibi": "lowest", "nope": None, "fire": None, "rope": "unclear"}


@pytest.mark.parametrize(
    ("changes", "metric", "found"),
    [
        ({}, "nats", {"alibi": None, "rope": "lowest"}),  # one seed ranks these models
        ({}, "ppl", {"alibi": None, "rope": None}),
        ({"count": 8}, "nats", {"alibi": "unclear", "rope": "lowest"}),
        ({"bytes": [0] * 40}, "nats", {"alibi": None, "rope": None}),
    ],
)
def test_what_can_be_ranked(tmp_path: Path, changes: dict, metric: str, found: dict) -> None:
    for name, loss in (("rope", 1.0), ("alibi", 3.0)):
        write_run(tmp_path, name, records=[record(64, loss, **changes)])
    assert marks_at(tmp_path, metric=metric)[1] == found


def test_a_row_is_the_lowest_only_if_none_is_clearly_lower(tmp_path: Path) -> None:
    """alibi's mean is the lower one, of a seed that rope lacks; on the shared seed it is the higher one."""
    write_run(tmp_path, "alibi", seed=0, losses={1: 1.0})
    write_run(tmp_path, "alibi", seed=1, losses={1: 2.0})
    write_run(tmp_path, "rope", seed=1, losses={1: 1.8})
    assert marks_at(tmp_path)[1] == {"alibi": None, "rope": "lowest"}


def test_many_rows_are_compared_with_the_lowest_and_corrected_for_all(tmp_path: Path) -> None:
    for i in range(42):
        write_run(tmp_path, "rope", params={"base": float(i)}, losses={1: 1.0 + 0.001 * i})
    pairs, found = marks_at(tmp_path)
    words = list(found.values())
    assert len(pairs) == 41 and words.count("lowest") == 1 and None in words and "tie" in words


def test_a_baseline_is_the_paired_difference(tmp_path: Path) -> None:
    for name, at_t, far in (("nope", 2.0, 3.0), ("rope", 1.2, 3.7), ("alibi", 1.3, 1.3)):
        for seed in range(3):
            records = [
                record(64 * m, loss + seed / 100, bytes=[20] * 40) for m, loss in ((1, at_t), (8, far))
            ]
            write_run(tmp_path, name, seed=seed, records=records)
    for metric, unit in (("nats", 1.0), ("bpb", 2 * BIT)):
        comparison = compared(tmp_path, metric, baseline="rope")
        cells = {label: row.cells for label, row in rows_of(comparison).items()}
        assert comparison.header["baseline"] == "rope" and cells["rope"][0].against is None
        near, far = (cells["alibi"][i].against for i in (0, 1))
        assert (near.difference, near.word) == (pytest.approx(0.1 / unit), "higher")
        assert (far.difference, far.word, far.seeds) == (pytest.approx(-2.4 / unit), "lower", [0, 1, 2])
        assert cells["nope"][1].against.ci95 == pytest.approx([-0.7 / unit] * 2)
