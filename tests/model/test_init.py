"""Initial values, and how parameters are counted."""

import pytest
import torch
from tiny_model import encoding_of

from posenc.core.seeds import generator_for, seed_for
from posenc.encodings.base import Encoding, Shape
from posenc.model.decoder import Decoder, ModelShape, ParameterCounts, count_parameters, initialize

SHAPE = ModelShape("test", d_model=64, n_layers=3, n_heads=4, mlp_ratio=4)
VOCABULARY = 300


def encoding(name=None):
    """Build an encoding by its name, or one that does nothing."""
    if name is None:
        return Encoding(Shape(64, 4, 16, 3, 8))
    return encoding_of(name, 8, 4, 16, 3)


def initial_values(encoding, seed=0):
    """Return the parameters of a decoder with this encoding by their names."""
    model = Decoder(SHAPE, VOCABULARY, encoding)
    initialize(model, seed)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def plain():
    """The initial values of a decoder without an encoding."""
    return initial_values(encoding())


def test_embeddings_have_the_deviation_of_the_width(plain):
    assert plain["embedding.weight"].std().item() == pytest.approx(64**-0.5, rel=0.04)


@pytest.fixture(
    params=[
        pytest.param(("attention.qkv", 64**-0.5), id="qkv"),
        pytest.param(("mlp.up", 64**-0.5), id="up"),
        pytest.param(("attention.out", 384**-0.5), id="out"),
        pytest.param(("mlp.down", 1536**-0.5), id="down"),
    ]
)
def maps(request, plain):
    """The weights of a linear map in each layer, and the deviation that they should have."""
    name, deviation = request.param
    weights = [value for key, value in plain.items() if key.endswith(f"{name}.weight")]
    return weights, deviation


def test_maps_have_the_deviation_of_their_inputs_and_depth(maps):
    weights, deviation = maps
    assert len(weights) == SHAPE.n_layers
    for weight in weights:
        assert weight.std().item() == pytest.approx(deviation, rel=0.04)


def test_maps_have_a_mean_of_zero(maps):
    weights, deviation = maps
    for weight in weights:
        assert abs(weight.mean().item()) < 0.1 * deviation


def test_layers_have_different_values(maps):
    weights, _ = maps
    assert len({weight[0, 0].item() for weight in weights}) == SHAPE.n_layers


def test_norms_start_at_one(plain):
    norms = [value for name, value in plain.items() if "norm" in name]
    assert len(norms) == 2 * SHAPE.n_layers + 1
    for norm in norms:
        assert (norm == 1).all()


def test_parameters_are_counted_by_what_they_are_for():
    width = 64
    attention = width * 3 * width + width * width
    mlp = 2 * width * 4 * width
    norms = 2 * width
    embedding = VOCABULARY * width
    table = 4 * 32  # of t5: heads and buckets
    counts = count_parameters(Decoder(SHAPE, VOCABULARY, encoding("t5")))
    assert counts == ParameterCounts(
        total=embedding + 3 * (attention + mlp + norms) + width + table,
        embedding=embedding,
        encoding=table,
        options=0,
    )


@pytest.mark.parametrize("name", ["rope", "learned", "t5", "fox"])
def test_models_of_different_encodings_share_their_other_initial_values(plain, name):
    values = initial_values(encoding(name))
    for key, value in plain.items():
        assert torch.equal(values[key], value)


def test_another_seed_gives_other_values(plain):
    values = initial_values(encoding(), seed=1)
    assert not torch.equal(values["embedding.weight"], plain["embedding.weight"])


# --- Seeds
def test_seeds_differ_by_run_and_names():
    seeds = set()
    for run_seed in (0, 1, 10):
        for names in (("a",), ("b",), ("a", 0), ("a", 10)):
            seeds.add(seed_for(run_seed, *names))
    assert len(seeds) == 12


def test_a_seed_is_what_it_was():
    """A run of another machine or year must start from the same numbers."""
    assert seed_for(0, "embedding.weight") == 384315315084690036


@pytest.mark.parametrize("name", ["a", "embedding.weight"])
def test_a_seed_is_one_that_torch_takes(name):
    assert 0 <= seed_for(10, name) < 2**63


def test_the_same_names_give_the_same_numbers():
    first = torch.rand(3, generator=generator_for(2, "x"))
    second = torch.rand(3, generator=generator_for(2, "x"))
    assert torch.equal(first, second)
