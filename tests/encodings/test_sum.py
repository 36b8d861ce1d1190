"""Sums of encodings: order, parameters, declarations, settings; formulas are in test_formulas."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from naive_formulas import Example

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.options import build_options
from posenc.encodings.registry import resolve_encoding
from posenc.encodings.sum import Sum
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.training.optimizer import Optimization, build_optimizer

SIZES: dict[str, Any] = {"d_model": 16, "n_heads": 2, "head_dim": 8, "n_layers": 2, "train_length": 16}
MODEL = ModelShape("small", 16, 2, 2, 2)


def encoding(name: str, **params: Any) -> Encoding:
    return build_encoding(name, **SIZES, **params)


def sum_of(*parts: Any) -> Sum:
    made = encoding("sum", parts=list(parts))
    assert isinstance(made, Sum)
    return made


@pytest.mark.parametrize(
    "name", ["rope", "fox", "shaw", "stick_breaking", "rnope_swa", "fire", "transformer_xl"]
)
def test_a_sum_of_one_is_that_one(name: str) -> None:
    alone = Example(name, heads=2)
    want = alone.attention()
    alone.acting = Sum(alone.encoding.shape, parts=[alone.encoding])
    assert alone.acting.hooks == alone.encoding.hooks
    assert torch.equal(alone.attention(), want)


def test_embeddings_come_in_the_order_of_the_parts() -> None:
    """sinusoidal scales what was added before it by sqrt(d)."""
    learned, waves = encoding("learned"), encoding("sinusoidal")
    torch.nn.init.normal_(learned.get_parameter("table"))
    x, pos = torch.zeros(1, 16, 16), torch.arange(16)
    rows, wave = learned.embed(x, pos, 0), waves.embed(x, pos, 0)
    assert torch.allclose(Sum(learned.shape, parts=[learned, waves]).embed(x, pos, 0), 4 * rows + wave)
    assert torch.allclose(Sum(learned.shape, parts=[waves, learned]).embed(x, pos, 0), rows + wave)


def test_biases_come_before_changes_of_scores() -> None:
    """scale_invariant scales the bias with the score, whatever the order of the parts."""
    first, last = (
        Example("sum", heads=2, parts=parts)
        for parts in (["scale_invariant", "t5"], ["t5", "scale_invariant"])
    )
    last.encoding.members[0].table.data = first.encoding.members[1].table.data
    last.t = first.t
    assert torch.allclose(first.attention(), last.attention(), atol=1e-6)


@pytest.mark.parametrize(
    "parts, hook",
    [
        (["rope", "xpos"], "rotate"),
        (["hope", "alibi", "pope"], "rotate"),
        (["stick_breaking", "stick_breaking"], "weights"),
        (["shaw", "shaw"], "values"),
    ],
)
def test_two_parts_that_decide_alone_are_refused(parts: list[str], hook: str) -> None:
    with pytest.raises(UserError) as caught:
        sum_of(*parts)
    first, second = (name for name in parts if hook in encoding(name).hooks)
    assert f"{first} and {second} cannot act together: each decides the {hook} alone" in caught.value.text()


def test_parts_with_different_policies_are_refused() -> None:
    clamped = {"name": "learned", "beyond": "clamp"}
    with pytest.raises(UserError, match=r"parts differ .*clamp.*truncate"):
        sum_of(clamped, {"name": "hybrid", "beyond": "truncate"})
    assert sum_of(clamped, "alibi").beyond == "clamp" and sum_of("rope", "alibi").beyond is None


@pytest.mark.parametrize(
    "parts, says",
    [
        ([], r"parts=\[\]"),
        (["alibi", "rop"], "rope"),
        (["alibi", {"name": "rope", "base": "big"}], r"base.*parts\[1\]|parts\[1\].*base"),
        ([{"base": 3.0}], r"parts\[0\]"),
        ("alibi", "parts"),
        ([{"name": "rope", "base": 0.5}], r"base=0\.5"),
    ],
)
def test_parts_that_are_wrong_are_named(parts: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        encoding("sum", parts=parts)
    assert re.search(says, caught.value.text(), re.S)


def test_parts_without_parameters_have_those_of_their_yaml() -> None:
    made = sum_of({"name": "rope", "base": 500_000, "layout": "half"}, "alibi")
    assert (made.parts[0].base, made.parts[0].layout, made.parts[0].still) == (500_000.0, "half", 0)
    assert resolve_encoding({"name": "sum", "parts": ["alibi", {"name": "xpos", "scale_base": 64}]}) == {
        "name": "sum",
        "parts": [
            {"name": "alibi", "learned_slopes": False},
            {"name": "xpos", "base": 10000.0, "layout": "interleaved", "scale_base": 64.0},
        ],
    }


def test_each_part_fills_its_own_parameters_once() -> None:
    made = sum_of("kerple_log", "learned", "t5", {"name": "alibi", "learned_slopes": True}, "learned")
    model = Decoder(MODEL, 13, made)
    initialize(model, 5)
    names = [name for name in model.state_dict() if name.startswith("encoding")]
    assert names == [
        f"encoding.members.{own}" for own in ("0.a", "0.b", "1.table", "2.table", "3.slope", "4.table")
    ]
    for number, part in enumerate(made.parts):
        for own, parameter in part.named_parameters():
            want = torch.empty(parameter.shape)
            with torch.no_grad():
                part.initialize(own, want, generator_for(5, f"encoding.members.{number}.{own}"))
            assert torch.equal(parameter, want), own
    assert not torch.equal(made.parts[1].table, made.parts[4].table)
    assert all(part.seed == 5 for part in made.parts)


def test_weight_decay_is_each_parts_own() -> None:
    made = sum_of("learned", "learned")
    made.parts[0].decayed = True  # type: ignore[misc]
    model = Decoder(MODEL, 13, Sum(made.shape, parts=[made, encoding("t5")]))
    groups = build_optimizer(model, Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 0.0)).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    own = {name for name, p in model.encoding.named_parameters() if id(p) in decayed}
    assert own == {"members.0.members.0.table"}


@pytest.mark.parametrize(
    "parts, relative, prefix_stable, penalty, uses_positions, decouples",
    [
        (["alibi", "rope"], True, True, True, True, False),
        (["alibi", "t5"], True, True, False, True, False),
        (["alibi", "learned"], False, True, True, True, False),
        (["rope", "normalized"], False, False, False, True, False),
        (["nope", "fox"], True, True, False, False, False),
        (["nope", "rope"], True, True, False, True, True),
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
    made = sum_of(*parts)
    assert (made.relative, made.prefix_stable) == (relative, prefix_stable)
    assert (made.penalty, made.uses_positions, made.decouples) == (penalty, uses_positions, decouples)


def test_refuses_warns_and_ends_as_its_parts_do() -> None:
    made = sum_of("rnope_swa", "stick_breaking")
    assert set(made.refuses) == {"attention.window", "attention.scale"}
    with pytest.raises(UserError, match=r"attention\.window"):
        build_options(made.shape, made, positions={"name": "contiguous"}, window=3, scale="none")
    many = {"name": "t5", "buckets": 32, "max_distance": 128}
    assert sum_of("rope", many).warnings() == encoding(**many).warnings() != []
    small = {"name": "binary", "bits": 5}
    assert sum_of("alibi", "xpos", small).ends_at == 32 and sum_of("alibi").ends_at is None
