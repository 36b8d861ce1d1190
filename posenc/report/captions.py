"""Write what is said around the table of a comparison: title, answer in a sentence or two, notes.

All of it is plain text; the writers escape it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from posenc.core.errors import visible
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Row
from posenc.results.ranking import (
    BETTER,
    COLLAPSED_WORD,
    EFFECTIVE,
    MORE_DOCUMENTS,
    MORE_SEEDS,
    SAME_WORD,
    WORSE,
    short_verdict,
)
from posenc.results.row_groups import full_label
from posenc.results.schema import printed, printed_change
from posenc.results.settings import as_text

MOST_NAMED = 5  # rows that the answer names; of more it gives their number
INDEPENDENT = {"induction": "sequence"}  # what the intervals are over, where it is not documents
UNITS = {"nats": "nats", "bpb": "bits per byte", "ppl": "perplexity"}
VERBS = {
    BETTER: ("gains", "gain"),
    SAME_WORD: ("keeps its loss", "keep their loss"),
    WORSE: ("loses", "lose"),
    COLLAPSED_WORD: ("collapses", "collapse"),
}
PROBE_NOTES = {
    "induction": "induction: loss on the second copy of a random sequence; only copying lowers it.",
    "far-copy": "far-copy: loss on targets that continue a passage seen more than T tokens before, out of "
    "reach of a window of T.",
}
NOTES = {
    "fixed-target": "1x is the crop line: the loss if you truncate the context to T. Below it longer context "
    "helps, above it harms.",
    "nonoverlapping": "nonoverlapping rewards longer windows, because fewer of their tokens have little "
    "context: use it only to compare with papers.",
    "sliding": "sliding: windows move by the stride, and every token is scored once.",
    "positions": "positions: one pass over the longest context; a column is the last bin before that "
    "position, not everything between two columns.",
    **PROBE_NOTES,
}

WORSE_THAN_CHANCE = "; all rows are worse than chance: none of these models copies"


def label(row: Row) -> str:
    """Return the row's name, with what sets it apart in a mixed table."""
    return visible(full_label(row.label, row.mixed))


def length(multiple: float) -> str:
    """Return a window as a multiple of T: `0.5x`, `8x`."""
    return f"{multiple:g}x"


def millions(count: object) -> str:
    """Return a count of tokens or parameters in three digits: `3.28M`, `512`."""
    if not isinstance(count, int):
        return str(count)
    for least, size, letter in ((999_500_000, 10**9, "B"), (999_500, 10**6, "M"), (10**4, 10**3, "k")):
        if count >= least:
            return f"{count / size:.3g}{letter}"
    return str(count)


def spread_is_of(comparison: Comparison) -> str | None:
    """Return what the ± of the cells is over: `seeds`, `documents` or None; one meaning a table."""
    cells = _cells(comparison)
    if any(cell.spread is not None for cell in cells):
        return "seeds"
    return "documents" if any(cell.change_ci95 is not None for cell in cells) else None


def title(comparison: Comparison) -> str:
    """Return protocol, unit, corpus, tokenizer, T, model and training tokens in one line."""
    h = comparison.header
    parts = [] if h["facet"] is None else [f"{h['facet']['key']} {h['facet']['value']}"]
    parts.append(f"{h['protocol']}: {h['unit']}")
    if h["stride"] is not None:
        parts.append(f"stride {h['stride']}")
    if h["corpus"] is not None:
        parts.append(f"corpus {h['corpus']}" + (f" ({h['split']})" if h["split"] else ""))
    if h["tokenizer"] is not None:
        parts.append(f"tokenizer {_name_of(h['tokenizer'])}")
    if h["context_length"] is not None:
        parts.append(f"T = {h['context_length']} tokens")
    if h["model"] is not None:
        sizes = "" if h["parameters"] is None else f" ({_range(map(millions, h['parameters']))} parameters)"
        parts.append(f"model {_name_of(h['model'])}{sizes}")
    if h["tokens"] is not None:
        parts.append(f"trained on {millions(h['tokens'])} tokens")
    return ", ".join(parts)


# --- the answer


