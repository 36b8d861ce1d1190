"""A sum: the parameters of its parts, and what it declares."""

import pytest
import torch
from decoding import SHAPE, VOCABULARY, T, encoding, model_of, text
from doubles import (
    BothPositions,
    Double,
    EveryLayer,
    ForgetGate,
    Shaw,
)
from summed import made_of

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings.base import Shape
from posenc.encodings.options import build_options
from posenc.encodings.sum import Sum
from posenc.model.decoder import Decoder, count_parameters, initialize
from posenc.training.optimizer import Optimization, build_optimizer

OPTIMIZATION = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 0.0)


def test_each_part_fills_its_own() -> None:
    parts = ["kerple_log", "learned", "t5", {"name": "alibi", "learned_slopes": True}]
    made = encoding("sum", parts=parts)
    model = Decoder(SHAPE, VOCABULARY, made)
    initialize(model, 5)
    assert isinstance(made, Sum)
    seen = 0
    for number, part in enumerate(made.parts):
        for own, parameter in part.named_parameters():
            want = torch.empty(parameter.shape)
            name = f"encoding.members.{number}.{own}"
            with torch.no_grad():
                part.initialize(own, want, generator_for(5, name))
            assert torch.equal(parameter, want), name
            seen += 1
    assert seen == len(list(made.parameters())) == 5
    assert not made.get_parameter("members.2.table").any()  # as T5 starts
    assert all(part.seed == 5 for part in made.parts)
    # the same kind twice does not start twice the same
    twice = Decoder(SHAPE, VOCABULARY, encoding("sum", parts=["learned", "learned"]))
    initialize(twice, 5)
    assert not torch.equal(*twice.encoding.parameters())


def test_parameters_are_registered_once() -> None:
    own = encoding("sum", parts=["learned", "t5"])
    options = build_options(own.shape, own, positions={"name": "contiguous"}, window=None, scale="ssmax")
    model = model_of(own, *options)
    names = [name for name in model.state_dict() if name.startswith(("encoding", "options"))]
    assert names == ["encoding.members.0.table", "encoding.members.1.table", "options.0.s"]
    assert count_parameters(model)["encoding"] == sum(
        encoding(part).get_parameter("table").numel() for part in ("learned", "t5")
    )


def test_gradients_reach_every_part() -> None:
    model = model_of(made_of(ForgetGate, Shaw, EveryLayer, BothPositions))
    model(torch.tensor([text(T)]), torch.arange(T)).logsumexp(-1).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


class Decayed(EveryLayer):
    decayed = True


@pytest.mark.parametrize("nested", [False, True])
def test_weight_decay_is_each_part_s_own(nested: bool) -> None:
    shape = encoding("nope").shape
    inner = Sum(shape, parts=[Decayed(shape), EveryLayer(shape)])
    model = model_of(Sum(shape, parts=[inner, encoding("learned")]) if nested else inner)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed = {
        names[id(parameter)]
        for group in build_optimizer(model, OPTIMIZATION).param_groups
        if group["weight_decay"]
        for parameter in group["params"]
    }
    own = {name for name in decayed if name.startswith("encoding.")}
    assert own == {f"encoding.{'members.0.' if nested else ''}members.0.direction"}
    assert "embedding.weight" in decayed


def test_a_part_has_the_last_word_on_its_weight_decay() -> None:
    class Eager(Sum):
        decayed = True

    shape = encoding("nope").shape
    model = model_of(Eager(shape, parts=[EveryLayer(shape), Decayed(shape)]))
    [kept] = [
        group for group in build_optimizer(model, OPTIMIZATION).param_groups if not group["weight_decay"]
    ]
    kept_ids = {id(parameter) for parameter in kept["params"]}
    assert id(model.encoding.get_parameter("members.0.direction")) in kept_ids
    assert id(model.encoding.get_parameter("members.1.direction")) not in kept_ids


@pytest.mark.parametrize(
    "parts, relative, prefix_stable, penalty, uses_positions, decouples",
    [
        (["alibi", "rope"], True, True, True, True, False),
        (["alibi", "t5"], True, True, False, True, False),
        (["alibi", "learned"], False, True, True, True, False),
        (["rope", "normalized"], False, False, False, True, False),
        (["nope", "fox"], True, True, False, False, False),
        (["fox", "rope"], True, True, False, True, False),
        (["nope", "rope"], True, True, False, True, True),
        (["alibi", "kerple_log"], True, True, True, True, False),
    ],
)
def test_declares_what_its_parts_do(
    parts: list[str],
    relative: bool,
    prefix_stable: bool,
    penalty: bool,
    uses_positions: bool,
    decouples: bool,
) -> None:
    made = encoding("sum", parts=parts)
    assert (made.relative, made.prefix_stable) == (relative, prefix_stable)
    assert (made.penalty, made.uses_positions, made.decouples) == (penalty, uses_positions, decouples)


def test_refuses_and_warns_as_its_parts_do() -> None:
    made = encoding("sum", parts=["rnope_swa", "fox"])
    assert set(made.refuses) == {"attention.window"}
    with pytest.raises(UserError, match=r"attention\.window"):
        build_options(made.shape, made, positions={"name": "contiguous"}, window=3, scale="none")
    many = {"name": "t5", "buckets": 32, "max_distance": 128}
    assert encoding("sum", parts=["rope", many]).warnings() == encoding(**many).warnings() != []
    for parts in (["stick_breaking", "alibi"], ["alibi", "stick_breaking"]):
        assert set(encoding("sum", parts=parts).refuses) == {"attention.scale"}
    assert encoding("sum", parts=["alibi", "rope"]).refuses == {}


def test_ends_where_its_first_part_does() -> None:
    small, large = Double(Shape(16, 2, 8, 2, T)), Double(Shape(16, 2, 8, 2, T))
    small.ends_at, large.ends_at = 100, 200
    endless = encoding("alibi")
    assert Sum(endless.shape, parts=[endless, large, small]).ends_at == 100
    assert Sum(endless.shape, parts=[endless]).ends_at is None
    assert encoding("sum", parts=["alibi", "xpos"]).ends_at == encoding("xpos").ends_at is not None
