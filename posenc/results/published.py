"""Numbers of papers, `published.csv` beside this file: one row a number, facts as they were printed.

For direction, not magnitude: corpus, model, tokenizer and protocol differ from any run here.
"""

from __future__ import annotations

import csv
import functools
import math
from dataclasses import dataclass
from pathlib import Path

from posenc.core.errors import UserError, visible

# Taken from other people's copies of these tables.
TRANSCRIBED = frozenset({"kerple-table3", "scale-invariant-table1", "kazemnejad-appendixF"})


@dataclass(frozen=True)
class Published:
    """One number of a table."""

    table: str
    paper: str
    arxiv: str
    parameters: str
    corpus: str
    protocol: str
    train_length: int  # tokens
    eval_length: int  # tokens
    encoding: str
    metric: str  # ppl or nats
    value: float
    spread: float | None  # the paper's own standard deviation

    @property
    def multiple(self) -> float:
        """The evaluation length as a multiple of the training length."""
        return self.eval_length / self.train_length

    @property
    def nats(self) -> float:
        """Per token of that paper's tokenizer."""
        return math.log(self.value) if self.metric == "ppl" else self.value

    @property
    def spread_nats(self) -> float:
        """The paper's standard deviation in nats per token; 0 where it gives none."""
        if self.spread is None:
            return 0.0
        return self.spread / self.value if self.metric == "ppl" else self.spread


@functools.cache
def published() -> tuple[Published, ...]:
    """Every number there is, in the order of the file."""
    path = Path(__file__).with_name("published.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(_row(row) for row in csv.DictReader(file))


def tables() -> list[str]:
    """Names of the tables."""
    return list(dict.fromkeys(row.table for row in published()))


def table_rows(table: str) -> list[Published]:
    """The numbers of one table. Raises UserError for a name that there is not."""
    rows = [row for row in published() if row.table == table]
    if not rows:
        raise UserError("--against", visible(table), "there is no such table", allowed=tables())
    return rows


def _row(row: dict[str, str]) -> Published:
    text = {k: row[k] for k in ("table", "paper", "arxiv", "parameters", "corpus", "protocol", "encoding")}
    return Published(
        **text,
        metric=row["metric"],
        train_length=int(row["train_length"]),
        eval_length=int(row["eval_length"]),
        value=float(row["value"]),
        spread=float(row["spread"]) if row["spread"] else None,
    )
