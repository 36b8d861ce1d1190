"""The unigram reference against a dictionary of frequencies, one token at a time."""

import math
from collections import Counter

import pytest
from measuring import protocol_of
from tiny_model import T

from posenc.evaluation.unigram import unigram_sums


def test_losses_are_those_of_the_frequencies_of_the_measured_documents(store, asked_of):
    plan = protocol_of("fixed-target").plan(asked_of([T, 2 * T], store=store))
    sums = unigram_sums(store, "test", plan)
    documents = [store.document("test", i).tolist() for i in range(len(store.splits["test"].ids))]
    counts = Counter(token for document in documents for token in document)
    total = sum(counts.values())
    by_hand = Counter()
    for document, end in zip(plan.documents.tolist(), plan.ends.tolist(), strict=True):
        for token in documents[document][end - plan.block : end]:
            by_hand[document] -= math.log(counts[token] / total)
    assert sums.documents.tolist() == sorted(by_hand)
    assert sums.nats.tolist() == pytest.approx([by_hand[document] for document in sorted(by_hand)])
    assert sums.targets.sum() == len(plan.ends) * plan.block
