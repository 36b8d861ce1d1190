"""Tables of length generalisation on tasks, from a bundle of `experiment=tasks` in docs/records/.

An experiment is a grid of tasks, encodings and seeds, as conf/experiment/NAME.yaml has it.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import yaml
from markdown_table import MarkdownTable
from posenc_output import (
    RECORDS,
    ROOT,
    Json,
    cell_at,
    compare_document,
    comparisons_of,
    multiple_of,
    stored_runs,
)

from posenc.data.tasks import find_task
from posenc.data.tasks.instances import TaskInstances
from posenc.report.texts import whole_percent

GUESSED = 2000  # instances by which the share of a guess is counted


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


@functools.cache  # a page asks several times, and it takes seconds
def answers_of(folder: str) -> dict[tuple[str, str], Json]:
    """Return the whole answers of each task and encoding, as `posenc compare --protocol exact` has them.

    Empty if docs/records/ has no such folder. Raises ValueError if a task has two recipes.
    """
    if not (RECORDS / folder).exists():
        return {}
    answers = {}
    for comparison in comparisons_of(compare_document([folder], "--protocol", "exact")):
        task = comparison["header"]["corpus"]
        for row in comparison["rows"]:
            if row["exact"] is None:
                continue
            if (task, row["encoding"]) in answers:
                raise ValueError(f"{folder}: {task} has two rows of {row['encoding']}")
            answers[task, row["encoding"]] = row["exact"]
    return answers


def whole_answers(folder: str, length: str, experiment: str = "tasks") -> str:
    """Return whole answers at a length for each task and encoding, what a guess has, and what is missing.

    A cell has how many seeds learned within T, and of those the median and the range in per cent.
    """
    grid = grid_of(experiment)
    answers = answers_of(folder)
    table = MarkdownTable(["", *grid.tasks])
    for encoding in grid.encodings:
        cells = [_whole_text(answers.get((task, encoding)), length) for task in grid.tasks]
        table.add(f"`{encoding}`", *cells)
    window = round(multiple_of(length) * _train_length(experiment))
    table.add("*a guess*", *(whole_percent(guessed_share(task, window)) for task in grid.tasks))
    table.sentence = _finished_sentence(grid, answers)
    return table.text()


def _train_length(experiment: str) -> int:
    """Return the training length of an experiment in tokens."""
    return int(_settings_of(experiment)["context_length"])


def guessed_share(task: str, window: int) -> float:
    """Return the share of instances of the largest size whose answer is the commonest of its length.

    That is what a model has which knows how long the answer is, and gives always the same one.
    """
    instances = TaskInstances(find_task(task)(), "uniform")
    size = instances.largest_size(window)
    assert size is not None
    answers_by_length: dict[int, Counter[str]] = defaultdict(Counter)
    # Of any split: a split is drawn by a hash, which knows nothing of answers.
    for instance in instances.of_any_split(size, GUESSED):
        answers_by_length[len(instance.answer)][instance.answer] += 1
    # Where hardly an answer comes twice, the commonest came by chance, and counting it would be a guess too.
    commonest = [max(counts.values()) for counts in answers_by_length.values()]
    return sum(count for count in commonest if count > 1) / GUESSED


def _whole_text(answers: Json | None, length: str) -> str:
    """Return `2/3: 40 [20, 60]`; the count alone where no seed learned, nothing where no run finished."""
    if answers is None:
        return ""
    learned = f"{answers['learned']}/{answers['seeds']}"
    shares = share_at(answers, length)
    if not answers["learned"] or shares is None:
        return learned
    low, middle, high = (whole_percent(shares[key]) for key in ("low", "median", "high"))
    spread = middle if low == high else f"{middle} [{low}, {high}]"
    return f"{learned}: {spread}"


def share_at(answers: Json, length: str) -> Json | None:
    """Return low, median and high share of whole answers at a length; None where it was not measured."""
    cell = cell_at(answers, multiple_of(length))
    shares: Json | None = None if cell is None else cell["whole"]
    return shares


def right_tokens(folder: str, length: str, experiment: str = "tasks") -> str:
    """Return the share of right tokens at a length for each task and encoding, in per cent."""
    grid = grid_of(experiment)
    answers = answers_of(folder)
    table = MarkdownTable(["", *grid.tasks])
    for encoding in grid.encodings:
        table.add(
            f"`{encoding}`", *(_tokens_text(answers.get((task, encoding)), length) for task in grid.tasks)
        )
    return table.text()


def right_tokens_beside(folder: str, other_folder: str, length: str) -> str:
    """Return the right tokens at a length in two folders, for the tasks and encodings of the second one."""
    answers = answers_of(folder)
    other_answers = answers_of(other_folder)
    tasks = list(dict.fromkeys(task for task, _ in other_answers))
    encodings = list(dict.fromkeys(encoding for _, encoding in other_answers))
    table = MarkdownTable(["", *tasks])
    for encoding in encodings:
        pairs = [(answers[task, encoding], other_answers[task, encoding]) for task in tasks]
        cells = [f"{_tokens_text(first, length)} → {_tokens_text(second, length)}" for first, second in pairs]
        table.add(f"`{encoding}`", *cells)
    return table.text()


def _tokens_text(answers: Json | None, length: str) -> str:
    """Return the median share of right tokens at a length, in brackets if no seed learned: `59`, `(59)`."""
    cell = None if answers is None else cell_at(answers, multiple_of(length))
    if answers is None or cell is None:
        return ""
    text = whole_percent(cell["tokens"]["median"])
    return text if answers["learned"] else f"({text})"


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
