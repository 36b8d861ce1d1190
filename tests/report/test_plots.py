"""Plots of comparisons: what is drawn is what was measured; files are whole and the same every time."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from fake_runs import MULTIPLES, T, positions, record, write_run

from posenc.core.errors import UserError
from posenc.report.colors import style_of
from posenc.report.plots import FORMATS, PLOTS, check_plot, figure_of, plot_bytes, save_plot
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, Comparison, compare_runs
from posenc.results.load import Run

Given = tuple[list[Run], list[Comparison]]


def given(root: Path, **request: Any) -> Given:
    """The runs below a folder and their tables."""
    runs = load_runs([root])
    return runs, compare_runs(runs, CompareRequest(**request))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that keeps its loss and one that collapses, three seeds each, with every kind of record."""
    root = tmp_path_factory.mktemp("sweep")
    for name, slope in (("alibi", 0.002), ("rope", 0.4)):
        for seed in (0, 1, 2):
            losses = {m: 1.2 + 0.01 * seed * m + max(0, m - 1) * slope for m in MULTIPLES}
            records = [record(int(m * T), loss) for m, loss in losses.items()]
            for m, probe in [(m, probe) for m in (1, 2, 8) for probe in ("induction", "far-copy")]:
                records.append(record(int(m * T), 2 + m * slope, protocol=probe))
            records += [positions(shift=0.1 * seed), record(T, 1.9, protocol="trigram")]
            run = write_run(root, name, seed=seed, records=records)
            lines = [f'{{"tokens": {1000 * i}, "loss": {4 / i + 0.1 * seed}}}' for i in range(1, 41)]
            (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"tokens": 41000, "lo')
    return root


def svg_texts(kind: str, found: Given, width: float = 5.5) -> list[str]:
    root = ElementTree.fromstring(plot_bytes("svg", kind, *found, width))
    return ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]


def all_text(kind: str, found: Given) -> str:
    return " ".join(svg_texts(kind, found))


def line(figure: Any, name: str, panel: int = 0) -> Any:
    (found,) = [one for one in figure.axes[panel].get_lines() if one.get_label() == name]
    return found


def shown_texts(figure: Any) -> list[Any]:
    """All but the labels of ticks beyond the ends of an axis."""
    beyond = set()
    for axes in figure.axes:
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = [one for one in axis.get_major_ticks() if not min(ends) <= one.get_loc() <= max(ends)]
            beyond |= {id(label) for one in ticks for label in (one.label1, one.label2)}
    texts = figure.findobj(matplotlib.text.Text)
    return [one for one in texts if id(one) not in beyond and one.get_text() and one.get_visible()]


@pytest.mark.parametrize("kind", PLOTS)
def test_every_kind_is_drawn_at_a_papers_column(swept: Path, kind: str) -> None:
    found = given(swept)
    figure = figure_of(kind, *found, 3.3)
    edge = figure.bbox
    for text in shown_texts(figure):
        box = text.get_window_extent()
        assert text.get_fontsize() >= 7 and box.x0 >= edge.x0 - 2 and box.x1 <= edge.x1 + 2, text
        assert box.y0 >= edge.y0 - 2 and box.y1 <= edge.y1 + 2, text
    texts = svg_texts(kind, found)
    assert {"alibi", "rope"} <= set(texts) and "T = 64" in " ".join(texts)


@pytest.mark.parametrize(("metric", "unit"), [("nats", math.log(2)), ("bpb", 1.0), ("ppl", None)])
def test_the_plots_show_the_comparisons_numbers_and_margin(
    swept: Path, metric: str, unit: float | None
) -> None:
    runs, (comparison,) = given(swept, metric=metric)
    context, change = (figure_of(kind, runs, [comparison]) for kind in ("context", "change"))
    for row in comparison.rows:
        drawn = line(context, row.label)
        assert list(drawn.get_xdata()) == list(MULTIPLES)
        assert list(drawn.get_ydata()) == [cell.mean for cell in row.cells]
        assert drawn.get_color() == style_of(row.label).color
        assert list(line(change, row.label).get_ydata()) == [cell.change for cell in row.cells]
    heights = context.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(max(c.mean + c.spread for c in comparison.rows[0].cells))
    spans = [(patch.get_bbox().y0, patch.get_bbox().y1) for patch in change.axes[0].patches]
    assert spans == ([] if unit is None else [pytest.approx((-0.02 * unit, 0.02 * unit))])
    assert context.axes[0].get_yscale() == ("log" if metric == "ppl" else "linear")
    assert change.axes[0].get_yscale() == "symlog"
    texts = " ".join(svg_texts("context", (runs, [comparison])))
    assert "standard deviation over 3 seeds" in texts and "trigram" in texts


def test_positions_and_probes_are_of_the_same_runs(swept: Path) -> None:
    found = given(swept, rows=("rope", "alibi"))
    figure = figure_of("positions", *found)
    drawn = line(figure, "rope")
    assert list(drawn.get_xdata() * T) == pytest.approx([8, 16, 32, 48, 64, 96, 128, 256, 512], abs=1e-3)
    assert list(drawn.get_ydata()) == pytest.approx([1.1 + i / 10 for i in range(9)])
    figure = figure_of("probes", *found)
    for panel in (0, 1):
        assert list(line(figure, "rope", panel).get_ydata()) == pytest.approx([2.4, 2.8, 5.2])


