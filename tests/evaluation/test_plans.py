"""Which targets are scored: the same at every length and for every encoding, inside their document."""

from typing import Any

import numpy as np
import pytest

from posenc.errors import UserError
from posenc.evaluation import fixed_target, nonoverlapping

LENGTHS = np.array([50, 129, 200, 130, 1000, 5000, 128, 400])


def planned(module: Any = fixed_target, lengths: np.ndarray = LENGTHS, **changes: Any) -> Any:
    wanted = {"windows": [8, 16, 128], "train_length": 16, "target_fraction": 0.25, "max_targets": 1000}
    wanted = {"identity": "corpus", **wanted, **changes}
    return module.plan(lengths, wanted.pop("windows"), **wanted)


def test_every_block_has_the_longest_window_and_its_targets_in_its_own_document() -> None:
    plan = planned()
    assert plan.block == 4
    assert (plan.ends - 128 - 1 >= 0).all() and (plan.ends <= LENGTHS[plan.documents]).all()
    assert set(plan.documents) == {1, 2, 3, 4, 5, 7}  # 129 tokens are just enough, 128 are not
    for document in set(plan.documents):
        ends = np.sort(plan.ends[plan.documents == document])
        assert (np.diff(ends) >= plan.block).all()  # no token is a target twice


def test_no_document_gives_more_blocks_than_the_median() -> None:
    candidates = [(n - 129) // 4 + 1 for n in LENGTHS if n >= 129]
    counts = np.bincount(planned(max_targets=10**9).documents)
    assert counts.max() == int(np.median(candidates))
    assert counts[1] == 1


@pytest.mark.parametrize("most", [4, 8, 16, 40, 400])
def test_targets_in_all_stay_below_the_limit(most: int) -> None:
    plan = planned(max_targets=most)
    assert 0 < len(plan.ends) * plan.block <= most


def test_few_blocks_are_spread_over_documents_and_over_each_document() -> None:
    assert len(set(planned(max_targets=12).documents)) == 3
    ends = planned(lengths=np.array([1000]), max_targets=12).ends
    assert len(ends) == 3 and ends[0] == 129 and ends[-1] > 990


def test_the_hash_says_what_is_scored_and_on_what() -> None:
    same = {planned().hash, planned(windows=[16, 128]).hash, planned(windows=[128]).hash}
    assert len(same) == 1
    changed = [
        planned(windows=[8, 16, 64]),
        planned(identity="another"),
        planned(target_fraction=0.5),
        planned(max_targets=40),
        planned(lengths=LENGTHS + 8),
        planned(nonoverlapping),
    ]
    assert len({plan.hash for plan in changed} | same) == 7


def test_a_window_shorter_than_the_block_is_refused() -> None:
    with pytest.raises(UserError, match="shorter than the target block of 12 tokens"):
        planned(target_fraction=0.75)


def test_nonoverlapping_spans_tile_their_documents_from_the_start() -> None:
    plan = planned(nonoverlapping, max_targets=10**9)
    assert plan.span == 128
    assert (plan.starts + plan.span + 1 <= LENGTHS[plan.documents]).all()
    assert (plan.starts % 128 == 0).all()
    assert set(plan.documents) == {1, 2, 3, 4, 5, 7}
