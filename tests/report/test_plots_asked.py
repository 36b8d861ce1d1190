"""Plots of what was asked for: facets, a single context, a width."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
from fake_runs import record, write_run
from plotted import all_text, given, line, sweep

from posenc.core.errors import UserError
from posenc.report.plots import PLOTS, check_plot, figure_of, plot_bytes, save_plot
from posenc.report.plots.series import panel_titles
from posenc.results import load_runs
from posenc.results.comparison import Comparison, View, compare_facets
from posenc.results.load import Run


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A sweep that no test changes."""
    root = tmp_path_factory.mktemp("sweep")
    sweep(root)
    return load_runs([root])


def asked(runs: list[Run], facet: str | None = None, columns: tuple[float, ...] = ()) -> list[Comparison]:
    view = View(rows=[], columns=list(columns), sort=None, baseline=None, extensions="rows")
    return compare_facets(runs, facet, "fixed-target", "nats", True, view)


@pytest.mark.parametrize("kind", PLOTS)
def test_every_kind_names_its_facets(swept: list[Run], kind: str) -> None:
    figure = figure_of(kind, swept, asked(swept, "seed"))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    seeds = [f"seed {seed}" for seed in (0, 1, 2)]
    if kind == "probes":
        assert titles == [f"{probe}, {seed}" for probe in ("induction", "far-copy") for seed in seeds]
    else:
        assert titles == seeds


def test_a_facet_comes_first_and_is_not_named_twice(tmp_path: Path) -> None:
    for length in (64, 128):
        facts = {"context_length": length, "model": {"name": f"m{length}"}}
        records = [record(m * length, 1.2, train_length=length) for m in (1, 8)]
        write_run(tmp_path / str(length), facts=facts, config=facts, records=records)
    _, comparisons = given(tmp_path / "64", tmp_path / "128")
    assert panel_titles(comparisons) == ["T = 64, model m64", "T = 128, model m128"]
    assert panel_titles(comparisons[:1]) == [""]
    for one, value in zip(comparisons, ("64", "128"), strict=True):
        one.header["facet"] = {"key": "context_length", "value": value}
    assert panel_titles(comparisons) == ["context_length 64, model m64", "context_length 128, model m128"]
    assert panel_titles(comparisons[:1]) == ["context_length 64"]


@pytest.mark.parametrize("kind", ["context", "change"])
@pytest.mark.parametrize("multiple", [0.5, 1.0, 8.0])
def test_a_single_context_is_in_the_middle(swept: list[Run], kind: str, multiple: float) -> None:
    comparisons = asked(swept, columns=(multiple,))
    figure = figure_of(kind, swept, comparisons)
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert low < multiple < high and low * high == pytest.approx(multiple**2) and high / low < 4
    assert ("T" in [text.get_text() for text in axes.texts]) == (multiple == 1)
    for one in axes.get_lines():
        if one.get_transform() == axes.transData:  # not those across all of the axes
            assert all(low < x < high for x in one.get_xdata()), one
    level = [one for one in axes.get_lines() if len(one.get_xdata()) == 2 and one.get_linewidth() < 0.6]
    crops = [one for one in level if one.get_ydata()[0] in {row.crop["mean"] for row in comparisons[0].rows}]
    assert len(crops) == (2 if (kind, multiple) == ("context", 8.0) else 0)
    assert ("crop line" in all_text(kind, (swept, comparisons))) == bool(crops)
    box, below = axes.get_window_extent(), max(text.get_window_extent().y1 for text in figure.texts)
    assert box.y0 > below and box.width > 0.5 * figure.bbox.width  # notes are not across the axes


def test_the_spread_at_a_single_context_is_a_bar(swept: list[Run]) -> None:
    comparisons = asked(swept, columns=(8.0,))
    figure = figure_of("context", swept, comparisons)
    assert line(figure, "rope").get_marker() not in ("", "None")
    bars = [one.get_segments()[0] for one in figure.axes[0].collections]
    for bar, row in zip(bars, comparisons[0].rows, strict=True):
        (cell,) = row.cells
        assert bar.tolist() == [[8.0, cell.mean - cell.spread], [8.0, cell.mean + cell.spread]]
    assert "Bars: standard deviation over 3 seeds" in all_text("context", (swept, comparisons))


def test_crop_lines_begin_at_the_shortest_context_shown(swept: list[Run]) -> None:
    figure = figure_of("context", swept, asked(swept, columns=(2.0, 8.0)))
    low, _ = figure.axes[0].get_xlim()
    crops = [one for one in figure.axes[0].get_lines() if one.get_linewidth() < 0.6]
    assert (
        low > 1 and [list(one.get_xdata()) for one in crops if len(one.get_xdata()) == 2][:2] == [[2, 8]] * 2
    )


def test_axes_without_room_are_refused_and_nothing_is_warned_of(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "n" * 44, losses={1: 1.2, 8: 1.3})
    write_run(tmp_path / "runs", "日本語", losses={1: 1.2, 8: 1.3})
    found = given(tmp_path / "runs")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(UserError, match=r"--plot-width=0.4: too narrow"):
            plot_bytes("png", "context", *found, 0.4)
        with pytest.raises(UserError, match=r"--plot-width=0.4: too narrow"):
            figure_of("change", *found, 0.4)
        for format in ("png", "svg", "pdf"):
            assert plot_bytes(format, "context", *found)
    assert not warned


@pytest.mark.parametrize("width", [0.0, -1.0, 0.99, 40.1, math.inf, -math.inf, math.nan])
def test_what_is_no_width_is_refused(tmp_path: Path, width: float) -> None:
    words = r"--plot-width=.*: not a width\n  allowed: inches from 1 to 40"
    with pytest.raises(UserError, match=words):
        check_plot(tmp_path / "x.png", "context", width)
    write_run(tmp_path / "runs", losses={1: 1.2, 8: 1.3})
    with pytest.raises(UserError, match=words):
        save_plot(tmp_path / "x.png", "context", *given(tmp_path / "runs"), width)
    assert not (tmp_path / "x.png").exists()
    for fine in (1.0, 40.0):
        check_plot(tmp_path / "x.png", "context", fine)
