"""Pictures of encodings: what is measured, against the formulas behind it; every encoding is drawn."""

import functools
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from composed import train_settings

from posenc.core.paths import conf_dir
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.building import default_parameters
from posenc.encodings.positions.randomized import Randomized
from posenc.encodings.shared.composed import Composed
from posenc.model.decoder import ModelShape
from posenc.pictures import measure as measure_module
from posenc.pictures.attention import attention_weights, mean_weights
from posenc.pictures.draw import picture_bytes
from posenc.pictures.measure import PARAMETERS_ARE_RANDOM, measure
from posenc.pictures.panels import Curves, KeyMask, Line, Picture, VectorMap
from posenc.pictures.sentences import (
    TRAIN_FIRST,
    arcs_sentence,
    bias_sentence,
    places_text,
    products_sentence,
    vectors_sentence,
    wavelengths_sentence,
)
from posenc.pictures.text import WIDTH, picture_text
from posenc.running.law_check import changed
from posenc.running.model_parts import build_model, check_parts

NAMES = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
SMALL = ModelShape("small", d_model=16, n_layers=2, n_heads=2, mlp_ratio=1)
T = 12
HEADS = 3
ALIBI = {"learned_slopes": False}
ALIBI_SLOPES = [2**-4, 2**-8, 2**-2]  # of three heads (Press et al. 2022, section 3)
WIDEST_TITLE = 45  # characters that fit above a panel of the figure


def encoding_of(name, **parameters):
    """Build an encoding of a small size, with random values for what is learned."""
    size = {"d_model": 24, "n_heads": HEADS, "head_dim": 8, "n_layers": 2, "train_length": T}
    encoding = build_encoding(name, **size, **parameters)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
    return encoding


def panels_of(encoding):
    panels, _ = measure(encoding)
    return {panel.title: panel for panel in panels}


@functools.cache
def short_settings():
    return train_settings("context_length=8")


@pytest.fixture(scope="module", params=NAMES)
def catalogued(request):
    """The panels and the notes of an encoding of the catalogue, as a model holds it at its start."""
    encoding = {"name": request.param, **default_parameters(request.param)}
    settings = check_parts(changed(short_settings(), 0, {"encoding": encoding}))
    return measure(build_model(settings, SMALL, 5).effective_encoding)


def test_every_encoding_has_a_panel_with_finite_lines(catalogued):
    panels, _ = catalogued
    assert panels
    for panel in panels:
        for line in panel.lines if isinstance(panel, Curves) else []:
            assert line.x.shape == line.y.shape
            assert np.isfinite(line.y).all()


def test_every_panel_says_what_to_see(catalogued):
    panels, _ = catalogued
    assert all(panel.sentence.startswith("To see: ") for panel in panels)


def test_every_map_has_one_mask_also_where_heads_differ(catalogued):
    panels, _ = catalogued
    for panel in panels:
        if isinstance(panel, KeyMask):
            assert panel.seen.ndim == 2


def test_every_title_fits_above_its_panel(catalogued):
    panels, _ = catalogued
    assert all(0 < len(panel.title) <= WIDEST_TITLE for panel in panels)


def test_every_encoding_is_printed_within_the_width(catalogued):
    panels, notes = catalogued
    lines = picture_text(Picture("name", panels, ["T = 8", *notes])).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    for panel in panels:
        assert any(line.startswith(panel.title) for line in lines)


@pytest.mark.parametrize("names", [("alibi",), ("rope",), ("learned",), ("fox",), ("rope", "alibi")])
def test_every_kind_of_panel_is_drawn_with_its_lines_and_marks(names):
    parts = [encoding_of(name, **(ALIBI if name == "alibi" else {})) for name in names]
    panels, _ = measure(Composed(parts[0].shape, parts))
    svg = picture_bytes(Picture("+".join(names), panels, ["a & b"]), "svg")
    elements = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    texts = {"".join(element.itertext()) for element in elements}
    assert {"+".join(names), "a & b"} <= texts
    for panel in panels:
        lines = {line.label for line in panel.lines} if len(panel.lines) > 1 else set()
        marks = {name for name in (*panel.marks, *panel.y_marks) if name}
        assert {panel.title, panel.x_label, *lines, *marks} <= texts


def test_a_picture_has_the_same_bytes_every_time():
    panels, _ = measure(encoding_of("rope"))
    picture = Picture("rope", panels)
    assert picture_bytes(picture, "svg") == picture_bytes(picture, "svg")


