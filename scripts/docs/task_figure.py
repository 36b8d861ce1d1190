"""Draw harm and use on text beside whole answers on tasks: do the three rank encodings alike?

    python scripts/docs/task_figure.py docs/pictures/study/tasks.png

Rows are the encodings of experiment=tasks, from the least harm to the most. Harm and use are those of
docs/records/study-recall. In the last panel a ring is a task that a seed learned: the share of whole answers
at 2T, the median of the seeds that learned. The dot is the mean over all tasks, and one that is not learned
has 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import altair as alt
from figures import png_of
from overview import PANELS, Mark, Panel, panel_chart, study_marks
from task_ranks import mean_share, share_of_learned
from task_tables import answers_of, grid_of

from posenc.report.charts.looks import data_of

LENGTH = "2x"
TASKS_PANEL = Panel(
    name="tasks",
    title="tasks: whole answers at 2T, %",
    width=120,
    scale=alt.Scale(domain=[0, 100]),
    ticks=None,
    has_zero_line=False,
)


def task_marks(folder: str, experiment: str = "tasks") -> list[Mark]:
    """Return a ring for each encoding and task that a seed learned, and a dot for the mean of all tasks."""
    grid = grid_of(experiment)
    answers = answers_of(folder)
    marks = []
    for encoding in grid.encodings:
        of_tasks = [answers.get((task, encoding)) for task in grid.tasks]
        for of_task in of_tasks:
            share = share_of_learned(of_task, LENGTH)
            if share is not None:
                percent = 100 * share
                marks.append(Mark("tasks", encoding, percent, percent, percent, counts=False))
        middle = 100 * mean_share(of_tasks, LENGTH)
        marks.append(Mark("tasks", encoding, middle, middle, middle))
    return marks


def figure_png(folder: str) -> bytes:
    """Return the picture of a folder of docs/records/."""
    encodings = set(grid_of("tasks").encodings)
    of_text = [mark for mark in study_marks() if mark.row in encodings and mark.panel in ("harm", "use")]
    marks = [*of_text, *task_marks(folder)]
    rows = list(dict.fromkeys(mark.row for mark in of_text))  # from the least harm to the most
    of_harm, of_use = (next(panel for panel in PANELS if panel.name == name) for name in ("harm", "use"))
    panels = [
        panel_chart(of_harm, rows, with_names=True),
        panel_chart(of_use, rows, with_names=False),
        panel_chart(TASKS_PANEL, rows, with_names=False),
    ]
    return png_of(alt.hconcat(*panels, data=data_of(marks), spacing=8))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="the PNG")
    parser.add_argument("--records", default="tasks", help="folder of docs/records/ (tasks)")
    arguments = parser.parse_args()
    arguments.out.write_bytes(figure_png(arguments.records))
