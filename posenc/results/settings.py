"""Settings of runs: which are seeds of a row or can share a ranking, `--where`; the records to compare.

Of each run one protocol, the last checkpoint, one set of targets.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from posenc.core.errors import UserError
from posenc.core.paths import choice_file
from posenc.results.load import Run, encoding_of
from posenc.results.schema import BINS, Record, TargetSet, multiple_of, target_set
from posenc.results.statistics import Sample

# Settings that leave the numbers alone, and those that posenc.results.rows compares on its own.
NOT_DEFINING = {"seed", "device", "name", "experiment_name", "experiment", "runs_dir", "plugins", "eval"}
NOT_DEFINING |= {"tracking", "hydra", "train.compile", "train.checkpoint_seconds", "train.log_every"}
NOT_DEFINING |= {"train.init", "train.began.run", "train.tuned"}  # another one for each seed
SKIPPED = NOT_DEFINING | {"model", "data", "tokenizer", "context_length", "train.tokens", "encoding.name"}
INSIDE = tuple(f"{key}." for key in SKIPPED)
SIZE = {"data.name", "tokenizer.name", "tokenizer.vocab_size", "context_length", "train.tokens"}
# Options of any encoding, their word in a row's name, and the default, which is not named.
OPTIONS = {
    "attention.name": ("attention", "mha"),
    "attention.window": ("window", "null"),
    "attention.scale": ("scale", "none"),
    "positions.name": ("positions", "contiguous"),
}


def settings_of(run: Run) -> dict[str, str]:
    """Return flat settings (`encoding.base`: "10000") from config.yaml, or from the facts without one."""
    facts = dict(run.facts or {})
    if run.config is not None:
        tree: dict[str, Any] = dict(run.config)
        if not isinstance(tree.get("encoding"), dict) and facts:
            tree["encoding"] = facts["encoding"]
    else:
        tree = {key: facts[key] for key in ("encoding", "attention", "positions") if key in facts}
        if "precision" in facts:
            tree["train"] = {"precision": facts["precision"]}
    tree = {key: value for key, value in tree.items() if key not in SKIPPED}
    return {key: text for key, text in flatten(tree).items() if not f"{key}.".startswith(INSIDE)}


def size_of(run: Run) -> dict[str, str] | None:
    """Return model, corpus and lengths of config.yaml, as flat settings without places; None without it.

    For a run without numbers nothing else tells whether it is a seed of a row.
    """
    if run.config is None:
        return None
    flat = flatten(run.config)
    model = {key for key in flat if key.startswith(("model.", "data.plant.")) and key != "model.name"}
    unused = {key for key in model if flat[key] == "null"}  # which earlier runs do not have
    return {key: flat[key] for key in sorted((SIZE | model) - unused) if key in flat}


def kind_of(run: Run, length: bool = True) -> tuple[str, str]:
    """Return encoding and settings, and the size, as comparable texts; without `length` of any T."""
    size = {key: value for key, value in (size_of(run) or {}).items() if length or key != "context_length"}
    kind = json.dumps([encoding_of(run), settings_of(run)], sort_keys=True)
    return kind, json.dumps(size, sort_keys=True)


def options_of(settings: Mapping[str, str]) -> list[str]:
    """Return words for the options that are not at their default: `window=16`, `positions=randomized`."""
    chosen = {word: (settings.get(key, default), default) for key, (word, default) in OPTIONS.items()}
    return [f"{word}={value}" for word, (value, default) in chosen.items() if value != default]


# Knobs that earlier records do not have, with the value that they stand for.
EARLIER: dict[str, dict[str, Any]] = {
    "ntk_by_parts": {"ramp": "turns"},
    "yarn": {"ramp": "turns", "mscale_all_dim": 1.0},
}


def knob_words(extension: Mapping[str, Any]) -> list[str]:
    """Return a record's extension knobs that differ from its YAML, and the names of those that were tuned."""
    tuned, path = extension.get("tuned", []), choice_file("extend", str(extension["name"]))
    usual = {} if path is None else flatten(own_yaml(path))
    left_out = {"name", "tuned", "tuned_on", "resolved", *tuned}
    extension = {**EARLIER.get(str(extension["name"]), {}), **extension}
    given = {key: text for key, text in flatten(extension).items() if key.split(".")[0] not in left_out}
    parts = [f"{key}={value}" for key, value in given.items() if usual.get(key) != value]
    return parts + ([f"(tuned: {', '.join(tuned)})"] if tuned else [])


@functools.cache
def own_yaml(path: Path) -> dict[str, Any]:
    """Return what one of posenc's YAML files holds."""
    import yaml

    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested mappings as dotted keys with comparable text values (JSON for what is not text)."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = as_text(value)
    return flat