def summary_sentence(comparison: Comparison) -> str:
    """Return what happens at the longest window, which row is lowest, and of how much data; may be empty."""
    columns = [i for i, column in enumerate(comparison.columns) if column.shown]
    if not columns or not comparison.rows:
        return ""
    if any(row.curve for row in comparison.rows):
        parts = [_breaks(comparison.rows)]
    elif comparison.header["baseline"] is not None:
        parts = [_against(comparison, columns[-1])]
    else:
        parts = [_changes(comparison, columns[-1]), _lowest(comparison, columns)]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in [*parts, _counts(comparison)] if part)


def _changes(comparison: Comparison, at: int) -> str:
    """`at 8x alibi keeps its loss; rope and nope collapse (+1.33 to +2.47 nats)`."""
    column, metric = comparison.columns[at], comparison.header["metric"]
    if column.multiple <= 1:
        return ""
    cells = [(row, row.cells[at]) for row in comparison.rows]
    cells.sort(key=lambda one: one[1].change or 0.0)
    clauses = []
    for word, verbs in VERBS.items():
        found = [(row, cell) for row, cell in cells if cell.verdict == word]
        if found:
            size = "" if word == SAME_WORD else _sizes([cell for _, cell in found], metric)
            clauses.append(f"{_names([row for row, _ in found])} {verbs[len(found) > 1]}{size}")
    unclear = [
        (row, cell) for row, cell in cells if cell.verdict and short_verdict(cell.verdict) not in VERBS
    ]
    if unclear:
        sizes = _sizes([cell for _, cell in unclear], metric)
        clauses.append(f"unclear for {_names([row for row, _ in unclear])}{sizes}")
    if partly := [row for row, cell in cells if cell.mean is not None and cell.verdict is None]:
        clauses.append(f"no verdict for {_names(partly)}")
    if missing := [row for row, cell in cells if cell.mean is None]:
        clauses.append(f"no number for {_names(missing)}")
    return f"at {length(column.multiple)} {'; '.join(clauses)}" if clauses else ""


def _against(comparison: Comparison, at: int) -> str:
    """`against rope at 8x, in nats: alibi is lower (-2.43)`."""
    metric, name = comparison.header["metric"], visible(comparison.header["baseline"])
    words = {"lower": "lower", "tie": "a tie with it", "unclear": "not told from it", "higher": "higher"}
    clauses = []
    for word, said in words.items():
        found = [(row, row.cells[at].against) for row in comparison.rows]
        some = [(row, one.difference) for row, one in found if one is not None and one.word == word]
        if some:
            verb, sizes = (
                "is" if len(some) == 1 else "are",
                _changes_range([value for _, value in some], metric),
            )
            clauses.append(f"{_names([row for row, _ in some])} {verb} {said} ({sizes})")
    rest = [row for row in comparison.rows if label(row) != name and row.cells[at].against is None]
    if rest:
        clauses.append(f"not held against it: {_names(rest)}")
    place = length(comparison.columns[at].multiple)
    return f"against {name} at {place}, in {UNITS[metric]}: {'; '.join(clauses)}"


def _lowest(comparison: Comparison, columns: Sequence[int]) -> str:
    """Name the row with the lowest loss at T and at the longest window, and those it cannot be told from."""
    clauses = []
    for i in dict.fromkeys([*(i for i in columns if comparison.columns[i].multiple == 1), columns[-1]]):
        lowest = [row for row in comparison.rows if row.cells[i].mark == "lowest"]
        near = [row for row in comparison.rows if row.cells[i].mark in ("tie", "unclear")]
        if lowest:
            multiple = comparison.columns[i].multiple
            behind = f" (not told from it: {_names(near)})" if near else ""
            clauses.append(f"at {'T' if multiple == 1 else length(multiple)} {_names(lowest)}{behind}")
    return f"lowest {', '.join(clauses)}" if clauses else ""


def _breaks(rows: Sequence[Row]) -> str:
    """`past T rope breaks at 1.44x; alibi does not break`."""
    curves = [(row, row.curve) for row in rows if row.curve]
    broken = [(row, curve) for row, curve in curves if any(end is not None for end in curve.breaks_at)]
    others = [(row, curve) for row, curve in curves if all(end is None for end in curve.breaks_at)]
    whole = [row for row, curve in others if all(curve.holds)]
    unclear = [row for row, curve in others if not all(curve.holds)]
    clauses = []
    for row, curve in broken:
        first = min(end for end in curve.breaks_at if end is not None)
        clauses.append(f"{_names([row])} breaks at {first / curve.train_length:.3g}x")
    if len(broken) > MOST_NAMED:
        clauses = [f"{len(broken)} rows break"]
    if whole:
        clauses.append(f"{_names(whole)} {'does' if len(whole) == 1 else 'do'} not break")
    if unclear:
        clauses.append(f"unclear for {_names(unclear)}")
    return f"past T {'; '.join(clauses)}" if clauses else ""


