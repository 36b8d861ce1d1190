"""Plots as files: whole, the same for the same runs; what is missing is named, names stay text."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fake_runs import MULTIPLES, T, record, write_run
from plotted import all_text, given, line, svg_texts, sweep

from posenc.core.errors import RunError, UserError
from posenc.report.plots import FORMATS, PLOTS, check_plot, figure_of, plot_bytes, save_plot

HOSTILE = (
    "$\\frac{x_1}{$ 100%",
    "_under & <svg onload=alert(1)>",
    "two\nlines \x1b[31m",
    "日本語" * 40,
    "\\n{}^",
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that no test changes."""
    root = tmp_path_factory.mktemp("sweep")
    sweep(root)
    return root


def test_missing_rows_and_cells_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses=dict.fromkeys(MULTIPLES, 1.2))
    write_run(tmp_path, "rope", seed=1, status="diverged", reason="nan at step 9", results=False)
    write_run(
        tmp_path,
        "alibi",
        records=[record(int(m * T), 1.3) for m in (0.5, 1, 2, 8)]
        + [record(4 * T, 0, note="oom at 256 tokens")],
    )
    write_run(tmp_path, "t5", status="failed", reason="boom", results=False)
    found = given(tmp_path)
    figure = figure_of("context", *found)
    assert np.isnan(line(figure, "alibi").get_ydata()[3])  # a gap, no line across it
    for kind in ("context", "change", "heatmap"):
        assert "Missing: alibi 4x oom; rope 1 of 2 diverged; t5 failed." in all_text(kind, found)


def test_nothing_but_failures_is_a_figure_that_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, status="failed", reason="boom", results=False)
    for kind in ("context", "change", "heatmap"):
        assert "rope failed: boom" in all_text(kind, given(tmp_path)).replace("seed 0 ", "")


def test_many_missing_rows_are_counted(tmp_path: Path) -> None:
    for i in range(40):
        write_run(tmp_path, f"e{i:02}", losses={1: 1.2, 8: 1.3} if i else {0.5: 1.0, 1: 1.2, 8: 1.3})
    text = all_text("context", given(tmp_path))
    assert "e13 0.5x not measured; and 26 more rows that lack numbers, see the table" in text


def test_facets_share_their_scale_and_say_what_differs(tmp_path: Path) -> None:
    for length in (64, 128):
        for name, rise in (("alibi", 0.01), ("rope", 0.6)):
            records = [
                record(int(length * m), 1.2 + max(0, m - 1) * rise, train_length=length) for m in MULTIPLES
            ]
            facts = {"context_length": length}
            write_run(tmp_path / str(length), name, records=records, facts=facts, config=facts)
    found = given(tmp_path / "64", tmp_path / "128")
    for kind in ("context", "change"):
        figure = figure_of(kind, *found)
        left, right = figure.axes
        assert left.get_ylim() == right.get_ylim()
        assert [axes.get_title(loc="left") for axes in figure.axes] == ["T = 64", "T = 128"]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["alibi", "rope"]
        assert line(figure, "rope", 1).get_color() == line(figure, "rope", 0).get_color()
    assert {"T = 64", "T = 128", "1024"} <= set(svg_texts("heatmap", found))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    for i, name in enumerate(HOSTILE):
        facts = {"model": {"name": HOSTILE[0]}, "tokenizer": HOSTILE[1]}
        losses = {1: 1.2 + i / 10, 2: 1.3}
        write_run(tmp_path, name, name=f"run{i}", params={"beyond": name}, facts=facts, losses=losses)
    write_run(tmp_path, HOSTILE[0], seed=1, name="bad", status="failed", reason=HOSTILE[2], results=False)
    found = given(tmp_path)
    for kind in ("context", "heatmap"):
        content = plot_bytes("svg", kind, *found).decode()
        assert "<svg onload" not in content and "\x1b" not in content and "mathdefault" not in content
        texts = svg_texts(kind, found)
        for name in HOSTILE:
            start = name.split("\n")[0][:10]
            assert any(text.startswith(start) for text in texts), texts
        assert all(len(text) < 130 for text in texts)
    assert all(plot_bytes(format, "context", *found) for format in ("png", "pdf"))


