"""Pictures of encodings: what is measured, against the formulas it stands for; every encoding is drawn."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from posenc.core.paths import conf_dir
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import Randomized
from posenc.encodings.registry import resolve_encoding
from posenc.encodings.sum import Composed
from posenc.model.decoder import ModelShape
from posenc.report.pictures.draw import draw
from posenc.report.pictures.measure import attention, by_distance, measure, scores_with_itself
from posenc.report.pictures.panels import Curves, Line, Map, Panel, Picture
from posenc.report.pictures.text import COLUMNS, picture_text
from posenc.running.build import build_model

NAMES = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
SMALL = ModelShape("small", d_model=16, n_layers=2, n_heads=2, mlp_ratio=1)
T, D, HEADS, LAYERS = 12, 8, 3, 2
ALIBI: dict[str, Any] = {"learned_slopes": False}


def encoding_of(name: str, train_length: int = T, **parameters: Any) -> Encoding:
    """At a small size, with values drawn for what is learned."""
    size = {"d_model": HEADS * D, "n_heads": HEADS, "head_dim": D, "n_layers": LAYERS}
    encoding = build_encoding(
        name, **size, train_length=train_length, position_limit=None, plugins=[], **parameters
    )
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
    return encoding


def panels_of(encoding: Encoding, before: Encoding | None = None) -> dict[str, Any]:
    """The panels by title."""
    return {panel.title: panel for panel in measure(encoding, before)[0]}


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_is_measured_and_printed(name: str) -> None:
    written = yaml.safe_load((conf_dir() / "encoding" / f"{name}.yaml").read_text())
    settings: dict[str, Any] = {"encoding": resolve_encoding(written, []), "context_length": 8, "seed": 0}
    settings |= {"attention": {"name": "mha", "window": None, "scale": "none"}, "plugins": []}
    settings |= {"positions": {"name": "contiguous"}}
    panels, notes = measure(build_model(settings, SMALL, 5).effective_encoding)
    lines = picture_text(Picture(name, panels, ["T = 8", *notes])).splitlines()
    assert len(lines) > 3 and all(len(line) <= COLUMNS for line in lines)
    for panel in panels:
        assert 0 < len(panel.title) <= 45  # as wide as a column of the figure
        if isinstance(panel, Curves):
            assert all(one.x.shape == one.y.shape and np.isfinite(one.y).all() for one in panel.lines)


@pytest.mark.parametrize("names", [("alibi",), ("rope",), ("learned",), ("fox",), ("rope", "alibi")])
def test_every_kind_of_panel_is_drawn_with_its_marks_inside(names: tuple[str, ...]) -> None:
    parts = [encoding_of(name, **(ALIBI if name == "alibi" else {})) for name in names]
    panels = measure(Composed(parts[0].shape, parts))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit is a warning
        figure = draw(Picture("+".join(names), panels))
        figure.draw_without_rendering()
    for panel, axes in zip(panels, figure.axes, strict=True):
        if isinstance(panel, Map):  # a mark may stand after the last cell
            assert all(any(text.get_text() == name for text in axes.texts) for name in panel.marks)
            continue
        for key, (low, high) in (("marks", axes.get_xlim()), ("y_marks", axes.get_ylim())):
            assert all(low <= at <= high for at in getattr(panel, key, {}).values()), (panel.title, key)


def simple() -> Picture:
    x = np.arange(9.0)
    lines = [Line("a", x, -x), Line("b", x, -2 * x)]
    curves = Curves("falling", "x in tokens", "y (nats)", lines, brief=True)
    matrix = Map("matrix", "key", "query", "z", -np.eye(3), np.arange(3.0), np.arange(3.0), matrix=True)
    return Picture("simple $\\frac$ x", [curves, matrix], ["a $ b"])


def test_the_text_has_the_numbers_of_the_panels_that_say_most() -> None:
    text = picture_text(simple())
    assert text.startswith("simple $\\frac$ x\na $ b\n\nfalling: y (nats)\n") and "matrix" not in text
    assert [line.split() for line in text.splitlines()[-2:]][1][-1] == "-16"
    t5 = picture_text(Picture("t5", measure(encoding_of("alibi", **ALIBI))[0]))
    heads = [line.split() for line in t5.splitlines() if line.startswith(("distance", "head 1"))]
    assert heads[0][-2:] == ["64", "8T"] and float(heads[1][-1]) == -96 / 16


# What is measured


def test_bias_curves_and_matrices_are_the_bias() -> None:
    slopes = [2**-4, 2**-8, 2**-2]  # of three heads
    panels = panels_of(encoding_of("alibi", **ALIBI))
    curves, matrix = panels["Bias, each head"], panels["Bias as a matrix, head 1"]
    for line, slope in zip(curves.lines, slopes, strict=True):
        assert np.array_equal(line.x, np.arange(8 * T + 1)) and np.allclose(line.y, -slope * line.x)
    r = np.subtract.outer(np.arange(T), np.arange(T))
    assert np.allclose(matrix.z, np.where(r >= 0, -slopes[0] * r, np.nan), equal_nan=True)
    assert curves.marks == {"T": T, "8T": 8 * T} and curves.brief


def test_a_bias_that_differs_by_layer_or_query_is_drawn_for_each() -> None:
    encoding = encoding_of("fire", threshold=None, shared=False)
    panels = panels_of(encoding)
    for layer in range(LAYERS):
        direct = encoding.bias(torch.tensor([8 * T]), torch.arange(8 * T + 1), layer)[:, 0].flip(-1)
        lines = panels[f"Bias at i = 8T, layer {layer + 1}, each head"].lines
        assert np.allclose([line.y for line in lines], direct.detach().numpy(), atol=1e-6)
    queries = panels["Head 1 for queries at several positions i"].lines
    assert [line.label for line in queries] == ["i = T/4", "i = T", "i = 2T", "i = 4T", "i = 8T"]
    assert [line.x[-1] for line in queries] == [3, 12, 24, 48, 96]


def test_a_table_of_zeros_is_drawn_with_random_values_and_says_so() -> None:
    encoding = encoding_of("t5", buckets=4, max_distance=None)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.zero_()
    panels, (note,) = measure(encoding)
    assert "start at zero" in note and panels[0].title == "Bias, 2 of 3 heads"
    assert all(np.ptp(line.y) > 0.1 for line in panels[0].lines)  # type: ignore[union-attr]
    assert not any(parameter.any() for parameter in encoding.parameters())  # put back
    assert measure(encoding_of("t5", buckets=4, max_distance=None))[1] == []


def test_wavelengths_and_an_extension_beside_them() -> None:
    trained = encoding_of("rope", base=100.0, layout="half", fraction=0.5)
    panels = panels_of(trained)
    theta = [100.0 ** (-2 * k / 4) for k in range(2)]
    waves = [line.y for line in panels["Wavelength of each pair"].lines]  # turns fully within T, or not
    assert np.allclose(waves, [[2 * math.pi / t] for t in theta])
    extended = panels_of(encoding_of("rope", base=10000.0, layout="half", fraction=0.5), trained)
    for title in ("Wavelength of each pair", "Score of a query with an equal key"):
        (grey,) = [line for line in extended[title].lines if line.reference]
        assert grey.label == "as trained"
        own = [line.y for line in panels[title].lines]
        assert np.allclose(grey.y, np.concatenate(own) if title.startswith("Wave") else own[0])
    assert not any(
        line.reference for one in panels_of(trained, trained).values() for line in getattr(one, "lines", [])
    )
    still = panels_of(encoding_of("hope", base=10000.0, layout="interleaved", turns=1.0))
    assert "Wavelength of each pair (3 of 4 are still)" in still


def test_the_score_with_itself_is_the_mean_of_cosines() -> None:
    encoding = encoding_of("rope", base=10000.0, layout="interleaved", fraction=1.0)
    mean, spread = scores_with_itself(encoding, torch.arange(40), 0)
    expected = np.mean([np.cos(np.arange(40) * 10.0**-k) for k in range(4)], axis=0)
    assert np.allclose(mean / mean[:, :1], expected, atol=0.15) and abs(mean[0, 0] * D**0.5 - D) < 1
    assert mean.shape == spread.shape == (HEADS, 40) and (spread > 0).all()


def test_what_is_added_is_what_embed_adds() -> None:
    panels = panels_of(encoding_of("sinusoidal", base=10000.0, per_layer=False, combine="add"))
    heat, products = panels["Added at the input"], panels["PE(t) · PE(t+r)"]
    assert heat.z.shape == (HEADS * D, 8 * T) and np.allclose(heat.z[0], np.sin(np.arange(8 * T)), atol=1e-5)
    theta = 10000.0 ** (-2 * np.arange(HEADS * D // 2) / (HEADS * D))
    for line in products.lines:
        assert np.allclose(line.y, np.cos(np.outer(line.x, theta)).sum(1), atol=1e-3)
    by_window = panels_of(encoding_of("normalized", per_layer=False, combine="add"))
    assert next(iter(by_window)).endswith("in a window of 8T")


def test_weights_and_changes_of_scores_are_those_of_the_real_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A penalty as large as ALiBi's first head's, by hand, in float64."""
    encoding = encoding_of("alibi", **ALIBI)
    weights, change = attention(encoding, encoding.shape, T, T, draw=3)
    plain, _ = attention(None, encoding.shape, T, T, draw=3)
    r = (torch.arange(T)[:, None] - torch.arange(T)).clamp_min(0)
    biased = plain.double() * (-(2.0**-4) * r).exp()
    assert change is None
    assert torch.allclose(weights[0].double(), (biased / biased.sum(-1, keepdim=True))[0], atol=1e-5)

    class Half(Encoding):
        def scores(self, s, q, k, q_pos, k_pos, state, layer):  # type: ignore[no-untyped-def]
            return s - 0.5 * (q_pos[:, None] - k_pos[None, :])

    half = Half(Shape(HEADS * D, HEADS, D, LAYERS, T))
    whole, change = attention(half, half.shape, 2 * T, 4, draw=0)
    assert change is not None
    rows = by_distance(change)
    assert torch.allclose(rows, -0.5 * torch.arange(2 * T - 3).float().expand(4, HEADS, -1), atol=1e-5)
    monkeypatch.setattr("posenc.model.kernels.MAX_SCORES", HEADS * 2 * T * 2)  # blocks of two queries
    in_blocks, _ = attention(half, half.shape, 2 * T, 4, draw=0)
    assert torch.allclose(whole, in_blocks, atol=1e-5)


