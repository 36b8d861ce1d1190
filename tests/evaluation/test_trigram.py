"""The trigram reference against dictionaries, one byte at a time."""

import dataclasses
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import tiny_model
from measuring import protocol_of
from tiny import write
from tiny_model import T

from posenc.evaluation import trigram


def counted(documents):
    """Count what comes after every context of up to two bytes."""
    after = defaultdict(Counter)
    for text in documents:
        for i, byte in enumerate(text):
            for size in range(min(i, 2) + 1):
                context = text[i - size : i]
                after[context][byte] += 1
    return after


def chance_of(byte, context, after):
    """Return the probability of a byte after a context, by recursion over shorter contexts."""
    lower_order = chance_of(byte, context[1:], after) if context else 1 / 256
    counts = after[context]
    if not counts:
        return lower_order
    return (counts[byte] + len(counts) * lower_order) / (counts.total() + len(counts))


def bytes_before(store, document, tokens):
    """Return the number of bytes in the first tokens of a test document."""
    start = int(store.splits["test"].starts[document])
    return int(store.bytes_between(np.array([start]), np.array([start + tokens]))[0])


def by_hand(by_bytes, store, plan):
    """Return nats and bytes of the targets by document."""
    train = by_bytes.splits["train"]
    after = counted(by_bytes.document("train", i).tobytes() for i in range(len(train.ids)))
    nats = Counter()
    sizes = Counter()
    for document, end in zip(plan.documents.tolist(), plan.ends.tolist(), strict=True):
        begin = bytes_before(store, document, end - plan.block)
        stop = bytes_before(store, document, end)
        text = by_bytes.document("test", document).tobytes()
        for i in range(begin, stop):
            context = text[max(0, i - 2) : i]
            nats[document] -= math.log(chance_of(text[i], context, after))
        sizes[document] += stop - begin
    return nats, sizes


@pytest.fixture(params=[{"name": "bytes"}, {"name": "bpe", "vocab_size": 300}], ids=["bytes", "bpe"])
def texts(request, working_folder):
    """The same texts tokenised by bytes and by a tokenizer."""
    names = {f"{i}.txt": f"naïve 🙂 thing {i}, the thing of things\r\n" * 20 for i in range(30)}
    folder = write(working_folder / "texts", names)
    return tiny_model.tokens_of(folder), tiny_model.tokens_of(folder, request.param)


def test_losses_equal_those_of_dictionaries(texts, asked_of, monkeypatch):
    """Each target is its stretch of text, scored byte by byte, with documents counted in small pieces."""
    monkeypatch.setattr(trigram, "CHUNK", 7)
    by_bytes, store = texts
    plan = protocol_of("fixed-target").plan(asked_of([T, 2 * T], store=store))
    sums = trigram.trigram_sums(by_bytes, store, "test", plan)
    nats, sizes = by_hand(by_bytes, store, plan)
    assert sums.nats == pytest.approx(list(nats.values()), rel=1e-12)
    assert sums.bytes.tolist() == list(sizes.values())
    assert sums.targets.sum() == len(plan.ends) * plan.block


def test_a_target_of_several_bytes_counts_once(texts, asked_of):
    by_bytes, store = texts
    plan = protocol_of("fixed-target").plan(asked_of([T, 2 * T], store=store))
    sums = trigram.trigram_sums(by_bytes, store, "test", plan)
    has_long_tokens = store.tokenizer["name"] != "bytes"
    assert (sums.bytes.sum() > sums.targets.sum()) == has_long_tokens


def test_the_reference_needs_the_bytes_of_the_same_corpus(texts, asked_of):
    by_bytes, store = texts
    plan = protocol_of("fixed-target").plan(asked_of([T, 2 * T], store=store))
    other = dataclasses.replace(by_bytes, fingerprint="another")
    with pytest.raises(ValueError, match="same corpus"):
        trigram.trigram_sums(other, store, "test", plan)
