"""far-copy: the targets are what they are said to be."""

import random

import numpy as np
import pytest
from measuring import protocol_of
from tiny_model import T
from token_stores import request_for, store_of

from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.protocols.far_copy import far_copies


def far_copies_by_hand(text, cue, near, longest):
    """Return the targets by the definition: walk back from each token to the last time that its cue came."""
    targets = []
    for target in range(longest, len(text)):
        cue_of_target = text[target - cue : target]
        earlier = (i for i in range(target - 1, cue - 1, -1) if text[i - cue : i] == cue_of_target)
        last = next(earlier, target)
        is_far = near < target - last <= longest - cue
        if is_far and text[last] == text[target]:
            targets.append(target)
    return targets


def phrases_again(chance, letters):
    """Return a text of phrases that come again."""
    phrases = []
    for _ in range(12):
        length = chance.randint(2, 25)
        phrases.append([chance.randrange(letters) for _ in range(length)])
    text = []
    for _ in range(30):
        text += chance.choice(phrases)
    return text


@pytest.mark.parametrize("letters", [2, 70000])
@pytest.mark.parametrize("cue", [2, 8])
@pytest.mark.parametrize(("near", "longest"), [(4, 32), (16, 128), (16, 17)])
def test_far_copies_equal_the_definition(letters, cue, near, longest):
    chance = random.Random(letters + cue)
    for length in (9, 40, 300, 300, 300):
        text = phrases_again(chance, letters)[:length]
        copies = far_copies(np.array(text, dtype=np.uint32), cue, near, longest)
        assert copies.tolist() == far_copies_by_hand(text, cue, near, longest)


@pytest.mark.parametrize("length", [5, 7, 8, 9, 300])
def test_a_window_shorter_than_a_cue_has_no_far_copies(length):
    tokens = np.zeros(length, dtype=np.uint32)  # every cue comes again
    assert far_copies(tokens, cue=8, near=4, longest=4).size == 0


def test_text_of_phrases_has_far_copies():
    """Or the test above would compare nothing."""
    text = phrases_again(random.Random(0), 2)[:300]
    assert len(far_copies(np.array(text, dtype=np.uint32), 8, 4, 32)) > 5


@pytest.fixture
def without_copies(subject_of):
    """What comes again comes too far back, or too near; or the document ends before it could."""
    store = store_of([bytes(range(250)) * 4, b"ab" * 400, b"short"])
    protocol = protocol_of("far-copy")
    return protocol, protocol.plan(request_for(store, [T, 8 * T])), subject_of("nope", tokens=store)


def test_a_plan_without_a_far_copy_still_has_a_hash(without_copies):
    _, plan, _ = without_copies
    assert len(plan.ends) == 0
    assert plan.hash


def test_without_a_far_copy_there_is_a_note(without_copies):
    protocol, plan, subject = without_copies
    with pytest.raises(NotApplicableError, match=f"from more than {T} tokens back"):
        protocol.measure(subject, plan, T)
