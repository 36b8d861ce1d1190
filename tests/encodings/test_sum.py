"""Sums of encodings: order, parameters, declarations, settings; formulas are in test_formulas."""

import math
import re
from typing import Any

import pytest
import torch
from naive_formulas import Example

from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.options import build_options
from posenc.encodings.sum import Sum
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.training.optimizer import Optimization, build_optimizer

SIZES = {"d_model": 16, "n_heads": 2, "head_dim": 8, "n_layers": 2, "train_length": 16}
MODEL = ModelShape("small", 16, 2, 2, 2)


def encoding(name, **params):
    return build_encoding(name, **SIZES, **params)


def sum_of(*parts):
    made = encoding("sum", parts=list(parts))
    assert isinstance(made, Sum)
    return made


def test_embeddings_come_in_the_order_of_the_parts():
    """sinusoidal scales what was added before it by sqrt(d)."""
    learned, waves = encoding("learned"), encoding("sinusoidal")
    torch.nn.init.normal_(learned.get_parameter("table"))
    x, pos = torch.zeros(1, 16, 16), torch.arange(16)
    rows, wave = learned.embed(x, pos, 0), waves.embed(x, pos, 0)
    assert torch.allclose(Sum(learned.shape, parts=[learned, waves]).embed(x, pos, 0), 4 * rows + wave)
    assert torch.allclose(Sum(learned.shape, parts=[waves, learned]).embed(x, pos, 0), rows + wave)


def test_biases_come_before_changes_of_scores():
    """scale_invariant scales the bias with the score, whatever the order of the parts."""
    orders = (["scale_invariant", "t5"], ["t5", "scale_invariant"])
    first, last = (Example("sum", heads=2, parts=parts) for parts in orders)
    last.encoding.members[0].table.data = first.encoding.members[1].table.data
    last.t = first.t
    assert torch.allclose(first.attention(), last.attention(), atol=1e-6)


CLAMPED = {"name": "learned", "beyond": "clamp"}
REFUSED = [
    (["rope", "xpos"], "rope and xpos cannot act together: each decides the rotate alone"),
    ([CLAMPED, {"name": "hybrid", "beyond": "truncate"}], "parts differ .*clamp.*truncate"),
    ([], r"parts=\[\]"),
    (["alibi", "rop"], "did you mean: rope"),
    ([{"name": "rope", "base": 0.5}], r"base=0\.5"),
]


@pytest.mark.parametrize("parts, says", REFUSED, ids=str)
def test_parts_that_are_refused(parts, says):
    with pytest.raises(UserError) as caught:
        encoding("sum", parts=parts)
    assert re.search(says, caught.value.text(), re.S)


def test_each_part_fills_and_decays_its_own_parameters():
    made = sum_of("kerple_log", "learned", "t5", {"name": "alibi", "learned_slopes": True}, "learned")
    made.parts[1].decayed = True
    model = Decoder(MODEL, 13, Sum(made.shape, parts=[made, encoding("t5")]))
    initialize(model, 5)
    own = dict(model.encoding.named_parameters())
    names = ["0.a", "0.b", "1.table", "2.table", "3.slope", "4.table"]
    assert list(own) == [*(f"members.0.members.{name}" for name in names), "members.1.table"]
    assert own["members.0.members.1.table"].std() > 0 and not own["members.1.table"].any()
    assert not torch.equal(made.parts[1].table, made.parts[4].table)
    assert all(part.seed == 5 for part in made.parts)
    groups = build_optimizer(model, Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 0.0)).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert [name for name, p in own.items() if id(p) in decayed] == ["members.0.members.1.table"]


# parts -> relative, prefix_stable, penalty, uses_positions, decouples
DECLARED = [
    ("alibi rope", (True, True, True, True, False)),
    ("alibi learned", (False, True, True, True, False)),
    ("nope rope", (True, True, False, True, True)),
]


@pytest.mark.parametrize("parts, declared", DECLARED)
def test_declares_what_its_parts_do(parts, declared):
    made = sum_of(*parts.split())
    found = (made.relative, made.prefix_stable, made.penalty, made.uses_positions, made.decouples)
    assert found == declared


def test_refuses_warns_and_ends_as_its_parts_do():
    made = sum_of("rnope_swa", "stick_breaking")
    assert set(made.refuses) == {"attention.window", "attention.scale"}
    with pytest.raises(UserError, match=r"attention\.window"):
        build_options(made.shape, made, positions={"name": "contiguous"}, window=3, scale="none")
    many = {"name": "t5", "buckets": 32, "max_distance": 128}
    assert sum_of("rope", many).warnings() == encoding(**many).warnings() != []
    small = {"name": "binary", "bits": 5}
    assert sum_of("alibi", "xpos", small).ends_at == 32 and sum_of("alibi").ends_at is None
    assert sum_of(CLAMPED, "alibi").beyond == "clamp" and sum_of("rope", "alibi").beyond is None


