"""Tables of controls: a recipe beside the same recipe with one part changed, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence

from markdown_table import MarkdownTable
from posenc_output import Json, compare, last_cell
from record_tables import (
    change_and_verdict,
    found_and_interval,
    loss_at_train_length,
    seed_recall,
    seeds_that_learned,
)
from scipy.stats import fisher_exact


def controls(folder: str, recipes: Sequence[tuple[str, str]]) -> str:
    """Return a row for each recipe: loss at T, harm, how many seeds learned, and what these find.

    A recipe is its name and its bundle in the folder. The others are held against the first one: p is that
    of Fisher's exact test, two-sided, of how many seeds learned.
    """
    heads = ["recipe", "loss at T", "harm: change at 8T", "seeds that learned", "p", "found at 8T"]
    table = MarkdownTable(heads)
    first_counts: tuple[int, int] | None = None
    for name, bundle in recipes:
        row = _only_row(folder, bundle)
        learning = row["recall"]["learning"]
        counts = (learning["learned"], learning["seeds"] - learning["learned"])
        p = "-" if first_counts is None else f"{fisher_exact([first_counts, counts]).pvalue:.2f}"
        first_counts = first_counts or counts
        share_found = found_and_interval(row) if learning["learned"] else "-"
        table.add(
            name,
            f"{loss_at_train_length(row):.3f}",
            change_and_verdict(last_cell(row)),
            seeds_that_learned(row),
            p,
            share_found,
        )
    table.sentence = (
        "Loss in nats/byte. Brackets are 95% intervals. p: Fisher's exact test of how many seeds learned, "
        "beside the first row. Found: by the seeds that learned."
    )
    return table.text()


def controls_by_seed(folder: str, recipes: Sequence[tuple[str, str]], seeds: Sequence[int]) -> str:
    """Return a row for each recipe, and what each seed finds within T and at 8T, with its change at 8T."""
    table = MarkdownTable(["% found at T, at 8T; change at 8T", *(f"seed {seed}" for seed in seeds)])
    for name, bundle in recipes:
        texts = []
        for seed in seeds:
            recall = seed_recall(_only_row(folder, bundle, where=[f"seed={seed}"]))
            texts.append("-" if recall is None else recall.text())
        table.add(name, *texts)
    return table.text()


def _only_row(folder: str, bundle: str, where: Sequence[str] = ()) -> Json:
    """Return the row of a bundle that holds one recipe."""
    (row,) = compare([f"{folder}/{bundle}.runs.jsonl.gz"], where=where)["rows"]
    result: Json = row
    return result
