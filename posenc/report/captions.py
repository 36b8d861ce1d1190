"""Say a comparison in words: its facts in one line, the answer, notes, and the rules (`--explain`).

All of it is plain text; the writers escape it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from rich.cells import cell_len

from posenc.core.errors import plural, visible
from posenc.results.comparison import CompareRequest, Comparison, Header, Row, compare_runs, protocols_of
from posenc.results.load import spoken_name
from posenc.results.recall_headroom import KEPT, LEVEL, RecallCell, RowRecall
from posenc.results.rows import Cell, CurveSummary
from posenc.results.schema import BREAK, HEADLINE, RECALL, printed_change
from posenc.results.statistics import (
    BETTER,
    COLLAPSED,
    COLLAPSED_WORD,
    REFERENCE,
    SAME,
    SAME_WORD,
    WORSE,
    short_verdict,
)

LONGEST_NAME = 44  # characters, in charts
MOST_NAMED = 3  # rows that a sentence names; of more it gives their number
IN_FACTS = {"context length", "context_length", "T", "tokens trained", "tokens", "split", "stride", "seed"}
IN_FACTS |= {"evaluated in"}
VERBS = {  # by the word for a row: of one row, of several
    BETTER: ("gains", "gain"),
    SAME_WORD: ("keeps its loss", "keep their loss"),
    "below": ("is lower", "are lower"),
    "tied": ("is tied", "are tied"),
    "no break": ("does not break", "do not break"),
    "unclear": ("is unclear", "are unclear"),
    "above": ("is higher", "are higher"),
    WORSE: ("gets worse", "get worse"),
    COLLAPSED_WORD: ("collapses", "collapse"),
    "breaks": ("breaks", "break"),
    "": ("has no verdict", "have no verdict"),
}
PROTOCOLS = {
    "nonoverlapping": "rewards longer windows: use it only to compare with papers",
    "sliding": "windows move by the stride, and every token is scored once",
    "positions": "one pass over the longest context; a column is the last bin before it",
    "induction": "loss on the second copy of a random sequence",
    "far-copy": "loss on text that can be copied only from more than T tokens before",
    "key-tokens": "the fixed targets that a model trained at 8T predicts clearly better from far text",
    RECALL: "values of planted pairs, asked for at the end of a window",
}
MARGINS = {"same": SAME, "collapsed": COLLAPSED, "reference": REFERENCE}
MARGINS |= {"break_": BREAK, "level": LEVEL, "kept": KEPT}


def explain() -> str:
    """Return the rules of the tables, with the margins in force."""
    return own_text("explain.txt").format(**MARGINS)


def own_text(name: str) -> str:
    """Return the content of one of the files beside this one."""
    return files("posenc.report").joinpath(name).read_text(encoding="utf-8")


# --- small texts


def label(row: Row) -> str:
    """Return the row's name, with what sets it apart in a mixed table."""
    return visible(row.full_label)


def cut(text: str, longest: int = LONGEST_NAME) -> str:
    """Return a text as it can be printed, without its middle where it is too long."""
    text, half = visible(text), (longest - 2) // 2
    return text if cell_len(text) <= longest else f"{text[:half]}..{text[len(text) - (longest - 2 - half) :]}"


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


def token_of(header: Header) -> str:
    """Return `byte` where a token is one, else `token`."""
    return "byte" if spoken_name(header.tokenizer) == "bytes" else "token"


def unit_of(header: Header) -> str:
    """Return the short unit of the losses: `nats/byte`, `bits/byte`, `perplexity`."""
    short = {"nats": f"nats/{token_of(header)}", "bpb": "bits/byte", "ppl": "perplexity"}
    return short[header.metric]


def breaks_text(curve: CurveSummary) -> str:
    """Return where the seeds of a row break: `1.44x`, `1.44x-2x (2 of 3 seeds)`, `no break`, `unclear`."""
    broken = sorted(position for position in curve.breaks_at if position is not None)
    if not broken:
        return "no break" if all(curve.holds) else "unclear"
    total = len(curve.breaks_at)
    ends = _span(length(round(end / curve.train_length, 2)) for end in (broken[0], broken[-1]))
    return ends + ("" if len(broken) == total else f" ({len(broken)} of {total} seeds)")