def _counts(comparison: Comparison) -> str:
    """`3 seeds, 160 documents`."""
    h, cells = comparison.header, _cells(comparison)
    seeds = {cell.seeds for cell in cells if cell.seeds}
    if h["baseline"] is not None:  # paired: the seeds that both rows have
        seeds = {len(cell.against.seeds) for cell in cells if cell.against is not None}
    parts = []
    if seeds:
        parts.append(_range((min(seeds), max(seeds))) + (" seed" if seeds == {1} else " seeds"))
    if h["documents"] is not None:
        noun = INDEPENDENT.get(h["protocol"], "document") + ("" if h["documents"][1] == 1 else "s")
        parts.append(f"{_range(h['documents'])} {noun}")
    return ", ".join(parts)


def _names(rows: Sequence[Row]) -> str:
    if len(rows) > MOST_NAMED:
        return f"{len(rows)} rows"
    names = []
    for row in rows:
        weak = any(note.startswith("undertrained:") for note in row.notes)
        name = label(row).replace(f" (beyond: {visible(row.beyond)})", "")
        names.append(name + (" (undertrained)" if weak else ""))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sizes(cells: Sequence[Cell], metric: str) -> str:
    found = [cell.change for cell in cells if cell.change is not None]
    return f" ({_changes_range(found, metric)} {UNITS[metric]})" if found else ""


def _changes_range(values: Sequence[float], metric: str) -> str:
    low, high = min(values), max(values)
    if printed(low, metric) == printed(high, metric):
        return printed_change(low, metric)
    return f"{printed_change(low, metric)} to {printed_change(high, metric)}"


# --- the notes


def captions(comparison: Comparison, marks: Mapping[str, str]) -> list[str]:
    """Return the notes: protocol, targets, what ± is over, verdicts, marks, rows that need a word.

    `marks` is how the format marks the `lowest`, a `tie` with it, and what is `unclear`.
    """
    h = comparison.header
    lines = [NOTES.get(h["protocol"], "")]
    if comparison.columns:
        lines += [_reference(comparison), _scored(comparison), _spread(comparison)]
    else:
        lines.append("no run has a number yet")
    lines += [_verdicts(comparison) if h["baseline"] is None else _baseline(comparison)]
    lines += [_marks(comparison, marks), *_side_notes(comparison)]
    lines += [
        f"the rows also differ in {key}: {', '.join(values)}" for key, values in h["also_differs"].items()
    ]
    if h["left_out"]:
        records = "1 record" if h["left_out"] == 1 else f"{h['left_out']} records"
        lines.append(
            f"not shown: {records} of other targets, corpora, checkpoints or tuned knobs "
            "(--length, --corpus, --split and --stride choose)"
        )
    lines += [f"{label(row)}: {note}" for row in comparison.rows for note in row.notes]
    return [line for line in lines if line]


def _reference(comparison: Comparison) -> str:
    found = comparison.header["reference"]
    if found is None or found["mean"] is None:
        return ""
    number = printed(found["mean"], comparison.header["metric"])
    return f"trigram reference {number} {found['unit']}: a byte trigram of the training text, same targets"


def _scored(comparison: Comparison) -> str:
    h = comparison.header
    if h["targets"] is None:
        return ""
    same = all(c.targets == comparison.columns[0].targets is not None for c in comparison.columns)
    documents = _range(h["documents"])
    noun = INDEPENDENT.get(h["protocol"], "document") + ("" if documents == "1" else "s")
    return f"{_range(h['targets'])} targets in {documents} {noun}" + (" at every length" if same else "")


