"""Plots of comparisons, kind by kind: what is drawn is what was measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fake_runs import MULTIPLES, T, record, write_run
from plotted import all_text, given, line, shown_texts, svg_texts, sweep

from posenc.report.colors import style_of
from posenc.report.plots import PLOTS, figure_of
from posenc.results.comparison import compare


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that no test changes."""
    root = tmp_path_factory.mktemp("sweep")
    sweep(root)
    return root


@pytest.mark.parametrize("kind", PLOTS)
def test_every_kind_is_drawn_at_a_papers_column_and_wide(swept: Path, kind: str) -> None:
    found = given(swept)
    for width in (3.3, 7.0):
        figure = figure_of(kind, *found, width)
        assert figure.get_figwidth() == pytest.approx(width)
        edge = figure.bbox
        for text in shown_texts(figure):
            if text.get_text() and text.get_visible():
                assert text.get_fontsize() >= 7, text
                box = text.get_window_extent()
                inside = box.x0 >= edge.x0 - 2 and box.x1 <= edge.x1 + 2 and box.y1 <= edge.y1 + 2
                assert inside and box.y0 >= edge.y0 - 2, (text, box)
    texts = svg_texts(kind, found)
    assert {"alibi", "rope"} <= set(texts)
    assert any("T = 64" in text or "1x = T" in text for text in texts)


