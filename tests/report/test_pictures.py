"""Pictures of encodings: what is measured, against the formulas it stands for; every encoding is drawn."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import yaml

from posenc.core.paths import conf_dir
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.options import Randomized
from posenc.encodings.registry import resolve_encoding
from posenc.encodings.sum import Composed
from posenc.model.decoder import ModelShape
from posenc.report import pictures
from posenc.running.build import build_model

NAMES = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
SMALL = ModelShape("small", d_model=16, n_layers=2, n_heads=2, mlp_ratio=1)
T, HEADS = 12, 3
ALIBI = {"learned_slopes": False}


def encoding_of(name, **parameters):
    """At a small size, with values drawn for what is learned."""
    size = {"d_model": 24, "n_heads": HEADS, "head_dim": 8, "n_layers": 2, "train_length": T}
    encoding = build_encoding(name, **size, **parameters)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
    return encoding


def panels_of(encoding):
    return {panel.title: panel for panel in pictures.measure(encoding)[0]}


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_is_measured_and_printed(name):
    written = yaml.safe_load((conf_dir() / "encoding" / f"{name}.yaml").read_text())
    settings = {"encoding": resolve_encoding(written, []), "context_length": 8, "seed": 0}
    settings |= {"attention": {"name": "mha", "window": None, "scale": "none"}, "plugins": []}
    settings |= {"positions": {"name": "contiguous"}}
    panels, notes = pictures.measure(build_model(settings, SMALL, 5).effective_encoding)
    maps = [panel for panel in panels if isinstance(panel, pictures.Map)]
    assert all(panel.z.ndim == 2 for panel in maps)  # of heads that differ, too
    lines = pictures.picture_text(pictures.Picture(name, panels, ["T = 8", *notes])).splitlines()
    assert len(lines) > 3 and all(len(line) <= pictures.TEXT_WIDTH for line in lines)
    for panel in panels:
        assert 0 < len(panel.title) <= 45  # as wide as a column of the figure
        if isinstance(panel, pictures.Curves):
            assert all(one.x.shape == one.y.shape and np.isfinite(one.y).all() for one in panel.lines)


@pytest.mark.parametrize("names", [("alibi",), ("rope",), ("learned",), ("fox",), ("rope", "alibi")])
def test_every_kind_of_panel_is_drawn_with_its_lines_and_marks(names):
    parts = [encoding_of(name, **(ALIBI if name == "alibi" else {})) for name in names]
    panels = pictures.measure(Composed(parts[0].shape, parts))[0]
    root = ElementTree.fromstring(
        pictures.picture_bytes(pictures.Picture("+".join(names), panels, ["a & b"]), "svg")
    )
    texts = {"".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"+".join(names), "a & b"} <= texts
    for panel in panels:
        assert {panel.title, panel.x_label} <= texts
        lines = {line.label for line in panel.lines} if len(panel.lines) > 1 else set()
        assert lines | {name for name in {**panel.marks, **panel.y_marks} if name} <= texts


def test_bias_curves_are_the_bias_and_wavelengths_those_of_the_angles():
    slopes = [2**-4, 2**-8, 2**-2]  # of three heads
    (curves,) = panels_of(encoding_of("alibi", **ALIBI)).values()
    for line, slope in zip(curves.lines, slopes, strict=True):
        assert np.array_equal(line.x, np.arange(8 * T + 1)) and np.allclose(line.y, -slope * line.x)
    assert curves.marks == {"T": T, "8T": 8 * T} and curves.title == "Bias, each head"
    trained = encoding_of("rope", base=100.0, layout="half", fraction=0.5)
    wave = "Wavelength of each pair"
    (own,) = [line.y for line in panels_of(trained)[wave].lines]
    assert np.allclose(own, [2 * math.pi, 2 * math.pi * 10])
    still = panels_of(encoding_of("hope", base=10000.0, layout="interleaved", turns=1.0))
    assert f"{wave} (3 of 4 are still)" in still


def test_weights_are_those_of_the_real_attention():
    """A penalty as large as ALiBi's first head's, by hand, in float64."""
    encoding = encoding_of("alibi", **ALIBI)
    weights, plain = (pictures.attention(one, T, T, draw=3) for one in (encoding, Encoding(encoding.shape)))
    r = (torch.arange(T)[:, None] - torch.arange(T)).clamp_min(0)
    biased = plain.double() * (-(2.0**-4) * r).exp()
    assert torch.allclose(weights[0].double(), (biased / biased.sum(-1, keepdim=True))[0], atol=1e-5)
    mean = pictures.mean_weights(encoding, 2)  # a query that sees two keys
    assert mean.shape == (HEADS, 2) and np.allclose(mean.sum(1), 1)


def test_masks_by_layer_and_drawn_positions():
    encoding = encoding_of("rnope_swa", base=10000.0, layout="half", every=2, window=4)
    panels = panels_of(encoding)
    near, whole = panels["Keys seen in layer 1"], panels["Keys seen in layer 2"]
    assert np.nansum(near.z, axis=1).tolist() == [min(i + 1, 4) for i in range(T)]
    assert np.nansum(whole.z, axis=1).tolist() == [i + 1 for i in range(T)]
    option = Randomized(encoding.shape, max=None, dense=False)
    (first, *_) = pictures.measure(Composed(encoding.shape, (encoding, option)))[0]
    drawn = [line for line in first.lines if not line.reference]
    assert len(drawn) == 5 and all((np.diff(line.y) > 0).all() for line in drawn)
    assert len({line.y[-1] for line in drawn}) > 1
