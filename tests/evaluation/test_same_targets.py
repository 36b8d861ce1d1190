"""What must hold of the targets whatever is measured: the same ones, in their documents, with their bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from tiny_model import T

from posenc.encodings.registry import own_encodings
from posenc.evaluation import PROTOCOLS, far_copy, fixed_target
from posenc.evaluation.evaluate import protocol_module
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import EvalRequest, windows_of
from posenc.results.schema import Record

Measured = Callable[..., dict[tuple[str, int], Record]]
SubjectOf = Callable[..., EvalContext]
AskedOf = Callable[..., EvalRequest]


@pytest.mark.parametrize(
    "encodings", [("rope", "learned", "fox"), pytest.param(own_encodings(), marks=pytest.mark.slow)]
)
def test_every_encoding_and_length_scores_the_same_targets(
    subject_of: SubjectOf, measured: Measured, encodings: list[str]
) -> None:
    found: dict[str, set[Any]] = {}
    for encoding in encodings:
        records = measured(subject_of(encoding), [T // 2, T, 2 * T, 4 * T], max_targets=160)
        for (protocol, _), record in records.items():
            documents = record["per_document"]
            assert documents is not None, (encoding, record["note"])
            counts = tuple(zip(documents["document"], documents["targets"], documents["bytes"], strict=True))
            found.setdefault(protocol, set()).add((record["targets_hash"], record["targets"], counts))
    assert set(found) == set(PROTOCOLS)
    assert all(len(variants) == 1 for variants in found.values())


def test_truncate_is_the_crop_line_exactly(subject_of: SubjectOf, measured: Measured) -> None:
    records = measured(subject_of("learned", beyond="truncate"), [T, 2 * T, 4 * T, 8 * T])
    for protocol in ("fixed-target", "far-copy"):
        crop = records[protocol, T]
        for window in (2 * T, 4 * T, 8 * T):
            record = records[protocol, window]
            assert record["per_document"] == crop["per_document"] and record["nats"] == crop["nats"]
            assert record["beyond"] == "truncate"
    for window in (2 * T, 4 * T, 8 * T):
        other = records["nonoverlapping", window]
        assert other["nats"] is None and other["targets"] == 0
        assert other["note"] == f"n/a: beyond=truncate keeps {T} tokens, {window} were to be scored"
        assert records["induction", window]["nats"] is not None  # without its first copy
    assert records["nonoverlapping", T]["nats"] is not None
    assert records["positions", 8 * T]["note"] == records["nonoverlapping", 8 * T]["note"]


def scored(plan: Any) -> list[tuple[int, int, int]]:
    """(document, first target, targets) of a plan's stretches of text."""
    if isinstance(plan, fixed_target.Plan):
        firsts, count = plan.ends - plan.block, plan.block
    elif isinstance(plan, far_copy.Plan):
        firsts, count = plan.places, 1
    else:
        plan = getattr(plan, "spans", plan)
        firsts, count = plan.starts + 1, plan.span
    return [(int(d), int(f), count) for d, f in zip(plan.documents, firsts, strict=True)]


@pytest.mark.parametrize("protocol", sorted(set(PROTOCOLS) - {"induction"}))
def test_bytes_are_those_of_the_scored_text(
    subject_of: SubjectOf, measured: Measured, asked_of: AskedOf, place: Path, protocol: str
) -> None:
    folder = place / "texts"
    folder.mkdir()
    things = ["thing of things", "naïve 🙂 one", "and so on", "then this", "a long while ago"]
    for i in range(40):
        text = "".join(f"{things[k * (i + k) % 5]}, {k * i % 7}\r\n" for k in range(60))
        (folder / f"{i}.txt").write_text(text, newline="")
    store = tiny_model.tokens_of(folder, {"name": "bpe", "vocab_size": 300})
    subject = subject_of("nope", tokens=store)
    record = measured(subject, [T, 2 * T], protocols=[protocol], max_targets=2000)[protocol, 2 * T]
    plan = protocol_module(protocol).plan(asked_of([T, 2 * T], store=store, max_targets=2000))
    expected: dict[int, int] = {}
    assert store.token_bytes is not None
    for document, first, count in scored(plan):
        begin = int(store.splits["test"].starts[document]) + first
        size = int(store.token_bytes[begin : begin + count].astype(int).sum())
        expected[document] = expected.get(document, 0) + size
    documents = record["per_document"]
    assert documents is not None
    assert dict(zip(documents["document"], documents["bytes"], strict=True)) == expected
    total = sum(expected.values())
    assert total > record["targets"]  # several bytes a token, or the tokenizer did nothing
    nats = math.fsum(documents["nats"])
    assert record["bpb"] == pytest.approx(nats / math.log(2) / total)
    assert record["nats"] == pytest.approx(nats / record["targets"])
    assert record["ppl"] == pytest.approx(math.exp(record["nats"]))


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_plan_knows_how_many_tokens_are_passed(
    subject_of: SubjectOf, asked_of: AskedOf, few_sequences: None, protocol: str
) -> None:
    module, subject = protocol_module(protocol), subject_of("nope")
    passed: list[int] = []
    subject.model.embedding.register_forward_pre_hook(lambda _, args: passed.append(args[0].numel()))
    asked = asked_of([T, 4 * T])
    plan = module.plan(asked)
    for window in windows_of(module, asked):
        passed.clear()
        module.measure(subject, plan, window)
        assert 0 < sum(passed) == plan.tokens(window)
