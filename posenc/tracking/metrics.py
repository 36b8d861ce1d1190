"""Evaluation records as a dashboard wants them: curves against window and position, summary, a table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posenc.results.settings import knob_words, spoken_name

MEASURES = ("nats", "bpb", "ppl")
COLUMNS = ("encoding", "protocol", "window", "multiple", "nats", "bpb", "ppl", "seed")

Record = Mapping[str, Any]
Config = Mapping[str, Any]  # the run's, as in its config.yaml


def by_window(records: Iterable[Record], config: Config) -> list[dict[str, float]]:
    """Return one row a window (tokens), shortest first, with the figures of every protocol measured there.

    A figure that is missing or not finite (out of memory, perplexity beyond a float) is left out.
    """
    rows: dict[int, dict[str, float]] = {}
    for record in records:
        row = rows.setdefault(int(record["window"]), {})
        row |= _finite(f"eval/{curve_name(record, config)}/", {name: record.get(name) for name in MEASURES})
    return [{"eval/window": window, **rows[window]} for window in sorted(rows) if rows[window]]


def by_position(records: Iterable[Record], config: Config) -> list[dict[str, float]]:
    """Return one row a bin of positions, with the loss (nats) and its rise over that at T of every curve.

    `eval/position` is the last position of the bin. Of several windows the longest is taken.
    """
    longest: dict[str, Record] = {}
    for record in records:
        name = curve_name(record, config)
        if record.get("curve") and record["window"] >= longest.get(name, record)["window"]:
            longest[name] = record
    rows: dict[int, dict[str, float]] = {}
    for name, record in longest.items():
        curve = record["curve"]
        for i, edge in enumerate(curve["edges"][1:]):
            measured = {f"{measure}-by-position": curve[measure][i] for measure in ("nats", "rise")}
            row = rows.setdefault(edge - 1, {})
            row |= _finite(f"eval/{name}/", measured)
    return [{"eval/position": at, **rows[at]} for at in sorted(rows) if rows[at]]


def summary(records: Iterable[Record], config: Config) -> dict[str, float]:
    """Return `eval/<protocol>/nats@8x` for every multiple of the training length."""
    figures: dict[str, float] = {}
    for record in records:
        prefix = f"eval/{curve_name(record, config)}/nats"
        figures |= _finite(prefix, {f"@{record['multiple']:g}x": record.get("nats")})
    return figures


def table_rows(records: Iterable[Record], config: Config) -> list[list[Any]]:
    """Return the rows of `COLUMNS`; the encoding's name and the seed are taken from the run's `config`."""
    name = spoken_name(config.get("encoding"))
    rows = []
    for record in records:
        measured = _finite("", {measure: record.get(measure) for measure in MEASURES})
        figures = [float(record["multiple"]), *(measured.get(measure) for measure in MEASURES)]
        rows.append([name, curve_name(record, config), int(record["window"]), *figures, config.get("seed")])
    return rows


def apart(records: Sequence[Record], config: Config) -> list[dict[str, Any]]:
    """Return the records; those of other targets than the run's own have words for it under `targets_are`.

    `eval.lengths` and `eval.max_targets` of a later evaluation choose other targets, and losses on them are
    points of another curve. Where each window has targets of its own, they are one.
    """
    sets: dict[tuple[Any, ...], dict[Any, list[Record]]] = defaultdict(dict)
    for record in records:
        text = [record.get(key) for key in ("protocol", "corpus", "split", "stride")]
        sets[tuple(text)].setdefault(record.get("targets_hash"), []).append(record)
    longest = _own(config).get("longest")
    words: dict[Any, str] = {}
    for found in sets.values():
        shared = {key: some for key, some in found.items() if len({one["window"] for one in some}) > 1}
        targets = {key: max(int(one.get("targets") or 0) for one in some) for key, some in shared.items()}
        far = {key: max(one["window"] for one in some) for key, some in shared.items()}
        own = max(shared, key=lambda key: (far[key] == longest, targets[key]), default=None)
        words |= {key: f"on {targets[key]} targets" for key in shared if key != own}
    return [{**one, "targets_are": words.get(one.get("targets_hash"))} for one in records]


def curve_name(record: Record, config: Config) -> str:
    """Return the protocol and the test-time extension: `fixed-target`, `fixed-target+yarn`.

    What was measured in another way than the run's own `config` says has words for it, so that it is a
    curve beside the run's: `fixed-target+yarn beta_fast=4`, `fixed-target on stdlib`, `sliding stride 8`.
    """
    name, words = str(record["protocol"]), []
    extend = record.get("extend")
    if extend is not None:
        name += f"+{extend['name']}"
        words += knob_words(extend)
    own = _own(config)
    for key, word in (("corpus", "on "), ("split", ""), ("stride", "stride ")):
        value = record.get(key)
        if value is not None and key in own and value != own[key]:
            words.append(f"{word}{value}")
    if record.get("targets_are") is not None:
        words.append(record["targets_are"])
    return " ".join([name, *words])


def _own(config: Config) -> dict[str, Any]:
    """Return how the run itself is measured, as far as it says so; stride and longest window in tokens."""
    from posenc.evaluation import resolve_length
    from posenc.evaluation.fixed_target import block_of  # they import torch

    asked, length = config.get("eval") or {}, config.get("context_length")
    own = {"corpus": (config.get("data") or {}).get("name"), "split": asked.get("split")}
    if length and asked.get("lengths"):
        own["longest"] = max(resolve_length("eval.lengths", one, length) for one in asked["lengths"])
    if length and asked.get("stride") is not None:
        own["stride"] = resolve_length("eval.stride", asked["stride"], length)
    elif length and "target_fraction" in asked:
        own["stride"] = block_of(asked["target_fraction"], length)
    return {key: value for key, value in own.items() if value is not None}


def _finite(prefix: str, figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that are finite numbers, by prefix and name."""
    there = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
    return {prefix + name: float(value) for name, value in there.items() if math.isfinite(value)}
