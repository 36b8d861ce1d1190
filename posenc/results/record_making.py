"""Make a record: what tells it from others, and the numbers that its sums by document give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from posenc.results.numbers import perplexity
from posenc.results.records import UNIT, Record
from posenc.results.statistics.documents import PerDocument, ratio_interval

LATER_KEYS = ("precision",)  # fields of a RecordKey that older records do not have


@dataclass(frozen=True, kw_only=True)
class RecordKey:
    """What tells a record from others among those of a run, by which its file is named.

    The order of the fields is a part of the names of files. A new field comes last, is None by default, and
    is named in LATER_KEYS.
    """

    protocol: str
    window: int  # tokens
    extend: Mapping[str, Any] | None = None
    stride: int | None = None  # tokens
    fingerprint: str
    split: str
    targets_hash: str
    checkpoint_step: int
    precision: str | None = None  # of the measurement, where it is not the training's

    @classmethod
    def of(cls, record: Record) -> RecordKey:
        """Return the key of a stored record."""
        return cls(**{name: record.get(name) for name in cls.names()})  # type: ignore[arg-type]

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields, which are those of a record."""
        return [field.name for field in fields(cls)]

    def values(self) -> list[object]:
        """Return the values in the order of the fields, from which the name of the file is made."""
        values = {name: getattr(self, name) for name in self.names()}
        # Without a value they are left out, so that records from before there were such fields keep their
        # names.
        return [value for name, value in values.items() if value is not None or name not in LATER_KEYS]


@dataclass(frozen=True, kw_only=True)
class RecordContext:
    """Fields of a record that are neither in its key nor computed from its sums."""

    corpus: str  # name of the text
    train_length: int  # T, tokens
    seconds: float  # that the measurement took
    unit: str = UNIT
    beyond: str | None = None  # policy past T


@dataclass(frozen=True)
class DocumentSums:
    """Sums by document, aligned; documents are distinct indices in their split."""

    documents: Sequence[int]
    nats: Sequence[float]
    targets: Sequence[int]
    bytes: Sequence[int]
    groups: Sequence[int] | None = None


def make_record(
    key: RecordKey,
    context: RecordContext,
    sums: DocumentSums | None = None,
    *,
    note: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Record:
    """Make a record from sums by document: one division at the end, an interval clustered by document.

    Documents without a target are left out. A record without targets needs a `note` that says why. A sum
    that is not finite makes a record without numbers, noted `diverged`. `extra` are the fields that a
    protocol adds (`curve`, `recall`, `exact`).
    """
    per_document = None if sums is None else _per_document(sums)
    assert per_document is not None or note is not None, "a record without targets needs a note that says why"
    # A single document that is nan makes the sum nan, and JSON has neither nan nor infinity.
    if per_document is not None and not all(map(math.isfinite, per_document["nats"])):
        per_document = None
        note = note or "diverged"
    record = {
        "protocol": key.protocol,
        "extend": key.extend,
        "checkpoint_step": key.checkpoint_step,
        "corpus": context.corpus,
        "fingerprint": key.fingerprint,
        "split": key.split,
        "targets_hash": key.targets_hash,
        "unit": context.unit,
        "window": key.window,
        "multiple": key.window / context.train_length,
        "stride": key.stride,
        **_numbers(per_document),
        "per_document": per_document,
        "beyond": context.beyond,
        "note": note,
        "seconds": context.seconds,
        **(extra or {}),
    }
    if key.precision is not None:
        record["precision"] = key.precision
    return cast("Record", record)


def _per_document(sums: DocumentSums) -> PerDocument | None:
    """Return the sums as a record has them, by rising document; None without any target."""
    columns = zip(sums.documents, sums.nats, sums.targets, sums.bytes, strict=True)
    rows = []
    for document, nats, targets, size in columns:
        if targets > 0:
            rows.append((int(document), float(nats), int(targets), int(size)))
    # Two records are paired by place in these lists, and the order of measuring differs between windows.
    rows.sort()
    documents = [row[0] for row in rows]
    assert len(set(documents)) == len(documents), "every document may come once"
    if not rows:
        return None
    per_document = PerDocument(
        document=documents,
        nats=[row[1] for row in rows],
        targets=[row[2] for row in rows],
        bytes=[row[3] for row in rows],
    )
    if sums.groups is not None:
        group_of = dict(zip(sums.documents, sums.groups, strict=True))
        per_document["group"] = [int(group_of[document]) for document in documents]
    return per_document


def _numbers(sums: PerDocument | None) -> dict[str, Any]:
    """Return the fields of a record that are computed from its sums; null without them."""
    if sums is None:
        return {"nats": None, "bpb": None, "ppl": None, "targets": 0, "documents": 0, "ci95": None}
    # fsum rounds once, so that the loss does not depend on the order of the documents.
    total = math.fsum(sums["nats"])
    targets = sum(sums["targets"])
    size = sum(sums["bytes"])
    nats = total / targets
    ppl = perplexity(nats)
    return {
        "nats": nats,
        "bpb": total / (math.log(2) * size) if size else None,
        "ppl": ppl if math.isfinite(ppl) else None,
        "targets": targets,
        "documents": len(sums["document"]),
        "ci95": ratio_interval(sums["nats"], sums["targets"], sums.get("group")),
    }