def test_bias_curves_are_the_bias_of_each_head():
    (panel,) = panels_of(encoding_of("alibi", **ALIBI)).values()
    assert panel.title == "Bias, each head"
    assert panel.marks == {"T": T, "8T": 8 * T}
    for line, slope in zip(panel.lines, ALIBI_SLOPES, strict=True):
        assert np.array_equal(line.x, np.arange(8 * T + 1))
        assert np.allclose(line.y, -slope * line.x)


def test_wavelengths_are_those_of_the_angles():
    rope = encoding_of("rope", base=100.0, layout="half", fraction=0.5)
    (line,) = panels_of(rope)["Wavelength of each pair"].lines
    assert np.allclose(line.y, [2 * math.pi, 2 * math.pi * 10])


def curve(y):
    """Return a line over 0, 1, 2, ..."""
    return Line("", np.arange(len(y), dtype=np.float64), np.array(y, dtype=np.float64))


@pytest.mark.parametrize(
    ("waves", "text"),
    [
        ([1, 20, 30], "waves of 1 to 30 tokens; 2 of 3 are longer than T."),
        ([1, 2, 30], "waves of 1 to 30 tokens; 1 of 3 is longer than T."),
    ],
)
def test_waves_longer_than_t_are_counted(waves, text):
    panel = Curves("", "", "", [curve(waves)], y_marks={"T": T})
    assert wavelengths_sentence(panel) == f"To see: {text}"


def sentence_of(encoding, trained=None):
    """Return the sentence of the first panel."""
    panels, _ = measure(encoding, trained)
    return panels[0].sentence


# --- Vectors of positions
def test_the_vectors_are_a_map_of_position_and_dimension():
    vectors = panels_of(encoding_of("sinusoidal", per_layer=False, combine="add", base=100.0))[
        "Vectors of positions"
    ]
    rows = vectors.positions[:, None]
    pairs = np.arange(12)
    angles = rows * 100.0 ** (-pairs / 12)
    assert np.allclose(vectors.values[:, 0::2], np.sin(angles), atol=1e-6)
    assert np.allclose(vectors.values[:, 1::2], np.cos(angles), atol=1e-6)


def test_a_zero_is_no_change_of_sign():
    """sin(0) is 0: the slow columns of a sinusoidal encoding never change within T."""
    sinusoidal = encoding_of("sinusoidal", per_layer=False, combine="add", base=10000.0)
    t = np.arange(sinusoidal.shape.train_length)[1:, None]
    angles = t * 10000.0 ** (-np.arange(12) / 12)
    n_constant = sum(
        len(np.unique(np.sign(column))) == 1 for wave in (np.sin, np.cos) for column in wave(angles).T
    )
    assert f"{n_constant} of 24 never" in sentence_of(sinusoidal)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([1, 1, 1, 1], "within T no number changes its sign."),
        ([1, 1, -1, -1], "within T a number changes its sign at most once, 1 of 2 never."),
        ([1, -1, 1, 1], "within T a number changes its sign up to 2 times, 1 of 2 never."),
    ],
)
def test_changes_of_sign_are_counted(numbers, text):
    vectors = np.array([numbers, [1, 1, 1, 1]], dtype=np.float64).T
    panel = VectorMap("", vectors, np.arange(4.0), np.arange(1.0, 3.0), marks={"T": 4})
    assert vectors_sentence(panel, vectors) == f"To see: {text}"


def test_products_of_equal_curves_depend_on_the_distance_only():
    panel = Curves("", "", "", [curve([4, 2]), curve([4, 2])])
    assert "the curves coincide, so the product depends on the distance only." in products_sentence(panel)


def test_wide_vectors_are_drawn_in_pairs_of_neighbours():
    columns = measure_module._pairs_of_columns(300)
    assert len(columns) == 128
    assert np.array_equal(columns[1::2], columns[0::2] + 1)


def test_learned_vectors_are_not_drawn_before_they_are_trained():
    learned = encoding_of("learned", per_layer=False, combine="add", beyond="untrained")
    (panel,) = panels_of(learned).values()
    assert panel.sentence == TRAIN_FIRST


def test_learned_vectors_of_a_run_are_a_map():
    learned = encoding_of("learned", per_layer=False, combine="add", beyond="untrained")
    panels, _ = measure(learned, is_trained=True)
    assert isinstance(panels[0], VectorMap)


def test_the_size_of_vectors_past_t_is_said():
    learned = encoding_of("learned", per_layer=False, combine="add", beyond="untrained")
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.mul_(100)
    panels, _ = measure(learned, is_trained=True)
    assert "vectors past T are 0.00" in panels[0].sentence