def as_text(value: object) -> str:
    """Return a value as short text: numbers alike whether written 1000 or 1000.0."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, sort_keys=True, default=str)


def differing(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys in which the mappings are not all the same, sorted."""
    return sorted({key for row in rows[1:] if row != rows[0] for key, _ in row.items() ^ rows[0].items()})


# --- --where


def where(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that fulfil every condition: `encoding=rope,al*`, `train.lr!=0.002`.

    A key is one of KEYS or a dotted setting of config.yaml; a group without its field means its name. A run
    without a value fulfils no `=` and every `!=`. Raises UserError for a malformed condition, a key that no
    run has, and conditions that none fulfils.
    """
    kept = list(runs)
    for text in conditions:
        found = re.fullmatch(r"([A-Za-z_][\w.]*)(!?=)(.+)", text.strip())
        if found is None:
            allowed = "key=value, key=value,value, key!=value; values may be globs"
            raise UserError("--where", text, "not a condition", allowed=allowed)
        key, sign, asked = found.groups()
        patterns = [one.strip() for one in asked.split(",")]
        if runs and all(value_of_key(run, key) is None for run in runs):
            known = sorted({one for run in runs for one in _flat(run)} - {*KEYS, *ALIASES})
            raise UserError("--where", key, "no run has this key", allowed=[*KEYS, *ALIASES, *known])
        values = {id(run): value_of_key(run, key) for run in kept}
        before, kept = kept, [run for run in kept if _fits(values[id(run)], patterns) != (sign == "!=")]
        if before and not kept:
            there = sorted({value for value in values.values() if value is not None})
            raise UserError(f"--where {key}{sign[:-1]}", asked, "no run fulfils it", allowed=there)
    return kept


def _fits(value: str | None, patterns: Sequence[str]) -> bool:
    """Return whether it is one of the texts or numbers (1e-3 is 0.001), or fits one of the globs."""
    if value is None:
        return False
    for asked in patterns:
        if value == asked or fnmatch.fnmatchcase(value, asked):
            return True
        with contextlib.suppress(ValueError):
            if float(value) == float(asked):
                return True
    return False


def value_of_key(run: Run, key: str) -> str | None:
    """Return what a run has under a key, as text; None where it has nothing there."""
    if key in KEYS:
        value = KEYS[key](run)
        return None if value is None else as_text(value)
    flat = _flat(run)
    names = (one for name in ALIASES.get(key, (key,)) for one in (name, f"{name}.name"))
    return next((flat[name] for name in names if name in flat), None)


def _flat(run: Run) -> dict[str, str]:
    return flatten(dict(run.facts or {})) | flatten(run.config or {})


KEYS: dict[str, Callable[[Run], Any]] = {
    "encoding": encoding_of,
    "seed": lambda run: run.seed,
    "status": lambda run: run.state,
    "name": lambda run: run.name,
    "path": lambda run: str(run.path),
    "experiment": lambda run: (run.config or {}).get("experiment_name", run.path.parent.name) or None,
}
ALIASES = {"T": ("context_length",), "corpus": ("corpus", "data"), "data": ("data", "corpus")}


# --- the records that are compared

UNKNOWN = "unknown"


@dataclass
class Selected:
    """The records of one run that are compared, as trained or with one extension, by window multiple.

    A curve is a record for each of its bins.
    """

    run: Run
    extension: str | None = None  # as JSON; None: as trained
    cells: dict[float, Record] = field(default_factory=dict)
    curve: Record | None = None  # of the longest context
    base: Record | None = None  # of the run as trained, in windows of T
    left_out: int = 0  # records of this run and protocol with another checkpoint, corpus or set of targets

    @property
    def records(self) -> list[Record]:
        """All of them; a curve whole."""
        return list(self.cells.values()) if self.curve is None else [self.curve]


def pair_of(record: Record | None, base: Record | None) -> list[tuple[Sample, Sample]]:
    """Return the sums by document of a record and of the one it is compared with; [] without one of them."""
    ours, theirs = (one and one["per_document"] for one in (record, base))
    return [(ours, theirs)] if ours and theirs else []


def extend_key(record: Record) -> str | None:
    """Return the extension with its parameters as one comparable text, the same at every window.

    Knobs that were tuned on validation documents are left out: each seed chooses its own.
    """
    if record["extend"] is None:
        return None
    left_out = {"resolved", *record["extend"].get("tuned", [])}
    kept = {key: value for key, value in record["extend"].items() if key not in left_out}
    return json.dumps(kept, sort_keys=True)


def select(runs: Sequence[Run], protocol: str, steps: Mapping[int, int] | None = None) -> list[Selected]:
    """Return the records of `protocol` of the runs that have some and have not diverged.

    Of the newest checkpoint that was measured so, or of the step that `steps` has for the run's id. Where a
    run was measured on several sets of targets, one of the test split is taken, of those the one that most
    runs share, then the run's own corpus, the most and the longest windows, the most targets.
    """
    newest: list[tuple[Run, int, list[Record]]] = []
    measured: dict[TargetSet, list[tuple[Run, Record]]] = defaultdict(list)
    for run in runs:
        records = [record for record in run.records if record["protocol"] == protocol]
        if not records or run.facts is None or run.state == "diverged":
            continue
        step = (steps or {}).get(id(run), max(record["checkpoint_step"] for record in records))
        if kept := [record for record in records if record["checkpoint_step"] == step]:
            newest.append((run, len(records), kept))
        for record in kept:
            measured[target_set(record)].append((run, record))
    ranked = {key: _preference(key, found) for key, found in measured.items()}
    selected: list[Selected] = []
    for run, count, kept in newest:
        best, own = min(map(target_set, kept), key=lambda key: ranked[key]), dict[str | None, Selected]()
        for record in _of_one_tuning([record for record in kept if target_set(record) == best]):
            key = extend_key(record)
            one = own.setdefault(key, Selected(run, key))
            one.cells.setdefault(multiple_of(record), record)
        for one in own.values():
            one.left_out = count - sum(len(one.cells) for one in own.values())
        selected += own.values()
    if any("curve" in record for one in selected for record in one.records):
        _as_bins(selected)
    bases = {id(one.run): one.cells.get(1.0) for one in selected if one.extension is None}
    for one in selected:
        one.base = bases.get(id(one.run))
    return selected


def _as_bins(selected: Sequence[Selected]) -> None:
    """Replace the records of curves by their bins; one without a curve has its note in each of them."""
    curves = [one.cells[max(one.cells)] for one in selected]
    bins = [_bins(curve) for curve in curves]
    windows = {multiple: record["window"] for cells in bins for multiple, record in cells.items()}
    for one, curve, cells in zip(selected, curves, bins, strict=True):
        without: dict[float, Record] = {m: {**curve, "multiple": m, "window": n} for m, n in windows.items()}
        one.curve, one.cells = curve, cells if "curve" in curve else without


def _bins(record: Record) -> dict[float, Record]:
    """Return the bins of a curve by multiple of T, each with its rise; its window is its last position."""
    found: dict[float, Record] = {}
    if "curve" in record:
        curve, train_length = record["curve"], record["window"] / record["multiple"]
        shared: dict[str, Any] = {**record, "bpb": None, "ppl": None, "ci95": None, "per_document": None}
        del shared["curve"]
        for end, *numbers in zip(curve["edges"][1:], *(curve[key] for key in BINS), strict=True):
            place = {"window": end - 1, "multiple": (end - 1) / train_length}
            one = cast("Record", shared | place | dict(zip(BINS, numbers, strict=True)))
            found[multiple_of(one)] = one
    return found


def _preference(key: TargetSet, found: Sequence[tuple[Run, Record]]) -> tuple[Any, ...]:
    """Return the sort key of a set of targets; the preferred one sorts first."""
    windows = {record["window"] for _, record in found}
    owners = {id(run): (run.facts or {}).get("corpus", {}).get("fingerprint") for run, _ in found}
    foreign = key[0] not in owners.values()
    tuned_on = key[1] != "test"  # extensions are tuned on validation documents and measured there too
    targets = max(record["targets"] for _, record in found)
    return tuned_on, -len(owners), foreign, -len(windows), -max(windows), -targets, key


def _of_one_tuning(records: Sequence[Record]) -> list[Record]:
    """Return the records of each extension with the knobs that have the most and the longest windows.

    Tuned anew on other lengths they may differ, and a row made of both would be of neither.
    """
    by_knobs: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_knobs[json.dumps({**(record["extend"] or {}), "resolved": None}, sort_keys=True)].append(record)
    kept: dict[str | None, list[Record]] = {}
    windows = {knobs: {record["window"] for record in some} for knobs, some in by_knobs.items()}
    for knobs in sorted(by_knobs, key=lambda one: (len(windows[one]), max(windows[one]), one)):
        kept[extend_key(by_knobs[knobs][0])] = by_knobs[knobs]  # the last is the best
    return [record for some in kept.values() for record in some]


def parse_multiple(text: str, option: str) -> float:
    """Return `16x` as 16.0. Raises UserError."""
    try:
        multiple = float(text.removesuffix("x"))
    except ValueError:
        multiple = math.nan
    if not (math.isfinite(multiple) and multiple > 0):
        raise UserError(option, text, "not a multiple of T", allowed="0.5x, 1x, 16x and the like")
    return multiple


def mixed_values(selected: Sequence[Selected]) -> list[dict[str, str]]:
    """Return for each run the keys that differ anywhere among them, with that run's value as text."""
    precisions = defaultdict[int, set[str]](set)
    for one in selected:
        precisions[id(one.run)] |= {record.get("precision", "its training's") for record in one.records}
    rows = [_comparable(one, precisions[id(one.run)]) for one in selected]
    models = [flatten(one.run.sizes or {}) for one in selected]
    unlike = differing(models)
    longest: dict[str, float] = defaultdict(float)  # the longest window decides which targets there are
    hashes = [one.records[0]["targets_hash"] for one in selected]
    for one, targets in zip(selected, hashes, strict=True):
        longest[targets] = max(longest[targets], *map(multiple_of, one.records))
    for targets, row, model in zip(hashes, rows, models, strict=True):
        row["model"] = " ".join(f"{key}={model.get(key)}" for key in unlike)
        if "name" in unlike:
            row["model"] = model.get("name", UNKNOWN)
        row["target set"] = f"{targets[:8]}, to {longest[targets]:g}x"
    keys = differing(rows)
    if {"evaluated on", "split", "stride", "tokenizer", "context length"} & {*keys}:
        keys = [key for key in keys if key != "target set"]  # then the targets differ anyway: name the cause
    return [{key: row[key] for key in keys} for row in rows]


Group = tuple[dict[str, str], list[Run], list[Selected]]  # its values, its runs, those with numbers


def split_runs(runs: Sequence[Run], protocol: str) -> list[Group]:
    """Return the runs of each ranking and what tells it from the others ({} for one), most runs first.

    Runs without numbers join the first with runs of their settings, else of their size, else the last.
    """
    found = sorted(_alike(runs, protocol), key=lambda one: (-len(one[1]), sorted(one[0].items())))
    if len(found) < 2:
        return [({}, list(runs), selected) for _, _, selected in found] or [({}, list(runs), [])]
    measured = {id(run) for _, members, _ in found for run in members}
    rest = [run for run in runs if id(run) not in measured]
    kinds = [{kind_of(run) for run in members} for _, members, _ in found] if rest else []
    for run in rest:
        own = kind_of(run)
        places = [i for i, of in enumerate(kinds) if own in of]
        places += [i for i, of in enumerate(kinds) if own[1] in (size for _, size in of)]
        found[[*places, -1][0]][1].append(run)
    return found


def _alike(runs: Sequence[Run], protocol: str) -> list[Group]:
    """Return the runs with numbers that may share a ranking, and what they have of the keys that differ."""
    selected = select(runs, protocol)
    by_values: dict[tuple[tuple[str, str], ...], dict[int, Run]] = defaultdict(dict)
    for one, values in zip(selected, mixed_values(selected), strict=True):
        by_values[tuple(values.items())][id(one.run)] = one.run
    if len(by_values) < 2:
        return [(dict(values), [*some.values()], selected) for values, some in by_values.items()]
    # within one of them other keys may differ: the targets, where the corpora did
    return [
        (dict(values) | own, members, inside)
        for values, some in by_values.items()
        for own, members, inside in _alike([*some.values()], protocol)
    ]


def _comparable(one: Selected, precisions: set[str]) -> dict[str, str]:
    facts, record = one.run.facts or {}, one.records[0]
    corpus, tokenizer = facts.get("corpus", {}), facts.get("tokenizer", UNKNOWN)
    if isinstance(tokenizer, dict):
        tokenizer = " ".join(as_text(v) if k == "name" else f"{k}={as_text(v)}" for k, v in tokenizer.items())
    return {
        "corpus": f"{corpus.get('name', UNKNOWN)} {str(corpus.get('fingerprint', UNKNOWN))[:12]}",
        "planted": as_text(corpus.get("plant")),
        "tokenizer": as_text(tokenizer),
        "context length": as_text(facts.get("context_length", UNKNOWN)),
        "tokens trained": as_text(tokens_trained(one)),
        "evaluated on": f"{record['corpus']} {record['fingerprint'][:12]}",
        "split": record["split"],
        "stride": as_text(record["stride"]),
        "evaluated in": "/".join(sorted(precisions)),
    }


def tokens_trained(one: Selected) -> int | str:
    """Return the tokens that the measured checkpoint had seen: fewer than the run's for an earlier one."""
    facts, step = one.run.facts or {}, one.records[0]["checkpoint_step"]
    tokens, steps = facts.get("tokens"), facts.get("steps")
    if not isinstance(tokens, int):
        return UNKNOWN
    return tokens * step // steps if isinstance(steps, int) and 0 < step < steps else tokens
