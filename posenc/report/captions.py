"""Say a comparison in words: its facts in one line, the answer, notes, and the rules (`--explain`).

All of it is plain text; the writers escape it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posenc.core.errors import visible
from posenc.results.cells import Cell, CurveSummary
from posenc.results.comparison import CompareRequest, Comparison, Row, compare_runs, protocols_of
from posenc.results.load import Run
from posenc.results.ranking import (
    BETTER,
    COLLAPSED,
    COLLAPSED_WORD,
    EFFECTIVE,
    REFERENCE,
    SAME,
    SAME_WORD,
    WORSE,
    short_verdict,
)
from posenc.results.recall import KEPT, LEVEL, RecallCell, RowRecall
from posenc.results.recall import PROTOCOL as RECALL
from posenc.results.schema import BREAK, HEADLINE, printed_change
from posenc.results.settings import as_text

MOST_NAMED = 3  # rows that a sentence names; of more it gives their number
IN_FACTS = {"context length", "context_length", "T", "tokens trained", "tokens", "split", "stride", "seed"}
IN_FACTS |= {"evaluated in"}
INDEPENDENT = {"induction": "sequence"}  # what the intervals are over, where it is not documents
VERBS = {
    BETTER: ("gains", "gain"),
    SAME_WORD: ("keeps its loss", "keep their loss"),
    "unclear": ("is unclear", "are unclear"),
    WORSE: ("gets worse", "get worse"),
    COLLAPSED_WORD: ("collapses", "collapse"),
    "": ("has no verdict", "have no verdict"),
}
AGAINST = {"below": "lower", "tied": "tied", "above": "higher"}
POLICY = re.compile(r" \(beyond: [^()]*\)")
PROTOCOLS = {
    "nonoverlapping": "rewards longer windows: use it only to compare with papers",
    "sliding": "windows move by the stride, and every token is scored once",
    "positions": "one pass over the longest context; a column is the last bin before it",
    "induction": "loss on the second copy of a random sequence",
    "far-copy": "loss on text that can be copied only from more than T tokens before",
    "key-tokens": "the fixed targets that a model trained at 8T predicts clearly better from far text",
    RECALL: "values of planted pairs, asked for at the end of a window",
}
EXPLAIN = f"""\
T        training length; 8x is a context of 8T, its loss on the same targets
loss     nats/token, or nats/byte where a token is a byte; --metric bpb, ppl
1x (T)   the crop line: the loss if you truncate the text to T tokens
change   loss minus the loss at 1x as trained; above 0, longer text harms
±        several seeds: standard deviation over seeds; one seed: half the 95% CI
95% CI   over test documents (by folder, book or article where known) and seeds;
         with one seed over documents only: it says nothing of other seeds
verdict  on the change in bits/byte, with its whole 95% CI:
         same within {SAME:g}, better or worse beyond it, collapsed above {COLLAPSED:g};
         unclear: the CI crosses a threshold
*        best: the lowest loss of its column
~        tied: not surely (95%, corrected for the rows) more than 0.02 bits/byte
         above the best; of few seeds that says little
         no mark: above the best, or not comparable with it
undertrained   at T not {REFERENCE:g} bits/byte below a byte trigram of the training:
         its change past T says nothing of the encoding
recovered   the share of (loss at T - loss of a model trained at 8T) gained at 8T on
         the same targets: 0% cropping, 100% training long; blank: no room (95% CI)
effective context   the longest window within {EFFECTIVE:g} nats of the row's best loss
breaks at   the first position past T that is surely {BREAK:g} nats above T's level
recall@T   share of the planted values that are found in windows of T, mean over
         the distances within T; @8x: at the farthest distance in windows of 8T
did not learn   to recall: below {LEVEL:g}% within T (--recall-level), so in brackets
         and not ranked: far text may be unused whatever the loss says
recall horizon   the largest distance, in the longest window, with at least
         {KEPT:.0%} of the recall within T
         its 95% CI: Wilson's over windows, with several seeds over seeds too
beyond=  what an encoding does past T, where it must choose
protocols   fixed-target: the headline; the same last tokens at every length
         sliding: all tokens, each once; nonoverlapping: as in papers, rewards
         longer windows; positions: by position; induction, far-copy: copies
         recall: planted pairs; key-tokens: the targets that far text makes clear
"""


# --- small texts


def label(row: Row) -> str:
    """Return the row's name, with what sets it apart in a mixed table."""
    return visible(row.full_label)


def short_label(row: Row) -> str:
    """Return the row's name without its policy past T."""
    return POLICY.sub("", label(row))


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


