"""Options of any encoding: where positions come from, windows, scales; what is refused and how.

What a window and a scale do to the attention is in test_formulas.
"""

import math
import statistics

import pytest
import tiny
import torch
from tiny_model import encoding_of

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import list_encodings
from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.attention_options.ssmax import SSMax
from posenc.encodings.base import Shape
from posenc.encodings.options import build_options, warnings_of_options
from posenc.encodings.positions import check_positions, position_limits
from posenc.encodings.positions.cream import CREAM
from posenc.encodings.positions.offset import Offset
from posenc.encodings.positions.pose import PoSE
from posenc.encodings.positions.randomized import Randomized

T = 8
CONTIGUOUS = {"name": "contiguous"}
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
OFFSET = {"name": "offset", "max": None}
POSE = {"name": "pose", "max": None, "chunks": 2}
CREAM_SETTINGS = {"name": "cream", "max": None, "sigma": 3.0}


def shape_of(train_length):
    return Shape(d_model=16, n_heads=2, head_dim=8, n_layers=2, train_length=train_length)


def built(encoding, positions=CONTIGUOUS, window=None, scale="none"):
    attention = {"window": window, "scale": scale}
    return build_options(encoding.shape, encoding, positions=positions, attention=attention)


def draw(option, length, *, training, seed):
    return option.positions(length, training, generator_for(seed, "test"))


def gaps_of(positions):
    """Return the indices after which positions are left out."""
    return (positions.diff() > 1).nonzero().flatten().tolist()


@pytest.mark.parametrize("positions", [OFFSET, RANDOMIZED, POSE, CREAM_SETTINGS], ids=lambda it: it["name"])
@pytest.mark.parametrize("name", ["rope", "alibi", "sinusoidal"])
def test_a_shift_of_all_positions_is_said_to_change_nothing_where_distances_count(name, positions):
    encoding = encoding_of(name, T)
    warnings = warnings_of_options(encoding, built(encoding, positions))
    changes_nothing = positions is OFFSET and name != "sinusoidal"
    says_so = [f"positions=offset changes no number but by rounding: {name} sees distances alone"]
    assert warnings == (says_so if changes_nothing else [])


def test_a_training_says_that_a_shift_of_all_positions_changes_nothing(posenc, corpus):
    changes = ["encoding=rope", "positions=offset", "eval.protocols=[fixed-target]"]
    result = posenc("train", *tiny.TINY, f"data.paths={corpus}", *changes)
    assert result.code == 0
    assert "positions=offset changes no number but by rounding: rope sees distances alone" in result.err


# --- Positions of T = 8 tokens drawn below 9
RANDOMLY = pytest.param(Randomized, {"dense": False}, id="randomized")
DENSELY = pytest.param(Randomized, {"dense": True}, id="randomized, dense")
MOVED = pytest.param(Offset, {}, id="offset")
ONE_CHUNK = pytest.param(PoSE, {"chunks": 1}, id="PoSE, one chunk")
TWO_CHUNKS = pytest.param(PoSE, {"chunks": 2}, id="PoSE, two chunks")
ALL_CHUNKS = pytest.param(PoSE, {"chunks": T}, id="PoSE, a chunk a token")
ALL_DRAWN = [RANDOMLY, DENSELY, MOVED, ONE_CHUNK, TWO_CHUNKS, ALL_CHUNKS]
NOT_REDRAWN = [DENSELY, MOVED, ONE_CHUNK, TWO_CHUNKS, ALL_CHUNKS]


def drawn_in_training(option_class, params):
    option = option_class(shape_of(T), max=9, **params)
    return [draw(option, T, training=True, seed=seed) for seed in range(400)]


@pytest.mark.parametrize(("option_class", "params"), ALL_DRAWN)
def test_drawn_positions_are_whole_and_rise(option_class, params):
    for positions in drawn_in_training(option_class, params):
        assert positions.dtype == torch.int64
        assert positions.shape == (T,)
        assert (positions.diff() >= 1).all()


def with_values(case, *values):
    """Return the case with what is expected of it."""
    return pytest.param(*case.values, *values, id=case.id)


