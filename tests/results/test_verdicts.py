import math
from pathlib import Path

import pytest
from fake_runs import record, write_run

from posenc.results import load_runs
from posenc.results.comparison import compare
from posenc.results.statistics import Estimate
from posenc.results.verdicts import COLLAPSED, MORE_DOCUMENTS, MORE_SEEDS, SAME, needs, short, verdict

BIT = math.log(2)


def estimate(value: float, half: float, seeds: int = 1) -> Estimate:
    """One whose 95% interval has this half-width, all of it from documents (t with 40 degrees: 2.0210754)."""
    return Estimate(value, seeds, 41, None if seeds == 1 else 0.0, (half / 2.0210753903) ** 2, 40.0)


NEAR = 1e-6


@pytest.mark.parametrize(
    ("value", "half", "word"),
    [
        (0.0, SAME - NEAR, "same"),
        (0.0, SAME + NEAR, MORE_DOCUMENTS),
        (SAME / 2, SAME / 2 - NEAR, "same"),
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
def test_words_at_their_borders(value: float, half: float, word: str) -> None:
    assert verdict(estimate(value, half)) == word
    assert verdict(estimate(value, half, seeds=3)) == word


def test_unclear_says_what_would_narrow_the_interval() -> None:
    assert needs(Estimate(0.0, 3, 40, 0.01**2, 0.02**2, 39.0)) == MORE_SEEDS  # t(2) makes it the wider
    assert needs(Estimate(0.0, 9, 40, 0.01**2, 0.02**2, 39.0)) == MORE_DOCUMENTS
    assert needs(Estimate(0.0, 1, 40, None, 0.02**2, 39.0)) == MORE_DOCUMENTS
    assert verdict(Estimate(5.0, 3, 20, 0.01**2, None, 19.0)) == MORE_DOCUMENTS  # too few for an interval
    assert short(MORE_SEEDS) == short(MORE_DOCUMENTS) == "unclear"
    assert short("collapsed") == "collapsed"


def cells(tmp_path: Path, metric: str = "nats"):
    (row,) = compare(load_runs([tmp_path]), "fixed-target", metric, False).rows
    return row.cells


def test_seeds_that_agree_get_words_and_seeds_that_do_not_are_unclear(tmp_path: Path) -> None:
    for seed, shift in enumerate((-0.01, 0.0, 0.01)):
        losses = {1: 1.0, 2: 1.0 + shift / 10, 4: 1.0 + 3 * shift, 8: 2.0 + shift, 16: 1.2 + shift}
        write_run(tmp_path, seed=seed, losses=losses)
    at, *far = cells(tmp_path)
    assert (at.verdict, at.verdict_ci95) == (None, None)  # the crop line itself
    assert [cell.verdict for cell in far] == ["same", MORE_SEEDS, "collapsed", "worse"]
    low, high = far[0].verdict_ci95
    # a spread of 0.001 nats over 3 seeds: t(2) * 0.001 / sqrt(3) nats
    assert (high - low) / 2 == pytest.approx(4.3026527 * 0.001 / math.sqrt(3) / BIT, rel=1e-6)
    assert (low + high) / 2 == pytest.approx(far[0].verdict_change, abs=1e-12)


@pytest.mark.parametrize("metric", ["nats", "bpb", "ppl"])
def test_margins_are_in_bits_per_byte_whatever_the_metric(tmp_path: Path, metric: str) -> None:
    """A token of two bytes: 0.025 nats a token are 0.018 bits a byte."""
    two_bytes = {"bytes": [20] * 40}
    write_run(tmp_path, records=[record(64, 1.0, **two_bytes), record(128, 1.025, **two_bytes)])
    _, far = cells(tmp_path, metric)
    assert (far.verdict, far.verdict_change) == ("same", pytest.approx(0.025 / 2 / BIT))


def test_one_seed_below_thirty_documents_has_no_interval(tmp_path: Path) -> None:
    write_run(tmp_path, records=[record(64, 1.0, count=20), record(128, 3.0, count=20)])
    _, far = cells(tmp_path)
    assert (far.verdict, far.verdict_ci95) == (MORE_DOCUMENTS, None)
    assert far.verdict_change == pytest.approx(2 / BIT)


def test_survivors_get_no_word(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, seed=seed, records=[record(64, 1.0), record(128, 1.0 + seed / 1000)])
    assert cells(tmp_path)[1].verdict == "same"
    write_run(tmp_path, seed=2, records=[record(64, 1.0), record(128, 0, note="diverged")])
    assert (cells(tmp_path)[1].verdict, cells(tmp_path)[1].note) == (None, "1 of 3 diverged")


def test_other_targets_get_no_word(tmp_path: Path) -> None:
    write_run(tmp_path, records=[record(64, 1.0), record(128, 1.2, targets=[11] * 40)])
    assert cells(tmp_path)[1].verdict is None


def test_tokens_without_bytes_get_no_word(tmp_path: Path) -> None:
    write_run(tmp_path, records=[record(w, 1.0, bytes=[0] * 40) for w in (64, 128)])
    _, far = cells(tmp_path)
    assert (far.change, far.change_ci95, far.verdict) == (0.0, [0.0, 0.0], None)
