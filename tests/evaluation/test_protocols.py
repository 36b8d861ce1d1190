"""Protocols against the slow way, and what must hold of every encoding."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_way
import tiny_model
from tiny_model import T

from posenc.corpus import TokenStore
from posenc.encodings.registry import own_encodings
from posenc.evaluation import fixed_target, nonoverlapping
from posenc.evaluation.subject import Subject
from posenc.results.records import Record

Measured = Callable[..., dict[tuple[str, int], Record]]
SubjectOf = Callable[..., Subject]
ARGUMENTS = {"train_length": T, "target_fraction": 0.25, "max_targets": 112, "identity": "any"}


@pytest.mark.parametrize("batch_tokens", [T, 500])
@pytest.mark.parametrize("encoding", ["learned", "rope", "alibi"])
def test_fixed_target_equals_one_target_at_a_time(
    subject_of: SubjectOf, encoding: str, batch_tokens: int
) -> None:
    subject = subject_of(encoding, batch_tokens=batch_tokens)
    store, windows = subject.store, [T // 2, T, 4 * T]
    plan = fixed_target.plan(store.splits["test"].lengths, windows, **ARGUMENTS)
    for window in windows:
        sums = fixed_target.measure(subject, plan, window)
        slow = slow_way.fixed_target(
            subject.model, store, plan.documents.tolist(), plan.ends.tolist(), plan.block, window
        )
        assert sums.nats.sum() / sums.targets.sum() == pytest.approx(slow, abs=1e-4)
        assert sums.targets.sum() == len(plan.ends) * plan.block == 104


@pytest.mark.parametrize("encoding", ["learned", "rope", "alibi"])
def test_nonoverlapping_equals_one_target_at_a_time(subject_of: SubjectOf, encoding: str) -> None:
    subject = subject_of(encoding, batch_tokens=100)
    store = subject.store
    for windows in ([T, 3 * T], [T, 20, 3 * T]):  # 20 leaves a rest of 8
        plan = nonoverlapping.plan(store.splits["test"].lengths, windows, **ARGUMENTS)
        for window in windows:
            sums = nonoverlapping.measure(subject, plan, window)
            slow = slow_way.nonoverlapping(
                subject.model, store, plan.documents.tolist(), plan.starts.tolist(), plan.span, window
            )
            assert sums.nats.sum() / sums.targets.sum() == pytest.approx(slow, abs=1e-4), window
            assert sums.targets.sum() == 96


def test_sums_stay_with_their_document(subject_of: SubjectOf, store: TokenStore) -> None:
    subject = subject_of("rope")
    plan = fixed_target.plan(store.splits["test"].lengths, [T, 2 * T], **ARGUMENTS)
    sums = fixed_target.measure(subject, plan, 2 * T)
    for row, document in enumerate(sums.documents.tolist()):
        ends = plan.ends[plan.documents == document].tolist()
        slow = slow_way.fixed_target(subject.model, store, [document] * len(ends), ends, plan.block, 2 * T)
        assert sums.nats[row] / sums.targets[row] == pytest.approx(slow, abs=1e-4)
        assert sums.targets[row] == len(ends) * plan.block


def test_every_encoding_and_length_scores_the_same_targets(subject_of: SubjectOf, measured: Measured) -> None:
    found: dict[str, set[Any]] = {}
    for encoding in own_encodings():
        for (protocol, _), record in measured(subject_of(encoding), [T // 2, T, 2 * T, 8 * T]).items():
            documents = record["per_document"]
            assert documents is not None
            counts = tuple(zip(documents["document"], documents["targets"], documents["bytes"], strict=True))
            found.setdefault(protocol, set()).add((record["targets_hash"], record["targets"], counts))
    assert set(found) == {"fixed-target", "nonoverlapping"}
    assert all(len(variants) == 1 for variants in found.values())


def test_windows_end_at_the_same_token(
    subject_of: SubjectOf, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model is shown at 4T ends with what it is shown at T, and its targets are the same."""
    subject, shown = subject_of("nope"), []
    forward = subject.model.forward

    def watched(tokens: Any, pos: Any, wanted: int | None = None) -> Any:
        shown.append((tokens.clone(), pos.clone(), wanted))
        return forward(tokens, pos, wanted)

    monkeypatch.setattr(subject.model, "forward", watched)
    plan = fixed_target.plan(store.splits["test"].lengths, [T, 4 * T], **ARGUMENTS)
    seen = {}
    for window in (T, 4 * T):
        shown.clear()
        fixed_target.measure(subject, plan, window)
        assert all(pos.tolist() == list(range(window)) and wanted == 4 for _, pos, wanted in shown)
        seen[window] = np.concatenate([tokens.numpy() for tokens, _, _ in shown])
    assert np.array_equal(seen[T], seen[4 * T][:, -T:])