def percent(cell: RecallCell | None) -> str:
    """Return `98%`."""
    return "" if cell is None else f"{100 * cell.accuracy:.0f}%"


def horizon_text(own: RowRecall | None) -> str:
    """Return `3.5x`, `7x+` where no longer distance was asked for, `0x` where no distance has half."""
    if own is None or own.learned is None:
        return ""
    far = own.horizon
    return "did not learn" if far is None else length(round(far.multiple, 2)) + "+" * far.longest


# --- the facts


def facts_of(comparison: Comparison) -> list[str]:
    """Return what the table is of: `6 encodings`, `3 seeds`, `nano 0.82M`, `T = 64 bytes`, `sympy`, ..."""
    h, rows = comparison.header, comparison.rows
    counts = sorted({cell.seeds for row in rows for cell in row.cells if cell.seeds})
    seeds = f"{_span(counts)} seed" + ("" if counts == [1] else "s") if counts else ""
    if len(h.seeds) == 1:
        seeds = f"seed {h.seeds[0]}"
    protocol = "" if h.protocol == HEADLINE else h.protocol
    if h.stride is not None and protocol:
        protocol += f", stride {h.stride}"
    what = f"{len(rows)} {'encodings' if len({row.encoding for row in rows}) == len(rows) else 'rows'}"
    tuned = [row for row in rows if row.tuned]
    some = f" of {_names(tuned)}" if 0 < len(tuned) < len(rows) else ""
    setting = [
        _model(h),
        h.context_length and f"T = {h.context_length} {token_of(h)}s",
        h.corpus and str(h.corpus) + (f" ({h.split})" if h.split not in (None, "test") else ""),
        "" if h.tokens is None else f"{millions(h.tokens)} tokens",
        f"learning rate{some} tuned" if tuned else "",
    ]
    order = [label(rows[0]), *setting, seeds] if len(rows) == 1 else [what, seeds, *setting]
    order.append("/".join(h.precisions))
    evaluated = h.evaluated_in
    order.append(evaluated and f"evaluated in {evaluated}")
    group = [f"{key} {value}" for key, value in h.group.items() if key not in IN_FACTS]
    return [visible(part) for part in (*group, protocol, *order) if part]


def _model(header: Header) -> str:
    """Return `nano 0.82M`; with the range where the rows differ."""
    name, sizes = spoken_name(header.model) or "", header.parameters
    if sizes is None:
        return name
    digits = 2 if sizes[0] == sizes[1] else 1
    shown = _span(f"{n / 1e6:.{digits}g}" if n < 1e7 else f"{n / 1e6:.0f}" for n in sizes)
    return f"{name} {shown}M".strip()


def sample_line(comparison: Comparison) -> str:
    """Return documents and seeds, and what the CI of one seed does not cover."""
    h, cells = comparison.header, [cell for row in comparison.rows for cell in row.cells]
    if h.documents is None:
        return ""
    noun = "sequence" if h.protocol == "induction" else f"{h.split or 'test'} document"
    line = f"{_span(h.documents)} {noun}" + ("" if h.documents[1] == 1 else "s")
    if {cell.seeds for cell in cells if cell.seeds} == {1}:
        ci = any(cell.change_ci95 for cell in cells)
        covers = f"the CI covers {noun.split()[-1]}s, not training randomness" if ci else "no 95% CI"
        return f"{line}; 1 seed: {covers}"
    seeds = ", ".join(map(str, comparison.rows[0].seeds))
    return f"{line}; seeds {seeds}" if len(comparison.rows) == 1 else line


# --- the answer