@pytest.mark.parametrize(
    ("option_class", "params", "first", "last"),
    [
        with_values(RANDOMLY, {0, 1}, {7, 8}),
        with_values(DENSELY, {0, 1}, {7, 8}),
        with_values(MOVED, {0, 1}, {7, 8}),
        with_values(ONE_CHUNK, {0}, {7}),
        with_values(TWO_CHUNKS, {0}, {7, 8}),
        with_values(ALL_CHUNKS, {0}, {7, 8}),
    ],
)
def test_drawn_positions_begin_and_end_where_their_definition_allows(option_class, params, first, last):
    drawn = drawn_in_training(option_class, params)
    assert {int(positions[0]) for positions in drawn} == first
    assert {int(positions[-1]) for positions in drawn} == last


@pytest.mark.parametrize(
    ("option_class", "params", "most"),
    [
        with_values(RANDOMLY, T - 1),
        with_values(DENSELY, T - 1),
        with_values(MOVED, 0),
        with_values(ONE_CHUNK, 0),
        with_values(TWO_CHUNKS, 1),
        with_values(ALL_CHUNKS, T - 1),
    ],
)
def test_drawn_positions_have_no_more_gaps_than_their_definition_allows(option_class, params, most):
    for positions in drawn_in_training(option_class, params):
        assert len(gaps_of(positions)) <= most


@pytest.mark.parametrize(("option_class", "params"), [RANDOMLY, DENSELY, TWO_CHUNKS, ALL_CHUNKS])
def test_gaps_are_anywhere(option_class, params):
    indices = set()
    for positions in drawn_in_training(option_class, params):
        indices.update(gaps_of(positions))
    assert indices == set(range(T - 1))


@pytest.mark.parametrize(("option_class", "params"), NOT_REDRAWN)
def test_in_an_evaluation_positions_are_contiguous(option_class, params):
    option = option_class(shape_of(T), max=9, **params)
    for seed in range(20):
        assert torch.equal(draw(option, T, training=False, seed=seed), torch.arange(T))
    assert option.prefix_stable


def test_in_an_evaluation_randomized_positions_are_drawn_as_in_training():
    option = Randomized(shape_of(T), max=9, dense=False)
    for seed in range(20):
        in_training = draw(option, T, training=True, seed=seed)
        assert torch.equal(draw(option, T, training=False, seed=seed), in_training)
    assert not option.prefix_stable  # a longer window draws others


def test_randomized_positions_are_uniform_below_a_limit():
    option = Randomized(shape_of(4), max=16, dense=False)
    counts = torch.zeros(16)
    for seed in range(2000):
        counts[draw(option, 4, training=True, seed=seed)] += 1
    assert counts.min() > 400  # 500 expected, with a standard deviation of 19
    assert counts.max() < 600


def test_more_tokens_than_randomized_positions_are_refused():
    option = Randomized(shape_of(4), max=16, dense=False)
    with pytest.raises(ValueError, match=r"17 positions .* positions\.max=16"):
        draw(option, 17, training=False, seed=0)


# --- CREAM: three parts, of which the middle one is drawn
LENGTH = 24
LIMIT = 8 * LENGTH
SIGMA = 3.0


@pytest.fixture(scope="module")
def cream_draws():
    """Positions of 4000 texts in training, (4000, 24)."""
    option = CREAM(shape_of(LENGTH), max=LIMIT, sigma=SIGMA)
    return torch.stack([draw(option, LENGTH, training=True, seed=seed) for seed in range(4000)])


def test_cream_keeps_the_first_and_the_last_third(cream_draws):
    assert (cream_draws[:, :8] == torch.arange(8)).all()
    assert (cream_draws[:, 16:] == torch.arange(LIMIT - 8, LIMIT)).all()


def test_creams_middle_third_is_contiguous_and_between_the_others(cream_draws):
    end_of_middle = cream_draws[:, 15:16]
    assert (cream_draws[:, 8:16] == end_of_middle + torch.arange(-7, 1)).all()
    assert (cream_draws.diff() >= 1).all()


def expected_end_of_middle():
    """Return the mean end by the paper's law: a is a cut normal number, then the end is uniform given a."""
    third = LENGTH // 3
    normal = statistics.NormalDist(1 + third, SIGMA)
    within_range = normal.cdf(16) - normal.cdf(2)
    mean = 0.0
    for a in range(2, 16):
        probability = (normal.cdf(a + 1) - normal.cdf(a)) / within_range
        first = math.floor(third + (third - 1) * a / 2)
        last = math.floor(a / 2 * LENGTH) - third - 1
        mean += probability * (first + last) / 2
    return mean


