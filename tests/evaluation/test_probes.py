"""Probes: the targets are what they are said to be."""

import random

import numpy as np
import pytest
from tiny_model import T
from token_stores import ask, store_of

from posenc.evaluation import far_copy
from posenc.evaluation.forward_cache import NotApplicableError


def far_copies_by_hand(text, cue, near, longest):
    """From the definition: walk back from each place to the last time that its cue came."""
    found = []
    for place in range(longest, len(text)):
        back = 1
        while (
            place - back - cue >= 0 and text[place - back - cue : place - back] != text[place - cue : place]
        ):
            back += 1
        there = place - back - cue >= 0
        if there and near < back <= longest - cue and text[place - back] == text[place]:
            found.append(place)
    return found


@pytest.mark.parametrize("letters", [2, 70000])
@pytest.mark.parametrize("cue", [2, 8])
def test_far_copies_equal_the_definition(letters, cue):
    """Of random text, of a few letters or of phrases that come again, in tokens of any size."""
    chance, found = random.Random(letters + cue), 0
    phrases = [[chance.randrange(letters) for _ in range(chance.randint(2, 25))] for _ in range(12)]
    for _ in range(8):
        text = [token for _ in range(30) for token in chance.choice(phrases)][: chance.choice([9, 40, 300])]
        for near, longest in ((4, 32), (16, 128), (16, 17)):
            by_hand = far_copies_by_hand(text, cue, near, longest)
            assert (
                far_copy.far_copies(np.array(text, dtype=np.uint32), cue, near, longest).tolist() == by_hand
            )
            found += len(by_hand)
    assert found > 20


def test_without_a_far_copy_there_is_a_note(subject_of):
    """What comes again comes too far back, or too near; or the document ends before it could."""
    store = store_of([bytes(range(250)) * 4, b"ab" * 400, b"short"])
    subject = subject_of("nope", tokens=store)
    plan = far_copy.plan(ask(store, [T, 8 * T]))
    assert len(plan.ends) == 0 and plan.hash
    with pytest.raises(NotApplicableError, match=f"from more than {T} tokens back"):
        far_copy.measure(subject, plan, T)
