"""The trigram reference against dictionaries, one byte at a time."""

import math
from collections import Counter

import numpy as np
import pytest
import tiny_model
from tiny_model import T

from posenc.evaluation import fixed_target, trigram


class Slow:
    """Counts of every context in a dictionary; P by recursion over shorter contexts."""

    def __init__(self, documents):
        self.after = {}
        for text in documents:
            for place, byte in enumerate(text):
                for size in range(min(place, 2) + 1):
                    self.after.setdefault(text[place - size : place], Counter())[byte] += 1

    def p(self, context, byte):
        lower = self.p(context[1:], byte) if context else 1 / 256
        counts = self.after.get(context)
        if counts is None:
            return lower
        return (counts[byte] + len(counts) * lower) / (counts.total() + len(counts))

    def nats(self, text, begin, end):
        return -math.fsum(
            math.log(self.p(text[max(0, place - 2) : place], text[place])) for place in range(begin, end)
        )


@pytest.mark.parametrize("tokenizer", [{"name": "bytes"}, {"name": "bpe", "vocab_size": 300}])
def test_losses_equal_those_of_dictionaries(place, asked_of, monkeypatch, tokenizer):
    """Each target is its stretch of text, scored byte by byte, with documents counted in small pieces."""
    monkeypatch.setattr(trigram, "CHUNK", 7)
    folder = place / "texts"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i}.txt").write_text(f"naïve 🙂 thing {i}, the thing of things\r\n" * 20, newline="")
    by_bytes, store = tiny_model.tokens_of(folder), tiny_model.tokens_of(folder, tokenizer)
    plan = fixed_target.plan(asked_of([T, 2 * T], store=store))
    sums = trigram.trigram_sums(by_bytes, store, "test", plan)
    train = by_bytes.splits["train"]
    slow = Slow([by_bytes.document("train", i).tobytes() for i in range(len(train.ids))])
    nats, sizes = dict.fromkeys(plan.documents.tolist(), 0.0), dict.fromkeys(plan.documents.tolist(), 0)
    for document, end in zip(plan.documents.tolist(), plan.ends.tolist(), strict=True):
        start = int(store.splits["test"].starts[document])
        begin, stop = (
            int(store.bytes_between(np.array([start]), np.array([start + to]))[0])
            for to in (end - plan.block, end)
        )
        nats[document] += slow.nats(by_bytes.document("test", document).tobytes(), begin, stop)
        sizes[document] += stop - begin
    assert sums.nats == pytest.approx(list(nats.values()), rel=1e-12)
    assert sums.bytes.tolist() == list(sizes.values()) and sums.targets.sum() == len(plan.ends) * plan.block
    assert (sums.bytes.sum() > sums.targets.sum()) == (tokenizer["name"] == "bpe")
