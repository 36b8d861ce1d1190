"""Tables that hold tasks beside text: does length generalisation on tasks rank encodings as harm and use do?

Harm and use of an encoding are those of docs/records/study-recall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from markdown_table import MarkdownTable
from posenc_output import Json, compare, last_cell
from scipy.stats import spearmanr
from task_tables import answers_of, grid_of, share_at

FEWEST_SHARES = 4  # different ones, for a rank correlation over encodings


@dataclass(frozen=True)
class OnText:
    """What an encoding does on text."""

    harm: float  # change of the loss at 8T, nats/byte
    found: float | None  # planted values found at 8T, %; None where it did not learn to recall


def tasks_beside_text(folder: str, length: str, experiment: str = "tasks") -> str:
    """Return harm and use of each encoding, and its whole answers at a length: the mean over all tasks.

    A task has the median of the seeds that learned it, and none if no seed did. Encodings are in the order of
    their harm.
    """
    grid = grid_of(experiment)
    answers = answers_of(folder)
    on_text = {name: numbers for name, numbers in _numbers_on_text().items() if name in grid.encodings}
    heads = ["encoding", "harm at 8T, nats/byte", "found at 8T, %", "seeds that learned"]
    table = MarkdownTable([*heads, f"whole answers at {length}, mean of the tasks, %"])
    means = {}
    for encoding in sorted(on_text, key=lambda name: on_text[name].harm):
        of_tasks = [answers.get((task, encoding)) for task in grid.tasks]
        means[encoding] = mean_share(of_tasks, length)
        learned = sum(of_task["learned"] for of_task in of_tasks if of_task is not None)
        seeds = sum(of_task["seeds"] for of_task in of_tasks if of_task is not None)
        numbers = on_text[encoding]
        found_text = "(did not learn)" if numbers.found is None else f"{numbers.found:.0f}"
        mean_text = f"{100 * means[encoding]:.0f}"
        table.add(f"`{encoding}`", f"{numbers.harm:+.3f}", found_text, f"{learned} of {seeds}", mean_text)
    with_harm, with_found = _correlations(means, on_text)
    subject = "Rank correlation of the last column"
    table.sentence = f"{subject} with little harm: {with_harm}, with what is found: {with_found}."
    return table.text()


def ranks_by_task(folder: str, length: str, experiment: str = "tasks") -> str:
    """Return for each task how its whole answers at a length rank encodings, beside harm and use on text.

    Tasks with few different shares are left out: all encodings have nothing, or everything.
    """
    grid = grid_of(experiment)
    answers = answers_of(folder)
    on_text = _numbers_on_text()
    table = MarkdownTable(["task", f"most at {length}, %", "with little harm", "with what is found"])
    for task in grid.tasks:
        shares = {}
        for encoding in grid.encodings:
            share = share_of_learned(answers.get((task, encoding)), length)
            if share is not None:
                shares[encoding] = share
        if len(set(shares.values())) >= FEWEST_SHARES:
            most = f"{100 * max(shares.values()):.0f}"
            table.add(f"`{task}`", most, *_correlations(shares, on_text))
    table.sentence = (
        "Rank correlation over the encodings with a seed that learned, whose number stands in brackets. "
        "1: the same order."
    )
    return table.text()


def _numbers_on_text() -> dict[str, OnText]:
    """Return harm and use of each encoding of the study."""
    numbers = {}
    for row in compare(["study-recall"])["rows"]:
        recall = row["recall"]
        found = 100 * recall["beyond"][-1]["accuracy"] if recall["learned"] else None
        numbers[row["label"]] = OnText(last_cell(row)["change"], found)
    return numbers


def share_of_learned(answers: Json | None, length: str) -> float | None:
    """Return the median share of whole answers of the seeds that learned; None where none did."""
    if answers is None or not answers["learned"]:
        return None
    shares = share_at(answers, length)
    return None if shares is None else float(shares["median"])


def mean_share(of_tasks: Sequence[Json | None], length: str) -> float:
    """Return the mean of `share_of_learned` over tasks; a task that no seed learned has 0."""
    return mean(share_of_learned(answers, length) or 0 for answers in of_tasks)


def _correlations(values: Mapping[str, float], on_text: Mapping[str, OnText]) -> tuple[str, str]:
    """Return rank correlations of values, with little harm and with what is found: `+0.77 (12)`, `+0.41 (9)`.

    In brackets is the number of encodings: what is found needs one that learned to recall.
    """
    kept = {encoding: -on_text[encoding].harm for encoding in values}
    found = {encoding: on_text[encoding].found for encoding in values}
    return _correlation(values, kept), _correlation(values, found)


def _correlation(values: Mapping[str, float], others: Mapping[str, float | None]) -> str:
    """Return the rank correlation with those of the others that are known: `+0.77 (12)`; `-` without one."""
    known = {encoding: number for encoding, number in others.items() if number is not None}
    if len({values[encoding] for encoding in known}) < 2:
        return "-"
    correlation = spearmanr([values[encoding] for encoding in known], list(known.values())).statistic
    return "-" if math.isnan(correlation) else f"{correlation:+.2f} ({len(known)})"