def test_masks_by_layer_and_drawn_positions() -> None:
    encoding = encoding_of("rnope_swa", base=10000.0, layout="half", every=2, window=4)
    panels = panels_of(encoding)
    near, whole = panels["Keys seen in layer 1"], panels["Keys seen in layer 2"]
    assert np.nansum(near.z, axis=1).tolist() == [min(i + 1, 4) for i in range(T)]
    assert np.nansum(whole.z, axis=1).tolist() == [i + 1 for i in range(T)]
    option = Randomized(encoding.shape, max=None, dense=False)
    (first, *_) = measure(Composed(encoding.shape, (encoding, option)))[0]
    drawn = [line for line in first.lines if not line.reference]  # type: ignore[union-attr]
    assert len(drawn) == 5 and all((np.diff(line.y) > 0).all() for line in drawn)
    assert len({line.y[-1] for line in drawn}) > 1


def test_a_long_context_is_sampled() -> None:
    panels: list[Panel] = measure(encoding_of("alibi", train_length=100_000, **ALIBI))[0]
    curves, matrix = panels[:2]
    assert isinstance(curves, Curves) and isinstance(matrix, Map)
    x = curves.lines[0].x
    assert len(x) <= 1100 and x[-1] == 800_000 and (np.diff(x) > 0).all() and max(matrix.z.shape) <= 256
