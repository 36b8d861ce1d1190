"""Name what the rows of a comparison share: the line above its table."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.errors import visible
from posenc.report.sentences.shared import all_cells
from posenc.report.texts import count_text, names_text, row_label, span_text, token_noun
from posenc.results.comparison import Comparison
from posenc.results.headers import Header
from posenc.results.identity import condition_text
from posenc.results.records import HEADLINE
from posenc.results.rows import Row
from posenc.results.runs import encoding_name

# Conditions that tell tables apart, but that the facts name in another place.
IN_FACTS = {"context length", "tokens trained", "split", "stride", "evaluated in"}


def facts_of(comparison: Comparison) -> list[str]:
    """Return the facts above a table: `6 encodings`, `3 seeds`, `nano 0.82M`, `T = 64 bytes`, `sympy`, ..."""
    header = comparison.header
    # A single row is what the table is about, so that its name comes first in place of a count.
    if len(comparison.rows) == 1:
        rows = [row_label(comparison.rows[0]), *_settings(comparison), _seeds(comparison)]
    else:
        rows = [_count_of_rows(comparison), _seeds(comparison), *_settings(comparison)]
    precision = "/".join(header.precisions)
    evaluated_in = f"evaluated in {header.evaluated_in}" if header.evaluated_in else ""
    facts = [*_group_facts(header), protocol_fact(header), *rows, precision, evaluated_in]
    return [visible(fact) for fact in facts if fact]


def _group_facts(header: Header) -> list[str]:
    """Return what tells the table from the others, but for what another fact says."""
    said_elsewhere = set(IN_FACTS)
    if header.group.get("evaluated on") == header.group.get("corpus"):
        said_elsewhere.add("evaluated on")
    if header.group.get("model") == encoding_name(header.model):
        said_elsewhere.add("model")
    return [condition_text(key, value) for key, value in header.group.items() if key not in said_elsewhere]


def protocol_fact(header: Header) -> str:
    """Return the protocol with its stride; empty for the headline."""
    if header.protocol == HEADLINE:
        return ""
    if header.stride is None:
        return header.protocol
    return f"{header.protocol}, stride {header.stride}"


def _count_of_rows(comparison: Comparison) -> str:
    rows = comparison.rows
    encodings = {row.encoding for row in rows}
    noun = "encodings" if len(encodings) == len(rows) else "rows"
    return f"{len(rows)} {noun}"


def _seeds(comparison: Comparison) -> str:
    header = comparison.header
    if len(header.seeds) == 1:
        return f"seed {header.seeds[0]}"
    # By cells and not by the list of seeds: rows may have three seeds each and six different ones together.
    counts = sorted({cell.seeds for cell in all_cells(comparison) if cell.seeds})
    if not counts:
        return ""
    return "1 seed" if counts == [1] else f"{span_text(counts)} seeds"


def _settings(comparison: Comparison) -> list[str]:
    """Return model, T, corpus, tokens and tuning of the runs; a text is empty where the runs differ."""
    header = comparison.header
    length = ""
    if header.context_length:
        length = f"T = {header.context_length} {token_noun(header)}s"
    # How long a model was trained that was given to posenc is not known.
    tokens = f"{count_text(header.tokens)} tokens" if isinstance(header.tokens, int) else ""
    return [_model(header), length, _corpus(header), tokens, _tuned(comparison.rows)]


def _corpus(header: Header) -> str:
    if not header.corpus:
        return ""
    details = []
    if header.trained_on is not None:
        details.append(f"trained on {header.trained_on}")
    # Test documents report, so that only another split needs a word.
    if header.split not in (None, "test"):
        details.append(header.split)
    return f"{header.corpus} ({', '.join(details)})" if details else header.corpus


def _tuned(rows: Sequence[Row]) -> str:
    tuned = [row for row in rows if row.tuned]
    if not tuned:
        return ""
    if len(tuned) == len(rows):
        return "learning rate tuned"
    return f"learning rate of {names_text(tuned)} tuned"


def _model(header: Header) -> str:
    """Return `nano 0.82M`, with the range of sizes where the rows differ."""
    name = encoding_name(header.model) or ""
    if header.parameters is None:
        return name
    fewest, most = header.parameters
    digits = 2 if fewest == most else 1
    sizes = []
    for parameters in header.parameters:
        millions = parameters / 1e6
        # Rounded first: 9.6 million in one digit would be 1e+01.
        rounded = round(millions) if millions >= 10 else float(f"{millions:.{digits}g}")
        sizes.append(f"{rounded:g}")
    return f"{name} {span_text(sizes)}M".strip()
