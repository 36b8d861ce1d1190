"""Which targets are scored: the same at every length and for every encoding, inside their document."""

import dataclasses

import numpy as np
import pytest
from measuring import protocol_of
from token_stores import request_for, store_of

from posenc.evaluation.blocks import blocks_by_document
from posenc.evaluation.spans import plan_spans

LENGTHS = [50, 129, 200, 130, 1000, 5000, 128, 400]
LONGEST = 128
STORE = store_of([bytes(length) for length in LENGTHS])
LONG_ENOUGH = {1, 2, 3, 4, 5, 7}  # 129 tokens are just enough, 128 are not


def planned(name="fixed-target", lengths=None, **changes):
    store = changes.pop("store", STORE) if lengths is None else store_of([bytes(n) for n in lengths])
    settings = {key: changes.pop(key) for key in ("target_fraction", "stride") if key in changes}
    request = request_for(store, changes.pop("windows", [8, 16, LONGEST]), **changes)
    return protocol_of(name, **settings).plan(request)


def gaps(places, documents):
    """The smallest distance between two places of one document."""
    return min(
        np.diff(np.sort(places[documents == document])).min(initial=10**9) for document in set(documents)
    )


def test_a_block_is_a_fraction_of_t():
    assert planned().block == 4


def test_every_block_has_the_longest_window_and_its_targets_in_its_own_document():
    plan = planned()
    assert (plan.ends - LONGEST - 1 >= 0).all()
    assert (plan.ends <= np.array(LENGTHS)[plan.documents]).all()


def test_every_document_that_is_long_enough_has_a_block():
    assert set(planned().documents) == LONG_ENOUGH


def test_no_token_is_a_target_twice():
    plan = planned()
    assert gaps(plan.ends, plan.documents) >= plan.block


def test_no_document_gives_more_blocks_than_the_median_one():
    counts = np.bincount(planned(max_targets=10**9).documents)
    assert counts.max() == np.median([(n - 129) // 4 + 1 for n in LENGTHS if n >= 129])


@pytest.mark.parametrize("most", range(1, 30))
def test_the_cap_is_the_largest_that_keeps_to_the_number_of_blocks(most):
    candidates = np.array([0, 1, 3, 4, 9, 20])
    caps = [cap for cap in range(1, 5) if np.minimum(candidates, cap).sum() <= most]  # up to the median, 4
    counts = blocks_by_document(candidates, most)
    if caps:
        assert counts.tolist() == np.minimum(candidates, max(caps)).tolist()
    else:
        assert counts.sum() == most
        assert counts.max() == 1


def test_every_span_is_inside_its_document():
    plan = planned("nonoverlapping", max_targets=10**9)
    assert plan.block == LONGEST
    assert set(plan.documents) == LONG_ENOUGH
    assert (plan.ends <= np.array(LENGTHS)[plan.documents]).all()


def test_spans_never_overlap():
    plan = planned("nonoverlapping", max_targets=10**9)
    assert gaps(plan.ends, plan.documents) >= plan.block


def test_spans_have_a_longest_window_before_them_where_there_is_room_for_two():
    plan = planned("nonoverlapping", max_targets=10**9)
    starts = plan.ends - 1 - plan.block
    has_room = np.array(LENGTHS)[plan.documents] - 1 >= 2 * plan.block
    assert 0 < has_room.mean() < 1
    assert (starts[has_room] >= plan.block).all()
    assert (starts[~has_room] == 0).all()


@pytest.mark.parametrize("most", [4, 16, 400])
def test_there_are_no_more_targets_than_asked_for(most):
    plan = planned(max_targets=most)
    assert 0 < len(plan.ends) * plan.block <= most


def test_few_targets_are_spread_over_documents():
    assert len(set(planned(max_targets=12).documents)) == 3


def test_few_targets_are_spread_over_each_document():
    ends = planned(lengths=[1000], max_targets=12).ends
    assert len(ends) == 3
    assert ends[0] == 129
    assert ends[-1] > 990


@pytest.mark.parametrize("name", ["fixed-target", "nonoverlapping"])
def test_short_documents_give_no_targets(name):
    assert len(planned(name, lengths=[20, 30]).documents) == 0


@pytest.mark.parametrize(
    "changes", [{"windows": [16, LONGEST]}, {"windows": [LONGEST], "stride": 2}], ids=str
)
def test_shorter_windows_and_strides_do_not_change_the_hash(changes):
    assert planned(**changes).hash == planned().hash


CHANGES = {
    "windows": {"windows": [8, 16, 64]},
    "fingerprint": {"store": dataclasses.replace(STORE, fingerprint="another")},
    "tokenizer": {"store": dataclasses.replace(STORE, tokenizer={"name": "another"})},
    "split": {"split": "train", "store": store_of([b""], [bytes(length) for length in LENGTHS])},
    "block": {"target_fraction": 0.5},
    "targets": {"max_targets": 40},
    "documents": {"lengths": [length + 8 for length in LENGTHS]},
    "protocol": {"name": "nonoverlapping"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_says_what_is_scored_and_on_what(change):
    assert planned(**CHANGES[change]).hash != planned().hash


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("name", ["nonoverlapping", "positions", "sliding"])
def test_protocols_that_score_text_in_one_piece_score_the_same(name, stride):
    assert planned(name, stride=stride).hash == plan_spans(request_for(STORE, [8, 16, LONGEST])).hash
