"""What must hold of the targets whatever is measured: the same ones, in their documents, with their bytes."""

import math
from collections import Counter

import pytest
import tiny_model
from measuring import TEXT_PROTOCOLS, default_settings, protocol_of
from tiny import write
from tiny_model import T

from posenc.encodings.registry import own_encodings
from posenc.evaluation.resolve import resolve_evaluation


def targets_of(record):
    """What a record says of its targets."""
    sums = record["per_document"]
    if sums is None:  # nothing of needle or ruler fits into so short a window
        return record["targets_hash"], record["targets"], ()
    counts = tuple(zip(sums["document"], sums["targets"], sums["bytes"], strict=True))
    return record["targets_hash"], record["targets"], counts


@pytest.mark.parametrize(
    "encodings", [("rope", "learned", "fox"), pytest.param(own_encodings(), marks=pytest.mark.slow)]
)
def test_every_encoding_and_length_scores_the_same_targets(subject_of, measured, encodings):
    variants = {}
    for encoding in encodings:
        records = measured(subject_of(encoding), [T // 2, T, 2 * T, 4 * T], max_targets=160)
        for (protocol, window), record in records.items():
            # recall asks for more distances where more of them fit
            place = f"recall at {window}" if protocol == "recall" else protocol
            variants.setdefault(place, set()).add(targets_of(record))
    assert {place.partition(" ")[0] for place in variants} == set(TEXT_PROTOCOLS)
    assert {name: targets for name, targets in variants.items() if len(targets) > 1} == {}


@pytest.fixture
def hash_of(asked_of):
    """The hash of a protocol's targets, for a model of a training length, as experiment=headroom asks."""

    def make(protocol, context_length, base_length=None):
        settings = default_settings(
            lengths=["0.5x", "1x", "8x"], protocols=[protocol], base_length=base_length
        )
        evaluation = resolve_evaluation(settings, context_length)
        request = asked_of(evaluation.lengths.windows, context_length=context_length, base_length=base_length)
        return evaluation.protocols[0].plan(request).hash

    return make


FROM_BASE_LENGTH = [
    "fixed-target",
    "sliding",
    "nonoverlapping",
    "far-copy",
    "recall",
    "induction",
    "memory",
    "dispersion",
]
BASED = pytest.mark.parametrize("protocol", FROM_BASE_LENGTH)


@BASED
def test_short_and_long_trained_models_of_one_base_length_score_the_same_targets(hash_of, protocol):
    assert hash_of(protocol, T) == hash_of(protocol, 8 * T, base_length=T)


@BASED
def test_models_of_two_training_lengths_score_other_targets(hash_of, protocol):
    assert hash_of(protocol, T) != hash_of(protocol, 2 * T)


@BASED
def test_the_base_length_is_t_unless_said(hash_of, protocol):
    assert hash_of(protocol, T) == hash_of(protocol, T, base_length=T)


@pytest.fixture
def truncated(subject_of, measured):
    """Records of an encoding that keeps the last T tokens."""
    return measured(subject_of("learned", beyond="truncate"), [T, 2 * T, 4 * T, 8 * T])


@pytest.mark.parametrize("window", [2 * T, 4 * T, 8 * T])
@pytest.mark.parametrize("protocol", ["fixed-target", "far-copy"])
def test_truncate_is_the_crop_line_exactly(truncated, protocol, window):
    crop = truncated[protocol, T]
    record = truncated[protocol, window]
    assert record["per_document"] == crop["per_document"]
    assert record["nats"] == crop["nats"]
    assert record["beyond"] == "truncate"


@pytest.mark.parametrize("protocol", ["nonoverlapping", "positions"])
def test_targets_that_are_cut_off_are_a_note(truncated, protocol):
    record = truncated[protocol, 8 * T]
    assert record["note"] == f"n/a: beyond=truncate keeps {T} tokens, {8 * T} were to be scored"
    assert record["nats"] is None
    assert record["targets"] == 0


def test_the_second_copy_is_scored_without_the_first(truncated):
    assert truncated["induction", 8 * T]["nats"] is not None


OF_TEXT = sorted({*TEXT_PROTOCOLS} - {"induction", "recall", "key-tokens", "needle", "ruler"})
THINGS = ["thing of things", "naïve 🙂 one", "and so on", "then this", "a long while ago"]


@pytest.fixture
def tokens_of_several_bytes(working_folder):
    lines = [[f"{THINGS[k * (i + k) % 5]}, {k * i % 7}\r\n" for k in range(60)] for i in range(40)]
    folder = write(working_folder / "texts", {f"{i}.txt": "".join(text) for i, text in enumerate(lines)})
    return tiny_model.tokens_of(folder, {"name": "bpe", "vocab_size": 300})


@pytest.mark.parametrize("protocol", OF_TEXT)
def test_bytes_are_those_of_the_scored_text(
    subject_of, measured, asked_of, tokens_of_several_bytes, protocol
):
    store = tokens_of_several_bytes
    subject = subject_of("nope", tokens=store)
    record = measured(subject, [T, 2 * T], protocols=[protocol], max_targets=2000)[protocol, 2 * T]
    plan = protocol_of(protocol).plan(asked_of([T, 2 * T], store=store, max_targets=2000))
    by_hand = Counter()
    for document, stop in zip(plan.documents.tolist(), plan.stops(subject).tolist(), strict=True):
        by_hand[document] += int(store.token_bytes[stop - plan.block : stop].astype(int).sum())
    sums = record["per_document"]
    assert dict(zip(sums["document"], sums["bytes"], strict=True)) == by_hand
    total = sum(by_hand.values())
    assert total > record["targets"]  # several bytes a token, or the tokenizer did nothing
    assert record["bpb"] == pytest.approx(math.fsum(sums["nats"]) / math.log(2) / total)
