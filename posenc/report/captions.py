"""Write what is said around the table of a comparison: title, answer in a sentence or two, notes.

All of it is plain text; the writers escape it. docs/reading-the-numbers.md explains the rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from posenc.results.rows import full_label
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
AGAINST = {"lower": "lower", "tie": "a tie with it", "unclear": "not told from it", "higher": "higher"}
MARK_WORDS = {"lowest": "lowest of its length", "tie": "a tie with it", "unclear": "cannot be told from it"}
NOTES = {
    "fixed-target": "1x is the crop line: the loss if you truncate the context to T",
    "nonoverlapping": "nonoverlapping rewards longer windows: use it only to compare with papers",
    "sliding": "sliding: windows move by the stride, and every token is scored once",
    "positions": "positions: one pass over the longest context; a column is the last bin before it",
    "induction": "induction: loss on the second copy of a random sequence",
    "far-copy": "far-copy: loss on text that can be copied only from more than T tokens before",
}


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
    split = f" ({h['split']})" if h["split"] else ""
    sizes = "" if h["parameters"] is None else f" ({_range(map(millions, h['parameters']))} parameters)"
    parts = {  # by what must be known
        "facet": h["facet"] and f"{h['facet']['key']} {h['facet']['value']}",
        "protocol": f"{h['protocol']}: {h['unit']}",
        "stride": f"stride {h['stride']}",
        "corpus": f"corpus {h['corpus']}{split}",
        "tokenizer": f"tokenizer {_name_of(h['tokenizer'])}",
        "context_length": f"T = {h['context_length']} tokens",
        "model": f"model {_name_of(h['model'])}{sizes}",
        "tokens": f"trained on {millions(h['tokens'])} tokens",
    }
    return ", ".join(text for key, text in parts.items() if h[key] is not None)


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
    clauses = []
    for outcome in (*VERBS, "unclear", "no verdict", "no number"):
        rows = [row for row in comparison.rows if _outcome(row.cells[at]) == outcome]
        rows.sort(key=lambda row: row.cells[at].change or 0.0)
        changes = [change for row in rows if (change := row.cells[at].change) is not None]
        sized = changes and outcome not in (SAME_WORD, "no verdict")
        size = f" ({_span(changes, metric)} {UNITS[metric]})" if sized else ""
        if rows and outcome in VERBS:
            clauses.append(f"{_names(rows)} {VERBS[outcome][len(rows) > 1]}{size}")
        elif rows:
            clauses.append(f"{outcome} for {_names(rows)}{size}")
    return f"at {length(column.multiple)} {'; '.join(clauses)}" if clauses else ""


def _outcome(cell: Cell) -> str:
    if cell.mean is None:
        return "no number"
    return "no verdict" if cell.verdict is None else short_verdict(cell.verdict)


def _against(comparison: Comparison, at: int) -> str:
    """`against rope at 8x, in nats: alibi is lower (-2.43)`."""
    metric, name = comparison.header["metric"], visible(comparison.header["baseline"])
    found = [(row, row.cells[at].against) for row in comparison.rows]
    clauses = []
    for word, words in AGAINST.items():
        some = [(row, one.difference) for row, one in found if one is not None and one.word == word]
        if some:
            verb, sizes = "is" if len(some) == 1 else "are", _span([value for _, value in some], metric)
            clauses.append(f"{_names([row for row, _ in some])} {verb} {words} ({sizes})")
    rest = [row for row, one in found if one is None and label(row) != name]
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
    clauses: list[str] = []
    whole: list[Row] = []
    unclear: list[Row] = []
    for row in rows:
        if row.curve is None:
            continue
        ends = [end for end in row.curve.breaks_at if end is not None]
        if ends:
            clauses.append(f"{_names([row])} breaks at {min(ends) / row.curve.train_length:.3g}x")
        else:
            (whole if all(row.curve.holds) else unclear).append(row)
    if len(clauses) > MOST_NAMED:
        clauses = [f"{len(clauses)} rows break"]
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
        parts.append(_documents(h))
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


def _span(values: Sequence[float], metric: str) -> str:
    """Return the lowest and the highest of changes; one where they print alike."""
    low, high = min(values), max(values)
    if printed(low, metric) == printed(high, metric):
        return printed_change(low, metric)
    return f"{printed_change(low, metric)} to {printed_change(high, metric)}"


# --- the notes


def captions(comparison: Comparison, marks: Mapping[str, str]) -> list[str]:
    """Return the notes: protocol, targets, ±, verdicts, marks, the side table, rows that need a word.

    `marks` is how the format marks the `lowest`, a `tie` with it, and what is `unclear`.
    """
    h = comparison.header
    lines = [NOTES.get(h["protocol"], ""), "" if comparison.columns else "no run has a number yet"]
    lines += [_scored(comparison), _numbers(comparison), _verdicts(comparison), _marks(comparison, marks)]
    lines += [_side(comparison), *_probes(comparison)]
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


def _scored(comparison: Comparison) -> str:
    """`30384 targets in 160 documents; a byte trigram of the training text: 1.920 nats per token`."""
    h, parts = comparison.header, []
    if h["targets"] is not None:
        parts.append(f"{_range(h['targets'])} targets in {_documents(h)}")
    if h["reference"] is not None and h["reference"]["mean"] is not None:
        number = printed(h["reference"]["mean"], h["metric"])
        parts.append(f"a byte trigram of the training text: {number} {h['reference']['unit']}")
    return "; ".join(parts)


def _numbers(comparison: Comparison) -> str:
    """Return what a number with a sign and the ± of a cell are."""
    cells, of = _cells(comparison), spread_is_of(comparison)
    seeds = {cell.seeds for cell in cells if cell.seeds}
    if not seeds:
        return ""
    if comparison.header["baseline"] is not None:
        return _against_numbers(comparison)
    curves = any(row.curve for row in comparison.rows)
    parts = [
        f"a number with a sign: {'the rise over the mean from T/2 to T' if curves else 'change against 1x'}"
    ]
    if of == "seeds":
        several = seeds - {1}
        fewer = ", none for one seed" if 1 in seeds else ""
        parts.append(f"±: standard deviation over {_range((min(several), max(several)))} seeds{fewer}")
    elif of == "documents":
        over = INDEPENDENT.get(comparison.header["protocol"], "document") + "s"
        parts.append(f"±: half the 95% interval over {over}")
    if seeds == {1}:
        parts.append("one seed: these models only")
    return "; ".join(parts)


def _against_numbers(comparison: Comparison) -> str:
    name, margins = comparison.header["baseline"], comparison.header["margins"]
    if len(comparison.rows) == 1:
        return f"{name} is the only row"
    found = [cell.against for cell in _cells(comparison) if cell.against is not None]
    if not found:
        return f"nothing can be compared with {name}: not the same targets, seeds or metric"
    alone = "; one seed: these models only" if all(len(one.seeds) == 1 for one in found) else ""
    return (
        f"a number with a sign: difference to {name} at the same length, ± half its 95% interval; lower or "
        f"higher by more than {margins['same']:g} {margins['unit']}, tie within it, unclear: neither{alone}"
    )


def _verdicts(comparison: Comparison) -> str:
    found = {cell.verdict for cell in _cells(comparison)} - {None}
    h = comparison.header
    if not found or h["baseline"] is not None:
        return ""
    in_nats = h["metric"] == "nats" and _name_of(h["tokenizer"]) == "bytes"  # then a token is a byte
    same, collapsed = (
        f"{bits:g}" + (f" ({bits * math.log(2):.3f} nats)" if in_nats else "")
        for bits in (h["margins"]["same"], h["margins"]["collapsed"])
    )
    needs = [
        need for word, need in {MORE_SEEDS: "seeds", MORE_DOCUMENTS: "documents"}.items() if word in found
    ]
    unclear = f"; unclear: the 95% interval crosses a margin, more {' or '.join(needs)} are needed"
    text = f"verdicts in {h['margins']['unit']}: same within {same}, collapsed beyond {collapsed}"
    return text + (unclear if needs else "")


def _marks(comparison: Comparison, marks: Mapping[str, str]) -> str:
    """Return what the marks mean; where there are none though there are rows to rank, why."""
    h, cells = comparison.header, _cells(comparison)
    lost_seeds = any(cell.mean is not None and not cell.rankable for cell in cells)
    ranked = any(column.pairs for column in comparison.columns)
    if not ranked and len(comparison.rows) > 1:
        if h["metric"] == "ppl":
            return "perplexities are not ranked: --metric nats and --metric bpb are"
        if h["mixed"]:
            return "no best is marked: these rows are not comparable"
    if ranked and not any(pair.seeds for column in comparison.columns for pair in column.pairs):
        return "not ranked: no two rows have a seed in common"
    given = {cell.mark for cell in cells}
    parts = [f"{marks[mark]} {text}" for mark, text in MARK_WORDS.items() if mark in given]
    if ranked:
        parts.append("no mark: higher (95% intervals, Holm-corrected)")
    if lost_seeds and len(comparison.rows) > 1 and not any(row.curve for row in comparison.rows):
        parts.append("not ranked: rows that lost a seed")
    return "; ".join(parts)


def _side(comparison: Comparison) -> str:
    """Return what the columns of the side table are: context, slope, break."""
    rows, parts = comparison.rows, []
    if any(row.effective_context for row in rows):
        parts.append(
            f"effective context: the longest window within {EFFECTIVE:g} nats of the row's best loss "
            "(+: the longest measured)"
        )
    if any(row.uses_context for row in rows):
        unit = ", in nats per token" if comparison.header["metric"] == "ppl" else ""
        parts.append(f"T against T/2: the loss at 1x minus that at 0.5x{unit}")
    if any(row.curve for row in rows):
        parts.append("slope: nats per token of loss, for each token past T")
        parts.append("breaks at: the first bin past T whose 95% interval is 0.1 nats above the level at T")
    return "; ".join(parts)


def _probes(comparison: Comparison) -> list[str]:
    """Return a line for each probe, and one for the extensions that are columns."""
    lines = []
    for i, probe in enumerate(comparison.probes):
        losses = [loss for row in comparison.rows if (loss := row.probes[i].cell.mean) is not None]
        chance = re.search(r"\(chance ([\d.]+)\)", probe.unit)
        line = NOTES.get(probe.protocol, f"{probe.protocol}: in {probe.unit}")
        if chance:
            worse = bool(losses) and min(losses) > float(chance[1])
            line += f"; chance is {chance[1]}" + (", and all rows are worse" if worse else "")
        lines.append(line + ("" if probe.same_targets else "; the rows scored different targets"))
    if comparison.extensions:
        names = ", ".join(one.name for one in comparison.extensions)
        lines.append(f"{names}: test-time extensions; their change is against the row's crop line")
    return lines


def _documents(header: Mapping[str, Any]) -> str:
    """`160 documents`, `1 sequence`."""
    noun = INDEPENDENT.get(header["protocol"], "document")
    return f"{_range(header['documents'])} {noun}" + ("" if header["documents"][1] == 1 else "s")


def _cells(comparison: Comparison) -> list[Cell]:
    return [cell for row in comparison.rows for cell in row.cells]


def _range(ends: Iterable[object]) -> str:
    return " to ".join(dict.fromkeys(map(str, ends)))


def _name_of(value: object) -> str:
    return str(value.get("name", as_text(value))) if isinstance(value, dict) else as_text(value)
