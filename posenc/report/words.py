"""The sentences around a table: what was measured, and what its marks and +- mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posenc.core.errors import visible
from posenc.report.extra_words import PROBE_NOTES, extra_captions, over_seeds_and_documents
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Row
from posenc.results.ranking import MORE_DOCUMENTS, MORE_SEEDS
from posenc.results.row_groups import full_label
from posenc.results.schema import printed
from posenc.results.settings import as_text

INDEPENDENT = {"induction": "sequence"}  # what intervals are over, where it is no document
MARKS = {"lowest": "*", "tie": "=", "unclear": "?"}
OF_CROP_LINE = "in the second table a number with a sign is the change against 1x"
NOTES = {
    "fixed-target": "1x is the crop line: what one gets who cuts the context to T. Below it longer "
    "context helps, above it harms.",
    "nonoverlapping": "nonoverlapping rewards longer windows: fewer of their tokens have little context. "
    "For comparison with papers only.",
    "sliding": "sliding: windows move by the stride, and every token is scored once.",
    "positions": "positions: one pass over the longest context; a column is the last bin before that "
    "position, a part of what lies between two columns.",
    **PROBE_NOTES,
}


def title(comparison: Comparison) -> str:
    """Protocol, metric and unit, corpus, tokenizer, T, model and tokens in one line."""
    h = comparison.header
    parts = [f"{h['protocol']}: {h['unit']}"]
    if h["facet"] is not None:
        parts.insert(0, f"{h['facet']['key']} {h['facet']['value']}")
    if h["stride"] is not None:
        parts.append(f"stride {h['stride']}")
    if h["corpus"] is not None:
        parts.append(f"corpus {h['corpus']}" + (f" ({h['split']})" if h["split"] else ""))
    if h["tokenizer"] is not None:
        parts.append(f"tokenizer {_named(h['tokenizer'])}")
    if h["context_length"] is not None:
        parts.append(f"T = {h['context_length']} tokens")
    if h["model"] is not None:
        parts.append(f"model {_named(h['model'])}" + _between(h["parameters"]))
    if h["tokens"] is not None:
        parts.append(f"trained on {millions(h['tokens'])} tokens")
    return ", ".join(visible(part) for part in parts)


def captions(comparison: Comparison, marks: dict[str, str]) -> list[str]:
    """A line each: what the protocol means, targets, what +- is of, words, marks, rows that need a word.

    `marks` is how the format marks the lowest, a tie with it, and what cannot be told from it.
    """
    h, lines = comparison.header, []
    if h["protocol"] in NOTES:
        lines.append(NOTES[h["protocol"]])
    if not comparison.columns:
        lines.append("no run has a number yet")
    else:
        lines += [_reference(comparison), _scored(comparison), _spread(comparison)]
    lines += [
        _baseline(comparison),
        _verdicts(comparison),
        _marks(comparison, marks),
        *extra_captions(comparison),
    ]
    for key, values in h["also_differs"].items():
        lines.append(f"the rows also differ in {visible(key)}: {visible(', '.join(values))}")
    if h["left_out"]:
        records = "1 record" if h["left_out"] == 1 else f"{h['left_out']} records"
        lines.append(
            f"not shown: {records} of other targets, corpora, checkpoints or tuned knobs "
            "(--length, --corpus, --split and --stride choose)"
        )
    lines += [f"{label(row)}: {visible(note)}" for row in comparison.rows for note in row.notes]
    return [line for line in lines if line]


def label(row: Row) -> str:
    """The row's name, with what sets it apart in a mixed table."""
    return visible(full_label(row.label, row.mixed))


def length(multiple: float) -> str:
    """A window as a multiple of T: 0.5x, 8x."""
    return f"{multiple:g}x"


def millions(count: object) -> str:
    """A count of tokens or parameters, short: 3.28M, 512."""
    if not isinstance(count, int):
        return str(count)
    for least, size, letter in ((999_500_000, 10**9, "B"), (999_500, 10**6, "M"), (10**4, 10**3, "k")):
        if count >= least:
            return f"{count / size:.3g}{letter}"
    return str(count)


def spread_is_of(comparison: Comparison) -> str | None:
    """`seeds`, `documents` or None: what the +- of the cells is of; one meaning a table."""
    cells = _cells(comparison)
    if any(cell.spread is not None for cell in cells):
        return "seeds"
    return "documents" if any(cell.change_ci95 is not None for cell in cells) else None


def _cells(comparison: Comparison) -> list[Cell]:
    return [cell for row in comparison.rows for cell in row.cells]


def _spread(comparison: Comparison) -> str:
    of = spread_is_of(comparison)
    change = "the number with a sign is the change against 1x on the same targets"
    if comparison.header["baseline"] is not None:  # then `_baseline` says what it is
        change = ""
    if any(row.curve for row in comparison.rows):
        change = "the number with a sign is the rise over the mean from T/2 to T in the same passes"
        if any(row.curve and row.extend for row in comparison.rows):
            change += " (extended: over that of the model as trained, given T tokens)"
    counts = sorted({cell.seeds for cell in _cells(comparison) if cell.seeds})
    if of == "seeds":
        several = [count for count in counts if count > 1]
        seeds = f"{several[0]}" if len(several) == 1 else f"{several[0]} to {several[-1]}"
        alone = "" if several == counts else ", rows of one seed have none"
        if not change:
            return f"± behind a loss is the standard deviation over {seeds} seeds{alone}"
        of_change = "(of a change: of each seed's own)"
        return f"± is the standard deviation over {seeds} seeds {of_change}{alone}; {change}"
    parts = [change] if change and counts else []
    if change and of == "documents":
        over = INDEPENDENT.get(comparison.header["protocol"], "document") + "s"
        parts.append(f"its ± is half the 95% interval over {over}")
    if counts == [1]:
        parts.append("one seed: this says something of these models only")
    return "; ".join(parts)


