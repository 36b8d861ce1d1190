"""Whether JSON from a file is a record, or the facts of a run: the right types and finite numbers."""

from __future__ import annotations

import math
from typing import Any, cast

from posenc.results.records import Record, RunFacts

TEXTS = ("protocol", "corpus", "fingerprint", "split", "targets_hash", "unit")
COUNTS = ("window", "checkpoint_step", "targets", "documents")
NUMBERS = ("nats", "bpb")
LARGEST = 1e100  # beyond it sums and squares overflow
SCALARS = {str, bool, int, float}
DEEPEST = 20  # levels of nesting; settings have three


def check_record(data: object) -> Record:
    """`data` as a Record. Raises ValueError that names the first wrong field."""
    if not isinstance(data, dict):
        raise ValueError("a record is not an object")
    _need(data, TEXTS, lambda v: isinstance(v, str), "text")
    _need(data, COUNTS, _is_count, "a whole number from 0")
    _need(data, ("multiple",), lambda v: _is_number(v) and v > 0, "a positive number")
    _need(data, ("seconds",), _is_number, "a number")
    _need(data, NUMBERS, lambda v: v is None or _is_number(v), "a finite number or null")
    _need(data, ("ppl",), lambda v: v is None or _is_number(v) or _is_finite(v), "a number or null")
    _need(data, ("stride",), lambda v: v is None or _is_count(v), "a whole number or null")
    _need(data, ("beyond", "note"), lambda v: v is None or isinstance(v, str), "text or null")
    _need(data, ("extend",), lambda v: v is None or _is_named(v), "null or an object with a name")
    _need(data, ("ci95",), lambda v: v is None or _is_interval(v), "[lo, hi] or null")
    _need(data, ("per_document",), lambda v: v is None or _is_per_document(v), "aligned lists or null")
    if "curve" in data:
        _check_curve(data["curve"])
    extend = data["extend"] or {}
    if not is_shallow(extend):
        raise ValueError("record.extend: nested too deep")
    if not _is_list(extend.get("tuned", []), lambda v: isinstance(v, str)):
        raise ValueError("record.extend.tuned: must be a list of text")
    if data["window"] == 0:
        raise ValueError("record.window: must be positive")
    if data["nats"] is None and data["note"] is None:
        raise ValueError("record.nats: null without a note")
    return cast(Record, data)


def check_facts(data: object) -> RunFacts:
    """`data` as RunFacts: what a comparison needs. Raises ValueError that names the wrong field."""
    if not isinstance(data, dict):
        raise ValueError("run: not an object")
    if not is_shallow(data):
        raise ValueError("run: nested too deep")
    _need(data, ("encoding",), _is_named, "an object with a name", "run")
    _need(data, ("context_length",), lambda v: _is_count(v) and v > 0, "a positive whole number", "run")
    _need(data, ("seed",), lambda v: isinstance(v, int) and not isinstance(v, bool), "a whole number", "run")
    for field in ("model", "parameters", "corpus"):
        if not isinstance(data.get(field, {}), dict):
            raise ValueError(f"run.{field}: must be an object")
    if not isinstance(data.get("code", ""), str):
        raise ValueError("run.code: must be text")
    for field in ("tokens", "steps"):
        if not _is_count(data.get(field, 0)):
            raise ValueError(f"run.{field}: must be a whole number from 0")
    return cast(RunFacts, data)


def _check_curve(curve: object) -> None:
    if not isinstance(curve, dict):
        raise ValueError("record.curve: not an object")
    of = "record.curve"
    _need(curve, ("edges", "targets"), _are_counts, "whole numbers", of)
    _need(curve, ("nats", "rise"), _are_numbers, "numbers", of)
    _need(curve, ("level",), _is_number, "a number", of)
    _need(curve, ("slope",), lambda v: v is None or _is_number(v), "a number or null", of)
    _need(curve, ("breaks_at",), lambda v: v is None or _is_count(v), "a whole number or null", of)
    _need(curve, ("slope_ci95",), lambda v: v is None or _is_interval(v), "[lo, hi] or null", of)
    intervals = curve.get("rise_ci95")
    if not _is_list(intervals, lambda v: v is None or _is_interval(v)):
        raise ValueError(f"{of}.rise_ci95: must be a list of [lo, hi] or null")
    bins = len(curve["edges"]) - 1
    if bins < 1 or any(len(curve[key]) != bins for key in ("targets", "nats", "rise", "rise_ci95")):
        raise ValueError(f"{of}: lists of different lengths")
    if sorted(set(curve["edges"])) != curve["edges"]:
        raise ValueError(f"{of}.edges: must rise")


def is_shallow(value: object, levels: int = DEEPEST) -> bool:
    """Whether plain data is nested at most so deep, so that whoever walks it does not run out of stack."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(is_shallow(item, levels - 1) for item in items)
    return True


def is_plain(value: object) -> bool:
    """Whether it is what JSON holds: YAML has dates, sets and bytes, too. Not for what is nested deep."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list) else value is None or type(value) in SCALARS


def _need(data: dict[str, Any], fields: tuple[str, ...], fits: Any, kind: str, of: str = "record") -> None:
    for field in fields:
        if field not in data:
            raise ValueError(f"{of}.{field}: missing")
        if not fits(data[field]):
            raise ValueError(f"{of}.{field}: must be {kind}")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < LARGEST  # false for nan and infinity, too


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_named(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"] != ""


def _is_list(value: object, fits: Any) -> bool:
    return isinstance(value, list) and all(fits(item) for item in value)


def _are_numbers(value: object) -> bool:
    """As `_is_number` for a whole list; by built-ins, as there are thousands of long lists of documents."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int, float}:
        return False
    return not value or (min(value) > -LARGEST and max(value) < LARGEST and not math.isnan(sum(value)))


def _are_counts(value: object, least: int = 0) -> bool:
    """As `_is_count` for a whole list."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return False
    return not value or (min(value) >= least and max(value) < 2**63)


def _is_interval(value: object) -> bool:
    return _are_numbers(value) and len(cast(list[Any], value)) == 2


def _is_per_document(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    document, nats, targets, size = (value.get(key) for key in ("document", "nats", "targets", "bytes"))
    if not (_are_counts(document) and _are_numbers(nats) and _are_counts(targets, 1) and _are_counts(size)):
        return False
    lists = [cast(list[Any], one) for one in (document, nats, targets, size)]
    return len(set(map(len, lists))) == 1 and len(set(lists[0])) == len(lists[0])