def test_the_heat_map_prints_its_numbers_and_reasons(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={0.5: 1.25, 1: 1.2, 8: 3.0})
    write_run(tmp_path, "alibi", records=[record(T, 1.3), record(8 * T, 0, note="oom at 512 tokens")])
    write_run(tmp_path, "t5", status="failed", reason="boom", results=False)
    found = given(tmp_path)
    texts = svg_texts("heatmap", found)
    assert {"+0.050", "1.200", "+1.800", "1.300", "oom"} <= set(texts) and texts.count("failed") == 3
    for kind in ("context", "change", "heatmap"):
        assert "Missing: alibi 0.5x not measured, 8x oom; t5 failed." in all_text(kind, found)
    assert np.isnan(line(figure_of("context", *found), "alibi").get_ydata()[2])  # a gap, no line across it
    (axes,) = figure_of("heatmap", *found).axes
    colours = {(p.get_x(), p.get_y()): p.get_facecolor() for p in axes.patches}
    worse, missing = colours[2, 1], colours[2, 0]  # rows: alibi, rope, t5
    assert worse[0] > worse[2] + 0.2 and len(set(missing[:3])) == 1


def test_training_is_the_mean_over_seeds(swept: Path, tmp_path: Path) -> None:
    found = given(swept)
    figure = figure_of("training", *found)
    drawn = line(figure, "rope")
    x, y = list(drawn.get_xdata()), list(drawn.get_ydata())
    assert x == [1000 * i for i in range(3, 39)]
    assert y[0] == pytest.approx(sum(4 / i for i in range(1, 6)) / 5 + 0.1)
    caption = all_text("training", found)
    assert "the mean of 5 logged steps" in caption and "test" not in caption
    for name, length, end in (("rope", 1_000, 6), ("alibi", 100_000, 2)):
        run = write_run(tmp_path, name, losses={1: 1.2})
        lines = [f'{{"tokens": {length * i}, "loss": {end + 1 / i}}}' for i in range(1, 5)]
        (run / "metrics.jsonl").write_text("\n".join(lines))
    run = write_run(tmp_path, "rope", seed=3, status="diverged", results=False)
    (run / "metrics.jsonl").write_text('{"tokens": 1000, "loss": 9.0}\n{"tokens": 2000, "loss": NaN}\n[]\n')
    write_run(tmp_path, "nope", status="failed", results=False)
    found = given(tmp_path)
    figure = figure_of("training", *found)
    low, high = figure.axes[0].get_ylim()
    for name in ("rope", "alibi"):  # one is a hundred times as long as the other
        assert low <= line(figure, name).get_ydata()[-1] <= high


def test_groups_share_their_scale_and_say_what_differs(tmp_path: Path) -> None:
    for length in (64, 128):
        facts = {"context_length": length}
        for name, rise in (("alibi", 0.01), ("rope", 0.6)):
            losses = {int(length * m): 1.2 + max(0, m - 1) * rise for m in MULTIPLES}
            records = [record(window, loss, train_length=length) for window, loss in losses.items()]
            write_run(tmp_path / str(length), name, records=records, facts=facts, config=facts)
    figure = figure_of("context", *given(tmp_path))
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert {axes.get_title(loc="left") for axes in figure.axes} == {"T = 64 bytes", "T = 128 bytes"}
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"alibi", "rope"}
    assert line(figure, "rope", 1).get_color() == line(figure, "rope", 0).get_color()


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    names = ("$\\frac{x_1}{$ 100%", "under & <svg onload=alert(1)>", "two\nlines \x1b[31m", "日本語" * 40)
    for i, name in enumerate(names):
        facts = {"model": {"name": names[0]}, "tokenizer": names[1]}
        losses = {1: 1.2 + i / 10, 2: 1.3}
        write_run(tmp_path, name, name=f"run{i}", params={"beyond": name}, facts=facts, losses=losses)
    found = given(tmp_path)
    for kind in ("context", "heatmap"):
        content = plot_bytes("svg", kind, *found).decode()
        assert "<svg onload" not in content and "\x1b" not in content and "mathdefault" not in content
        texts = svg_texts(kind, found)
        for name in names:
            assert any(text.startswith(name.split("\n")[0][:10]) for text in texts), texts


def test_the_same_runs_give_the_same_bytes_whatever_the_users_settings(swept: Path) -> None:
    for format, start in zip(FORMATS, (b"\x89PNG\r\n\x1a\n", b"<?xml", b"%PDF-"), strict=True):
        content = plot_bytes(format, "context", *given(swept))
        with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
            assert content == plot_bytes(format, "context", *given(swept)) and content.startswith(start)
            assert matplotlib.rcParams["font.size"] == 30
        assert b"CreationDate" not in content and b"<dc:date>" not in content
    assert b"/Type3" not in content and re.search(rb"/FontFile2 \d+ 0 R", content)  # TrueType, embedded


@pytest.mark.parametrize(
    ("path", "kind", "width", "words"),
    [
        ("x.gif", "context", 5, "--plot=.*x.gif: its ending names the format\n  allowed: .png, .svg, .pdf"),
        ("none/x.png", "context", 5, "there is no folder"),
        ("x.png", "heat", 5, "--plot-kind=heat: no such plot\n(.*\n)*  did you mean: heatmap"),
        ("x.png", "context", math.nan, "not a width\n  allowed: inches from 1 to 40"),
        ("x.png", "positions", 5, "--plot-kind=positions: no run has measured positions\n  measure it"),
        ("x.png", "probes", 5, "no run has measured a probe"),
        ("x.png", "training", 5, "no run has logged losses"),
    ],
)
def test_wrong_input_is_named(tmp_path: Path, path: str, kind: str, width: float, words: str) -> None:
    write_run(tmp_path / "runs", "n" * 44)
    with pytest.raises(UserError, match=words):
        save_plot(tmp_path / path, kind, *given(tmp_path / "runs"), width)
    assert [one.name for one in tmp_path.iterdir()] == ["runs"]
    if kind == "heat" or "ending" in words:  # asked before the work, too
        with pytest.raises(UserError, match=words):
            check_plot(tmp_path / path, kind, width)