# --- Why a rotation fails or holds past T


def test_arcs_are_the_turns_within_t_and_within_8t():
    rope = encoding_of("rope", base=100.0, layout="half", fraction=0.5)
    in_training, far = panels_of(rope)["How far each pair turns"].lines
    assert np.allclose(in_training.y, [T / (2 * math.pi), T / (20 * math.pi)])
    assert np.allclose(far.y, 8 * in_training.y)


def test_pairs_that_do_not_finish_a_turn_reach_angles_that_were_never_trained():
    rope = encoding_of("rope", base=100.0, layout="half", fraction=0.5)
    expected = "1 of 2 pairs does not finish a turn within T; past T it reaches angles never trained."
    assert expected in sentence_of(rope)


def test_several_pairs_that_do_not_finish_a_turn_are_they():
    rope = encoding_of("rope", base=10000.0, layout="half", fraction=1.0)
    expected = "3 of 4 pairs do not finish a turn within T; past T they reach angles never trained."
    assert expected in sentence_of(rope)


def test_a_single_pair_is_the_only_one():
    arcs = Curves("", "", "", [curve([0.5]), curve([4.0])])
    expected = (
        "To see: the only pair does not finish a turn within T; past T it reaches angles never trained."
    )
    assert arcs_sentence(arcs) == expected


def test_where_every_pair_finishes_a_turn_no_angle_is_new():
    rope = encoding_of("rope", base=1.5, layout="half", fraction=0.5)
    assert "every pair finishes a turn within T" in sentence_of(rope)


def test_interpolated_positions_stay_within_the_angles_of_training():
    rope = encoding_of("rope", base=100.0, layout="half", fraction=0.5)
    interpolated = rope.with_frequencies(lambda theta: theta / 8)
    assert "up to 8T it stays within the angles of training" in sentence_of(interpolated, rope)


# --- Biases
def test_straight_lines_have_a_linear_axis():
    (panel,) = panels_of(encoding_of("alibi", **ALIBI)).values()
    assert panel.x_scale == "linear"


def test_bent_lines_have_a_logarithmic_axis():
    panel = panels_of(encoding_of("kerple_log"))["Bias, each head"]
    assert panel.x_scale == "symlog"


def test_the_fall_of_a_bias_is_said():
    steepest = max(ALIBI_SLOPES)
    said = f"falls by up to {steepest * T:.3g} nats to T and by {steepest * 7 * T:.3g} more to 8T"
    assert said in sentence_of(encoding_of("alibi", **ALIBI))


def test_a_large_fall_of_a_bias_has_no_power_of_ten():
    line = Line("", np.array([0.0, T, 8 * T]), np.array([0.0, -1050, -34_250]))
    said = bias_sentence(Curves("", "", "", [line], marks={"T": T, "8T": 8 * T}))
    assert "falls by up to 1,050 nats to T and by 33,200 more to 8T" in said


def test_a_bias_that_is_clamped_is_said_to_stay():
    assert "past T the bias stays as it is at T" in sentence_of(encoding_of("t5", buckets=8, max_distance=T))


def test_pairs_that_do_not_turn_are_counted_and_have_no_wavelength():
    hope = encoding_of("hope", base=10000.0, layout="interleaved", turns=1.0)
    assert "Wavelength of each pair (3 of 4 are still)" in panels_of(hope)


def test_a_single_pair_that_does_not_turn_is_still():
    rope = encoding_of("rope", base=100.0, layout="half", fraction=1.0)
    one_still = rope.with_frequencies(lambda theta: theta * (theta > theta.min()))
    assert "Wavelength of each pair (1 of 4 is still)" in panels_of(one_still)


def test_weights_are_those_of_the_real_attention():
    """Against a penalty as large as that of ALiBi's first head, by hand, in float64."""
    encoding = encoding_of("alibi", **ALIBI)
    weights = attention_weights(encoding, T, T, draw=3)[0].double()
    plain = attention_weights(Encoding(encoding.shape), T, T, draw=3).double()
    r = (torch.arange(T)[:, None] - torch.arange(T)).clamp_min(0)
    biased = plain * (-ALIBI_SLOPES[0] * r).exp()
    expected = (biased / biased.sum(-1, keepdim=True))[0]
    assert torch.allclose(weights, expected, atol=1e-5)


def test_mean_weights_of_a_query_that_sees_two_keys_sum_to_one():
    mean = mean_weights(encoding_of("alibi", **ALIBI), 2)
    assert mean.shape == (HEADS, 2)
    assert np.allclose(mean.sum(1), 1)