def answer(comparison: Comparison, curve: CurveSummary | None = None) -> str:
    """Return what the comparison found, in a sentence or a few; `curve` is that of the only row, if known."""
    rows, columns = comparison.rows, [i for i, one in enumerate(comparison.columns) if one.shown]
    baseline, nothing = comparison.header.baseline, "No run has a number yet."
    if not columns or not any(cell.mean is not None for row in rows for cell in row.cells):
        return nothing
    if comparison.header.protocol == RECALL:
        return _recalls(comparison) or nothing
    if curves := [(row, breaks_text(row.curve)) for row in rows if row.curve]:
        if len(rows) == 1 and curves[0][1] not in VERBS:
            return f"Past T {label(rows[0])} breaks at {curves[0][1]}."
        return _sorted_out("Past T", [(row, word if word in VERBS else "breaks") for row, word in curves])
    multiple, last = comparison.columns[columns[-1]].multiple, [(row, row.cells[columns[-1]]) for row in rows]
    if baseline is not None:
        words = [(row, str(one.word)) for row, cell in last if (one := cell.versus_baseline)]
        place = f"Against {visible(baseline)} at {length(multiple)}"
        return _sorted_out(place, words) or f"{place}: no row can be compared with it."
    if len(rows) == 1:
        return _one(rows[0], comparison.header.metric, curve)
    weak = [row for row in rows if row.undertrained]
    undertrained = f"Undertrained: {_names(weak)}." if weak else ""
    if weak and len(weak) == sum(row.extend is None for row in rows):
        undertrained = "All runs undertrained."
    words = [(row, short_verdict(cell.verdict or "")) for row, cell in last if not row.undertrained]
    keeps = _sorted_out(f"At {length(multiple)}", words) if multiple > 1 else ""
    return " ".join(filter(None, [undertrained, *_best(comparison, columns), keeps, _recalls(comparison)]))


def curve_of(comparison: Comparison) -> CurveSummary | None:
    """Return the summary of the curves over positions of the only row as trained; None without."""
    runs, rows = comparison.runs, comparison.rows
    if len(rows) != 1 or rows[0].curve or rows[0].extend or "positions" not in protocols_of(runs):
        return None
    (found,) = compare_runs(runs, CompareRequest("positions", allow_mixed=True))
    plain = [row for row in found.rows if row.extend is None]
    return plain[0].curve if len(plain) == 1 else None


def _one(row: Row, metric: str, curve: CurveSummary | None) -> str:
    """`Collapses at 8x: +1.20 nats at 2x, +2.44 at 8x; breaks at 1.44x.`"""
    if row.undertrained:
        return "Undertrained: at T not below a byte trigram, so changes past T say little."
    past = [cell for cell in row.cells if cell.multiple > 1 and cell.change is not None]
    if not past:
        return "Not measured past T."
    unit = {"nats": "nats", "bpb": "bits/byte", "ppl": "in perplexity"}[metric]
    first, last = past[0], past[-1]
    sizes = f"{_change(first, metric)} {unit} at {length(first.multiple)}"
    if last is not first:
        sizes += f", {_change(last, metric)} at {length(last.multiple)}"
    outcome, place = VERBS[short_verdict(last.verdict or "")][0].capitalize(), length(last.multiple)
    needs = re.search(r"\(needs (.*)\)", last.verdict or "")
    more = f"; {needs[1]} would help" if needs else ""
    if curve is not None and any(curve.breaks_at):
        more += f"; breaks at {breaks_text(curve)}"
    return f"{outcome} at {place}: {sizes}{more}."


def _change(cell: Cell, metric: str) -> str:
    """Return a change in two digits, small ones in three."""
    value = cell.change or 0.0
    return f"{value:+.2f}" if 0.1 <= abs(value) < 1000 else printed_change(value, metric)


def _best(comparison: Comparison, columns: Sequence[int]) -> list[str]:
    """`Best at T: rope (tied: learned).`, and the same at the longest window."""
    places: dict[str, list[str]] = {}
    for i in dict.fromkeys([*(i for i in columns if comparison.columns[i].multiple == 1), columns[-1]]):
        versus = [(row, row.cells[i].versus_best) for row in comparison.rows]
        best, tied = ([row for row, one in versus if one and one.word == word] for word in ("best", "tied"))
        if best:
            multiple = comparison.columns[i].multiple
            text = _names(best) + (f" (tied: {_names(tied, 'others')})" if tied else "")
            places.setdefault(text, []).append("T" if multiple == 1 else length(multiple))
    return [f"Best at {' and '.join(at)}: {text}." for text, at in places.items()]


