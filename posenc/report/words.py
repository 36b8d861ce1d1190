"""The sentences around a table: what was measured, and what its marks and +- mean."""

from __future__ import annotations

from posenc.results.comparison import Comparison, Row
from posenc.results.names import visible
from posenc.results.settings import as_text

NOTES = {
    "fixed-target": "1x is the crop line: what one gets who cuts the context to T. Below it longer "
    "context helps, above it harms.",
    "nonoverlapping": "nonoverlapping rewards longer windows: fewer of their tokens have little context. "
    "For comparison with papers only.",
}


def title(comparison: Comparison) -> str:
    """Protocol, metric and unit, corpus, tokenizer, T, model and tokens in one line."""
    h = comparison.header
    parts = [f"{h['protocol']}: {h['unit']}"]
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


def captions(comparison: Comparison, mark: str) -> list[str]:
    """A line each: what the protocol means, targets, what +- is of, marks, rows that need a word.

    `mark` is how the format marks the lowest.
    """
    h, lines = comparison.header, []
    if h["protocol"] in NOTES:
        lines.append(NOTES[h["protocol"]])
    if not comparison.columns:
        lines.append("no run has a number yet")
    else:
        lines += [_scored(comparison), _spread(comparison)]
    if any(cell.best for row in comparison.rows for cell in row.cells):
        lines.append(f"{mark} lowest of its length; what prints the same shares the mark")
    elif h["mixed"] and len(comparison.rows) > 1:
        lines.append("no best is marked: these rows are not comparable")
    for key, values in h["also_differs"].items():
        lines.append(f"the rows also differ in {visible(key)}: {visible(', '.join(values))}")
    if h["left_out"]:
        lines.append(
            f"not shown: {h['left_out']} records of other targets, corpora or checkpoints "
            "(--length, --corpus and --split choose)"
        )
    lines += [f"{label(row)}: {visible(note)}" for row in comparison.rows for note in row.notes]
    return [line for line in lines if line]


def label(row: Row) -> str:
    """The row's name, with what sets it apart in a mixed table."""
    mixed = ", ".join(f"{key} {value}" for key, value in row.mixed.items())
    return visible(f"{row.label} [{mixed}]" if mixed else row.label)


def length(multiple: float) -> str:
    """A window as a multiple of T: 0.5x, 8x."""
    return f"{multiple:g}x"


def millions(count: object) -> str:
    """A count of tokens or parameters, short: 3.28M, 512."""
    if not isinstance(count, int):
        return str(count)
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**4, "k")):
        if count >= size:
            return f"{count / min(size, 1000 if letter == 'k' else size):.3g}{letter}"
    return str(count)


def spread_is_of(comparison: Comparison) -> str | None:
    """`seeds`, `documents` or None: what the +- in this table is of; one meaning a table."""
    cells = [cell for row in comparison.rows for cell in row.cells]
    if any(cell.spread is not None for cell in cells):
        return "seeds"
    return "documents" if any(cell.change_ci95 is not None for cell in cells) else None


def _spread(comparison: Comparison) -> str:
    of = spread_is_of(comparison)
    change = "the number with a sign is the change against 1x on the same targets"
    counts = sorted({cell.seeds for row in comparison.rows for cell in row.cells if cell.seeds})
    if of == "seeds":
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"± is the standard deviation over {seeds} seeds (of a change: of each seed's own); {change}"
    tail = "one seed: this says something of these models only"
    if of == "documents":
        return f"{change}; its ± is half the 95% interval over documents; {tail}"
    return f"{change}; {tail}" if counts else ""


def _scored(comparison: Comparison) -> str:
    h = comparison.header
    if h["targets"] is None:
        return ""
    targets, documents = (_range(h[key]) for key in ("targets", "documents"))
    same = all(c.targets == comparison.columns[0].targets is not None for c in comparison.columns)
    noun = "document" if documents == "1" else "documents"
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
