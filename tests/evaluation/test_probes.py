"""Probes: the targets are what they are said to be."""

import itertools
import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import tiny_model
from tiny import write
from tiny_model import T
from token_stores import ask, store_of

from posenc.evaluation import far_copy, fixed_target
from posenc.evaluation.forward_cache import NotApplicableError
from posenc.evaluation.positions import curve_of


def far_copies_by_hand(text, cue, near, longest):
    """From the definition: walk back from each place to the last time that its cue came."""
    found = []
    for place in range(longest, len(text)):
        cued = (
            at for at in range(place - 1, cue - 1, -1) if text[at - cue : at] == text[place - cue : place]
        )
        last = next(cued, place)
        if near < place - last <= longest - cue and text[last] == text[place]:
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
            copies = far_copy.far_copies(np.array(text, dtype=np.uint32), cue, near, longest)
            assert copies.tolist() == by_hand
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


# --- The curve over positions of losses that are known.
LONG = 8 * T
AT = np.arange(1, LONG + 1)  # positions
DOCUMENTS = 40


def curve(nats):
    """Of one span a document, which differ by up to 1 nat."""
    return curve_of(nats + np.linspace(-0.5, 0.5, DOCUMENTS)[:, None], np.arange(DOCUMENTS), T)


def test_a_planted_slope_and_rise_are_found():
    """Level 2, then 0.003 nats more for every token past T."""
    found = curve(2 + 0.003 * np.maximum(0, AT - T))
    assert found["level"] == pytest.approx(2) and found["slope"] == pytest.approx(0.003)
    assert found["slope_ci95"] == pytest.approx([0.003, 0.003])  # documents differ by a constant alone
    edges = found["edges"]
    want = [0.003 * np.mean([max(0, p - T) for p in range(a, b)]) for a, b in itertools.pairwise(edges)]
    assert found["rise"] == pytest.approx(want, abs=1e-12)
    assert np.array(found["rise_ci95"]) == pytest.approx(np.array([want, want]).T, abs=1e-9)
    index = edges.index(found["breaks_at"] or 0)
    assert found["rise"][index] > 0.1 >= found["rise"][index - 1] and edges[index] > T


@pytest.mark.parametrize("step", [1, T // 2 + 1, 2 * T + 1, 4 * T + 1])
def test_a_step_breaks_where_it_is(step):
    """Before T it lifts the level too, or comes too early."""
    assert curve(np.where(step <= AT, 3.0, 2.0))["breaks_at"] == (step if step > T else None)


def test_a_break_is_more_than_a_tenth_of_a_nat_with_the_whole_interval():
    """A rise of 3 nats in a tenth of the documents, 0.3 on average: the interval reaches below 0.1."""
    assert curve(np.where(AT > 2 * T, 2.099, 2.0))["breaks_at"] is None
    assert curve(np.where(AT > 2 * T, 2.101, 2.0))["breaks_at"] is not None
    nats = np.full((DOCUMENTS, LONG), 2.0)
    nats[: DOCUMENTS // 10, T:] += 3
    found = curve(nats)
    assert found["rise"][-1] > 0.29 and found["breaks_at"] is None
    assert found["rise_ci95"][-1][0] < 0.1


# --- The trigram reference against dictionaries, one byte at a time.
def counted(documents):
    """What comes after every context of up to two bytes, how often."""
    after = defaultdict(Counter)
    for text in documents:
        for place, byte in enumerate(text):
            for size in range(min(place, 2) + 1):
                after[text[place - size : place]][byte] += 1
    return after


def chance_of(byte, context, after):
    """By recursion over shorter contexts."""
    lower = chance_of(byte, context[1:], after) if context else 1 / 256
    counts = after[context]
    return (counts[byte] + len(counts) * lower) / (counts.total() + len(counts)) if counts else lower


@pytest.mark.parametrize("tokenizer", [{"name": "bytes"}, {"name": "bpe", "vocab_size": 300}])
def test_losses_equal_those_of_dictionaries(place, asked_of, monkeypatch, tokenizer):
    """Each target is its stretch of text, scored byte by byte, with documents counted in small pieces."""
    monkeypatch.setattr(fixed_target, "CHUNK", 7)
    texts = {f"{i}.txt": f"naïve 🙂 thing {i}, the thing of things\r\n" * 20 for i in range(30)}
    folder = write(place / "texts", texts)
    by_bytes, store = tiny_model.tokens_of(folder), tiny_model.tokens_of(folder, tokenizer)
    plan = fixed_target.plan(asked_of([T, 2 * T], store=store))
    sums = fixed_target.trigram_sums(by_bytes, store, "test", plan)
    train = by_bytes.splits["train"]
    after = counted(by_bytes.document("train", i).tobytes() for i in range(len(train.ids)))
    nats, sizes = Counter(), Counter()
    for document, end in zip(plan.documents.tolist(), plan.ends.tolist(), strict=True):
        start = int(store.splits["test"].starts[document])
        begin, stop = (
            int(store.bytes_between(np.array([start]), np.array([start + to]))[0])
            for to in (end - plan.block, end)
        )
        text = by_bytes.document("test", document).tobytes()
        chances = [chance_of(text[at], text[max(0, at - 2) : at], after) for at in range(begin, stop)]
        nats[document] -= math.fsum(map(math.log, chances))
        sizes[document] += stop - begin
    assert sums.nats == pytest.approx(list(nats.values()), rel=1e-12)
    assert sums.bytes.tolist() == list(sizes.values()) and sums.targets.sum() == len(plan.ends) * plan.block
    assert (sums.bytes.sum() > sums.targets.sum()) == (tokenizer["name"] == "bpe")


def test_a_window_without_room_for_two_copies_is_a_note(subject_of, asked_of, measured):
    subject, size = subject_of("nope"), T // 4
    records = measured(subject, [2 * size - 2, 2 * size - 1, 2 * T], protocols=["induction"])
    assert records["induction", 2 * size - 2]["note"] == f"n/a: two copies of {size} tokens do not fit into 6"
    assert records["induction", 2 * size - 1]["nats"] is not None  # the gap is 0