def _spread(comparison: Comparison) -> str:
    """Say what ± is over and what a number with a sign is."""
    change = "a number with a sign is the change against 1x on the same targets"
    if any(row.curve for row in comparison.rows):
        change = "a number with a sign is the rise over the mean from T/2 to T in the same passes"
        if any(row.curve and row.extend for row in comparison.rows):
            change += " (extended: over that of the model as trained, given T tokens)"
    if comparison.header["baseline"] is not None:  # `_baseline` says it
        change = ""
    counts = {cell.seeds for cell in _cells(comparison) if cell.seeds}
    if spread_is_of(comparison) == "seeds":
        several = counts - {1}
        text = "± is the standard deviation" if change else "± of a loss is the standard deviation"
        text += f" over {_range((min(several), max(several)))} seeds"
        text += " (of a change: of its paired differences)" if change else ""
        text += ", rows of one seed have none" if 1 in counts else ""
        return f"{text}; {change}" if change else text
    parts = [change] if change and counts else []
    if change and spread_is_of(comparison) == "documents":
        over = INDEPENDENT.get(comparison.header["protocol"], "document") + "s"
        parts.append(f"its ± is half the 95% interval over {over}")
    if counts == {1}:
        parts.append("one seed: this says something of these models only")
    return "; ".join(parts)


def _baseline(comparison: Comparison) -> str:
    """Say what the second number of a cell is where rows are compared with one of them."""
    name, margins = comparison.header["baseline"], comparison.header["margins"]
    found = [cell.against for cell in _cells(comparison) if cell.against is not None]
    side = "in the second table a number with a sign is the change against 1x"
    if len(comparison.rows) == 1:
        return f"{name} is the only row; {side}"
    if not found:
        return f"nothing can be compared with {name}: not the same targets, seeds or metric"
    over = _over_seeds_and_documents(len(against.seeds) for against in found)
    return (
        f"a number with a sign is the difference to {name} at the same length, paired by seed and document; "
        f"its ± is half the 95% interval over {over}; lower or higher by more than {margins['same']:g} "
        f"{margins['unit']}, tie within it, unclear: neither (Holm-corrected over the length); {side}"
    )


def _verdicts(comparison: Comparison) -> str:
    found = [cell for cell in _cells(comparison) if cell.verdict is not None]
    if not found:
        return ""
    margins, of = comparison.header["margins"], _over_seeds_and_documents(cell.seeds for cell in found)
    needs = {MORE_SEEDS: "seeds", MORE_DOCUMENTS: "documents"}
    words = [need for word, need in needs.items() if any(cell.verdict == word for cell in found)]
    return (
        f"verdicts on the change against 1x, in {margins['unit']}: same within "
        f"{_margin(comparison, 'same')}, collapsed beyond {_margin(comparison, 'collapsed')}; given where "
        f"the 95% interval over {of} clears the margin"
        + (f"; unclear: it does not, more {' or '.join(words)} are needed" if words else "")
    )


def _margin(comparison: Comparison, which: str) -> str:
    """A margin in bits per byte; in nats too where those are shown and a token is a byte."""
    h = comparison.header
    bits = h["margins"][which]
    nats = h["metric"] == "nats" and _name_of(h["tokenizer"]) == "bytes"
    return f"{bits:g}" + (f" ({bits * math.log(2):.3f} nats)" if nats else "")


def _marks(comparison: Comparison, marks: Mapping[str, str]) -> str:
    """Say what the marks mean; where there are none though there are rows to rank, why."""
    h, columns = comparison.header, comparison.columns
    pairs = [pair for column in columns for pair in column.pairs]
    if not pairs:
        return _why_unmarked(comparison)
    common = {len(pair.seeds) for pair in pairs}
    if common == {0}:
        return "not ranked: no two rows have a seed in common"
    cells = [row.cells[i] for i, column in enumerate(columns) if column.pairs for row in comparison.rows]
    ranked = [cell for cell in cells if cell.rankable]
    margin = f"{h['margins']['same']:g} {h['margins']['unit']}"
    words = {
        "lowest": f"{marks['lowest']} lowest of its length",
        "tie": f"{marks['tie']} a tie with it (within {margin})",
        "unclear": f"{marks['unclear']} cannot be told from it",
        None: f"no mark: higher by more than {margin}",
    }
    shown = [text for mark, text in words.items() if any(cell.mark == mark for cell in ranked)]
    how = ["95% intervals over seeds and documents, Holm-corrected over all pairs of the length"]
    if common <= {0, 1}:
        one = "one seed" if all(cell.seeds <= 1 for cell in ranked) else "one seed in common"
        how = [f"95% intervals over documents, Holm-corrected; {one}: ranks are of these models only"]
    elif 1 in common:
        how.append("between rows with one seed in common over documents: ranks of these models only")
    if 0 in common:
        how.append("rows without a seed in common are not told apart")
    if _lost_seeds(cells):
        how.append("not ranked: rows that lost a seed")
    bare = [
        length(column.multiple)
        for i, column in enumerate(columns)
        if not column.pairs and any(row.cells[i].mean is not None for row in comparison.rows)
    ]
    if bare:
        how.append(f"no ranks at {', '.join(bare)}: no two rows there that may be compared")
    return f"{'; '.join(shown)} ({'; '.join(how)})"