def test_creams_middle_lies_where_the_papers_law_puts_it(cream_draws):
    ends = cream_draws[:, 15].double()
    standard_error = float(ends.std()) / 4000**0.5
    assert abs(float(ends.mean()) - expected_end_of_middle()) < 4 * standard_error


def test_creams_middle_is_drawn_from_the_middle(cream_draws):
    ends = cream_draws[:, 15].double()
    assert float(ends.std()) < LIMIT / 12**0.5  # narrower than uniform


def test_in_an_evaluation_creams_positions_are_contiguous():
    option = CREAM(shape_of(LENGTH), max=LIMIT, sigma=SIGMA)
    assert torch.equal(draw(option, 99, training=False, seed=0), torch.arange(99))


def test_creams_outer_parts_have_a_third_or_a_number_that_follows_from_the_limit():
    option = CREAM(shape_of(48), max=96, sigma=SIGMA)
    last_gaps = {gaps_of(draw(option, 48, training=True, seed=seed))[-1] for seed in range(40)}
    assert 31 in last_gaps  # n/3 = 16 tokens follow
    assert 39 in last_gaps  # 4 max/n = 8 tokens follow


# --- Limits of positions and distances
DRAWN_POSITIONS = [
    pytest.param(RANDOMIZED, 16 * T, 16 * T, id="randomized"),
    pytest.param(OFFSET, 8 * T, None, id="offset"),
    pytest.param(POSE, 8 * T, 8 * T, id="pose"),
    pytest.param(CREAM_SETTINGS, 8 * T, 8 * T, id="cream"),
]


def test_contiguous_positions_have_no_limits():
    assert position_limits(CONTIGUOUS, T) == (None, None)


@pytest.mark.parametrize(("positions", "position_limit", "distance_limit"), DRAWN_POSITIONS)
def test_limits_of_drawn_positions_follow_from_t(positions, position_limit, distance_limit):
    assert check_positions(positions) == positions
    assert position_limits(positions, T) == (position_limit, distance_limit)


@pytest.mark.parametrize(("positions", "position_limit", "distance_limit"), DRAWN_POSITIONS)
def test_an_option_says_which_limit_was_derived(positions, position_limit, distance_limit):
    (option,) = built(encoding_of("rope", T), positions)
    assert option.derived == {"max": position_limit}


@pytest.mark.parametrize(("positions", "position_limit", "distance_limit"), DRAWN_POSITIONS)
def test_a_limit_that_is_set_is_taken(positions, position_limit, distance_limit):
    assert position_limits({**positions, "max": 99}, T)[0] == 99


# --- Scales
def test_ssmax_starts_as_logn():
    pos = torch.arange(20)
    logn = LogN(shape_of(T), counted=()).factor(pos, pos, 1)
    ssmax = SSMax(shape_of(T), counted=()).factor(pos, pos, 1)
    assert torch.allclose(ssmax, logn.expand(2, -1))


def test_ssmax_has_no_weight_decay():
    assert not SSMax(shape_of(T), counted=()).decayed


# --- Which encodings take which options
READS_NO_POSITION = {
    "nope",
    "selective_rope",
    "path",
    "carope",
    "headscale",
    "hard_alibi",
    "fox",
    "cable",
    "cope",
    "stick_breaking",
}
OPTIONS = [
    pytest.param("positions", {"positions": RANDOMIZED}, READS_NO_POSITION, id="randomized"),
    pytest.param("positions", {"positions": OFFSET}, READS_NO_POSITION, id="offset"),
    pytest.param("positions", {"positions": POSE}, READS_NO_POSITION, id="pose"),
    pytest.param("positions", {"positions": CREAM_SETTINGS}, READS_NO_POSITION, id="cream"),
    pytest.param("attention.window", {"window": 5}, {"rnope_swa", "pattern"}, id="window"),
    pytest.param(
        "attention.scale", {"scale": "logn"}, {"stick_breaking", "scale_invariant", "pattern"}, id="scale"
    ),
]


@pytest.mark.parametrize("name", list_encodings())
@pytest.mark.parametrize(("key", "choice", "refusing"), OPTIONS)
def test_an_option_is_taken_or_refused_by_name(name, key, choice, refusing):
    encoding = encoding_of(name, T)
    if name not in refusing:
        assert len(built(encoding, **choice)) == 1
        return
    with pytest.raises(UserError) as caught:
        built(encoding, **choice)
    message = caught.value.text()
    assert key in message
    assert f"encoding={name}" in message
    assert encoding.refuses.get(key, "it reads no position") in message
