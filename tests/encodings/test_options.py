"""Options of any encoding: where positions come from, windows, scales; what is refused and how.

What a window and a scale do to the attention is in test_formulas.
"""

import math
import statistics

import pytest
import torch
from tiny_model import encoding_of

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import list_encodings
from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.attention_options.ssmax import SSMax
from posenc.encodings.base import Shape
from posenc.encodings.options import build_options
from posenc.encodings.positions import check_positions, position_limits
from posenc.encodings.positions.cream import CREAM
from posenc.encodings.positions.offset import Offset
from posenc.encodings.positions.pose import PoSE
from posenc.encodings.positions.randomized import Randomized

T = 8
SHAPE = Shape(16, 2, 8, 2, T)
CONTIGUOUS = {"name": "contiguous"}
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
OFFSET = {"name": "offset", "max": None}
POSE = {"name": "pose", "max": None, "chunks": 2}
CREAMY = {"name": "cream", "max": None, "sigma": 3.0}


def built(own, positions=CONTIGUOUS, window=None, scale="none"):
    attention = {"window": window, "scale": scale}
    return build_options(own.shape, own, positions=positions, attention=attention)


# class, parameters -> first and last positions of T = 8 below 9, gaps of a window at most
STILL, MOVED = {0}, {0, 1}
DRAWN = [
    (Randomized, {"dense": False}, MOVED, {7, 8}, T - 1),
    (Randomized, {"dense": True}, MOVED, {7, 8}, T - 1),
    (Offset, {}, MOVED, {7, 8}, 0),
    (PoSE, {"chunks": 1}, STILL, {7}, 0),
    (PoSE, {"chunks": 2}, STILL, {7, 8}, 1),
    (PoSE, {"chunks": T}, STILL, {7, 8}, T - 1),
]


@pytest.mark.parametrize("cls, params, starts, ends, gaps", DRAWN, ids=str)
def test_drawn_positions(cls, params, starts, ends, gaps):
    option, found, cuts = cls(SHAPE, max=9, **params), [], set()
    for seed in range(400):
        pos = option.positions(T, True, generator_for(seed, "test"))
        assert pos.dtype == torch.int64 and pos.shape == (T,) and (pos.diff() >= 1).all()
        later = (pos.diff() > 1).nonzero().flatten().tolist()
        assert len(later) <= gaps
        cuts.update(later)
        found.append((int(pos[0]), int(pos[-1])))
        evaluated = option.positions(T, False, generator_for(seed, "test"))
        redrawn = cls is Randomized and not option.dense
        assert torch.equal(evaluated, pos if redrawn else torch.arange(T))
    assert ({first for first, _ in found}, {last for _, last in found}) == (starts, ends)
    assert cuts == (set(range(T - 1)) if gaps else set())  # anywhere
    assert option.prefix_stable != redrawn  # a longer window draws others


def test_randomized_positions_are_uniform_below_a_limit():
    option, counts = Randomized(Shape(16, 2, 8, 2, 4), max=16, dense=False), torch.zeros(16)
    for seed in range(2000):
        counts[option.positions(4, True, generator_for(seed, "test"))] += 1
    assert counts.min() > 400 and counts.max() < 600  # 500 expected, standard deviation 19
    with pytest.raises(ValueError, match=r"17 positions .* positions\.max=16"):
        option.positions(17, False, generator_for(0, "test"))


def test_cream_draws_the_middle_from_the_middle_in_training_alone():
    """Every draw against the paper's bounds; the middle's place against its law, summed up over a and end."""
    n, limit, sigma = 24, 8 * 24, 3.0
    option, ends = CREAM(Shape(16, 2, 8, 2, n), max=limit, sigma=sigma), []
    for seed in range(4000):
        pos = option.positions(n, True, generator_for(seed, "test"))
        assert len(pos) == n and int(pos[0]) == 0 and int(pos[-1]) == limit - 1 and (pos.diff() >= 1).all()
        ends.append(int(pos[15]))
        assert torch.equal(pos[:8], torch.arange(8)) and torch.equal(pos[8:16], pos[15] + torch.arange(-7, 1))
        assert torch.equal(pos[16:], torch.arange(limit - 8, limit))
    assert torch.equal(option.positions(99, False, generator_for(0, "test")), torch.arange(99))
    normal = statistics.NormalDist(1 + 8, sigma)
    expected = 0.0
    for a in range(2, 16):
        share = (normal.cdf(a + 1) - normal.cdf(a)) / (normal.cdf(16) - normal.cdf(2))
        expected += share * (math.floor(8 + 7 * a / 2) + math.floor(a / 2 * n) - 8 - 1) / 2
    found = torch.tensor(ends).double()
    assert abs(float(found.mean()) - expected) < 4 * float(found.std()) / 4000**0.5
    assert float(found.std()) < limit / 12**0.5  # narrower than uniform

    wide = CREAM(Shape(16, 2, 8, 2, 48), max=96, sigma=sigma)
    drawn = [wide.positions(48, True, generator_for(i, "test")) for i in range(40)]
    assert {31, 39} <= {int((pos.diff() > 1).nonzero()[-1]) for pos in drawn}  # n/3 = 16, or 4 max/n = 8


def test_limits_of_positions_and_distances():
    assert position_limits(CONTIGUOUS, T) == (None, None)
    far, both = 8 * T, (8 * T, 8 * T)
    for drawn, limits in (RANDOMIZED, (16 * T, 16 * T)), (OFFSET, (far, None)), (POSE, both), (CREAMY, both):
        assert check_positions(drawn) == drawn
        assert position_limits(drawn, T) == limits
        [option] = built(encoding_of("rope", T), drawn)
        assert option.derived == {"max": limits[0]}
        assert position_limits({**drawn, "max": 99}, T)[0] == 99


def test_ssmax_starts_as_logn():
    scale, pos = SSMax(SHAPE, counted=()), torch.arange(20)
    same = LogN(SHAPE, counted=()).factor(pos, pos, 1).expand(2, -1)
    assert torch.allclose(scale.factor(pos, pos, 1), same) and not scale.decayed


# key of an option, how it is chosen, encodings that refuse it
READS_NONE = {"nope", "selective_rope", "path", "carope", "headscale", "hard_alibi", "fox", "cable", "cope"}
READS_NONE |= {"stick_breaking"}
WAYS = [
    *(("positions", {"positions": one}, READS_NONE) for one in (RANDOMIZED, OFFSET, POSE, CREAMY)),
    ("attention.window", {"window": 5}, {"rnope_swa", "pattern"}),
    ("attention.scale", {"scale": "logn"}, {"stick_breaking", "scale_invariant", "pattern"}),
]


@pytest.mark.parametrize("key, chosen, refusing", WAYS)
def test_an_option_is_taken_or_refused_by_name(key, chosen, refusing):
    for name in list_encodings():
        own = encoding_of(name, T)
        if name not in refusing:
            assert len(built(own, **chosen)) == 1
            continue
        with pytest.raises(UserError) as caught:
            built(own, **chosen)
        said = (key, f"encoding={name}", own.refuses.get(key, "it reads no position"))
        assert all(words in caught.value.text() for words in said)
