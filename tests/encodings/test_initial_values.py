"""Parameters keep what `__init__` sets; what it draws follows from the seed and the parameter's name."""

import pytest
import torch
from torch import nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.sum import Sum

SHAPE = Shape(d_model=16, n_heads=4, head_dim=4, n_layers=2, train_length=8)


def initialized(encoding, seed=0):
    initialize_encoding(encoding, "encoding", seed)
    return encoding


class Mixed(Encoding):
    """Of every kind: set, drawn, left empty as a whole and in part."""

    name = "mixed"
    zero_init = ("zero",)

    def __init__(self, shape):
        super().__init__(shape)
        self.start = nn.Parameter(torch.tensor([0.5, 2.0]))
        self.empty = nn.Parameter(torch.empty(300))
        self.zero = nn.Parameter(torch.empty(3))
        half = torch.empty(4)
        half[:2] = 7.0
        self.partly = nn.Parameter(half)
        self.map = nn.Linear(8, 2)
        self.scaled = nn.Parameter(0.1 * torch.randn(500) + torch.rand(500))
        self.register_buffer("features", torch.randn(5), persistent=False)


class Swapped(Encoding):
    """Two linear maps, in either order."""

    name = "swapped"

    def __init__(self, shape, *, order):
        super().__init__(shape)
        for key in order:
            setattr(self, key, nn.Linear(6, 3))


def test_what_init_sets_stays():
    assert initialized(Mixed(SHAPE)).start.tolist() == [0.5, 2.0]


def test_what_init_leaves_empty_is_drawn_with_the_deviation_of_token_embeddings():
    empty = initialized(Mixed(SHAPE)).empty
    assert empty.std().item() == pytest.approx(16**-0.5, rel=0.15)


def test_what_init_leaves_empty_comes_from_the_generator_of_its_name():
    expected = nn.init.normal_(torch.empty(300), std=0.25, generator=generator_for(3, "encoding.empty"))
    assert torch.equal(initialized(Mixed(SHAPE), 3).empty, expected)


def test_what_is_named_in_zero_init_is_zero_where_it_is_left_empty():
    assert not initialized(Mixed(SHAPE)).zero.any()


def test_only_the_empty_part_of_a_tensor_is_filled():
    partly = initialized(Mixed(SHAPE)).partly
    assert partly[:2].tolist() == [7.0, 7.0]
    assert partly[2:].isfinite().all()


def test_draws_keep_the_distribution_that_init_gives_them():
    encoding = initialized(Mixed(SHAPE))
    assert encoding.map.weight.abs().max() <= 8**-0.5
    assert encoding.scaled.mean().item() == pytest.approx(0.5, abs=0.05)
    assert encoding.scaled.var().item() == pytest.approx(0.01 + 1 / 12, rel=0.2)


def test_two_draws_of_one_parameter_are_independent():
    encoding = initialized(Mixed(SHAPE))
    normal = torch.randn(500, generator=generator_for(0, "encoding.scaled"))
    uniform = encoding.scaled - 0.1 * normal
    assert uniform.min() > -1e-6
    assert torch.corrcoef(torch.stack((normal, uniform)))[0, 1].abs() < 0.15


@pytest.mark.parametrize("name", ["map.weight", "map.bias", "scaled", "features"])
def test_draws_follow_the_seed_alone(name):
    first = initialized(Mixed(SHAPE), 1).state_dict() | dict(initialized(Mixed(SHAPE), 1).named_buffers())
    torch.manual_seed(99)
    again = dict(initialized(Mixed(SHAPE), 1).named_parameters())
    again |= dict(initialized(Mixed(SHAPE), 1).named_buffers())
    other = dict(initialized(Mixed(SHAPE), 2).named_parameters())
    other |= dict(initialized(Mixed(SHAPE), 2).named_buffers())
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("name", ["a.weight", "a.bias", "b.weight", "b.bias"])
def test_draws_do_not_depend_on_the_order_of_construction(name):
    one = dict(initialized(Swapped(SHAPE, order=["a", "b"])).named_parameters())
    other = dict(initialized(Swapped(SHAPE, order=["b", "a"])).named_parameters())
    assert torch.equal(one[name], other[name])


def test_maps_of_the_same_size_differ_by_their_names():
    encoding = initialized(Swapped(SHAPE, order=["a", "b"]))
    assert not torch.equal(encoding.a.weight, encoding.b.weight)


def test_parts_of_a_sum_have_draws_of_their_own():
    parts = [Swapped(SHAPE, order=["a", "b"]), Swapped(SHAPE, order=["a", "b"])]
    initialized(Sum(SHAPE, parts=parts))
    assert not torch.equal(parts[0].a.weight, parts[1].a.weight)


def test_the_global_generator_is_left_alone():
    encoding = Mixed(SHAPE)
    before = torch.random.get_rng_state()
    initialized(encoding)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_encoding_may_be_outlined_without_numbers():
    with torch.device("meta"):
        outline = Mixed(SHAPE)
    assert {parameter.device.type for parameter in outline.parameters()} == {"meta"}


def test_initialize_gets_what_init_set():
    class Doubled(Mixed):
        def initialize(self, name, parameter, generator):
            super().initialize(name, parameter, generator)
            if name == "start":
                parameter.mul_(2)

    assert initialized(Doubled(SHAPE)).start.tolist() == [1.0, 4.0]