def test_truncate_is_the_crop_line_exactly(subject_of: SubjectOf, measured: Measured) -> None:
    records = measured(subject_of("learned", beyond="truncate"), [T, 2 * T, 4 * T, 8 * T])
    crop = records["fixed-target", T]
    for window in (2 * T, 4 * T, 8 * T):
        record = records["fixed-target", window]
        assert record["per_document"] == crop["per_document"] and record["nats"] == crop["nats"]
        assert record["beyond"] == "truncate"
        other = records["nonoverlapping", window]
        assert other["nats"] is None and other["targets"] == 0
        assert other["note"] == f"n/a: beyond=truncate keeps {T} tokens, {window} were to be scored"
    assert records["nonoverlapping", T]["nats"] is not None


def test_refuse_gives_no_number_past_training(subject_of: SubjectOf, measured: Measured) -> None:
    records = measured(subject_of("learned", beyond="refuse"), [T // 2, T, 2 * T])
    for protocol in ("fixed-target", "nonoverlapping"):
        assert records[protocol, T // 2]["nats"] is not None and records[protocol, T]["nats"] is not None
        assert records[protocol, 2 * T]["nats"] is None
        assert records[protocol, 2 * T]["note"] == f"refused: beyond='refuse' past {T} tokens"


@pytest.mark.parametrize("protocol", ["fixed-target", "nonoverlapping"])
def test_bytes_are_those_of_the_scored_text(
    subject_of: SubjectOf, measured: Measured, place: Path, protocol: str
) -> None:
    folder = place / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"naïve 🙂 thing {i}, the thing of things\r\n" * 30, newline="")
    store = tiny_model.tokens_of(folder, {"name": "bpe", "vocab_size": 300})
    subject = subject_of("nope", tokens=store)
    record = measured(subject, [T, 2 * T])[protocol, 2 * T]
    module = {"fixed-target": fixed_target, "nonoverlapping": nonoverlapping}[protocol]
    plan = module.plan(
        store.splits["test"].lengths, [T, 2 * T], **{**ARGUMENTS, "max_targets": 300, "identity": ""}
    )
    expected = dict.fromkeys(plan.documents.tolist(), 0)
    for row, document in enumerate(plan.documents.tolist()):
        split = store.splits["test"]
        if protocol == "fixed-target":
            first, count = int(plan.ends[row]) - plan.block, plan.block
        else:
            first, count = int(plan.starts[row]) + 1, plan.span
        begin = int(split.starts[document]) + first
        expected[document] += int(store.token_bytes[begin : begin + count].astype(int).sum())
    documents = record["per_document"]
    assert dict(zip(documents["document"], documents["bytes"], strict=True)) == expected
    total = sum(expected.values())
    assert total > record["targets"]  # several bytes a token, or the tokenizer did nothing
    nats = math.fsum(documents["nats"])
    assert record["bpb"] == pytest.approx(nats / math.log(2) / total)
    assert record["nats"] == pytest.approx(nats / record["targets"])
    assert record["ppl"] == pytest.approx(math.exp(record["nats"]))
