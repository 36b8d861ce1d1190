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
    """One row a window (tokens), shortest first, with the figures of every protocol measured there.

    Measures that share a row can be plotted against one another, so no window is spread over two rows.
    A figure that is missing or not finite (out of memory, perplexity beyond a float) is left out.
    """
    rows: dict[int, dict[str, float]] = {}
    for record in records:
        window = int(record["window"])
        row = rows.setdefault(window, {"eval/window": window})
        for measure in MEASURES:
            value = _finite(record.get(measure))
            if value is not None:
                row[f"eval/{curve_name(record, config)}/{measure}"] = value
    return [rows[window] for window in sorted(rows) if len(rows[window]) > 1]


def by_position(records: Iterable[Record], config: Config) -> list[dict[str, float]]:
    """One row a bin of positions, with the loss (nats) and its rise over that at T of every curve there.

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
        for i, position in enumerate(edge - 1 for edge in curve["edges"][1:]):
            row = rows.setdefault(position, {"eval/position": position})
            for measure in ("nats", "rise"):
                value = _finite(curve[measure][i])
                if value is not None:
                    row[f"eval/{name}/{measure}-by-position"] = value
    return [rows[position] for position in sorted(rows) if len(rows[position]) > 1]


def summary(records: Iterable[Record], config: Config) -> dict[str, float]:
    """`eval/<protocol>/nats@8x` for every multiple of the training length."""
    figures = {}
    for record in records:
        value, multiple = _finite(record.get("nats")), _finite(record.get("multiple"))
        if value is not None and multiple is not None:
            figures[f"eval/{curve_name(record, config)}/nats@{multiple:g}x"] = value
    return figures


def table_rows(records: Iterable[Record], config: Config) -> list[list[Any]]:
    """The rows of `COLUMNS`; the encoding's name and the seed are taken from the run's `config`."""
    name = spoken_name(config.get("encoding"))
    return [
        [
            name,
            curve_name(record, config),
            int(record["window"]),
            _finite(record.get("multiple")),
            *(_finite(record.get(measure)) for measure in MEASURES),
            config.get("seed"),
        ]
        for record in records
    ]


def apart(records: Sequence[Record], config: Config) -> list[dict[str, Any]]:
    """The records; those of other targets than the run's own have words for it under `targets_are`.

    `eval.lengths` and `eval.max_targets` of a later evaluation choose other targets, and losses on them are
    points of another curve: `fixed-target to 16x`. Where each window has targets of its own, they are one.
    """
    sets: dict[tuple[Any, ...], dict[Any, list[Record]]] = defaultdict(dict)
    for record in records:
        text = [record.get(key) for key in ("protocol", "corpus", "split", "stride")]
        sets[tuple(text)].setdefault(record.get("targets_hash"), []).append(record)
    longest, words = _own(config).get("longest"), {}
    for found in sets.values():
        windows = {key: {one["window"] for one in some} for key, some in found.items()}
        if sum(map(len, windows.values())) == len(set().union(*windows.values())) == len(windows):
            continue
        most = {key: max(int(one.get("targets") or 0) for one in some) for key, some in found.items()}
        own = min(found, key=lambda key: (max(windows[key]) != longest, -most[key]))
        for key in found.keys() - {own}:
            last = max(found[key], key=lambda one: one["window"])
            other = max(windows[key]) != max(windows[own])
            words[key] = f"to {last['multiple']:g}x" if other else f"{most[key]} targets"
    return [{**one, "targets_are": words.get(one.get("targets_hash"))} for one in records]


def curve_name(record: Record, config: Config) -> str:
    """The protocol and the test-time extension: `fixed-target`, `fixed-target+yarn`.

    What was measured in another way than the run's own `config` says has words for it, so that it is a
    curve beside the run's: `fixed-target+yarn beta_fast=4`, `fixed-target on stdlib`, `sliding stride 8`.
    Other targets than the run's own are told where `apart` has found them.
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
    """How the run itself is measured, as far as it says so; the stride and the longest window in tokens."""
    from posenc.evaluation.fixed_target import block_of  # they import torch
    from posenc.evaluation.lengths import resolve_length

    asked, length = config.get("eval") or {}, config.get("context_length")
    own = {"corpus": (config.get("data") or {}).get("name"), "split": asked.get("split")}
    if length and asked.get("lengths"):
        own["longest"] = max(resolve_length("eval.lengths", one, length) for one in asked["lengths"])
    if length and asked.get("stride") is not None:
        own["stride"] = resolve_length("eval.stride", asked["stride"], length)
    elif length and "target_fraction" in asked:
        own["stride"] = block_of(asked["target_fraction"], length)
    return {key: value for key, value in own.items() if value is not None}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