def _baseline(comparison: Comparison) -> str:
    """What the second number of a cell is where rows are held against one of them."""
    name = comparison.header["baseline"]
    if name is None:
        return ""
    found = [cell.against for cell in _cells(comparison) if cell.against is not None]
    if len(comparison.rows) == 1:
        return f"{visible(name)} is the only row; " + OF_CROP_LINE
    if not found:
        return f"nothing can be held against {visible(name)}: not the same targets, seeds or metric"
    over = over_seeds_and_documents(len(against.seeds) for against in found)
    margins = comparison.header["margins"]
    return (
        f"the number with a sign is the difference to {visible(name)} at the same length, paired by seed and "
        f"document; its ± is half the 95% interval over {over}; lower or higher by more than "
        f"{margins['same']:g} {margins['unit']}, tie within it, unclear: neither (Holm-corrected over the "
        f"length); {OF_CROP_LINE}"
    )


def _verdicts(comparison: Comparison) -> str:
    """What the words say, and what the unclear ones need."""
    if comparison.header["baseline"] is not None:
        return ""
    found = [cell for cell in _cells(comparison) if cell.verdict is not None]
    if not found:
        return ""
    margins = comparison.header["margins"]
    of = "over " + over_seeds_and_documents(cell.seeds for cell in found)
    text = (
        f"words hold the change against 1x to margins in {margins['unit']}: "
        f"same within {_margin(comparison, 'same')}, collapsed beyond {_margin(comparison, 'collapsed')}; "
        f"given where the 95% interval {of} clears the margin"
    )
    needs = {MORE_SEEDS: "seeds", MORE_DOCUMENTS: "documents"}
    words = [need for word, need in needs.items() if any(cell.verdict == word for cell in found)]
    return text + (f"; unclear: it does not, more {' or '.join(words)} are needed" if words else "")


def _margin(comparison: Comparison, which: str) -> str:
    """A margin; also in nats where those are shown and a token is a byte."""
    h = comparison.header
    bits = h["margins"][which]
    nats = h["metric"] == "nats" and _named(h["tokenizer"]) == "bytes"
    return f"{bits:g}" + (f" ({bits * math.log(2):.3f} nats)" if nats else "")


def _marks(comparison: Comparison, marks: dict[str, str]) -> str:
    """What the marks say; where there are none though there are rows to rank, why."""
    h, columns = comparison.header, comparison.columns
    pairs = [pair for column in columns for pair in column.pairs]
    if not pairs:
        many = len(comparison.rows) > 1
        if many and h["metric"] == "ppl":
            return "perplexities are not ranked: --metric nats and --metric bpb are"
        curves = any(row.curve for row in comparison.rows)  # which are never ranked
        if many and not h["mixed"] and not curves and _lost_seeds(_cells(comparison)):
            return "no best is marked: rows that lost a seed are not ranked"
        return "no best is marked: these rows are not comparable" if many and h["mixed"] else ""
    margin = f"{h['margins']['same']:g} {h['margins']['unit']}"
    cells = [row.cells[i] for i, column in enumerate(columns) if column.pairs for row in comparison.rows]
    ranked = [cell for cell in cells if cell.rankable]
    words = {
        "lowest": f"{marks['lowest']} lowest of its length",
        "tie": f"{marks['tie']} a tie with it (within {margin})",
        "unclear": f"{marks['unclear']} cannot be told from it",
        None: f"no mark: higher by more than {margin}",
    }
    shown = [text for mark, text in words.items() if any(cell.mark == mark for cell in ranked)]
    how = "95% intervals over seeds and documents, Holm-corrected over all pairs of the length"
    common = {len(pair.seeds) for pair in pairs}
    if common <= {0, 1}:
        one = "one seed" if all(cell.seeds <= 1 for cell in ranked) else "one seed in common"
        how = f"95% intervals over documents, Holm-corrected; {one}: ranks are of these models only"
    elif 1 in common:
        how += "; between rows with one seed in common over documents: ranks of these models only"
    if common == {0}:
        return "not ranked: no two rows have a seed in common"
    if 0 in common:
        how += "; rows without a seed in common are not told apart"
    if _lost_seeds(cells):
        how += "; not ranked: rows that lost a seed"
    bare = [
        f"{column.multiple:g}x"
        for i, column in enumerate(columns)
        if not column.pairs and any(row.cells[i].mean is not None for row in comparison.rows)
    ]
    if bare:
        how += f"; no ranks at {', '.join(bare)}: no two rows there that may be compared"
    return f"{'; '.join(shown)} ({how})"


def _lost_seeds(cells: Sequence[Cell]) -> bool:
    return any(cell.mean is not None and not cell.rankable for cell in cells)


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
    targets, documents = (_range(h[key]) for key in ("targets", "documents"))
    same = all(c.targets == comparison.columns[0].targets is not None for c in comparison.columns)
    noun = INDEPENDENT.get(h["protocol"], "document") + ("" if documents == "1" else "s")
    return f"{targets} targets in {documents} {noun}" + (" at every length" if same else "")


def _range(ends: list[int]) -> str:
    return f"{ends[0]}" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _between(ends: list[int] | None) -> str:
    if ends is None:
        return ""
    low, high = millions(ends[0]), millions(ends[1])
    return f" ({low} parameters)" if low == high else f" ({low} to {high} parameters)"


def _named(value: object) -> str:
    return str(value.get("name", as_text(value))) if isinstance(value, dict) else as_text(value)
