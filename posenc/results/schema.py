"""Old home of names that moved; deleted once nobody imports it."""

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
    Metric,
    PerDocument,
    Recall,
    Record,
    RunFacts,
    check_record,
    check_results,
    make_record,
)


def target_set(record: Record) -> tuple[str, str, int, str]:
    return record["fingerprint"], record["split"], record["stride"] or 0, record["targets_hash"]


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