@pytest.fixture
def zero_bias():
    """An encoding whose bias is zero at every distance."""
    encoding = encoding_of("t5")
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.zero_()
    return encoding


def test_parameters_that_are_zero_are_drawn_with_random_values(zero_bias):
    panels, notes = measure(zero_bias)
    assert PARAMETERS_ARE_RANDOM in notes
    assert any(line.y.any() for line in panels[0].lines)


def test_the_encoding_that_is_drawn_stays_as_it_is(zero_bias):
    measure(Composed(zero_bias.shape, [zero_bias]))
    assert not any(parameter.any() for parameter in zero_bias.parameters())


def test_parameters_that_a_run_left_at_zero_are_drawn_as_they_are(zero_bias):
    panels, notes = measure(zero_bias, is_trained=True)
    assert PARAMETERS_ARE_RANDOM not in notes
    assert not any(line.y.any() for line in panels[0].lines)


def hard_alibi(n_heads):
    """An encoding in whose first half of heads, head h sees h keys, and the others see all."""
    size = {"d_model": 8 * n_heads, "n_heads": n_heads, "head_dim": 8, "n_layers": 4, "train_length": T}
    return build_encoding("hard_alibi", **size, masked_heads=n_heads // 2)


def test_a_mask_is_named_by_all_its_heads_and_layers():
    assert list(panels_of(hard_alibi(4))) == [
        "Keys seen in head 1, every layer",
        "Keys seen in head 2, every layer",
        "Keys seen in heads 3 to 4, every layer",
    ]


def test_of_many_masks_the_first_and_the_last_are_drawn_and_their_number_is_said():
    panels, notes = measure(hard_alibi(8))
    assert [panel.seen_by_last for panel in panels] == [1, 3, T]
    assert notes == ["3 of 5 different masks are drawn"]


def test_where_all_masks_are_drawn_no_note_is_needed():
    _, notes = measure(hard_alibi(4))
    assert notes == []


ALL_HEADS = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("heads_by_layer", "text"),
    [
        (dict.fromkeys(range(1, 9), ALL_HEADS), "every layer"),
        ({8: ALL_HEADS}, "layer 8"),
        ({1: ALL_HEADS, 2: ALL_HEADS, 3: ALL_HEADS, 5: ALL_HEADS}, "layers 1 to 3, 5"),
        (dict.fromkeys((1, 3, 5, 7), ALL_HEADS), "layers 1, 3, ..., 7"),
        ({2: [1], 4: [1]}, "head 1, layers 2, 4"),
        ({1: [1], 2: [2]}, "head 1, layer 1, ..."),
    ],
)
def test_the_places_of_a_mask_are_named_in_short(heads_by_layer, text):
    assert places_text(heads_by_layer, n_layers=8, n_heads=4) == text


@pytest.mark.parametrize(
    ("title", "keys_seen"),
    [
        ("Keys seen in layer 1", [min(i + 1, 4) for i in range(T)]),
        ("Keys seen in layer 2", [i + 1 for i in range(T)]),
    ],
)
def test_layers_with_different_masks_have_a_map_each(title, keys_seen):
    encoding = encoding_of("rnope_swa", base=10000.0, layout="half", every=2, window=4)
    assert np.nansum(panels_of(encoding)[title].seen, axis=1).tolist() == keys_seen


def test_layers_with_one_mask_share_a_map():
    size = {"d_model": 24, "n_heads": HEADS, "head_dim": 8, "n_layers": 4, "train_length": T}
    encoding = build_encoding("rnope_swa", **size, base=10000.0, layout="half", every=4, window=4)
    titles = [panel.title for panel in measure(encoding)[0] if isinstance(panel, KeyMask)]
    assert titles == ["Keys seen in layers 1 to 3", "Keys seen in layer 4"]


def test_drawn_positions_rise_and_differ_from_draw_to_draw():
    encoding = encoding_of("rnope_swa", base=10000.0, layout="half", every=2, window=4)
    option = Randomized(encoding.shape, max=None, dense=False)
    panel = panels_of(Composed(encoding.shape, (encoding, option)))["Positions drawn in training"]
    draws = [line for line in panel.lines if not line.is_reference]
    assert len(draws) == 5
    assert all((np.diff(line.y) > 0).all() for line in draws)
    assert len({line.y[-1] for line in draws}) > 1


def test_the_keys_of_a_mask_are_counted_although_some_are_drawn(posenc):
    result = posenc("show", "encoding=rope", "attention.window=32", "context_length=1024")
    assert "the last query sees 32 of 1024 keys" in result.out