def _sorted_out(place: str, words: Sequence[tuple[Row, str]]) -> str:
    """`At 8x alibi is unclear; the other 5 collapse.`, `Past T rope breaks; alibi does not break.`"""
    found = [(word, some) for word in VERBS if (some := [row for row, own in words if own == word])]
    if not any(word for word, _ in found):
        return ""
    if len(found) == 1 < len(words):
        return f"{place} all {VERBS[found[0][0]][1]}."
    clauses = [f"{_names(some)} {VERBS[word][len(some) > 1]}" for word, some in found]
    word, rest = found[-1]
    if len(rest) > 1:
        clauses[-1] = f"the other {len(rest)} {VERBS[word][1]}"
    return f"{place} {'; '.join(clauses)}."


def _recalls(comparison: Comparison) -> str:
    """`Best recall at 8x: hard_alibi (98%; tied: fire). Did not learn to recall: alibi and nope.`"""
    found = [(row, row.recall) for row in comparison.rows if row.recall is not None]
    if comparison.recall is None or not comparison.recall.multiples:
        return ""
    learned = [(row, far) for row, own in found if own.learned and (far := own.beyond[-1])]
    learned.sort(key=lambda one: -one[1].accuracy)
    weak = [row for row, own in found if own.learned is False]
    tied = [row for row, far in learned if far.rank == "tied"]
    place, sentences = f"ecall at {length(comparison.recall.multiples[-1])}", []
    if learned and learned[0][1].rank == "best":
        also = f"; tied: {_names(tied, 'others')}" if tied else ""
        sentences.append(f"Best r{place}: {label(learned[0][0])} ({percent(learned[0][1])}{also}).")
    elif learned:
        shown = [f"{label(row)} {percent(far)}" for row, far in learned[:MOST_NAMED]]
        sentences.append(f"R{place}: {', '.join(shown)}.")
    if len(weak) == len(found) > 1:
        sentences.append("No row learned to recall.")
    elif weak:
        sentences.append(f"Did not learn to recall: {_names(weak)}.")
    return " ".join(sentences)


def recall_line(comparison: Comparison) -> str:
    """`recall: 97% within T, 62% at 2x, 5% at 8x; horizon 3.5x`; empty without a number."""
    own = comparison.rows[0].recall
    if own is None or comparison.recall is None or own.within is None:
        return ""
    if not own.learned:
        return f"recall: did not learn, {percent(own.within)} within T (below {comparison.recall.level:g}%)"
    cells = zip(comparison.recall.multiples, own.beyond, strict=True)
    parts = [f"{percent(cell)} at {length(multiple)}" for multiple, cell in cells if cell]
    return f"recall: {', '.join([f'{percent(own.within)} within T', *parts])}; horizon {horizon_text(own)}"


# --- the notes of --full


def full_notes(comparison: Comparison) -> list[str]:
    """Return what the tables do not say: targets, reference, left out records, notes of the rows."""
    h, rows, lines = comparison.header, comparison.rows, []
    if h.protocol in PROTOCOLS:
        lines.append(f"{h.protocol}: {PROTOCOLS[h.protocol]}")
    if h.targets is not None:
        lines.append(f"{_span(h.targets)} targets; {sample_line(comparison)}")
    if h.reference is not None and h.reference.mean is not None:
        lines.append(f"a byte trigram of the training text: {h.reference.mean:.3f} {unit_of(h)}")
    lines += [f"recall: {label(row)}: {row.recall.note}" for row in rows if row.recall and row.recall.note]
    differs = h.also_differs.items()
    lines += [f"the rows also differ in {key}: {', '.join(values)}" for key, values in differs]
    if h.left_out:
        lines.append(f"not shown: {plural(h.left_out, 'record')} of other targets or checkpoints")
    return lines + [f"{label(row)}: {note}" for row in rows for note in row.notes]


def _names(rows: Sequence[Row], many: str = "rows") -> str:
    names = [label(row) for row in rows]
    if len(names) > MOST_NAMED:
        return f"{len(rows)} {many}"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _span(ends: Iterable[object]) -> str:
    """Return the first and the last of sorted values: `3`, `3-5`."""
    listed = list(dict.fromkeys(map(str, ends)))
    return listed[0] if len(listed) == 1 else f"{listed[0]}-{listed[-1]}"
