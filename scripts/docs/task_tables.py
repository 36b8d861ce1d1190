"""Tables of length generalisation on tasks, from a bundle of `experiment=tasks` in docs/records/.

An experiment is a grid of tasks, encodings and seeds, as conf/experiment/NAME.yaml has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import yaml
from markdown_table import MarkdownTable
from posenc_output import (
    RECORDS,
    ROOT,
    Json,
    cell_at,
    compare,
    compare_document,
    comparisons_of,
    last_cell,
    multiple_of,
    stored_runs,
)
from scipy.stats import spearmanr

from posenc.results.beside.exact import LEARNED

FEWEST_SHARES = 4  # different ones, for a rank correlation over encodings


@dataclass(frozen=True)
class Grid:
    """What an experiment trains."""

    tasks: Sequence[str]
    encodings: Sequence[str]
    seeds: Sequence[str]

    @property
    def runs(self) -> int:
        """Return how many runs the experiment has."""
        return len(self.tasks) * len(self.encodings) * len(self.seeds)


def grid_of(experiment: str) -> Grid:
    """Return the tasks, encodings and seeds of conf/experiment/NAME.yaml.

    Its `sweep.also` names the experiments of the tasks that have another recipe.
    """
    settings = _settings_of(experiment)
    parameters = settings["hydra"]["sweeper"]["params"]
    tasks = parameters["data.task"].split(",")
    for name in settings["sweep"]["also"]:
        tasks += _settings_of(name)["hydra"]["sweeper"]["params"]["data.task"].split(",")
    return Grid(
        tasks=tasks,
        encodings=parameters["encoding"].split(","),
        seeds=parameters["seed"].split(","),
    )


def _settings_of(experiment: str) -> Json:
    """Return what conf/experiment/NAME.yaml says."""
    file = ROOT / "conf" / "experiment" / f"{experiment}.yaml"
    settings: Json = yaml.safe_load(file.read_text(encoding="utf-8"))
    return settings


def answers_of(folder: str) -> dict[tuple[str, str], Json]:
    """Return the whole answers of each task and encoding, as `posenc compare --protocol exact` has them.

    Empty if docs/records/ has no such folder.
    """
    if not (RECORDS / folder).exists():
        return {}
    answers = {}
    for comparison in comparisons_of(compare_document([folder], "--protocol", "exact")):
        task = comparison["header"]["corpus"]
        for row in comparison["rows"]:
            if row["exact"] is not None:
                answers[task, row["encoding"]] = row["exact"]
    return answers


def whole_answers(folder: str, length: str, experiment: str = "tasks") -> str:
    """Return whole answers at a length for each task and encoding, and what has not finished.

    A cell has how many seeds learned within T, and of those the median and the range in per cent.
    """
    grid = grid_of(experiment)
    answers = answers_of(folder)
    table = MarkdownTable(["", *grid.tasks])
    for encoding in grid.encodings:
        cells = [_cell_text(answers.get((task, encoding)), length) for task in grid.tasks]
        table.add(f"`{encoding}`", *cells)
    table.sentence = _finished_sentence(grid, answers)
    return table.text()


def _cell_text(answers: Json | None, length: str) -> str:
    """Return `2/3: 40 [20, 60]`; the count alone where no seed learned, nothing where no run finished."""
    if answers is None:
        return ""
    learned = f"{answers['learned']}/{answers['seeds']}"
    shares = share_at(answers, length)
    if not answers["learned"] or shares is None:
        return learned
    low, middle, high = (round(100 * shares[key]) for key in ("low", "median", "high"))
    spread = f"{middle}" if low == high else f"{middle} [{low}, {high}]"
    return f"{learned}: {spread}"


def share_at(answers: Json, length: str) -> Json | None:
    """Return low, median and high share of whole answers at a length; None where it was not measured."""
    cell = cell_at(answers, multiple_of(length))
    shares: Json | None = None if cell is None else cell["whole"]
    return shares


def right_tokens_beside(folder: str, other_folder: str, length: str) -> str:
    """Return the right tokens at a length in two folders, for the tasks and encodings of the second one."""
    answers = answers_of(folder)
    other_answers = answers_of(other_folder)
    tasks = list(dict.fromkeys(task for task, _ in other_answers))
    encodings = list(dict.fromkeys(encoding for _, encoding in other_answers))
    table = MarkdownTable(["", *tasks])
    for encoding in encodings:
        pairs = [(answers[task, encoding], other_answers[task, encoding]) for task in tasks]
        cells = [
            f"{_right_tokens(first, length)} → {_right_tokens(second, length)}" for first, second in pairs
        ]
        table.add(f"`{encoding}`", *cells)
    return table.text()


def _right_tokens(answers: Json, length: str) -> str:
    """Return the median share of right tokens at a length, in per cent.

    It is that of the seeds that learned, or of all if none did.
    """
    cell = cell_at(answers, multiple_of(length))
    assert cell is not None
    return f"{100 * cell['tokens']['median']:.0f}"


def _finished_sentence(grid: Grid, answers: dict[tuple[str, str], Json]) -> str:
    """Return how many runs finished, and the tasks that lack some."""
    runs_of_task = dict.fromkeys(grid.tasks, 0)
    for (task, _), of_encoding in answers.items():
        runs_of_task[task] += of_encoding["seeds"]
    wanted = len(grid.encodings) * len(grid.seeds)
    incomplete = [task for task, runs in runs_of_task.items() if runs < wanted]
    sentence = f"Finished: {sum(runs_of_task.values())} of {grid.runs} runs."
    if incomplete:
        sentence += f" Not complete: {', '.join(incomplete)}."
    return sentence


def minutes_of_tasks(folder: str, experiment: str = "tasks") -> str:
    """Return for each task how many seeds of how many encodings learned it, and the minutes of its runs."""
    grid = grid_of(experiment)
    answers = answers_of(folder)
    minutes: dict[str, list[float]] = {task: [] for task in grid.tasks}
    for run in stored_runs(folder):
        minutes[run["config"]["data"]["task"]].append(run["results"]["run"]["wall_seconds"] / 60)
    table = MarkdownTable(["task", "encodings", "runs", "learned", "minutes of training: median", "longest"])
    for task, of_runs in minutes.items():
        of_task = [of_encoding for (name, _), of_encoding in answers.items() if name == task]
        if not of_runs:
            table.add(f"`{task}`", "0", "0", "-", "-", "-")
            continue
        learned = sum(of_encoding["learned"] for of_encoding in of_task)
        times = (f"{median(of_runs):.1f}", f"{max(of_runs):.1f}")
        table.add(f"`{task}`", str(len(of_task)), str(len(of_runs)), str(learned), *times)
    return table.text()


def tasks_beside_text(folder: str, length: str, experiment: str = "tasks") -> str:
    """Return how many tasks each encoding goes on with, beside its harm and its use on text.

    An encoding goes on with a task if the median of the seeds that learned it has LEARNED% of the answers
    wholly right at `length`, too. Encodings are in the order of their harm.
    """
    grid = grid_of(experiment)
    answers = answers_of(folder)
    heads = ["encoding", "harm at 8T, nats/byte", "found at 8T, %", "tasks learned", f"going on at {length}"]
    table = MarkdownTable(heads)
    on_text = {
        encoding: of_text for encoding, of_text in _numbers_on_text().items() if encoding in grid.encodings
    }
    going_on = {}
    for encoding in sorted(on_text, key=lambda name: on_text[name].harm):
        shares = _shares_of_learned(grid.tasks, encoding, answers, length)
        going_on[encoding] = sum(share >= LEARNED / 100 for share in shares.values())
        found = on_text[encoding].found
        found_text = "(did not learn)" if found is None else f"{found:.0f}"
        harm_text = f"{on_text[encoding].harm:+.3f}"
        table.add(f"`{encoding}`", harm_text, found_text, str(len(shares)), str(going_on[encoding]))
    with_harm, with_found = _correlations(going_on, on_text)
    table.sentence = (
        f"Rank correlation of the last column with harm: {with_harm}; with what is found: {with_found}."
    )
    return table.text()


def ranks_by_task(folder: str, length: str, experiment: str = "tasks") -> str:
    """Return for each task how its whole answers at a length rank encodings, beside harm and use on text."""
    grid = grid_of(experiment)
    answers = answers_of(folder)
    on_text = _numbers_on_text()
    table = MarkdownTable(["task", f"best at {length}, %", "ranks as harm", "ranks as what is found"])
    for task in grid.tasks:
        shares = {
            encoding: share
            for encoding in grid.encodings
            for share in _shares_of_learned([task], encoding, answers, length).values()
        }
        if len(set(shares.values())) < FEWEST_SHARES:
            continue
        table.add(f"`{task}`", f"{100 * max(shares.values()):.0f}", *_correlations(shares, on_text))
    table.sentence = "Rank correlation over the encodings with a seed that learned; in brackets their number."
    return table.text()


@dataclass(frozen=True)
class OnText:
    """What an encoding does on text, by docs/records/study-recall."""

    harm: float  # change of the loss at 8T, nats/byte
    found: float | None  # planted values found at 8T, %; None where it did not learn to recall


def _numbers_on_text() -> dict[str, OnText]:
    """Return harm and use of each encoding of the study."""
    numbers = {}
    for row in compare(["study-recall"])["rows"]:
        recall = row["recall"]
        found = 100 * recall["beyond"][-1]["accuracy"] if recall["learned"] else None
        numbers[row["label"]] = OnText(last_cell(row)["change"], found)
    return numbers


def _shares_of_learned(
    tasks: Sequence[str], encoding: str, answers: dict[tuple[str, str], Json], length: str
) -> dict[str, float]:
    """Return the median share of whole answers at a length, for each task that a seed learned."""
    shares = {}
    for task in tasks:
        of_task = answers.get((task, encoding))
        share = share_at(of_task, length) if of_task is not None and of_task["learned"] else None
        if share is not None:
            shares[task] = share["median"]
    return shares


def _correlations(values: Mapping[str, float], on_text: Mapping[str, OnText]) -> tuple[str, str]:
    """Return the rank correlation of values with harm and with what is found: `-0.77 (12)`, `+0.41 (9)`.

    In brackets is the number of encodings: what is found needs one that learned to recall.
    """
    harms = {encoding: on_text[encoding].harm for encoding in values}
    found = {encoding: on_text[encoding].found for encoding in values}
    texts = []
    for numbers in (harms, found):
        known = {encoding: number for encoding, number in numbers.items() if number is not None}
        correlation = spearmanr([values[encoding] for encoding in known], list(known.values())).statistic
        texts.append(f"{correlation:+.2f} ({len(known)})")
    with_harm, with_found = texts
    return with_harm, with_found