def test_the_context_plot_shows_the_comparisons_numbers(swept: Path) -> None:
    runs, (comparison,) = given(swept)
    figure = figure_of("context", runs, [comparison])
    (axes,) = figure.axes
    for row in comparison.rows:
        drawn = line(figure, row.label)
        assert list(drawn.get_xdata()) == list(MULTIPLES)
        assert list(drawn.get_ydata()) == [cell.mean for cell in row.cells]
        assert drawn.get_color() == style_of(row.label).color
        own = [one for one in axes.get_lines() if one.get_color() == drawn.get_color() and one is not drawn]
        crop = [one for one in own if list(one.get_ydata()) == [row.crop["mean"]] * 2]
        assert len(crop) == 1 and crop[0].get_linewidth() < 0.6 and list(crop[0].get_xdata()) == [1, 8]
    bands = axes.collections
    assert len(bands) == 2
    cell = comparison.rows[0].cells[-1]
    heights = bands[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(max(c.mean + c.spread for c in comparison.rows[0].cells))
    assert cell.spread == pytest.approx(0.08)
    texts = svg_texts("context", (runs, [comparison]))
    assert {"T", "trigram", "32", "0.5x", "512", "8x", "loss (nats per token)"} <= set(texts)
    assert "standard deviation over 3 seeds" in " ".join(texts)


def test_what_collapses_does_not_squash_the_rest(swept: Path) -> None:
    figure = figure_of("context", *given(swept))
    (axes,) = figure.axes
    box = axes.get_window_extent()

    def height(value: float) -> float:
        return float((axes.transData.transform((1, value))[1] - box.y0) / box.height)

    low, high = line(figure, "alibi").get_ydata()[[0, -1]]
    assert height(high) - height(low) > 0.15  # on one linear scale it is 0.03
    top = max(line(figure, "rope").get_ydata())
    assert 0 < height(low) < height(high) < height(1.9) < height(top) < 1  # nothing leaves the axes
    assert "(grey) the scale is" in all_text("context", given(swept))


def test_one_seed_has_the_interval_of_the_change(tmp_path: Path) -> None:
    write_run(tmp_path, records=[record(T, 1.0), record(8 * T, 1.5, wiggle=0.3)])
    runs, (comparison,) = given(tmp_path)
    low, high = comparison.rows[0].cells[1].change_ci95
    for kind, above in (("context", 1.0), ("change", 0.0)):
        (band,) = figure_of(kind, runs, [comparison]).axes[0].collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (pytest.approx(above + low), pytest.approx(above + high))
        assert "95% interval of the change against T over documents" in all_text(kind, (runs, [comparison]))


def test_the_change_plot_shades_the_margin_in_the_plots_unit(swept: Path) -> None:
    for metric, unit in (("nats", math.log(2)), ("bpb", 1.0), ("ppl", None)):
        runs, (comparison,) = given(swept, metric=metric)
        figure = figure_of("change", runs, [comparison])
        (axes,) = figure.axes
        for row in comparison.rows:
            assert list(line(figure, row.label).get_ydata()) == [cell.change for cell in row.cells]
        spans = [patch.get_bbox() for patch in axes.patches]
        if unit is None:
            assert not spans
        else:
            assert (spans[0].y0, spans[0].y1) == (pytest.approx(-0.02 * unit), pytest.approx(0.02 * unit))
            assert "collapsed" in svg_texts("change", (runs, [comparison]))
        assert axes.get_yscale() == "symlog"


def test_the_positions_plot_takes_the_runs_curves(swept: Path) -> None:
    runs, comparisons = given(swept)
    figure = figure_of("positions", runs, comparisons)
    drawn = line(figure, "rope")
    assert list(drawn.get_xdata() * T) == pytest.approx([8, 16, 32, 48, 64, 96, 128, 256, 512], abs=1e-3)
    assert list(drawn.get_ydata()) == pytest.approx([1.1 + i / 10 for i in range(9)])
    assert {"64", "1x", "512", "8x"} <= set(svg_texts("positions", (runs, comparisons)))
    again = figure_of("positions", runs, [compare(runs, "positions", "nats", False)])
    assert np.array_equal(line(again, "rope").get_ydata(), drawn.get_ydata())


def test_the_heat_map_prints_its_numbers_and_reasons(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={0.5: 1.25, 1: 1.2, 8: 3.0})
    write_run(tmp_path, "alibi", records=[record(T, 1.3), record(8 * T, 0, note="oom at 512 tokens")])
    write_run(tmp_path, "t5", status="failed", reason="boom", results=False)
    found = given(tmp_path)
    texts = svg_texts("heatmap", found)
    assert {"+0.050", "1.200", "+1.800", "1.300", "oom"} <= set(texts) and texts.count("failed") == 3
    assert "not measured" in texts and "Missing: alibi 0.5x not measured, 8x oom; t5 failed." in texts
    narrow = svg_texts("heatmap", found, 2.0)
    assert "not measured" not in narrow and "–" in narrow
    (axes,) = figure_of("heatmap", *found).axes
    colours = {(p.get_x(), p.get_y()): p.get_facecolor() for p in axes.patches}
    worse, missing = colours[2, 1], colours[2, 0]  # rows: alibi, rope, t5
    assert worse[0] > worse[2] + 0.2 and len(set(missing[:3])) == 1


def test_training_is_the_mean_over_seeds_smoothed(swept: Path) -> None:
    runs, comparisons = given(swept)
    figure = figure_of("training", runs, comparisons)
    drawn = line(figure, "rope")
    x, y = list(drawn.get_xdata()), list(drawn.get_ydata())
    assert x == [1000 * i for i in range(3, 39)]
    assert y[0] == pytest.approx(sum(4 / i for i in range(1, 6)) / 5 + 0.1)
    heights = figure.axes[0].collections[1].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(y[0] + 0.1)
    assert "mean of 5 logged steps" in all_text("training", (runs, comparisons))


def test_training_names_who_stopped_and_who_logged_nothing(tmp_path: Path) -> None:
    sweep(tmp_path)
    run = write_run(tmp_path, "rope", seed=3, status="diverged", results=False)
    (run / "metrics.jsonl").write_text(
        '{"tokens": 1000, "loss": 9.0}\n{"tokens": 2000, "loss": NaN}\nnull\n[]\n'
    )
    write_run(tmp_path, "nope", status="failed", results=False)
    text = all_text("training", given(tmp_path))
    assert "rope seed 3: diverged after 1000 tokens" in text and "No curve: nope seed 0 (failed)" in text


def test_a_training_a_hundred_times_as_long_as_another_is_drawn_beside_it(tmp_path: Path) -> None:
    for name, length, end in (("rope", 1_000, 6), ("alibi", 100_000, 2)):
        run = write_run(tmp_path, name, losses={1: 1.2})
        lines = [f'{{"tokens": {length * i}, "loss": {end + 1 / i}}}' for i in range(1, 40)]
        (run / "metrics.jsonl").write_text("\n".join(lines))
    figure = figure_of("training", *given(tmp_path))
    low, high = figure.axes[0].get_ylim()
    for name in ("rope", "alibi"):
        assert low <= line(figure, name).get_ydata()[-1] <= high


def test_probes_have_a_panel_each(swept: Path) -> None:
    found = given(swept)
    figure = figure_of("probes", *found)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["induction", "far-copy"]
    for panel in (0, 1):
        assert list(line(figure, "rope", panel).get_ydata()) == pytest.approx([2.4, 2.8, 5.2])
