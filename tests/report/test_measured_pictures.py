"""What is measured for a picture, against the formulas it stands for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import Offset, Randomized, Window
from posenc.encodings.sum import Composed
from posenc.report.pictures.measure import measure
from posenc.report.pictures.panels import Arrows, Curves, Map, Panel
from posenc.report.pictures.positions import added, scores_with_itself
from posenc.report.pictures.scores import attention, by_distance, mean_weights

T, D, HEADS, LAYERS = 12, 8, 3, 2


def encoding_of(name: str, **parameters: Any) -> Encoding:
    """At a small size, with values drawn for what is learned."""
    encoding = build_encoding(
        name,
        d_model=HEADS * D,
        n_heads=HEADS,
        head_dim=D,
        n_layers=LAYERS,
        train_length=T,
        position_limit=None,
        plugins=[],
        **parameters,
    )
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
    return encoding


def titled(panels: list[Panel], start: str) -> Any:
    (found,) = [panel for panel in panels if panel.title.startswith(start)]
    return found


def panels_of(encoding: Encoding) -> list[Panel]:
    return measure(encoding)[0]


def test_bias_curves_and_matrices_are_the_bias() -> None:
    slopes = [2 ** (-8 / 2), 2 ** (-16 / 2), 2 ** (-8 / 4)]  # of three heads
    panels = panels_of(encoding_of("alibi", learned_slopes=False))
    curves = titled(panels, "Bias, each head")
    for line, slope in zip(curves.lines, slopes, strict=True):
        assert np.array_equal(line.x, np.arange(8 * T + 1))
        assert np.allclose(line.y, [-slope * r for r in range(8 * T + 1)], rtol=1e-6)
    matrix = titled(panels, "Bias as a matrix, head 3")
    for i in range(T):
        for j in range(T):
            assert (
                math.isnan(matrix.z[i, j]) if j > i else matrix.z[i, j] == pytest.approx(-slopes[2] * (i - j))
            )
    assert curves.marks == {"T": T, "8T": 8 * T} and curves.brief


def test_a_bias_that_differs_by_layer_or_query_is_drawn_for_each() -> None:
    encoding = encoding_of("fire", threshold=None, shared=False)
    panels = panels_of(encoding)
    layers = [titled(panels, f"Bias at i = 8T, layer {n}, each head") for n in (1, 2)]
    for layer, curves in enumerate(layers):
        direct = encoding.bias(torch.tensor([8 * T]), torch.arange(8 * T + 1), layer)[:, 0].flip(-1)
        for line, row in zip(curves.lines, direct.detach().numpy(), strict=True):
            assert np.allclose(line.y, row, atol=1e-6)
    queries = titled(panels, "Head 1 for queries")
    assert [line.label for line in queries.lines] == ["i = T/4", "i = T", "i = 2T", "i = 4T", "i = 8T"]
    assert [line.x[-1] for line in queries.lines] == [3, 12, 24, 48, 96]
    assert not np.allclose(queries.lines[1].y, queries.lines[4].y[: T + 1])


def test_a_table_of_zeros_is_drawn_with_random_values_and_says_so() -> None:
    encoding = encoding_of("t5", buckets=4, max_distance=None)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.zero_()
    panels, (remark,) = measure(encoding)
    assert "starts at zero" in remark and "random values" in remark
    lines = titled(panels, "Bias, 2 of 3 heads").lines
    assert all(np.ptp(line.y) > 0.1 for line in lines)
    assert not any(parameter.any() for parameter in encoding.parameters())  # put back
    assert measure(encoding_of("t5", buckets=4, max_distance=None))[1] == []


def test_wavelengths_and_turns_are_those_of_theta() -> None:
    panels = panels_of(encoding_of("rope", base=100.0, layout="half", fraction=0.5))
    theta = [100.0 ** (-2 * k / 4) for k in range(2)]
    waves = titled(panels, "Wavelength of each pair")
    assert np.allclose(np.concatenate([line.y for line in waves.lines]), [2 * math.pi / t for t in theta])
    assert [len(line.y) for line in waves.lines] == [
        1,
        1,
    ]  # a pair that turns fully within T, one that does not
    turns = titled(panels, "How far pairs have turned")
    for line, t in zip(turns.lines, theta, strict=True):
        assert np.allclose(line.y, line.x * t / (2 * math.pi))


def test_pairs_that_stand_still_are_counted() -> None:
    panels = panels_of(encoding_of("hope", base=10000.0, layout="interleaved", turns=1.0))
    assert titled(panels, "Wavelength of each pair").title.endswith("(3 of 4 are still)")


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_pair_that_is_drawn_is_turned_by_one_of_the_angles(layout: str) -> None:
    panels = panels_of(encoding_of("rope", base=10000.0, layout=layout, fraction=1.0))
    (arrows,) = [panel for panel in panels if isinstance(panel, Arrows)]
    angle = np.unwrap(np.arctan2(arrows.tips[:, 1], arrows.tips[:, 0]))
    steps = np.diff(angle)
    assert np.allclose(steps, steps[0]) and min(abs(steps[0] - 10.0**-k) for k in range(4)) < 1e-6
    assert np.allclose(np.hypot(*arrows.tips.T), 1) and np.allclose(np.abs(arrows.tips[0]).max(), 1)
    assert arrows.tips[0].sum() == pytest.approx(1)  # a number of 1, not turned yet


def test_the_score_with_itself_is_the_mean_of_cosines() -> None:
    encoding = encoding_of("rope", base=10000.0, layout="interleaved", fraction=1.0)
    r = torch.arange(40)
    mean, spread = scores_with_itself(encoding, r, 0)
    squared = mean[:, :1] * D**0.5  # mean of |q|^2, spread over the pairs as they happened to fall
    expected = np.mean([np.cos(r.numpy() * 10.0**-k) for k in range(4)], axis=0)
    assert np.allclose(mean / mean[:, :1], expected, atol=0.15) and abs(squared[0, 0] - D) < 1
    assert mean.shape == spread.shape == (HEADS, 40) and (spread > 0).all()


def test_what_is_added_is_what_embed_adds() -> None:
    encoding = encoding_of("sinusoidal", base=10000.0, per_layer=False, combine="add")
    panels = panels_of(encoding)
    heat = titled(panels, "Added at the input")
    assert isinstance(heat, Map) and heat.z.shape == (HEADS * D, 8 * T)
    for t in (0, 5, 8 * T - 1):
        assert heat.z[0, t] == pytest.approx(math.sin(t), abs=1e-6)
        assert heat.z[3, t] == pytest.approx(math.cos(t * 10000 ** (-2 / (HEADS * D))), abs=1e-6)
    product = titled(panels, "PE(t) · PE(t+r)")
    for line in product.lines:
        waves = [10000 ** (-2 * k / (HEADS * D)) for k in range(HEADS * D // 2)]
        assert np.allclose(line.y, [sum(math.cos(r * w) for w in waves) for r in line.x], atol=1e-3)
    assert [line.label for line in product.lines] == ["t = T/2", "t = T", "t = 2T", "t = 4T"]
    projected = titled(panels, "The same after random projections")
    assert not np.allclose(projected.lines[0].y, projected.lines[1].y, atol=0.05)


@pytest.mark.parametrize("beyond", ["refuse", "truncate", "clamp"])
def test_a_table_that_ends_is_drawn_to_its_end(beyond: str) -> None:
    encoding = encoding_of("learned", beyond=beyond, per_layer=False, combine="add")
    heat = panels_of(encoding)[0]
    assert isinstance(heat, Map) and heat.z.shape[1] == (8 * T if beyond == "clamp" else T)
    assert ("defined below T" in heat.title) == (beyond != "clamp")
    assert np.allclose(heat.z[:, :T].T, encoding.table[0].detach().numpy())  # type: ignore[index]
    assert added(encoding, torch.tensor([3]), T).shape == (1, HEADS * D)


def test_weights_are_those_of_the_real_attention() -> None:
    """A penalty as large as ALiBi's first head's, by hand, in float64."""
    encoding = encoding_of("alibi", learned_slopes=False)
    weights, change = attention(encoding, encoding.shape, T, T, draw=3)
    plain, _ = attention(None, encoding.shape, T, T, draw=3)
    r = (torch.arange(T)[:, None] - torch.arange(T)).clamp_min(0)
    biased = plain.double() * (-(2.0**-4) * r).exp()
    assert change is None
    assert torch.allclose(weights[0].double(), (biased / biased.sum(-1, keepdim=True))[0], atol=1e-5)


def test_the_change_of_the_scores_is_what_the_hook_makes_of_them() -> None:
    class Twice(Encoding):
        def scores(self, s, q, k, q_pos, k_pos, state, layer):  # type: ignore[no-untyped-def]
            return s - 0.5 * (q_pos[:, None] - k_pos[None, :])

    encoding = Twice(Shape(HEADS * D, HEADS, D, LAYERS, T))
    _, change = attention(encoding, encoding.shape, 2 * T, 4, draw=0)
    assert change is not None
    rows = by_distance(change)
    assert rows.shape == (4, HEADS, 2 * T - 3)
    assert torch.allclose(rows, -0.5 * torch.arange(2 * T - 3).float().expand_as(rows), atol=1e-5)


def test_scores_that_differ_by_layer_are_drawn_for_the_first_and_the_last() -> None:
    encoding = encoding_of("fox")
    panels, (remark,) = measure(encoding)
    for layer in (0, LAYERS - 1):
        drawn = [attention(encoding, encoding.shape, 2 * T, 6, i, layer)[1] for i in range(32)]
        mean = torch.cat([by_distance(change) for change in drawn if change is not None]).mean(0)
        curves = titled(panels, f"Change of the scores, layer {layer + 1}")
        for line, row in zip(curves.lines, mean.detach().numpy(), strict=True):
            assert np.allclose(line.y, row, atol=1e-4)
    assert "layer 1" in remark


def test_blocks_of_queries_are_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = encoding_of("fox")
    whole = attention(encoding, encoding.shape, T, T, draw=1)
    monkeypatch.setattr("posenc.model.kernels.MAX_SCORES", HEADS * T * 5)
    for one, other in zip(whole, attention(encoding, encoding.shape, T, T, draw=1), strict=True):
        assert one is not None and other is not None
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        assert torch.allclose(one[:, causal], other[:, causal], atol=1e-4)


def test_without_encoding_every_key_counts_the_same() -> None:
    shape = Shape(HEADS * D, HEADS, D, LAYERS, T)
    assert np.allclose(mean_weights(None, shape, 200), 1 / 200, rtol=0.35)
    assert mean_weights(None, shape, 64).mean() == pytest.approx(1 / 64, rel=0.03)
    weights, largest, entropy = panels_of(encoding_of("nope"))
    assert "No encoding" in weights.title and isinstance(weights, Curves)
    assert [line.label for line in weights.lines] == ["n = T", "n = 2T", "n = 4T", "n = 8T"]
    for line, times in zip(weights.lines, (1, 2, 4, 8), strict=True):
        assert np.mean(line.y) == pytest.approx(1 / (times * T), rel=0.2)
    for panel in (largest, entropy):
        assert isinstance(panel, Curves) and panel.lines[1].reference
        drawn, alike = (line.y for line in panel.lines)
        assert ((drawn >= alike - 1e-9) if panel is largest else (drawn <= alike + 1e-9)).all()


def test_a_vector_that_depends_on_the_window_is_drawn_for_several() -> None:
    panels = panels_of(encoding_of("normalized", per_layer=False, combine="add"))
    assert panels[0].title.endswith("in a window of 8T")
    by_window = titled(panels, "Its size in windows")
    sizes = [line.y[-1] for line in by_window.lines]
    assert np.allclose(sizes, sizes[0], rtol=1e-5) and [line.x[-1] for line in by_window.lines] == [
        n * T - 1 for n in (0.5, 1, 2, 4, 8)
    ]


def test_masks_by_layer_and_windows() -> None:
    encoding = encoding_of("rnope_swa", base=10000.0, layout="half", every=2, window=4)
    near, all_of_it = [panel for panel in panels_of(encoding) if isinstance(panel, Map)]
    assert (near.title, all_of_it.title) == ("Keys seen in layer 1", "Keys seen in layer 2")
    for i in range(T):
        assert np.nansum(near.z[i]) == min(i + 1, 4) and np.nansum(all_of_it.z[i]) == i + 1
    windowed = Composed(encoding.shape, (encoding_of("nope"), Window(encoding.shape, window=2)))
    (only,) = panels_of(windowed)
    assert only.title == "Keys seen in every layer"


@pytest.mark.parametrize("kind", [Randomized, Offset])
def test_drawn_positions(kind: Any) -> None:
    shape = Shape(HEADS * D, HEADS, D, LAYERS, T)
    option = kind(shape, max=None, **({"dense": False} if kind is Randomized else {}))
    panels = panels_of(Composed(shape, (encoding_of("nope"), option)))
    drawn = [line for line in panels[0].lines if not line.reference]  # type: ignore[union-attr]
    assert len(drawn) == 5 and all((np.diff(line.y) > 0).all() for line in drawn)
    assert len({line.y[-1] for line in drawn}) > 1


def test_several_hooks_give_the_panels_of_all() -> None:
    parts = [encoding_of("alibi", learned_slopes=False)]
    parts.append(encoding_of("rope", base=10000.0, layout="half", fraction=1.0))
    titles = [panel.title for panel in panels_of(Composed(parts[0].shape, parts))]
    alone = [panel.title for part in reversed(parts) for panel in panels_of(part)]
    at = alone.index("Score of a query with an equal key")
    assert titles == [*alone[:at], "Score with an equal key, by rotation alone", *alone[at + 1 :]]


def test_a_long_context_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = build_encoding(
        "alibi",
        d_model=HEADS * D,
        n_heads=HEADS,
        head_dim=D,
        n_layers=LAYERS,
        train_length=100_000,
        position_limit=None,
        plugins=[],
        learned_slopes=False,
    )
    panels = panels_of(encoding)
    line = panels[0].lines[0]  # type: ignore[union-attr]
    assert len(line.x) <= 1100 and line.x[-1] == 800_000 and (np.diff(line.x) > 0).all()
    assert max(panels[1].z.shape) <= 256  # type: ignore[union-attr]


def test_an_extension_is_drawn_beside_the_model_as_trained() -> None:
    trained, faster = encoding_of("rope"), encoding_of("rope", base=100.0)
    panels, _ = measure(faster, trained)
    for title in ("Wavelength", "Score of a query"):
        (grey,) = [line for line in titled(panels, title).lines if line.reference]
        own = {line.label: line for line in titled(measure(trained)[0], title).lines}
        assert grey.label == "as trained"
        known = dict(
            zip(*(np.concatenate([getattr(one, axis) for one in own.values()]) for axis in "xy"), strict=True)
        )
        assert all(known[x] == pytest.approx(y) for x, y in zip(grey.x, grey.y, strict=True))
    assert not [
        line
        for panel in measure(trained, trained)[0]
        for line in getattr(panel, "lines", [])
        if line.reference
    ]
