"""Papers' own numbers beside the records: do both go the same way?

`posenc compare docs/records/FOLDER --against TABLE` prints one of these comparisons row by row. Here its
function is called instead of the command, so that the records are read once and not for each of 27 tables.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from markdown_table import MarkdownTable
from posenc_output import RECORDS, Json

from posenc.results import Run, load_runs
from posenc.results.published import against

LOST = 0.5  # an accuracy beyond T is kept if at least this share of the accuracy at T is left
# Two accuracies that are nearer have no order: with one seed, 128 windows a cell resolve ten points.
RESOLVED = 0.1


def published_tables() -> dict[str, str]:
    """Return the metric of each published table, by its name."""
    text = files("posenc.results").joinpath("published.csv").read_text(encoding="utf-8")
    return {row["table"]: row["metric"] for row in csv.DictReader(text.splitlines())}


def rows_against(runs: Sequence[Run], table: str) -> list[Json]:
    """Return a row for each number of a paper's table, with what was measured beside it."""
    rows: list[Json] = against(runs, table).to_dict()["rows"]
    return rows


def changes_in_papers(folder: str) -> str:
    """Return a row for each paper's losses: how many changes from T on go the same way in the records."""
    table = MarkdownTable(["paper's table", "changes beside ours", "of the same sign"])
    runs = load_runs([RECORDS / folder])
    for name, metric in published_tables().items():
        if metric == "accuracy":
            continue
        rows = [row for row in rows_against(runs, name) if row["difference"]]
        same_sign = [row for row in rows if (row["published_change"] > 0) == (row["measured_change"] > 0)]
        table.add(name, str(len(rows)), str(len(same_sign)))
    return table.text()


@dataclass(frozen=True)
class Agreement:
    """How a paper's accuracies and the records agree."""

    compared: int  # accuracies beyond T that both have
    disagreeing: list[str]  # those of which one side keeps half and the other does not
    pairs: int  # of encodings at one length that both sides resolve
    pairs_in_order: int

    @property
    def agreeing(self) -> int:
        return self.compared - len(self.disagreeing)


def accuracies_in_papers(folders: Sequence[str]) -> str:
    """Return a row for each paper's accuracies: what is kept or lost in both, and pairs in the same order."""
    table = MarkdownTable(
        ["paper's table", "kept or lost", "alike", "not alike", "pairs apart", "in the same order"],
        left=[0, 3],
    )
    names = [name for name, metric in published_tables().items() if metric == "accuracy"]
    runs_by_folder = [load_runs([RECORDS / folder]) for folder in folders]
    agreements = [_agreement(runs_by_folder, name) for name in names]
    for name, agreement in zip(names, agreements, strict=True):
        table.add(
            name,
            str(agreement.compared),
            str(agreement.agreeing),
            ", ".join(agreement.disagreeing),
            str(agreement.pairs),
            str(agreement.pairs_in_order),
        )
    table.add(
        "all",
        str(sum(agreement.compared for agreement in agreements)),
        str(sum(agreement.agreeing for agreement in agreements)),
        "",
        str(sum(agreement.pairs for agreement in agreements)),
        str(sum(agreement.pairs_in_order for agreement in agreements)),
    )
    return table.text()


def _agreement(runs_by_folder: Sequence[Sequence[Run]], table: str) -> Agreement:
    by_encoding_and_length: dict[tuple[str, int], Json] = {}
    for runs in runs_by_folder:
        for row in rows_against(runs, table):
            if row["measured_change"] is not None:  # a later folder replaces an earlier one
                by_encoding_and_length[row["encoding"], row["published_length"]] = row
    rows = list(by_encoding_and_length.values())
    beyond = [row for row in rows if row["published_change"] is not None]
    disagreeing = [
        f"{row['encoding']} {row['multiple']:g}x" for row in beyond if _paper_keeps(row) != _records_keep(row)
    ]
    pairs = [pair for pair in itertools.combinations(rows, 2) if _resolved(*pair)]
    in_order = [pair for pair in pairs if _same_order(*pair)]
    return Agreement(len(beyond), disagreeing, len(pairs), len(in_order))


def _paper_keeps(row: Json) -> bool:
    at_train_length = row["published"] - row["published_change"]
    return bool(row["published"] >= LOST * at_train_length)


def _records_keep(row: Json) -> bool:
    at_train_length = row["measured"] - row["measured_change"]
    return bool(row["measured"] >= LOST * at_train_length)


def _resolved(first: Json, second: Json) -> bool:
    """Tell whether two accuracies of one length are apart on both sides."""
    if first["published_length"] != second["published_length"]:
        return False
    in_paper = abs(first["published"] - second["published"])
    in_records = abs(first["measured"] - second["measured"])
    return bool(min(in_paper, in_records) >= RESOLVED)


def _same_order(first: Json, second: Json) -> bool:
    return bool((first["published"] > second["published"]) == (first["measured"] > second["measured"]))
