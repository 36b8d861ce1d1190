"""Which targets are scored: the same at every length and for every encoding, inside their document."""

import dataclasses

import numpy as np
import pytest
from token_stores import ask, store_of

from posenc.core.errors import UserError
from posenc.evaluation import fixed_target, nonoverlapping, positions, resolve_lengths, sliding
from posenc.evaluation.plans import plan_spans

LENGTHS = [50, 129, 200, 130, 1000, 5000, 128, 400]
STORE = store_of([bytes(length) for length in LENGTHS])


def planned(module=fixed_target, lengths=None, **changes):
    store = changes.pop("store", STORE) if lengths is None else store_of([bytes(n) for n in lengths])
    return module.plan(ask(store, changes.pop("windows", [8, 16, 128]), **changes))


def test_every_block_has_the_longest_window_and_its_targets_in_its_own_document():
    plan = planned()
    assert plan.block == 4
    lengths = np.array(LENGTHS)[plan.documents]
    assert (plan.ends - 128 - 1 >= 0).all() and (plan.ends <= lengths).all()
    assert set(plan.documents) == {1, 2, 3, 4, 5, 7}  # 129 tokens are just enough, 128 are not
    for document in set(plan.documents):
        ends = np.sort(plan.ends[plan.documents == document])
        assert (np.diff(ends) >= plan.block).all()  # no token is a target twice
    counts = np.bincount(planned(max_targets=10**9).documents)
    assert counts.max() == np.median([(n - 129) // 4 + 1 for n in LENGTHS if n >= 129])
    with pytest.raises(UserError, match="shorter than the target block of 12 tokens"):
        planned(target_fraction=0.75)


def test_spans_never_overlap_and_have_a_longest_window_before_them_where_there_is_room_for_two():
    plan = planned(nonoverlapping, max_targets=10**9)
    assert plan.block == 128 and set(plan.documents) == {1, 2, 3, 4, 5, 7}
    lengths, starts = np.array(LENGTHS)[plan.documents], plan.ends - 1 - plan.block
    assert (plan.ends <= lengths).all()
    for document in set(plan.documents):
        assert (np.diff(starts[plan.documents == document]) >= plan.block).all()
    room = lengths - 1 >= 2 * plan.block
    assert (starts[room] >= plan.block).all() and (starts[~room] == 0).all() and 0 < room.mean() < 1


def test_few_targets_are_spread_over_documents_and_over_each_document():
    for most in (4, 16, 400):
        plan = planned(max_targets=most)
        assert 0 < len(plan.ends) * plan.block <= most
    assert len(set(planned(max_targets=12).documents)) == 3
    ends = planned(lengths=[1000], max_targets=12).ends
    assert len(ends) == 3 and ends[0] == 129 and ends[-1] > 990
    for module in (fixed_target, nonoverlapping):
        assert len(planned(module, lengths=[20, 30]).documents) == 0


def test_the_hash_says_what_is_scored_and_on_what():
    same = {planned().hash, planned(windows=[16, 128]).hash, planned(windows=[128], stride=2).hash}
    assert len(same) == 1
    changed = [
        planned(windows=[8, 16, 64]),
        planned(store=dataclasses.replace(STORE, fingerprint="another")),
        planned(store=dataclasses.replace(STORE, tokenizer={"name": "another"})),
        planned(split="train", store=store_of([b""], [bytes(length) for length in LENGTHS])),
        planned(target_fraction=0.5),
        planned(max_targets=40),
        planned(lengths=[length + 8 for length in LENGTHS]),
        planned(nonoverlapping),
    ]
    assert len({plan.hash for plan in changed} | same) == len(changed) + 1


def test_protocols_that_score_text_in_one_piece_score_the_same():
    modules = (nonoverlapping, positions, sliding)
    hashes = {planned(module, stride=stride).hash for module in modules for stride in (1, 4)}
    assert hashes == {plan_spans(ask(STORE, [8, 16, 128])).hash}


def test_lengths_are_tokens_or_multiples():
    assert resolve_lengths(["8x", "0.5x", 128, "1x", 64, "64", "1.25x"], 64) == [32, 64, 80, 128, 512]
    for bad in (0, "-1x", "x", "2y", 1.5, True, None, "0.3x", "१x0"):
        with pytest.raises(UserError) as caught:
            resolve_lengths(["1x", bad], 64)
        assert caught.value.key == "eval.lengths" and caught.value.value == bad
