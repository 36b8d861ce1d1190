"""Options of any encoding: where positions come from, windows, scales; what is refused and how."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding, list_encodings
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import (
    LogN,
    Offset,
    Randomized,
    SSMax,
    Window,
    build_options,
    check_positions,
    distance_limit,
    position_limit,
)

T = 8
SHAPE = Shape(16, 2, 8, 2, T)
CONTIGUOUS = {"name": "contiguous"}
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
DENSE = {**RANDOMIZED, "dense": True}
OFFSET = {"name": "offset", "max": None}


def encoding(name: str, **params: Any) -> Encoding:
    sizes = {"d_model": 16, "n_heads": 2, "head_dim": 8, "n_layers": 2, "train_length": T}
    return build_encoding(name, **{**sizes, **params})


def options(
    own: Encoding, positions: Any = CONTIGUOUS, window: Any = None, scale: Any = "none"
) -> list[Encoding]:
    return build_options(own.shape, own, positions=positions, window=window, scale=scale)


def drawn(training: bool, seed: int, n: int = T, **params: Any) -> Tensor:
    option = Randomized(SHAPE, **{"max": None, "dense": False, **params})
    return option.positions(n, training, generator_for(seed, "test"))


def test_options_come_in_order() -> None:
    own = encoding("rope")
    assert options(own) == []
    assert [type(option) for option in options(own, RANDOMIZED, 5, "ssmax")] == [Randomized, Window, SSMax]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n, most", [(T, None), (16 * T, None), (T, T), (1, 1000), (40, 41)])
def test_randomized_positions_are_a_sorted_subset(training: bool, n: int, most: int | None) -> None:
    for seed in range(20):
        pos = drawn(training, seed, n, max=most)
        assert pos.dtype == torch.int64 and pos.shape == (n,)
        assert (pos.diff() > 0).all() and int(pos[0]) >= 0 and int(pos[-1]) < (most or 16 * T)


def test_randomized_positions_depend_on_the_generator_alone_and_are_uniform() -> None:
    torch.manual_seed(0)
    first = drawn(True, 7)
    torch.manual_seed(1)
    assert torch.equal(first, drawn(True, 7)) and torch.equal(first, drawn(False, 7))
    assert not torch.equal(first, drawn(True, 8))
    option, counts = Randomized(Shape(16, 2, 8, 2, 4), max=16, dense=False), torch.zeros(16)
    for seed in range(2000):
        counts[option.positions(4, True, generator_for(seed, "test"))] += 1
    assert counts.min() > 400 and counts.max() < 600  # 500 expected, standard deviation 19


def test_dense_draws_in_training_alone() -> None:
    assert torch.equal(drawn(False, 3, 100 * T, dense=True), torch.arange(100 * T))  # no limit there
    assert torch.equal(drawn(True, 3, dense=True), drawn(True, 3))
    assert Randomized(SHAPE, max=None, dense=True).prefix_stable
    assert not Randomized(SHAPE, max=None, dense=False).prefix_stable


def test_offset_starts_anywhere_in_training_and_at_zero_in_evaluation() -> None:
    option, starts = Offset(Shape(16, 2, 8, 2, 4), max=9), set()
    for seed in range(200):
        pos = option.positions(4, True, generator_for(seed, "test"))
        assert (pos.diff() == 1).all() and len(pos) == 4
        starts.add(int(pos[0]))
        assert torch.equal(option.positions(40, False, generator_for(seed, "test")), torch.arange(40))
    assert starts == set(range(6))  # 5 + 3 is the last position below 9


@pytest.mark.parametrize(
    "positions, limit, distances",
    [(CONTIGUOUS, None, None), (RANDOMIZED, 16 * T, 16 * T), (OFFSET, 8 * T, None)],
)
def test_limits_of_positions_and_distances(positions: dict[str, Any], limit: Any, distances: Any) -> None:
    assert (position_limit(positions, T), distance_limit(positions, T)) == (limit, distances)
    if limit:
        [option] = options(encoding("rope"), positions)
        assert option.derived == {"max": limit}
        assert position_limit({**positions, "max": 99}, T) == 99


def test_a_window_is_a_distance_between_positions() -> None:
    pos = torch.arange(6)
    assert Window(SHAPE, window=3).visible(pos, pos, 0).tril().sum(-1).tolist() == [1, 2, 3, 3, 3, 3]
    assert Window(SHAPE, window=3).visible(3 * pos, 3 * pos, 0).tril().sum(-1).tolist() == [1] * 6


def test_log_n_counts_visible_keys_by_layer() -> None:
    """min of the windows of the encoding and of the option; at least the token itself."""
    own, pos = encoding("rnope_swa", window=4), torch.arange(20)
    alone, both = LogN(SHAPE, counted=(own,)), LogN(SHAPE, counted=(own, Window(SHAPE, window=3)))
    plain = LogN(SHAPE, counted=(encoding("rope"),))
    for scale, layer, most in ((alone, 0, 4), (alone, 1, 99), (both, 0, 3), (both, 1, 3), (plain, 0, 99)):
        want = [min(i + 1, most) for i in range(20)]
        assert scale.log_visible(pos, pos, layer).exp().tolist() == pytest.approx(want)
        assert scale.log_visible(pos[-3:], pos, layer).exp().tolist() == pytest.approx(want[-3:])
    factor = plain.factor(pos, pos, 0)[0]
    assert factor[0] == 0 and factor[T - 1] == pytest.approx(1)

    class Blind(Window):
        def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
            return torch.zeros(len(q_pos), len(k_pos), dtype=torch.bool)

    assert not LogN(SHAPE, counted=(Blind(SHAPE, window=1),)).log_visible(pos, pos, 0).any()


def test_ssmax_starts_as_logn_with_a_factor_for_each_layer_and_head() -> None:
    scale, pos = SSMax(SHAPE, counted=()), torch.arange(20)
    scale.initialize("s", scale.s, torch.Generator())
    assert scale.s.shape == (2, 2) and torch.allclose(scale.s, torch.tensor(1 / math.log(T)))
    assert torch.allclose(
        scale.factor(pos, pos, 1), LogN(SHAPE, counted=()).factor(pos, pos, 1).expand(2, -1)
    )
    assert not scale.decayed
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert scale.scores(torch.randn(1, 2, 20, 20), *4 * [pos], None, 0).dtype == torch.float32


WAYS: list[tuple[str, dict[str, Any]]] = [
    ("positions", {"positions": RANDOMIZED}),
    ("positions", {"positions": OFFSET}),
    ("attention.window", {"window": 5}),
    ("attention.scale", {"scale": "logn"}),
    ("attention.scale", {"scale": "ssmax"}),
]


@pytest.mark.parametrize("option, chosen", WAYS, ids=str)
def test_an_option_is_taken_or_refused_by_name(option: str, chosen: dict[str, Any]) -> None:
    refusing = set()
    for name in list_encodings():
        own = encoding(name)
        if option not in own.refuses and (option != "positions" or own.uses_positions):
            assert len(options(own, **chosen)) == 1
            continue
        refusing.add(name)
        with pytest.raises(UserError) as caught:
            options(own, **chosen)
        said = caught.value.text()
        assert option in said and f"encoding={name}" in said
        assert own.refuses.get(option, "it reads no position") in said
    assert (
        refusing
        == {
            "positions": {"nope", "fox", "cable", "cope", "stick_breaking"},
            "attention.window": {"rnope_swa"},
            "attention.scale": {"stick_breaking", "scale_invariant"},
        }[option]
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"window": 0}, "window=0"),
    ({"positions": {**RANDOMIZED, "max": T - 1}}, rf"positions\.max={T - 1}.*context_length={T}"),
    ({"positions": {**OFFSET, "max": 1}}, r"positions\.max=1"),
]


@pytest.mark.parametrize("chosen, says", WRONG)
def test_values_out_of_range(chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        options(encoding("rope"), **chosen)


def test_lengths_that_an_option_cannot_have() -> None:
    with pytest.raises(ValueError, match=r"129 positions .* positions\.max=128"):
        drawn(False, 0, 16 * T + 1)
    for scale in ("logn", "ssmax"):
        with pytest.raises(UserError, match="context_length=1"):
            options(encoding("rope", train_length=1), scale=scale)


@pytest.mark.parametrize("settings", [CONTIGUOUS, RANDOMIZED, DENSE, {**OFFSET, "max": 99}])
def test_settings_of_positions_that_are_right(settings: dict[str, Any]) -> None:
    assert check_positions(settings) == settings


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"name": "random"}, "no such positions"),
        ({"name": "randomized", "max": "many", "dense": False}, r"positions\.max"),
        ({"name": "contiguous", "max": 5}, r"positions\.max"),
    ],
)
def test_settings_of_positions_that_are_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_positions(settings)
