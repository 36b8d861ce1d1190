"""The makers of scripts/docs/pages.py: what stands in a page, from the records alone, as Markdown."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posenc.report.against import SHARES, against, published, tables
from posenc.report.captions import label
from posenc.report.table import cell_lines, recovered_text
from posenc.results import Run, load_runs
from posenc.results.comparison import CompareRequest, Comparison, compare_runs
from posenc.results.recall_headroom import KEPT
from posenc.results.rows import Cell
from posenc.results.settings import where
from posenc.results.statistics import short_verdict

ROOT = Path(__file__).parents[2]
SEEDS_APART = 0.2  # shares found at the last multiple that are named as different seeds
RETRIEVAL = dict.fromkeys(row["table"] for row in published() if row["metric"] == SHARES)
APART = (
    0.1  # two accuracies that are nearer have no order: one seed and 128 windows a cell resolve ten points
)


def costs(words: str) -> str:
    """What was run, and how long it took."""
    lines = ["| records | runs | encodings | seeds | training, minutes a run | measuring | in all, hours |"]
    lines.append("| --- | ---: | ---: | --- | ---: | ---: | ---: |")
    for name in words.split():
        runs = [run for run in load_runs([ROOT / name]) if run.facts is not None]
        trained = [facts["wall_seconds"] / 60 for run in runs if (facts := run.facts)]
        measured = [sum(record.get("seconds") or 0 for record in run.records) / 60 for run in runs]
        seeds = sorted({run.seed for run in runs if run.seed is not None})
        encodings = {str((run.config or {}).get("encoding")) for run in runs}
        hours = (sum(trained) + sum(measured)) / 60
        lines.append(
            f"| {Path(name).name} | {len(runs)} | {len(encodings)} | {', '.join(map(str, seeds))} "
            f"| {_middle(trained)} | {_middle(measured)} | {hours:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def changes(words: str) -> str:
    """Losses at 1x and changes beyond it, of the rows of some runs, by several protocols."""
    every = words.split()
    columns = [tuple(word.rstrip("x").split("@")) for word in every if "@" in word]
    runs = runs_of([word for word in every if "@" not in word])
    found = {name: _table(runs, protocol=name, allow_mixed=True) for name, _ in columns}
    order = [label(row) for row in found[columns[0][0]].rows]
    heads = [f"{name} {multiple}x" for name, multiple in columns]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for name in order:
        cells = [_said(found[protocol], name, float(multiple)) for protocol, multiple in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _said(table: Comparison, name: str, multiple: float) -> str:
    """The loss at 1x; the change and the word for it elsewhere."""
    row = next((row for row in table.rows if label(row) == name), None)
    cells = [] if row is None else [cell for cell in row.cells if cell.multiple == multiple and cell.mean]
    if not cells:
        return "-"
    loss, *change = cell_lines(cells[0], table.header["metric"])
    return loss if multiple == 1 else " ".join(change)


def grid(words: str) -> str:
    """Encodings by the values of a setting: the loss at T, the change at 8T if there. PATH KEY=VALUE,..."""
    path, setting = words.split()
    key, _, listed = setting.partition("=")
    values = listed.split(",")
    every = runs_of([path])
    tables_of = [_table(where(every, [f"{key}={v}"])) for v in values]
    lines = [f"| {key} | {' | '.join(values)} |", f"| --- |{' ---: |' * len(values)}"]
    for rows in zip(*(table.rows for table in tables_of), strict=True):  # an encoding, in order of names
        assert len({row.label for row in rows}) == 1
        at = [{cell.multiple: cell for cell in row.cells} for row in rows]
        lowest = min(cells[1].mean for cells in at)
        told = [("**{:.3f}**" if c[1].mean == lowest else "{:.3f}").format(c[1].mean) for c in at]
        changes = [f" ({cells[8].change:+.3f})" if 8 in cells else "" for cells in at]
        line = " | ".join(map(str.__add__, told, changes))
        lines.append(f"| {rows[0].label} | {line} |")
    return "\n".join(lines) + "\n"


def seeds(words: str) -> str:
    """Two rows at one length, seed by seed and all together: PATH ROW ROW MULTIPLE."""
    path, first, second, length = words.split()
    runs = where(runs_of([path]), [f"encoding={first},{second}"])
    lines = [f"| seed | {first} | {second} | difference, nats | {second} is |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    numbers = sorted({run.seed for run in runs if run.seed is not None})
    for name, some in [*((str(n), [run for run in runs if run.seed == n]) for n in numbers), ("all", runs)]:
        column = float(length.rstrip("x"))
        table = _table(some, rows=(first, second), columns=(column,), baseline=first)
        cells = [row.cells[0] for row in table.rows]
        told = [f"{cell.mean:.3f} ({cell.change:+.3f}, {short_verdict(str(cell.verdict))})" for cell in cells]
        against_first = cells[1].versus_baseline
        assert against_first is not None
        told += [f"{against_first.difference:+.3f}", against_first.word]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def repeated(words: str) -> str:
    """Encodings trained with several seeds, each seed by itself: PATH SEED,SEED,... MULTIPLE [CONDITION ...].

    The change beyond T and its word, which holds for that model alone; from the smallest change.
    """
    path, listed, length, *conditions = words.split()
    runs = runs_of([path, *conditions])
    found: dict[str, dict[str, Cell]] = defaultdict(dict)
    for seed in listed.split(","):
        for row in _table(where(runs, [f"seed={seed}"])).rows:
            cells = [cell for cell in row.cells if cell.multiple == float(length.rstrip("x"))]
            found[row.label].update((seed, cell) for cell in cells if cell.change is not None)
    several = {name: of for name, of in found.items() if len(of) > 1}
    order = sorted(
        several, key=lambda name: sum(c.change or 0 for c in several[name].values()) / len(several[name])
    )
    lines = [f"| at {length} | {' | '.join(f'seed {seed}' for seed in listed.split(','))} |"]
    lines.append(f"| --- |{' ---: |' * (len(listed.split(',')))}")
    alike = 0
    for name in order:
        told = {seed: short_verdict(str(cell.verdict)) for seed, cell in several[name].items()}
        alike += len(set(told.values())) == 1
        cells = [
            f"{several[name][s].change:+.3f}, {told[s]}" if s in told else "-" for s in listed.split(",")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"{alike} of {len(order)} encodings have the same word in every seed."]
    return "\n".join(lines) + "\n"


def recalled(words: str) -> str:
    """Recall within T and at the last multiple and the change there, by seed, where seeds differ: PATH.

    They differ where not every seed passes the gate, or the last accuracies are SEEDS_APART or more apart.
    """
    runs = runs_of(words.split())
    numbers = sorted({run.seed for run in runs if run.seed is not None})
    found: dict[str, dict[int, tuple[float, float, bool, float]]] = defaultdict(dict)
    for seed in numbers:
        for row in _table(where(runs, [f"seed={seed}"])).rows:
            if (one := row.recall) and one.within and (last := one.beyond[-1]):
                change = row.cells[-1].change or 0.0
                found[row.label][seed] = (one.within.accuracy, last.accuracy, bool(one.learned), change)
    several = {name: of for name, of in found.items() if len(of) > 1}
    learned = {name: sum(passed for *_, passed, _ in of.values()) for name, of in several.items()}
    lines = [f"| found at T, at 8T, %; change at 8T | {' | '.join(f'seed {seed}' for seed in numbers)} |"]
    lines.append(f"| --- |{' ---: |' * len(numbers)}")
    for name, of in sorted(several.items(), key=lambda one: -statistics.fmean(x[1] for x in one[1].values())):
        far = [last for _, last, *_ in of.values()]
        if 0 < learned[name] < len(of) or (learned[name] and max(far) - min(far) >= SEEDS_APART):
            told = {
                seed: f"{100 * near:.0f}, {100 * last:.0f}; {change:+.3f}"
                for seed, (near, last, _, change) in of.items()
            }
            lines.append(f"| {name} | {' | '.join(told.get(seed, '-') for seed in numbers)} |")
    every = sum(count == len(several[name]) for name, count in learned.items())
    some = sum(0 < count < len(several[name]) for name, count in learned.items())
    told_of = f"{every} learn to recall within T in every one, {some} in some"
    lines += ["", f"Of {len(several)} encodings with several seeds {told_of}."]
    return "\n".join(lines) + "\n"


def room(words: str) -> str:
    """Encodings trained at T and at a longer context, on the same targets: PATH PATH ...

    The share of the room that the short-trained gain stands where there is room.
    """
    heads = ["trained at T: loss", "with 8T of text", "trained at 8T: loss with 8T", "room", "recovered"]
    lines = [f"| nats | {' | '.join(heads)} | seeds |", f"| --- |{' ---: |' * (len(heads) + 1)}"]
    rows = [row for row in _table(runs_of(words.split())).rows if row.recovered]
    for row in sorted(rows, key=lambda row: -row.recovered.room if row.recovered else 0.0):
        found = row.recovered
        assert found is not None and found.room_ci95 is not None
        at = {cell.multiple: cell.mean for cell in row.cells}
        half = (found.room_ci95[1] - found.room_ci95[0]) / 2
        share = recovered_text(found, spread=(found.share or 0.0) >= -1) or "no room"
        losses = f"{at[1.0]:.3f} | {at[found.multiple]:.3f} | {found.reference:.3f}"
        lines.append(
            f"| {label(row)} | {losses} | {found.room:+.3f} ± {half:.3f} | {share} "
            f"| {found.seeds} and {found.reference_seeds} |"
        )
    return "\n".join(lines) + "\n"


def sizes(words: str) -> str:
    """Harm and use at the last multiple, of encodings that all files have, by harm in the first: PATH ..."""
    every = [_table(runs_of([path])) for path in words.split()]
    found = [{row.label: row for row in one.rows} for one in every]
    heads = [
        f"{min(one.header['parameters']) / 1e6:.2g}M, T = {one.header['context_length']}" for one in every
    ]
    lines = [f"| at {every[0].rows[0].cells[-1].multiple:g}T | {' | '.join(heads)} |"]
    lines.append(f"| --- |{' ---: |' * len(heads)}")
    shared = [name for name in found[0] if all(name in rows for rows in found)]
    for name in sorted(shared, key=lambda name: found[0][name].cells[-1].change or 0.0):
        cells = []
        for rows in found:
            cell, recall = rows[name].cells[-1], rows[name].recall
            assert recall is not None and recall.within is not None and recall.beyond[-1] is not None
            used = f"{100 * recall.within.accuracy:.0f}, {100 * recall.beyond[-1].accuracy:.0f}"
            used = used if recall.learned else f"({used})"
            cells.append(f"{cell.change:+.3f} {short_verdict(str(cell.verdict))}; {used}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def verdicts(words: str) -> str:
    """Encodings whose word at a multiple of T differs between two files of records: PATH PATH MULTIPLE."""
    *paths, length = words.split()
    multiple = float(length.rstrip("x"))
    found = [
        {
            row.label: cell
            for row in _table(runs_of([path])).rows
            for cell in row.cells
            if cell.multiple == multiple
        }
        for path in paths
    ]
    both = [name for name in found[0] if name in found[1]]
    told = {name: [short_verdict(str(of[name].verdict)) for of in found] for name in both}
    lines = [f"| at {length} | {' | '.join(f'`{path}`' for path in paths)} |", "| --- | ---: | ---: |"]
    for name in (name for name in both if len(set(told[name])) > 1):
        cells = [f"{of[name].change:+.3f} {word}" for of, word in zip(found, told[name], strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    alike = len(both) - len(lines) + 2
    return "\n".join([*lines, "", f"{alike} of {len(both)} encodings have the same word in both."]) + "\n"


def _table(runs: Sequence[Run], **request: Any) -> Comparison:
    """Return the first table of a comparison."""
    return compare_runs(runs, CompareRequest(**request))[0]


def runs_of(words: Sequence[str]) -> list[Run]:
    """Paths below the clone, and conditions such as seed=0."""
    paths = [ROOT / word for word in words if "=" not in word]
    return where(load_runs(paths), [word for word in words if "=" in word])


def causes(words: str) -> str:
    """Trained models, altered at one place: the loss at T, and the change to it."""
    found = json.loads((ROOT / words.strip()).read_text(encoding="utf-8"))
    lines = ["| encoding | changed | T | 2x | 4x | 8x |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for encoding, altered in found.items():
        for what, (at_train_length, *beyond) in altered.items():
            changes = " | ".join(f"{loss - at_train_length:+.3f}" for loss in beyond)
            lines.append(f"| {encoding} | {what} | {at_train_length:.3f} | {changes} |")
    return "\n".join(lines) + "\n"


def bench(words: str) -> str:
    """Training cost of each encoding beside the base's, by length, from the JSON of `posenc bench`."""
    found = json.loads((ROOT / words.strip()).read_text(encoding="utf-8"))
    lengths = sorted({cell["context_length"] for cell in found["cells"]})
    by_name: dict[str, dict[int, Any]] = {}
    for cell in found["cells"]:
        by_name.setdefault(cell["label"], {})[cell["context_length"]] = cell
    ordered = sorted(by_name.items(), key=lambda one: one[1][lengths[-1]]["training"]["ratio"])
    heads = [f"time, T = {n} | tensors" for n in lengths]
    lines = [f"| encoding | its parameters | {' | '.join(heads)} |"]
    lines.append(f"| --- | ---: |{' ---: |' * 2 * len(lengths)}")
    for name, cells in ordered:
        told = [str(cells[lengths[0]]["parameters"]["encoding"])]
        for length in lengths:
            one = cells[length]["training"]
            told.append(f"{one['ratio']:.2f} ({one['ratio_low']:.2f}-{one['ratio_high']:.2f})")
            told.append(f"{one['tensor_ratio']:.2f}")
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def peers(words: str) -> str:
    """Other packages' times of a step and a forward pass over posenc's, from `scripts/bench/peers.py`."""
    rows: dict[str, dict[str, str]] = {}
    for path in words.split():
        for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
            compiled = ", compiled" if cell["compile"] else ""
            row = rows.setdefault(f"{cell['model']['name']}, T = {cell['context_length']}{compiled}", {})
            ratios = [cell[phase].get("ratio") for phase in ("training", "forward")]
            label = cell["label"].partition(",")[0]
            row[label] = ", ".join("-" if one is None else f"{one:.2f}" for one in ratios)
            if not row.get("tokens/s"):
                row["tokens/s"] = f"{cell['training']['tokens_per_second'] / 1000:.1f}k"
    heads = ["tokens/s", *dict.fromkeys(one for row in rows.values() for one in row if one != "tokens/s")]
    lines = [f"| step, forward pass | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(row.get(head, '-') for head in heads)} |")
    return "\n".join(lines) + "\n"


