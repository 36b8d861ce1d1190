"""Runs to plot, and what stands in a plot of them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import matplotlib
from fake_runs import MULTIPLES, T, positions, record, write_run

from posenc.report.plots import plot_bytes
from posenc.results import load_runs
from posenc.results.comparison import Comparison, compare
from posenc.results.load import Run

Given = tuple[list[Run], list[Comparison]]


def given(*roots: Path, protocol: str = "fixed-target", metric: str = "nats") -> Given:
    """The runs of each root as one comparison."""
    each = [load_runs([root]) for root in roots]
    return [run for runs in each for run in runs], [compare(runs, protocol, metric, False) for runs in each]


def sweep(root: Path) -> None:
    """One that keeps its loss and one that collapses, three seeds each, with every kind of record."""
    for name, slope in (("alibi", 0.002), ("rope", 0.4)):
        for seed in (0, 1, 2):
            losses = {m: 1.2 + 0.01 * seed * m + max(0, m - 1) * slope for m in MULTIPLES}
            records = [record(int(m * T), loss) for m, loss in losses.items()]
            records += [
                record(int(m * T), 2 + m * slope, protocol=probe)
                for m in (1, 2, 8)
                for probe in ("induction", "far-copy")
            ]
            records += [positions(shift=0.1 * seed), record(T, 1.9, protocol="trigram")]
            run = write_run(root, name, seed=seed, records=records)
            lines = [f'{{"tokens": {1000 * i}, "loss": {4 / i + 0.1 * seed}}}' for i in range(1, 41)]
            (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"tokens": 41000, "lo')


def svg_texts(kind: str, found: Given, width: float = 5.5) -> list[str]:
    root = ElementTree.fromstring(plot_bytes("svg", kind, *found, width))
    return ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]


def all_text(kind: str, found: Given) -> str:
    return " ".join(svg_texts(kind, found))


def shown_texts(figure) -> list[matplotlib.text.Text]:
    """All but the labels of ticks beyond the ends of an axis."""
    beyond = set()
    for axes in figure.axes:
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            beyond |= {
                id(label)
                for tick in axis.get_major_ticks()
                if not min(ends) <= tick.get_loc() <= max(ends)
                for label in (tick.label1, tick.label2)
            }
    return [text for text in figure.findobj(matplotlib.text.Text) if id(text) not in beyond]


def line(figure, name: str, panel: int = 0):
    (found,) = [one for one in figure.axes[panel].get_lines() if one.get_label() == name]
    return found
