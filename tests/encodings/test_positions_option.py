"""Where positions come from: drawn at random or offset, an option of any encoding."""

from typing import Any

import pytest
import torch
from decoding import T, encoding
from optioned import CONTIGUOUS, OFFSET, RANDOMIZED, options, with_options
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Shape
from posenc.encodings.options import Offset, Randomized, position_limit


def drawn(training: bool, seed: int, n: int = T, **params: Any) -> Tensor:
    option = Randomized(encoding("rope").shape, **{"max": None, "dense": False, **params})
    return option.positions(n, training, generator_for(seed, "test"))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n, most", [(T, None), (16 * T, None), (T, T), (1, 1000), (40, 41)])
def test_randomized_positions_are_a_sorted_subset(training: bool, n: int, most: int | None) -> None:
    for seed in range(20):
        pos = drawn(training, seed, n, max=most)
        assert pos.dtype == torch.int64 and pos.shape == (n,)
        assert (pos.diff() > 0).all()  # sorted, and none twice
        assert int(pos[0]) >= 0 and int(pos[-1]) < (most or 16 * T)


def test_randomized_positions_depend_on_the_generator_alone() -> None:
    torch.manual_seed(0)
    first = drawn(True, 7)
    torch.manual_seed(1)
    assert torch.equal(first, drawn(True, 7)) and torch.equal(first, drawn(False, 7))
    assert not torch.equal(first, drawn(True, 8))


def test_every_position_is_drawn_as_often() -> None:
    option, counts = Randomized(Shape(16, 2, 8, 2, 4), max=16, dense=False), torch.zeros(16)
    for seed in range(2000):
        counts[option.positions(4, True, generator_for(seed, "test"))] += 1
    assert counts.min() > 400 and counts.max() < 600  # 500 expected, of deviation 19


def test_dense_draws_in_training_alone() -> None:
    assert torch.equal(drawn(False, 3, dense=True), torch.arange(T))
    assert torch.equal(drawn(True, 3, dense=True), drawn(True, 3))
    assert torch.equal(drawn(False, 3, 100 * T, dense=True), torch.arange(100 * T))  # no limit there
    shape = encoding("rope").shape
    assert Randomized(shape, max=None, dense=True).prefix_stable
    assert not Randomized(shape, max=None, dense=False).prefix_stable


def test_more_than_a_draw_can_hold_are_refused_before_it() -> None:
    with pytest.raises(ValueError, match=r"positions\.max=100000000000: must be at most"):
        Randomized(Shape(32, 4, 8, 2, T), max=10**11, dense=False)


def test_more_positions_than_there_are_cannot_be_drawn() -> None:
    assert torch.equal(drawn(False, 0, 16 * T), torch.arange(16 * T))
    with pytest.raises(ValueError, match=r"129 positions .* positions\.max=128"):
        drawn(False, 0, 16 * T + 1)


def test_offset_starts_anywhere_in_training_and_at_zero_in_evaluation() -> None:
    option = Offset(Shape(16, 2, 8, 2, 4), max=9)
    starts = []
    for seed in range(200):
        pos = option.positions(4, True, generator_for(seed, "test"))
        assert pos.dtype == torch.int64 and (pos.diff() == 1).all() and len(pos) == 4
        starts.append(int(pos[0]))
        assert torch.equal(option.positions(40, False, generator_for(seed, "test")), torch.arange(40))
    assert set(starts) == set(range(6))  # 5 + 3 is the last position below 9
    assert torch.equal(
        option.positions(4, True, generator_for(1, "test")),
        option.positions(4, True, generator_for(1, "test")),
    )
    assert int(Offset(option.shape, max=4).positions(4, True, torch.Generator())[0]) == 0


def test_the_model_draws_by_mode() -> None:
    model = with_options("rope", positions=OFFSET)
    generator = generator_for(5, "test")
    assert int(model.train().positions(T, generator)[0]) > 0
    assert torch.equal(model.eval().positions(T, generator), torch.arange(T))
    model = with_options("rope", positions=RANDOMIZED)
    assert not torch.equal(model.eval().positions(T, generator), torch.arange(T))
    assert torch.equal(with_options("rope").train().positions(T, generator), torch.arange(T))


@pytest.mark.parametrize("positions, limit", [(CONTIGUOUS, None), (RANDOMIZED, 16 * T), (OFFSET, 8 * T)])
def test_the_encoding_is_told_where_training_positions_end(positions: dict[str, Any], limit: int) -> None:
    assert position_limit(positions, T) == limit
    if limit:
        assert position_limit({**positions, "max": 99}, T) == 99
        [option] = options(encoding("rope"), positions=positions)
        assert option.limit == limit
        assert option.ends_at is None  # other encodings than tables go on from there
