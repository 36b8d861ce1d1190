"""What must hold of the targets whatever is measured: the same ones, in their documents, with their bytes."""

import itertools
import math
from collections import Counter

import pytest
import tiny_model
from tiny import write
from tiny_model import T

from posenc.config.checks import check_evaluation, default_evaluation
from posenc.encodings.registry import own_encodings
from posenc.evaluation import PROTOCOLS
from posenc.evaluation.evaluate import protocol_module


@pytest.mark.parametrize(
    "encodings", [("rope", "learned", "fox"), pytest.param(own_encodings(), marks=pytest.mark.slow)]
)
def test_every_encoding_and_length_scores_the_same_targets(subject_of, measured, encodings):
    found = {}
    for encoding in encodings:
        records = measured(subject_of(encoding), [T // 2, T, 2 * T, 4 * T], max_targets=160)
        for (protocol, _), record in records.items():
            documents = record["per_document"]
            counts = tuple(zip(documents["document"], documents["targets"], documents["bytes"], strict=True))
            found.setdefault(protocol, set()).add((record["targets_hash"], record["targets"], counts))
    assert set(found) == set(PROTOCOLS)
    assert all(len(variants) == 1 for variants in found.values())


@pytest.mark.parametrize("protocol", ["fixed-target", "sliding", "nonoverlapping", "far-copy", "recall"])
def test_short_and_long_trained_models_score_the_same_targets(asked_of, protocol):
    """As experiment=headroom asks: by default they are others."""

    def hash_of(train_length, **changes):
        settings = {**default_evaluation(), "lengths": ["0.5x", "1x", "8x"], **changes}
        plan = check_evaluation(settings, train_length)
        sizes = {"target_fraction": plan.target_fraction, "stride": plan.stride, "recall": plan.recall}
        asked = asked_of(plan.windows, train_length=train_length, base_length=plan.base_length, **sizes)
        return str(protocol_module(protocol).plan(asked).hash)

    assert hash_of(T) == hash_of(8 * T, base_length=T) != hash_of(2 * T)
    assert hash_of(T, base_length=T) == hash_of(T)


def test_truncate_is_the_crop_line_exactly(subject_of, measured):
    records = measured(subject_of("learned", beyond="truncate"), [T, 2 * T, 4 * T, 8 * T])
    for protocol, window in itertools.product(("fixed-target", "far-copy"), (2 * T, 4 * T, 8 * T)):
        crop, record = records[protocol, T], records[protocol, window]
        assert record["per_document"] == crop["per_document"] and record["nats"] == crop["nats"]
        assert record["beyond"] == "truncate"
    other = records["nonoverlapping", 8 * T]
    assert other["nats"] is None and other["targets"] == 0
    assert other["note"] == f"n/a: beyond=truncate keeps {T} tokens, {8 * T} were to be scored"
    assert records["induction", 8 * T]["nats"] is not None  # without its first copy
    assert records["positions", 8 * T]["note"] == other["note"]


@pytest.mark.parametrize("protocol", sorted(set(PROTOCOLS) - {"induction", "recall", "key-tokens"}))
def test_bytes_are_those_of_the_scored_text(subject_of, measured, asked_of, place, protocol):
    things = ["thing of things", "naïve 🙂 one", "and so on", "then this", "a long while ago"]
    lines = [[f"{things[k * (i + k) % 5]}, {k * i % 7}\r\n" for k in range(60)] for i in range(40)]
    folder = write(place / "texts", {f"{i}.txt": "".join(text) for i, text in enumerate(lines)})
    store = tiny_model.tokens_of(folder, {"name": "bpe", "vocab_size": 300})
    subject = subject_of("nope", tokens=store)
    record = measured(subject, [T, 2 * T], protocols=[protocol], max_targets=2000)[protocol, 2 * T]
    plan = protocol_module(protocol).plan(asked_of([T, 2 * T], store=store, max_targets=2000))
    ends = store.splits["test"].starts[plan.documents] + plan.ends
    expected = Counter()
    for document, end in zip(plan.documents.tolist(), ends.tolist(), strict=True):
        expected[document] += int(store.token_bytes[end - plan.block : end].astype(int).sum())
    documents = record["per_document"]
    assert dict(zip(documents["document"], documents["bytes"], strict=True)) == expected
    total = sum(expected.values())
    assert total > record["targets"]  # several bytes a token, or the tokenizer did nothing
    assert record["bpb"] == pytest.approx(math.fsum(documents["nats"]) / math.log(2) / total)
