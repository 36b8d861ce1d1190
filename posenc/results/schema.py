"""Old home of names that moved; deleted once nobody imports it."""

from typing import Any

from posenc.results.numbers import HUGE, perplexity, printed, printed_change
from posenc.results.records import (
    BREAK,
    HEADLINE,
    INFLATED,
    METRICS,
    RECALL,
    REFERENCE_PROTOCOL,
    SCHEMA_VERSION,
    UNIT,
    Curve,
    DocumentSums,
    Metric,
    PerDocument,
    Recall,
    Record,
    RecordContext,
    RecordKey,
    RunFacts,
    check_record,
    check_results,
)
from posenc.results.records import make_record as make_record_of


def target_set(record: Record) -> tuple[str, str, int, str]:
    return record["fingerprint"], record["split"], record["stride"] or 0, record["targets_hash"]


def make_record(**fields: Any) -> Record:
    """The signature of before."""
    sums = None
    if len(fields.get("documents", ())):
        columns = ("documents", "nats", "targets", "bytes", "groups")
        sums = DocumentSums(*(fields.get(name) for name in columns))  # type: ignore[arg-type]
    context = ("corpus", "train_length", "seconds", "unit", "beyond", "precision")
    key = {name: fields[name] for name in RecordKey.__dataclass_fields__ if name in fields}
    return make_record_of(
        RecordKey(**key),
        RecordContext(**{name: fields[name] for name in context if name in fields}),
        sums,
        note=fields.get("note"),
        extra={name: fields[name] for name in ("curve", "recall") if fields.get(name) is not None},
    )


__all__ = [
    "BREAK",
    "HEADLINE",
    "HUGE",
    "INFLATED",
    "METRICS",
    "RECALL",
    "REFERENCE_PROTOCOL",
    "SCHEMA_VERSION",
    "UNIT",
    "Curve",
    "Metric",
    "PerDocument",
    "Recall",
    "Record",
    "RunFacts",
    "check_record",
    "check_results",
    "make_record",
    "perplexity",
    "printed",
    "printed_change",
    "target_set",
]