# --- patterns of layers


def pattern(**given: Any) -> Encoding:
    usual = {"scales": [], "windows": [], "floor_scale": None, "floor_weight": 0.1}
    return build_encoding("pattern", **{**SIZES, "n_layers": 8}, **usual | given)


def test_a_pattern_has_each_part_in_its_layers() -> None:
    own = pattern(parts=["rope", "nope"], period=[0, 0, 0, 1], windows=[5, None])
    like = build_encoding("rnope_swa", **{**SIZES, "n_layers": 8}, every=4, window=5)
    length, heads, width = 12, SIZES["n_heads"], SIZES["head_dim"]
    q, k, pos = torch.randn(1, heads, length, width), torch.randn(1, heads, length, width), torch.arange(12)
    for layer in range(8):
        for one, other in zip(
            own.rotate(q, k, pos, pos, layer), like.rotate(q, k, pos, pos, layer), strict=True
        ):
            assert torch.equal(one, other)
        assert torch.equal(own.visible(pos, pos, layer), like.visible(pos, pos, layer))


def test_patterns_of_published_models() -> None:
    """Gemma's two bases, Llama 4's temperature by its formula, SWAN's logarithm of the visible keys."""
    q = k = torch.randn(1, SIZES["n_heads"], 12, SIZES["head_dim"])
    pos, s = torch.arange(12), torch.randn(1, SIZES["n_heads"], 12, 12)
    two = ["rope", {"name": "rope", "base": 1e6}]
    gemma = pattern(parts=two, period=[0, 0, 0, 0, 0, 1], windows=[4, None])
    for layer, base in [(0, 1e4), (4, 1e4), (5, 1e6), (6, 1e4)]:
        (want, _), (found, _) = (
            one.rotate(q, k, pos, pos, layer) for one in (build_encoding("rope", **SIZES, base=base), gemma)
        )
        assert torch.equal(found, want)
        assert bool(gemma.visible(pos, pos, layer)[11, 0]) == (layer == 5)
    irope = pattern(parts=["rope", "nope"], period=[0, 0, 0, 1], scales=["none", "floor"], floor_scale=4)
    want = torch.tensor([1 + 0.1 * math.log1p((i + 1) // 4) for i in range(12)])
    assert torch.equal(irope.scores(s, q, k, pos, pos, None, 2), s)
    assert torch.allclose(irope.scores(s, q, k, pos, pos, None, 3), s * want[:, None])
    swan = pattern(parts=["rope", "nope"], period=[0, 1], scales=["none", "logn"])
    want = (torch.arange(12) + 1).log() / math.log(SIZES["train_length"])
    assert torch.allclose(swan.scores(s, q, k, pos, pos, None, 1), s * want[:, None])


@pytest.mark.parametrize("changes", [{"parts": ["alibi", "nope"]}, {"parts": ["learned", "t5"]}])
def test_a_bias_in_some_layers_is_none_in_the_others(changes: dict[str, Any]) -> None:
    own, pos = pattern(period=[0, 1], **changes), torch.arange(9)
    biased = build_encoding("alibi", **SIZES).bias(pos, pos, 0)
    if changes["parts"][0] == "alibi":
        assert torch.equal(own.bias(pos, pos, 0), biased)
    other = own.bias(pos, pos, 1 if changes["parts"][0] == "alibi" else 0)
    assert other.shape == biased.shape and not other.any()
    assert torch.equal(own.distance_bias(torch.arange(9), 1)[:, :1], own.bias(pos, pos, 1)[:, 0, :1])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parts": ["rope"], "period": [1]}, "numbers of parts, from 0 to 0"),
        ({"parts": ["rope"], "period": []}, "numbers of parts"),
        ({"parts": ["rope", "nope"], "period": [0], "windows": [3]}, "one for each of 2 parts"),
        ({"parts": ["rope", "nope"], "period": [0], "scales": ["logn"]}, "one for each of 2 parts"),
        ({"parts": ["rope"], "period": [0], "windows": [0]}, "window=0"),
        ({"parts": ["rope"], "period": [0], "scales": ["floor"], "floor_scale": 0}, "floor_scale=0"),
    ],
)
def test_a_pattern_that_is_none(given: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, UserError), match=re.escape(words)):
        pattern(**given)
