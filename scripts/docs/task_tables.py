"""Tables of length generalisation on tasks, from a bundle of `experiment=tasks` in docs/records/.

An experiment is a grid of tasks, encodings and seeds, as conf/experiment/NAME.yaml has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import yaml
from markdown_table import MarkdownTable
from posenc_output import (
    RECORDS,
    ROOT,
    Json,
    compare,
    compare_document,
    comparisons_of,
    last_cell,
    multiple_of,
    stored_runs,
)
from scipy.stats import spearmanr

from posenc.results.beside.exact import LEARNED


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
    for cell in answers["cells"]:
        if cell is not None and cell["multiple"] == multiple_of(length):
            shares: Json = cell["whole"]
            return shares
    return None


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
    wholly right at `length`, too. Harm and use at 8T are those of docs/records/study-recall. Encodings are in
    the order of their harm.
    """
    grid = grid_of(experiment)
    answers = answers_of(folder)
    heads = ["encoding", "harm at 8T, nats/byte", "found at 8T, %", "tasks learned", f"going on at {length}"]
    table = MarkdownTable(heads)
    text_rows = {row["label"]: row for row in compare(["study-recall"])["rows"]}
    harms, uses, counts = [], [], []
    for encoding in sorted(grid.encodings, key=lambda name: float(last_cell(text_rows[name])["change"])):
        row = text_rows[encoding]
        learned = [task for task in grid.tasks if _has_learned(answers.get((task, encoding)))]
        shares = [share_at(answers[task, encoding], length) for task in learned]
        going_on = sum(share is not None and share["median"] >= LEARNED / 100 for share in shares)
        found = 100 * row["recall"]["beyond"][-1]["accuracy"]
        harms.append(last_cell(row)["change"])
        uses.append(found if row["recall"]["learned"] else None)
        counts.append(going_on)
        found_text = f"{found:.0f}" if row["recall"]["learned"] else "(did not learn)"
        table.add(f"`{encoding}`", f"{harms[-1]:+.3f}", found_text, str(len(learned)), str(going_on))
    by_use = [(use, count) for use, count in zip(uses, counts, strict=True) if use is not None]
    with_harm = spearmanr(harms, counts).statistic
    with_use = spearmanr([use for use, _ in by_use], [count for _, count in by_use]).statistic
    table.sentence = (
        f"Rank correlation of the last column with harm {with_harm:+.2f} ({len(harms)} encodings), "
        f"with what is found {with_use:+.2f} ({len(by_use)} that learned to recall)."
    )
    return table.text()


def _has_learned(answers: Json | None) -> bool:
    return answers is not None and bool(answers["learned"])