def directions(words: str) -> str:
    """A line for each paper's losses: how many of its changes from T on were measured and go the same way."""
    runs: list[Run] = load_runs([ROOT / words.strip()])
    lines = ["| paper's table | changes beside ours | of the same sign |", "| --- | ---: | ---: |"]
    for table in tables():
        if table not in RETRIEVAL:
            rows = [row for row in against(runs, table)["rows"] if row["difference"]]
            pairs = [(row["published_change"], row["measured_change"]) for row in rows]
            lines.append(f"| {table} | {len(pairs)} | {sum((a > 0) == (b > 0) for a, b in pairs)} |")
    return "\n".join(lines) + "\n"


def retrieval(words: str) -> str:
    """A line for each paper's accuracies: rows kept or lost in both, and pairs in the same order.

    A row that several files have is the last one's.
    """
    heads = ["paper's table", "kept or lost", "alike", "not alike", "pairs apart", "in the same order"]
    lines = [f"| {' | '.join(heads)} |", "| --- | ---: | ---: | --- | ---: | ---: |"]
    files: list[list[Run]] = [load_runs([ROOT / path]) for path in words.split()]
    counts: list[list[int]] = []
    for table in RETRIEVAL:
        found = [row for runs in files for row in against(runs, table)["rows"]]
        rows = [row for row in found if row["measured_change"] is not None]
        rows = [*{(row["encoding"], row["published_length"]): row for row in rows}.values()]
        both = [row for row in rows if row["published_change"] is not None]
        unlike = [f"{row['encoding']} {row['multiple']:g}x" for row in both if len({*_kept(row)}) > 1]
        pairs = [
            (a["published"] - b["published"], a["measured"] - b["measured"])
            for a, b in itertools.combinations(rows, 2)
            if a["published_length"] == b["published_length"]
        ]
        apart = [(there > 0) == (here > 0) for there, here in pairs if min(abs(there), abs(here)) >= APART]
        counts.append([len(both), len(both) - len(unlike), len(apart), sum(apart)])
        kept, alike, far, ordered = counts[-1]
        lines.append(f"| {table} | {kept} | {alike} | {', '.join(unlike)} | {far} | {ordered} |")
    kept, alike, far, ordered = map(sum, zip(*counts, strict=True))
    lines.append(f"| all | {kept} | {alike} | | {far} | {ordered} |")
    return "\n".join(lines) + "\n"


def _kept(row: dict[str, Any]) -> tuple[bool, bool]:
    """Whether a row has half of its accuracy at T or more: the paper's, and ours."""
    sides = ((row["published"], row["published_change"]), (row["measured"], row["measured_change"]))
    there, here = (far >= KEPT * (far - change) for far, change in sides)
    return there, here
