"""Group runs into rows: the seeds of one encoding and settings, named by what differs."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.results.cells import Row
from posenc.results.load import Run, encoding_of, spoken_name
from posenc.results.selection import Selected
from posenc.results.settings import OPTIONS, differing, knob_words, options_of, settings_of, size_of

CODE = "code"


def as_trained(settings: Mapping[str, Any]) -> str:
    """Return `rope+yarn` where it was trained with an extension, `rope -> nope` with a run's weights."""
    extend = (settings.get("extend") or {}).get("name")
    name = str(spoken_name(settings.get("encoding"))) + (f"+{extend}" if extend else "")
    began = (settings.get("train") or {}).get("began")
    return f"{began['encoding']} -> {name}" if began else name


def _name(run: Run) -> str:
    """Return what a row is called: the encoding, and what was trained before it."""
    config = run.config or {}
    if not isinstance(config.get("train"), dict) or not ("extend" in config or "began" in config["train"]):
        return encoding_of(run) or run.name
    more = f" ({float(config['train']['tokens']) / 1e6:g}M tokens)" if "began" in config["train"] else ""
    return as_trained(config) + more


def group_runs(
    runs: Sequence[Run], selected: Sequence[Selected], mixed: Sequence[dict[str, str]]
) -> list[Row]:
    """Return rows in the order of their labels. Runs without numbers join the row of their settings."""
    settings = _settings(runs)
    groups: dict[tuple[object, ...], Row] = {}
    for one, values in zip(selected, mixed, strict=True):
        encoding, own = _name(one.run), settings[id(one.run)]
        whole = (encoding, tuple(own.items()), tuple(values.items()))
        new = Row(encoding=encoding, extension=one.extension, settings=own, mixed=values)
        groups.setdefault((one.extension, whole), new).members.append(one)
    rows = list(groups.values())
    chosen = {id(one.run) for one in selected}
    for run in runs:
        if id(run) not in chosen:
            _add_without_numbers(rows, run, settings[id(run)])
    for row in rows:
        _keep_one_a_seed(row)
        row.extend = None if row.extension is None else str(json.loads(row.extension)["name"])
        row.beyond = _beyond(row)
        if CODE in row.settings:
            row.notes.append("trained by other code of its encoding than its namesake")
        if row.tuned is not None:
            row.notes.append(f"train.lr={row.settings.get('train.lr')} is tuned: {row.tuned}")
    _label(rows)
    return sorted(rows, key=lambda row: (row.label, sorted(row.mixed.items())))


def _settings(runs: Sequence[Run]) -> dict[int, dict[str, str]]:
    """Return the settings of each run by id, sorted; with the encoding's code where it had several.

    Averaged over two formulas a row would be of none. Older runs do not name theirs.
    """
    settings = {id(run): dict(sorted(settings_of(run).items())) for run in runs}
    alike: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        alike[_name(run), tuple(settings[id(run)].items())].append(run)
    for some in alike.values():
        codes = {run.facts["code"] for run in some if run.facts is not None and "code" in run.facts}
        for run in some if len(codes) > 1 else []:
            settings[id(run)][CODE] = (run.facts or {}).get("code", "unknown")
    return settings


def _add_without_numbers(rows: list[Row], run: Run, settings: dict[str, str]) -> None:
    """Add a run to its row; one that diverged to the rows of extensions too: they lack that seed as well."""
    alone = Row(encoding=_name(run), settings=settings, members=[Selected(run)])
    same = [row for row in rows if (row.encoding, row.settings) == (alone.encoding, settings)]
    same = [row for row in same if _of_one_size([*row.members, *alone.members])]
    trained = [row for row in same if row.extension is None]
    if len(trained) == 1:
        extended = [row for row in same if row.extension and row.mixed == trained[0].mixed]
        for row in [*trained, *(extended if run.state == "diverged" else [])]:
            row.members.append(Selected(run))
    elif unmeasured := [row for row in same if not row.measured]:
        unmeasured[0].members.append(Selected(run))
    else:
        rows.append(alone)


def _of_one_size(members: Sequence[Selected]) -> bool:
    """Return whether they have one model, corpus and length, as far as it is known."""
    sizes = [size for member in members if (size := size_of(member.run)) is not None]
    return all(size == sizes[0] for size in sizes)


def _keep_one_a_seed(row: Row) -> None:
    """Count a run that is there twice once: with numbers, then first by path."""
    kept: dict[int, Selected] = {}
    unknown = [member for member in row.members if member.run.seed is None]
    for member in sorted(row.members, key=lambda m: (not m.cells, str(m.run.path))):
        seed = member.run.seed
        if seed is not None and kept.setdefault(seed, member) is not member:
            row.notes.append(f"seed {seed} is there more than once, shown: {kept[seed].run.name}")
    row.seeds = sorted(kept)
    row.members = [kept[seed] for seed in row.seeds] + unknown


def _beyond(row: Row) -> str | None:
    """Return the declared policy past T of the encoding or extension, where it has one."""
    records = [record for member in row.members for record in member.cells.values()]
    policy = next((r["beyond"] for r in records if r["beyond"] is not None), None)
    if policy is None and row.extension is None:
        policy = row.settings.get("encoding.beyond")
    return None if policy in (None, "null", "") else policy


def _label(rows: Sequence[Row]) -> None:
    """Name each row by its encoding, its options and the settings in which rows of its encoding differ.

    Where they differ in a choice (`optim.name`), what only belongs to it is not named.
    """
    by_encoding, of_name = defaultdict(list), defaultdict(list)
    for row in rows:
        by_encoding[row.encoding].append(row.settings)
    unlike = {name: differing(some) for name, some in by_encoding.items()}
    for row in rows:
        keys = unlike[row.encoding]
        chosen = tuple(key.removesuffix("name") for key in keys if re.fullmatch(r"\w+\.name", key))
        parts = [row.encoding + (f"+{row.extend}" if row.extend else ""), *options_of(row.settings)]
        for key in keys:
            if key not in row.settings or key in OPTIONS:
                continue
            if not key.startswith(chosen):
                short = key.removeprefix("encoding.").removeprefix("attention.")
                parts.append(f"{short}={row.settings[key]}")
            elif key.endswith(".name"):
                parts.append(row.settings[key])
        parts += [] if row.extension is None else knob_words(json.loads(row.extension))
        row.label = " ".join(parts)
        of_name[row.label, tuple(row.mixed.items())].append(row)
    for twins in of_name.values():
        for row in sorted(twins, key=lambda row: not row.measured)[1:]:
            row.label += f" [{row.members[0].run.name}]"
