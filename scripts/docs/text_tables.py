"""Tables of verdicts and memory by text: models trained on one text and measured on several.

The records have a bundle for each text that was trained on: `sympy.runs.jsonl.gz`, `prose.runs.jsonl.gz`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markdown_table import MarkdownTable
from posenc_output import RECORDS, Json, cell_at, compare_document, comparisons_of, last_cell, verdict_word
from scipy.stats import spearmanr

# corpus of a record -> its name on the page, in the order of the columns
TEXTS = {
    "sympy": "SymPy (Python)",
    "cpp_headers": "C++",
    "scipy_docs": "documentation",
    "king_james": "prose",
}
TRAINED_ON = {"sympy": "SymPy", "prose": "prose"}  # bundle -> its name on the page
OWN_TEXTS = {"SymPy": "SymPy (Python)", "prose": "prose"}  # the text of the training, as measured
UNDERTRAINED = "undertrained"  # not clearly below the frequencies of the text's tokens
KEPT = {"same", "better"}
HARMED = {"worse", "collapsed"}


@dataclass(frozen=True)
class TextColumn:
    """The rows of one training text, measured on one text, by the name of their encoding."""

    trained_on: str
    measured_on: str
    rows: dict[str, Json]

    @property
    def title(self) -> str:
        """Return the head of the column."""
        return f"{self.trained_on} → {self.measured_on}"

    @property
    def is_of_own_text(self) -> bool:
        """Tell whether the models were measured on the text that they were trained on."""
        return OWN_TEXTS[self.trained_on] == self.measured_on


def text_columns(folder: str) -> list[TextColumn]:
    """Return a column for each training text and measured text, first of all SymPy and SymPy."""
    columns = []
    for bundle, trained_on in TRAINED_ON.items():
        file = f"{folder}/{bundle}.runs.jsonl.gz"
        if not (RECORDS / file).exists():
            continue
        comparisons = comparisons_of(compare_document([file]))
        by_corpus = {comparison["header"]["corpus"]: comparison for comparison in comparisons}
        for corpus, name in TEXTS.items():
            if corpus in by_corpus:
                rows = {row["label"]: row for row in by_corpus[corpus]["rows"]}
                columns.append(TextColumn(trained_on, name, rows))
    return columns


def encodings_by_harm(columns: Sequence[TextColumn]) -> list[str]:
    """Return the encodings of the first column, from the least harm to the most."""
    first = columns[0].rows
    return sorted(first, key=lambda name: float(last_cell(first[name])["change"]))


def verdicts_by_text(folder: str, trained_on: str) -> str:
    """Return the loss at T, the change at 8T and its verdict of the models of one text, a column a text."""
    all_columns = text_columns(folder)
    columns = [column for column in all_columns if column.trained_on == trained_on]
    table = MarkdownTable(["trained on → measured on", *(column.title for column in columns)], left=[0])
    for name in encodings_by_harm(all_columns):
        table.add(f"`{name}`", *(_harm_text(column.rows.get(name)) for column in columns))
    table.sentence = (
        "Loss at T and its change at 8T, nats/byte; ± is half the 95% interval over documents. One seed each."
    )
    return table.text()


def _harm_text(row: Json | None) -> str:
    if row is None:
        return "-"
    at_train_length = cell_at(row, 1)
    assert at_train_length is not None
    longest = last_cell(row)
    low, high = longest["change_ci95"]
    half_width = (high - low) / 2
    loss = f"{at_train_length['mean']:.2f}"
    return f"{loss} {longest['change']:+.3f}±{half_width:.3f} {word_of_row(row)}"


def word_of_row(row: Json) -> str:
    """Return the verdict at the longest window, or that the models cannot read this text."""
    return UNDERTRAINED if row["undertrained"] else verdict_word(last_cell(row))


def memory_by_text(folder: str, trained_on: str) -> str:
    """Return the memory from T to 8T and the net gain of the right token, of the models of one text."""
    all_columns = text_columns(folder)
    columns = [column for column in all_columns if column.trained_on == trained_on]
    table = MarkdownTable(["trained on → measured on", *(column.title for column in columns)], left=[0])
    for name in encodings_by_harm(all_columns):
        table.add(f"`{name}`", *(_memory_text(column.rows.get(name)) for column in columns))
    table.sentence = (
        "Total variation of the next-token distribution from T to 8T, then the right token's net gain."
    )
    return table.text()


def _memory_text(row: Json | None) -> str:
    if row is None or row["memory"] is None:
        return "-"
    far_text = far_memory(row)
    net = far_text["gained"] - far_text["lost"]
    return f"{far_text['variation']:.3f}, {net:+.3f}"


def far_memory(row: Json) -> Json:
    """Return the comparison of the distributions at the longest window with those at T."""
    longest = row["memory"]["cells"][-1]
    (far_text,) = (shorter for shorter in longest["shorter"] if shorter["multiple"] == 1)
    comparison: Json = far_text
    return comparison


def agreement_by_text(folder: str) -> str:
    """Return how each pair of texts agrees with another one, by the rules that docs/log.md set beforehand.

    These rules were set before it was known that models of prose cannot read the other texts. So they take
    the verdict of a change as it is, also where the table calls the row undertrained.
    """
    columns = text_columns(folder)
    heads = ["trained on → measured on", "beside", "encodings", "agree", "differ in degree", "reversed"]
    heads += ["same order", "memory goes with harm"]
    table = MarkdownTable(heads, left=[0, 1])
    for column in columns:
        reference = _reference(column, columns)
        names = [name for name in column.rows if name in reference.rows]
        cells = [last_cell(column.rows[name]) for name in names]
        changes = [cell["change"] for cell in cells]
        variations = [far_memory(column.rows[name])["variation"] for name in names]
        if reference is column:
            beside = ["-"] * (2 + len(RELATIONS))
        else:
            reference_cells = [last_cell(reference.rows[name]) for name in names]
            beside = _beside(cells, reference_cells)
            beside.insert(0, reference.title)
        beside.insert(1, str(len(names)))
        table.add(column.title, *beside, f"{spearmanr(changes, variations).statistic:.2f}")
    table.sentence = "The last two columns are rank correlations over the encodings, at 8T."
    return table.text()


def _reference(column: TextColumn, columns: Sequence[TextColumn]) -> TextColumn:
    """Return what a column is compared with: the same models on the text of their training.

    Models on the text of their own training are compared with the first ones.
    """
    if column.is_of_own_text:
        return columns[0]
    (own_text,) = (
        other for other in columns if other.trained_on == column.trained_on and other.is_of_own_text
    )
    return own_text


def _beside(cells: Sequence[Json], reference_cells: Sequence[Json]) -> list[str]:
    """Return how many verdicts have each of the RELATIONS, and the rank correlation of the changes."""
    relations = [relation_of(*pair) for pair in zip(reference_cells, cells, strict=True)]
    changes = [cell["change"] for cell in cells]
    reference_changes = [cell["change"] for cell in reference_cells]
    counts = [str(relations.count(relation)) for relation in RELATIONS]
    return [*counts, f"{spearmanr(reference_changes, changes).statistic:.2f}"]


RELATIONS = ("agree", "differ in degree", "reversed")


def relation_of(first: Json, second: Json) -> str:
    """Tell how the verdict of a cell relates to another one's: one of RELATIONS."""
    first_word = verdict_word(first)
    second_word = verdict_word(second)
    if first_word == second_word:
        return "agree"
    words = {first_word, second_word}
    if "unclear" in words:
        first_low, first_high = first["change_ci95"]
        second_low, second_high = second["change_ci95"]
        overlap = first_low <= second_high and second_low <= first_high
        return "agree" if overlap else "differ in degree"
    return "reversed" if words & KEPT and words & HARMED else "differ in degree"