def token_of(header: Mapping[str, Any]) -> str:
    """Return `byte` where a token is one, else `token`."""
    return "byte" if _name_of(header["tokenizer"]) == "bytes" else "token"


def unit_of(header: Mapping[str, Any]) -> str:
    """Return the short unit of the losses: `nats/byte`, `bits/byte`, `perplexity`."""
    short = {"nats": f"nats/{token_of(header)}", "bpb": "bits/byte", "ppl": "perplexity"}
    return short[header["metric"]]


def plural(count: int, noun: str) -> str:
    """Return `1 seed`, `3 seeds`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def breaks_text(curve: CurveSummary) -> str:
    """Return where the seeds of a row break: `1.44x`, `1.44x-2x (2 of 3 seeds)`, `no break`, `unclear`."""
    broken = sorted(position for position in curve.breaks_at if position is not None)
    if not broken:
        return "no break" if all(curve.holds) else "unclear"
    ends = dict.fromkeys(length(round(end / curve.train_length, 2)) for end in (broken[0], broken[-1]))
    total = len(curve.breaks_at)
    return "-".join(ends) + ("" if len(broken) == total else f" ({len(broken)} of {total} seeds)")


# --- the facts


def facts_of(comparison: Comparison, runs: Sequence[Run]) -> list[str]:
    """Return what the table is of: `6 encodings`, `3 seeds`, `nano 0.82M`, `T = 64 bytes`, `sympy`, ..."""
    h, rows = comparison.header, comparison.rows
    members = _members(rows, runs)
    counts = sorted({cell.seeds for row in rows for cell in row.cells if cell.seeds})
    seeds = f"{_span(counts)} seed" + ("" if counts == [1] else "s") if counts else ""
    if len(only := {seed for row in rows for seed in row.seeds}) == 1:
        seeds = f"seed {only.pop()}"
    trained = "/".join(sorted({str(p) for run in members if (p := (run.facts or {}).get("precision"))}))
    others = {r.get("precision") for run in members for r in run.records if r["protocol"] == h["protocol"]}
    evaluated = others.pop() if len(others) == 1 else None  # of several: in the group
    protocol = "" if h["protocol"] == HEADLINE else h["protocol"]
    if h["stride"] is not None and protocol:
        protocol += f", stride {h['stride']}"
    if len(rows) == 1:
        what = label(rows[0])
    elif len({row.encoding for row in rows}) == len(rows):
        what = f"{len(rows)} encodings"
    else:
        what = f"{len(rows)} rows"
    tuned = [row for row in rows if row.tuned]
    some = f" of {_names(tuned)}" if 0 < len(tuned) < len(rows) else ""
    setting = [
        _model(h),
        h["context_length"] and f"T = {h['context_length']} {token_of(h)}s",
        h["corpus"] and str(h["corpus"]) + (f" ({h['split']})" if h["split"] not in (None, "test") else ""),
        "" if h["tokens"] is None else f"{millions(h['tokens'])} tokens",
        f"learning rate{some} tuned" if tuned else "",
    ]
    order = [what, *setting, seeds] if len(rows) == 1 else [what, seeds, *setting]
    group = [f"{key} {value}" for key, value in h["group"].items() if key not in IN_FACTS]
    parts = [*group, protocol, *order, trained, evaluated and f"evaluated in {evaluated}"]
    return [visible(part) for part in parts if part]


def _model(header: Mapping[str, Any]) -> str:
    """Return `nano 0.82M`; with the range where the rows differ."""
    sizes = header["parameters"]
    digits = 2 if sizes and sizes[0] == sizes[1] else 1
    shown = (
        ""
        if sizes is None
        else _span([f"{n / 1e6:.{digits}g}" if n < 1e7 else f"{n / 1e6:.0f}" for n in sizes])
    )
    name = "" if header["model"] is None else _name_of(header["model"])
    return f"{name} {shown}M".strip() if shown else name


def sample_line(comparison: Comparison) -> str:
    """Return documents and seeds, and what the CI of one seed does not cover."""
    h, cells = comparison.header, [cell for row in comparison.rows for cell in row.cells]
    if h["documents"] is None:
        return ""
    noun = INDEPENDENT.get(h["protocol"], f"{h['split'] or 'test'} document")
    parts = [f"{_span(h['documents'])} {noun}" + ("" if h["documents"][1] == 1 else "s")]
    if {cell.seeds for cell in cells if cell.seeds} == {1}:
        ci = any(cell.change_ci95 for cell in cells)
        covers = f"the CI covers {noun.split()[-1]}s, not training randomness" if ci else "no 95% CI"
        parts.append(f"1 seed: {covers}")
    elif len(comparison.rows) == 1:
        parts.append(f"seeds {', '.join(map(str, comparison.rows[0].seeds))}")
    return "; ".join(parts)


# --- the answer


def answer(comparison: Comparison, curve: CurveSummary | None = None) -> str:
    """Return what the comparison found, in a sentence or a few; `curve` is that of the only row, if known."""
    rows, columns = comparison.rows, [i for i, one in enumerate(comparison.columns) if one.shown]
    if not columns or not any(cell.mean is not None for row in rows for cell in row.cells):
        return "No run has a number yet."
    if any(row.curve for row in rows):
        return _breaks(rows)
    if comparison.header["protocol"] == RECALL:
        return _recalls(comparison) or "No run has a number yet."
    if comparison.header["baseline"] is not None:
        return _against(comparison, columns[-1])
    if subject(rows) is not None:
        return _one(comparison, curve)
    return " ".join(
        filter(
            None,
            [
                _undertrained(rows),
                *_best(comparison, columns),
                _keeps(comparison, columns[-1]),
                _recalls(comparison),
            ],
        )
    )


def curve_of(runs: Sequence[Run]) -> CurveSummary | None:
    """Return the summary of the curves over positions of runs that are one row; None without."""
    if "positions" not in protocols_of(runs):
        return None
    (comparison,) = compare_runs(runs, CompareRequest("positions", allow_mixed=True))
    rows = [row for row in comparison.rows if row.extend is None]
    return rows[0].curve if len(rows) == 1 else None


def subject(rows: Sequence[Row]) -> tuple[Row, Row | None] | None:
    """Return the only row; of a row and its extension the latter, and the row as trained."""
    if len(rows) == 1:
        return rows[0], None
    plain, extended = (
        [row for row in rows if (row.extend is not None) == is_extended] for is_extended in (0, 1)
    )
    if len(plain) == len(extended) == 1 and extended[0].encoding == plain[0].encoding:
        return extended[0], plain[0]
    return None


def _one(comparison: Comparison, curve: CurveSummary | None) -> str:
    """`Does not extrapolate: +1.20 nats at 2x, +2.44 at 8x; breaks at 1.44x.`"""
    found = subject(comparison.rows)
    assert found is not None
    row, plain = found
    if row.undertrained or (plain is not None and plain.undertrained):
        return _one_undertrained(comparison, plain or row)
    past = [cell for cell in row.cells if cell.multiple > 1]
    numbers = [cell for cell in past if cell.change is not None]
    if not numbers:
        reasons = ", ".join(dict.fromkeys(f"{length(c.multiple)} {c.note}" for c in past if c.note))
        return f"No number past T: {reasons}." if reasons else "Not measured past T."
    last, metric = numbers[-1], comparison.header["metric"]
    unit = {"nats": "nats", "bpb": "bits/byte", "ppl": "in perplexity"}[metric]
    ends = list({cell.multiple: cell for cell in (numbers[0], last)}.values())
    sizes = [f"{_change(cell, metric)} at {length(cell.multiple)}" for cell in ends]
    sizes[0] = sizes[0].replace(" at", f" {unit} at")
    listed = ", ".join(sizes)
    outcome = "" if last.verdict is None else short_verdict(last.verdict)
    text = {
        COLLAPSED_WORD: f"Does not extrapolate: {listed}",
        WORSE: f"Loses past T: {listed}",
        SAME_WORD: f"Extrapolates to {length(last.multiple)}: {listed}",
        BETTER: f"Gains from longer text: {listed}",
        "unclear": f"Unclear at {length(last.multiple)}: {listed}{_needs(last)}",
    }.get(outcome, f"No verdict: {listed}")
    if plain is not None:
        base = {cell.multiple: cell for cell in plain.cells if cell.change is not None}
        without = [_change(base[cell.multiple], metric) for cell in ends if cell.multiple in base]
        text += f" (without {row.extend}: {', '.join(without)})" if without else ""
    elif curve is not None and any(curve.breaks_at):
        text += f"; breaks at {breaks_text(curve)}"
    if lacking := [
        f"{length(cell.multiple)} ({cell.note})" for cell in past if cell.mean is None and cell.note
    ]:
        text += f"; no number at {', '.join(lacking)}"
    return f"{text}."


def _one_undertrained(comparison: Comparison, row: Row) -> str:
    h = comparison.header
    at_t = next((cell.mean for cell in row.cells if cell.multiple == 1), None)
    reference = (h["reference"] or {}).get("mean")
    sizes = f" ({at_t:.2f} against {reference:.2f} {unit_of(h)})" if at_t and reference else ""
    return f"Undertrained: at T not below a byte trigram{sizes}, so changes past T say little."


def _needs(cell: Cell) -> str:
    found = re.search(r"\(needs (.*)\)", cell.verdict or "")
    return f"; {found[1]} would help" if found else ""


def _change(cell: Cell, metric: str) -> str:
    """Return a change in two digits, small ones in three."""
    value = cell.change or 0.0
    return f"{value:+.2f}" if 0.1 <= abs(value) < 1000 else printed_change(value, metric)


def _undertrained(rows: Sequence[Row]) -> str:
    weak = [row for row in rows if row.undertrained]
    if weak and len(weak) == sum(row.extend is None for row in rows):
        return "All runs undertrained."
    return f"Undertrained: {_names(weak)}." if weak else ""


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


def _keeps(comparison: Comparison, at: int) -> str:
    """`Only alibi keeps its loss.`, `At 8x alibi is unclear, the other 5 collapse.`"""
    rows = [row for row in comparison.rows if not row.undertrained]
    if comparison.columns[at].multiple <= 1 or not rows:
        return ""
    by_word: dict[str, list[Row]] = {word: [] for word in VERBS}
    for row in rows:
        by_word[short_verdict(row.cells[at].verdict or "")].append(row)
    found = [(word, some) for word, some in by_word.items() if some]
    place = length(comparison.columns[at].multiple)
    if len(by_word[""]) == len(rows):
        changes = sorted(cell.change for row in rows if (cell := row.cells[at]).change is not None)
        ends = dict.fromkeys(
            printed_change(one, comparison.header["metric"]) for one in changes[:1] + changes[-1:]
        )
        return (
            f"No verdicts; changes at {place}: {' to '.join(ends)} {unit_of(comparison.header)}."
            if ends
            else ""
        )
    if len(found) == 1:
        return f"All {VERBS[found[0][0]][1]} at {place}."
    if found[0][0] == SAME_WORD and len(found[0][1]) == 1 and not by_word["unclear"] + by_word[""]:
        return f"Only {_names(found[0][1])} keeps its loss at {place}."
    clauses = [f"{_names(some)} {VERBS[word][len(some) > 1]}" for word, some in found]
    word, rest = found[-1]
    if len(rest) > 1:
        clauses[-1] = f"the other {len(rest)} {VERBS[word][1]}"
    return f"At {place} {'; '.join(clauses)}."


def _against(comparison: Comparison, at: int) -> str:
    """`Against rope at 8x: lower alibi (-2.43), higher nope.`"""
    h, clauses = comparison.header, []
    for word, shown in AGAINST.items():
        some = [
            (row, one)
            for row in comparison.rows
            if (one := row.cells[at].versus_baseline) and one.word == word
        ]
        if some:
            names = [
                f"{short_label(row)} ({printed_change(one.difference, h['metric'])})" for row, one in some
            ]
            clauses.append(
                f"{shown} {', '.join(names) if len(names) <= MOST_NAMED else f'{len(names)} rows'}"
            )
    place = length(comparison.columns[at].multiple)
    listed = "; ".join(clauses) or "no row can be compared with it"
    return f"Against {visible(h['baseline'])} at {place}: {listed}."


def _breaks(rows: Sequence[Row]) -> str:
    """`Past T rope breaks at 1.44x; alibi does not break.`"""
    found = [(row, breaks_text(row.curve)) for row in rows if row.curve is not None]
    broken = [(row, text) for row, text in found if text not in ("no break", "unclear")]
    clauses = [f"{short_label(row)} breaks at {text}" for row, text in broken]
    clauses = clauses if len(clauses) <= MOST_NAMED else [f"{len(clauses)} rows break"]
    for word, verb in (("no break", ("does not break", "do not break")), ("unclear", VERBS["unclear"])):
        if some := [row for row, text in found if text == word]:
            clauses.append(f"{_names(some)} {verb[len(some) > 1]}")
    return f"Past T {'; '.join(clauses)}."


def percent(cell: RecallCell | None) -> str:
    """Return `98%`."""
    return "" if cell is None else f"{100 * cell.accuracy:.0f}%"


def _recalls(comparison: Comparison) -> str:
    """`Best recall at 8x: hard_alibi (98%; tied: fire). Did not learn to recall: alibi and nope.`"""
    found = [(row, row.recall) for row in comparison.rows if row.recall is not None]
    if comparison.recall is None or not comparison.recall.multiples:
        return ""
    learned = [(row, far) for row, own in found if own.learned and (far := own.beyond[-1])]
    learned.sort(key=lambda one: -one[1].accuracy)
    weak = [row for row, own in found if own.learned is False]
    tied = [row for row, far in learned if far.rank == "tied"]
    place = f"ecall at {length(comparison.recall.multiples[-1])}"
    sentences = []
    if learned and learned[0][1].rank == "best":
        also = f"; tied: {_names(tied, 'others')}" if tied else ""
        sentences.append(f"Best r{place}: {short_label(learned[0][0])} ({percent(learned[0][1])}{also}).")
    elif learned:
        shown = [f"{short_label(row)} {percent(far)}" for row, far in learned[:MOST_NAMED]]
        sentences.append(f"R{place}: {', '.join(shown)}.")
    if len(weak) == len(found) > 1:
        sentences.append("No row learned to recall.")
    elif weak:
        sentences.append(f"Did not learn to recall: {_names(weak)}.")
    return " ".join(sentences)


def recall_line(comparison: Comparison, own: RowRecall | None) -> str:
    """`recall: 97% within T, 62% at 2x, 5% at 8x; horizon 224 tokens (3.5x)`; empty without a number."""
    if own is None or comparison.recall is None or own.within is None:
        return ""
    if not own.learned:
        return f"recall: did not learn, {percent(own.within)} within T (below {comparison.recall.level:g}%)"
    cells = zip(comparison.recall.multiples, own.beyond, strict=True)
    parts = [f"{percent(cell)} at {length(multiple)}" for multiple, cell in cells if cell]
    return f"recall: {', '.join([f'{percent(own.within)} within T', *parts])}; horizon {horizon_text(own)}"


def horizon_text(own: RowRecall | None) -> str:
    """Return `3.5x`, `7x+` where no longer distance was asked for, `0x` where no distance has half."""
    if own is None or own.learned is None:
        return ""
    far = own.horizon
    return "did not learn" if far is None else length(round(far.multiple, 2)) + "+" * far.longest


# --- the notes of --full


def full_notes(comparison: Comparison) -> list[str]:
    """Return what the tables do not say: targets, reference, chance, left out records, notes of the rows."""
    h, lines = comparison.header, []
    if h["protocol"] in PROTOCOLS:
        lines.append(f"{h['protocol']}: {PROTOCOLS[h['protocol']]}")
    if h["targets"] is not None:
        lines.append(f"{_span(h['targets'])} targets; {sample_line(comparison)}")
    if h["reference"] is not None and h["reference"]["mean"] is not None:
        lines.append(f"a byte trigram of the training text: {h['reference']['mean']:.3f} {unit_of(h)}")
    for probe in comparison.probes:
        chance = re.search(r"\(chance ([\d.]+)\)", probe.unit)
        more = f"; chance is {chance[1]}" if chance else ""
        lines.append(f"{probe.name}: {PROTOCOLS.get(probe.name, probe.unit)}{more}")
    lines += [f"recall: {label(r)}: {r.recall.note}" for r in comparison.rows if r.recall and r.recall.note]
    lines += [
        f"the rows also differ in {key}: {', '.join(values)}" for key, values in h["also_differs"].items()
    ]
    if h["left_out"]:
        flags = "--length, --corpus, --split, --stride choose"
        lines.append(
            f"not shown: {plural(h['left_out'], 'record')} of other targets or checkpoints ({flags})"
        )
    return lines + [f"{label(row)}: {note}" for row in comparison.rows for note in row.notes]


def _names(rows: Sequence[Row], many: str = "rows") -> str:
    names = [short_label(row) for row in rows]
    if len(names) > MOST_NAMED:
        return f"{len(rows)} {many}"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _members(rows: Sequence[Row], runs: Sequence[Run]) -> list[Run]:
    paths = {path for row in rows for path in row.runs}
    return [run for run in runs if str(run.path) in paths]


def _span(ends: Iterable[object]) -> str:
    """Return the first and the last of sorted values: `3`, `3-5`."""
    listed = list(dict.fromkeys(map(str, ends)))
    return listed[0] if len(listed) == 1 else f"{listed[0]}-{listed[-1]}"


def _name_of(value: object) -> str:
    return str(value.get("name", as_text(value))) if isinstance(value, dict) else as_text(value)
