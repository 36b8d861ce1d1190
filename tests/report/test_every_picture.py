"""Every encoding there is gives a figure and a text plot; what files are made of."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tiny import ROOT

from posenc.core.paths import conf_dir
from posenc.encodings import resolve_encoding
from posenc.model.decoder import Decoder, ModelShape
from posenc.report.pictures.draw import draw, picture_bytes
from posenc.report.pictures.measure import measure
from posenc.report.pictures.panels import Arrows, Curves, Line, Map, Picture
from posenc.report.pictures.text import COLUMNS, text_plot
from posenc.running.build import build_model

NAMES = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
SMALL = ModelShape("small", d_model=16, n_layers=2, n_heads=2, mlp_ratio=1)


def model_of(name: str) -> Decoder:
    written = yaml.safe_load((conf_dir() / "encoding" / f"{name}.yaml").read_text())
    settings: dict[str, Any] = {
        "encoding": resolve_encoding(written, []),
        "attention": {"name": "mha", "window": None, "scale": "none"},
        "positions": {"name": "contiguous"},
        "context_length": 8,
        "seed": 0,
        "plugins": [],
    }
    return build_model(settings, SMALL, 5)


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_is_drawn(name: str) -> None:
    panels, remarks = measure(model_of(name).effective_encoding)
    picture = Picture(name, panels, ["T = 8", *remarks])
    assert panels and any(panel.brief for panel in panels)
    text = text_plot(picture)
    assert len(text.splitlines()) > 12 and all(len(line) <= COLUMNS for line in text.splitlines())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit is a warning
        figure = draw(picture)
        figure.draw_without_rendering()  # lays out and sets every text; files are the next test's
    for panel, axes in zip(panels, figure.axes, strict=True):
        assert 0 < len(panel.title) <= 45  # as wide as a column of the figure
        if isinstance(panel, Curves):
            assert panel.x_label and panel.y_label
            for values, (low, high) in (
                (panel.marks, axes.get_xlim()),
                (panel.y_marks, axes.get_ylim()),
            ):
                assert all(low <= at <= high for at in values.values())  # drawn unclipped, over all else
            assert all(line.x.shape == line.y.shape and np.isfinite(line.y).all() for line in panel.lines)


def simple() -> Picture:
    x = np.arange(9.0)
    curves = Curves(
        "falling", "x in tokens", "y (nats)", [Line("a", x, -x), Line("b", x, -2 * x)], brief=True
    )
    matrix = Map("matrix", "key", "query", "z", -np.eye(3), np.arange(3.0), np.arange(3.0), matrix=True)
    return Picture("simple $\\frac$ x", [curves, matrix, Arrows("arrows", ["0", "1"], np.eye(2))], ["a $ b"])


@pytest.mark.parametrize(
    ("format", "magic"), [("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml"), ("pdf", b"%PDF-")]
)
def test_the_same_picture_has_the_same_bytes(format: str, magic: bytes) -> None:
    content = picture_bytes(simple(), format)
    assert content == picture_bytes(simple(), format) and content.startswith(magic)
    assert b"CreationDate" not in content and b"<dc:date>" not in content


def test_a_users_own_matplotlib_settings_change_nothing() -> None:
    import matplotlib

    before = picture_bytes(simple(), "png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
        assert picture_bytes(simple(), "png") == before
        assert matplotlib.rcParams["font.size"] == 30


def test_panels_are_two_to_a_row_and_an_odd_one_is_wide() -> None:
    figure = draw(simple())
    assert figure.get_figwidth() == 7
    figure.savefig(io.BytesIO())  # the layout is made when it is drawn
    wide, left, right = (figure.axes[i].get_position() for i in (0, 1, 2))
    assert wide.width > 1.5 * max(left.width, right.width) and left.x0 < right.x0
    curves = figure.axes[0]
    assert [line.get_linestyle() for line in curves.get_lines()] == ["-", "--"]
    legend = curves.get_legend()
    assert legend is not None and legend.get_window_extent().y1 < curves.get_window_extent().y0


def test_what_a_text_plot_shows() -> None:
    lines = text_plot(simple()).splitlines()
    assert lines[0] == "simple $\\frac$ x" and lines[3] == "falling: y (nats)"
    assert lines[4].startswith("          0 |b") and lines[15].startswith("        -16 |")
    assert lines[15].rstrip().endswith("b") and lines[-1] == "a a   b b"
    assert "matrix" not in "\n".join(lines)  # only the panels that say most


FORBIDDEN = """
import sys
import {module}
assert not [name for name in sys.modules if name.split('.')[0] in {forbidden}], 'imported'
"""


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("posenc.report.pictures.draw", ("torch",)),
        ("posenc.report.pictures.draw, posenc.report.pictures.text", ("pyplot", "torch", "tkinter")),
        ("posenc.report.pictures.text", ("torch", "matplotlib")),
        ("posenc.report.pictures.measure", ("matplotlib",)),
        ("posenc.cli.show", ("matplotlib",)),
        ("posenc.cli", ("matplotlib", "torch")),
    ],
)
def test_imports(module: str, forbidden: tuple[str, ...], tmp_path: Path) -> None:
    code = FORBIDDEN.format(module=module, forbidden=forbidden)
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_pyplot_is_never_imported() -> None:
    for path in (ROOT / "posenc").rglob("*.py"):
        assert "import pyplot" not in path.read_text() and "matplotlib.pyplot" not in path.read_text(), path