def test_thirty_encodings_are_all_named_at_once(tmp_path: Path) -> None:
    names = [f"encoding_{i:02}" for i in range(30)]
    for i, name in enumerate(names):
        write_run(tmp_path, name, losses={m: 1.2 + 0.01 * i + m * (i % 3) * 0.2 for m in MULTIPLES})
    found = given(tmp_path)
    for width in (3.3, 7.0):
        figure = figure_of("context", *found, width)
        boxes = [t.get_window_extent() for t in figure.axes[0].texts if t.get_text() in names]
        assert len(boxes) == 30
        boxes.sort(key=lambda box: box.y0)
        assert all(b.y0 - a.y0 > 7 / 72 * figure.dpi for a, b in pairwise(boxes))
    looks = {
        (one.get_color(), one.get_marker(), str(one._dash_pattern)) for one in figure.axes[0].get_lines()[:30]
    }
    assert len(looks) == 30
    facets = (found[0], found[1] * 2)
    (legend,) = figure_of("context", *facets, 7.0).legends
    assert [text.get_text() for text in legend.get_texts()] == names and legend._ncols > 3


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_runs_give_the_same_bytes(swept: Path, format: str) -> None:
    for kind in PLOTS if format == "svg" else ("context", "heatmap"):
        content = plot_bytes(format, kind, *given(swept))
        assert content == plot_bytes(format, kind, *given(swept))
        assert b"CreationDate" not in content and b"<dc:date>" not in content
        if format == "pdf":
            assert b"/Type3" not in content and b"/CIDFontType2" in content  # TrueType
            assert re.search(rb"/FontFile2 \d+ 0 R", content)  # embedded


def test_another_process_and_a_users_own_settings_change_nothing(tmp_path: Path) -> None:
    sweep(tmp_path / "runs")
    mine = plot_bytes("svg", "context", *given(tmp_path / "runs"))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
        assert plot_bytes("svg", "context", *given(tmp_path / "runs")) == mine
        assert matplotlib.rcParams["font.size"] == 30
    code = (
        "import sys; from pathlib import Path; from posenc.results import load_runs\n"
        "from posenc.results.comparison import compare; from posenc.report.plots import save_plot\n"
        f"runs = load_runs([{str(tmp_path / 'runs')!r}])\n"
        "comparison = compare(runs, 'fixed-target', 'nats', False)\n"
        f"save_plot(Path({str(tmp_path / 'x.svg')!r}), 'context', runs, [comparison])\n"
        "print([m for m in sys.modules if m in ('torch', 'matplotlib.pyplot', 'tkinter')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and (tmp_path / "x.svg").read_bytes() == mine


def test_matplotlib_is_imported_only_for_drawing() -> None:
    code = "import sys, posenc.report.plots, posenc.report.colors; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def names_in(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_are_named_by_their_ending_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(tmp_path / "runs")
    found, out = given(tmp_path / "runs"), tmp_path / "out"
    out.mkdir()
    magic = {"png": b"\x89PNG\r\n\x1a\n", "SVG": b"<?xml", "pdf": b"%PDF-"}
    for suffix, start in magic.items():
        path = out / f"a b.{suffix}"
        path.write_text("old")
        save_plot(path, "context", *found)
        assert path.read_bytes().startswith(start)
    assert names_in(out) == ["a b.SVG", "a b.pdf", "a b.png"]
    (link := tmp_path / "link.png").symlink_to(out / "a b.png")
    before = (out / "a b.png").read_bytes()
    save_plot(link, "change", *found)
    assert link.is_symlink() and (out / "a b.png").read_bytes() not in (before, b"")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        save_plot(out / "b.png", "context", *found)
    assert names_in(out) == ["a b.SVG", "a b.pdf", "a b.png"]


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("x.gif", "context", "--plot=.*x.gif: its ending names the format\n  allowed: .png, .svg, .pdf"),
        ("x", "context", "its ending names"),
        ("none/x.png", "context", "there is no folder"),
        ("x.png", "heat", "--plot-kind=heat: no such plot\n(.*\n)*  did you mean: heatmap"),
        ("x.png", "positions", "--plot-kind=positions: no run has measured positions\n  measure it"),
        ("x.png", "probes", "no run has measured a probe"),
        ("x.png", "training", "no run has logged losses"),
    ],
)
def test_wrong_input_is_named(tmp_path: Path, path: str, kind: str, words: str) -> None:
    write_run(tmp_path / "runs")
    with pytest.raises(UserError, match=words):
        save_plot(tmp_path / path, kind, *given(tmp_path / "runs"))
    assert names_in(tmp_path) == ["runs"]
    if kind in ("context", "heat"):
        with pytest.raises(UserError, match=words):
            check_plot(tmp_path / path, kind)