def _why_unmarked(comparison: Comparison) -> str:
    h = comparison.header
    if len(comparison.rows) < 2:
        return ""
    if h["metric"] == "ppl":
        return "perplexities are not ranked: --metric nats and --metric bpb are"
    if h["mixed"]:
        return "no best is marked: these rows are not comparable"
    curves = any(row.curve for row in comparison.rows)  # which are never ranked
    if not curves and _lost_seeds(_cells(comparison)):
        return "no best is marked: rows that lost a seed are not ranked"
    return ""


def _side_notes(comparison: Comparison) -> list[str]:
    """Return a line for each column of the side table: context, slope, probes, extensions."""
    rows, lines = comparison.rows, []
    effective = [row.effective_context for row in rows if row.effective_context]
    if effective:
        lines.append(
            f"effective context: the longest window whose loss is within {EFFECTIVE:g} nats of the row's "
            "best, so that more text does no harm, used or not"
            + ("; +: the longest that was measured" if any(one.longest for one in effective) else "")
        )
    uses = [row.uses_context for row in rows if row.uses_context]
    if uses:
        over = _over_seeds_and_documents(one.seeds for one in uses)
        lines.append(
            "T against T/2: the loss at 1x minus that at 0.5x on the same targets, below 0 where text helps"
            + (f", in {uses[0].unit}" if comparison.header["metric"] == "ppl" else "")
            + (f"; its ± is half the 95% interval over {over}" if any(one.ci95 for one in uses) else "")
        )
    curves = [row.curve for row in rows if row.curve]
    if curves:
        of_one = all(len(curve.breaks_at) == 1 for curve in curves)
        spread = "half the 95% interval over documents" if of_one else "the standard deviation over seeds"
        sure = any(curve.slope_ci95 or curve.slope_spread is not None for curve in curves)
        lines.append(
            "slope: nats per token of loss, for each token past T" + (f"; its ± is {spread}" if sure else "")
        )
        lines.append(
            "breaks at: the start of the first bin past T whose whole 95% interval over documents is 0.1 "
            "nats above the level at T; no break: that of every bin past T is below; unclear: neither, more "
            "documents are needed"
        )
    for i, probe in enumerate(comparison.probes):
        losses = [row.probes[i].cell.mean for row in rows]
        lines.append(
            PROBE_NOTES.get(probe.protocol, f"{probe.protocol}.")
            + f" In {probe.unit}, beside the loss and not ranked"
            + ("" if probe.same_targets else "; the rows scored different targets")
            + (WORSE_THAN_CHANCE if _above_chance(losses, probe.unit) else "")
        )
    if comparison.extensions:
        names = ", ".join(one.name for one in comparison.extensions)
        lines.append(
            f"{names}: test-time extensions of the row's runs; their change is against its crop line"
        )
    return lines


def _above_chance(losses: Sequence[float | None], unit: str) -> bool:
    """Whether no row does as well as guessing, which the unit names."""
    chance = re.search(r"\(chance ([\d.]+)\)", unit)
    known = [loss for loss in losses if loss is not None]
    return chance is not None and bool(known) and min(known) > float(chance[1])


def _over_seeds_and_documents(counts: Iterable[int]) -> str:
    """Return what intervals are over that were each made from so many seeds."""
    found = set(counts)
    if found == {1}:
        return "documents (these models only)"
    return "seeds and documents" + (" (of one seed: documents, these models only)" if 1 in found else "")


def _cells(comparison: Comparison) -> list[Cell]:
    return [cell for row in comparison.rows for cell in row.cells]


def _lost_seeds(cells: Sequence[Cell]) -> bool:
    return any(cell.mean is not None and not cell.rankable for cell in cells)


def _range(ends: Iterable[object]) -> str:
    return " to ".join(dict.fromkeys(map(str, ends)))


def _name_of(value: object) -> str:
    return str(value.get("name", as_text(value))) if isinstance(value, dict) else as_text(value)
