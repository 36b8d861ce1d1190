"""Several encodings acting as one: through the decoder, by their declarations, and what is refused."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import formulas
import pytest
import torch
from decoding import CLOSE, SHAPE, VOCABULARY, Paper, T, apart, encoding, exactly, logits, model_of, text
from doubles import (
    BothPositions,
    Double,
    EveryLayer,
    Everything,
    ForgetGate,
    LayerWindow,
    OneKeyHead,
    Randomized,
    RandomizedSlopes,
    Shaw,
    StickBreaking,
    Widened,
)
from formulas_rotary import pope, rope
from naive import NAIVE, Naive, Place
from torch import Tensor, nn

from posenc.encodings import resolve_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.composed import Composed
from posenc.encodings.options import build_options
from posenc.encodings.sum import Sum
from posenc.errors import UserError
from posenc.model import kernels
from posenc.model.decoder import Decoder, count_parameters
from posenc.model.init import initialize
from posenc.seeds import generator_for
from posenc.training.optimizer import Optimization, build_optimizer

N = T + 4
OPTIMIZATION = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 0.0)


def made_of(*kinds: type[Encoding]) -> Sum:
    shape = encoding("nope").shape
    return Sum(shape, parts=[kind(shape) for kind in kinds])


class All(Naive):
    """Plain methods of several encodings one after another: the biases first, then laws of scores."""

    def __init__(self, wide: Decoder, parts: Sequence[Naive], biases: Sequence[Naive] = ()) -> None:
        super().__init__(wide.encoding)
        self.parts, self.biases = parts, biases

    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        for part in self.parts:
            x = part.embed(x, t, layer)
        return x

    def turn(self, x: Tensor, t: int, heads: Tensor, key: bool) -> Tensor:
        for part in self.parts:
            x = part.turn(x, t, heads, key)
        return x

    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        for part in (*self.biases, *self.parts):
            s = part.score(s, q, i, j, at)
        return s

    def visible(self, i: int, j: int, layer: int) -> bool:
        return all(part.visible(i, j, layer) for part in self.parts)

    def weights(self, scores: list[Tensor], at: Place) -> list[Tensor]:
        own = [part for part in self.parts if type(part).weights is not Naive.weights]
        return own[0].weights(scores, at) if own else super().weights(scores, at)

    def value(self, v: Tensor, i: int, j: int, layer: int) -> Tensor:
        for part in self.parts:
            v = part.value(v, i, j, layer)
        return v


COMBINATIONS: list[list[type[Double]]] = [
    [ForgetGate, Shaw],
    [Shaw, ForgetGate],  # scores that read the queries, then a law with prepare's state
    [EveryLayer, LayerWindow, RandomizedSlopes],
    [StickBreaking, Widened, EveryLayer],
    [BothPositions, RandomizedSlopes],  # a bias by both positions and one by distance
    [LayerWindow, Shaw, ForgetGate, OneKeyHead],
    [Randomized, BothPositions, EveryLayer],
    [ForgetGate, Everything],
    [EveryLayer, EveryLayer, ForgetGate, ForgetGate],  # twice the same, each with parameters of its own
]


@pytest.mark.parametrize("most", [1 << 20, 1])
@pytest.mark.parametrize("kinds", COMBINATIONS, ids=lambda kinds: "-".join(kind.__name__ for kind in kinds))
def test_the_whole_decoder(kinds: list[type[Double]], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    model = model_of(made_of(*kinds))
    tokens = text(N)
    pos = [0, 1, 3, 4, 5, 9, 14, 15, 20, 33, 34, 40] if Randomized in _bases(kinds) else list(range(N))

    def build(wide: Decoder) -> Naive:
        return All(wide, [NAIVE[type(part)](part) for part in wide.encoding.members])

    want = exactly(model, tokens, build, pos)
    assert apart(logits(model, tokens, pos), want) < 2e-5
    assert apart(logits(model, tokens, pos, wanted=2), want[-2:]) < 2e-5


def _bases(kinds: list[type[Double]]) -> set[type]:
    return {base for kind in kinds for base in kind.__mro__}


class Alibi(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return s - formulas.alibi_slope(at.head + 1, SHAPE.n_heads) * (at.pos[i] - at.pos[j])


class T5(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        bucket = formulas.t5_bucket(at.pos[i] - at.pos[j], self.e.buckets, self.e.max_distance)
        return s + self.e.table[at.head, bucket]


class Row(Naive):
    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        return x if layer else x + self.e.table[0, t]


class Hot(Double):
    """Scores times 3: a law of scores that tells whether the biases were there before it."""

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return 3 * s


class NaiveHot(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return 3 * s


def rotary(wide: Decoder) -> Paper:
    return Paper(wide, lambda q, k, i, j, at: rope(q, k, i, j))


def polar(wide: Decoder) -> Paper:
    delta = wide.encoding.members[0].delta
    return Paper(wide, lambda q, k, i, j, at: pope(q, k, i, j, delta[at.layer, at.head].tolist()))


SHIPPED: dict[str, tuple[list[Any], Callable[[Decoder, Any], list[Naive]]]] = {
    "alibi-rope": (["alibi", "rope"], lambda wide, parts: [rotary(wide), Alibi(parts[0])]),
    "rope-t5-alibi": (
        ["rope", {"name": "t5", "buckets": 4, "max_distance": 6}, "alibi"],
        lambda wide, parts: [rotary(wide), T5(parts[1]), Alibi(parts[2])],
    ),
    "pope-t5": (["pope", "t5"], lambda wide, parts: [polar(wide), T5(parts[1])]),
    "learned-alibi": (["learned", "alibi"], lambda wide, parts: [Row(parts[0]), Alibi(parts[1])]),
    "nope-rope": (["nope", "rope"], lambda wide, parts: [rotary(wide)]),
}


@pytest.mark.parametrize("case", SHIPPED)
def test_shipped_ones_through_the_decoder(case: str) -> None:
    parts, build = SHIPPED[case]
    model, tokens = model_of(encoding("sum", parts=parts)), text(T)
    want = exactly(
        model,
        tokens,
        lambda wide: All(wide, build(wide, wide.encoding.members)),
    )
    assert apart(logits(model, tokens), want) < CLOSE


@pytest.mark.parametrize("order", [0, 1])
def test_biases_come_before_laws_of_scores(order: int) -> None:
    shape = encoding("nope").shape
    parts = [Hot(shape), encoding("alibi")]
    model, tokens = model_of(Sum(shape, parts=parts[::-1] if order else parts)), text(N)
    want = exactly(model, tokens, lambda wide: All(wide, [NaiveHot(wide.encoding)], [Alibi(wide.encoding)]))
    assert apart(logits(model, tokens), want) < CLOSE


def test_embeddings_come_in_the_order_of_the_parts() -> None:
    # sinusoidal scales the token embeddings: what was added before is scaled with them
    tokens = text(T)
    first, last = (
        model_of(encoding("sum", parts=parts))
        for parts in (["learned", "sinusoidal"], ["sinusoidal", "learned"])
    )
    for ours, order in ((first, (0, 1)), (last, (1, 0))):
        rows = ours.encoding.members[order[0]].table[0]
        nn.init.normal_(rows, generator=torch.Generator().manual_seed(0))
    x, pos = torch.zeros(1, T, SHAPE.d_model), torch.arange(T)
    rows = first.encoding.members[0].table[0]
    waves = first.encoding.members[1].embed(x, pos, 0)
    assert torch.allclose(first.acting.embed(x, pos, 0), rows * math.sqrt(SHAPE.d_model) + waves)
    assert torch.allclose(last.acting.embed(x, pos, 0), rows + waves)
    assert apart(logits(first, tokens), logits(last, tokens)) > 1e-3


@pytest.mark.parametrize(
    "name", ["rope", "alibi", "learned", "fox", "shaw", "stick_breaking", "rnope_swa", "fire"]
)
def test_a_sum_of_one_is_that_one(name: str) -> None:
    alone, both = encoding(name), encoding("sum", parts=[name])
    assert both.hooks == alone.hooks
    one, other = model_of(alone), model_of(both)
    for mine, own in zip(one.encoding.parameters(), other.encoding.parameters(), strict=True):
        own.data.copy_(mine.data)
    assert torch.equal(logits(one, text(N)), logits(other, text(N)))


def test_a_sum_in_a_sum_is_one_sum() -> None:
    flat = model_of(encoding("sum", parts=["learned", "alibi", "rope"]))
    nested = model_of(encoding("sum", parts=["learned", {"name": "sum", "parts": ["alibi", "rope"]}]))
    nested.encoding.get_parameter("members.0.table").data.copy_(
        flat.encoding.get_parameter("members.0.table")
    )
    assert torch.equal(logits(flat, text(T)), logits(nested, text(T)))


def test_options_act_beside_a_sum() -> None:
    own = encoding("sum", parts=["alibi", "rope"])
    options = build_options(own.shape, own, positions={"name": "contiguous"}, window=5, scale="logn")
    model, tokens = model_of(own, *options), text(N)

    class Near(All):
        def visible(self, i: int, j: int, layer: int) -> bool:
            return i - j < 5

        def weights(self, scores: list[Tensor], at: Place) -> list[Tensor]:
            factor = math.log(len(scores)) / math.log(T)
            return super().weights([s * factor for s in scores], at)

    want = exactly(model, tokens, lambda wide: Near(wide, [rotary(wide), Alibi(wide.encoding)]))
    assert apart(logits(model, tokens), want) < CLOSE


# What acts alone


@pytest.mark.parametrize(
    "parts, hook",
    [
        (["rope", "xpos"], "rotate"),
        (["rope", "rope"], "rotate"),
        (["hope", "alibi", "pope"], "rotate"),
        (["rnope_swa", "rope"], "rotate"),
        (["stick_breaking", "stick_breaking"], "weights"),
        (["shaw", "shaw"], "values"),
    ],
)
def test_what_decides_alone_is_refused_twice(parts: list[str], hook: str) -> None:
    with pytest.raises(UserError) as caught:
        encoding("sum", parts=parts)
    said = caught.value.text()
    first, second = (name for name in parts if hook in encoding(name).hooks)
    assert f"{first} and {second} cannot act together" in said and hook in said


def test_two_that_draw_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot act together.*positions"):
        made_of(Randomized, RandomizedSlopes)
    sum_of_one = made_of(Randomized)
    with pytest.raises(ValueError, match=r"cannot act together.*positions"):
        Composed(sum_of_one.shape, (sum_of_one, Randomized(sum_of_one.shape)))


def test_parts_with_different_policies_are_refused() -> None:
    clamped = {"name": "learned", "beyond": "clamp"}
    with pytest.raises(UserError, match=r"parts differ .*clamp.*truncate"):
        encoding("sum", parts=[clamped, {"name": "hybrid", "beyond": "truncate"}])
    assert encoding("sum", parts=[clamped, "alibi"]).beyond == "clamp"
    assert encoding("sum", parts=["rope", "alibi"]).beyond is None


def test_no_part_is_no_sum() -> None:
    with pytest.raises(UserError, match=r"parts=\[\]"):
        encoding("sum", parts=[])


def test_thousands_of_parts_are_refused_before_one_is_looked_up() -> None:
    with pytest.raises(UserError, match=r"encoding.parts=50000 encodings: too many"):
        encoding("sum", parts=["there is no such"] * 50_000)


# Parts as settings


def test_parts_have_parameters_and_the_others_those_of_their_yaml() -> None:
    made = encoding("sum", parts=[{"name": "rope", "base": 500_000, "layout": "half"}, "alibi"])
    assert isinstance(made, Sum)
    turning, _ = made.parts
    assert (turning.base, turning.layout, turning.still) == (500_000.0, "half", 0)
    resolved = resolve_encoding({"name": "sum", "parts": ["alibi", {"name": "xpos", "scale_base": 64}]})
    assert resolved == {
        "name": "sum",
        "parts": [
            {"name": "alibi", "learned_slopes": False},
            {"name": "xpos", "base": 10000.0, "layout": "interleaved", "scale_base": 64.0},
        ],
    }


@pytest.mark.parametrize(
    "parts, says",
    [
        (["alibi", "rop"], r"rope"),
        ([{"name": "rope", "bse": 3.0}], r"bse"),
        (["alibi", {"name": "rope", "base": "big"}], r"base.*parts\[1\]|parts\[1\].*base"),
        ([{"base": 3.0}], r"parts\[0\]"),
        ([3], r"parts\[0\]"),
        ("alibi", r"parts"),
        ([{"name": "rope", "base": 0.5}], r"base=0\.5"),
    ],
)
def test_parts_that_are_wrong_are_named(parts: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        encoding("sum", parts=parts)
    assert re.search(says, caught.value.text(), re.S)


PLUGIN = """
import torch
from posenc.encodings.base import Encoding


class Steep(Encoding):
    name = "steep"
    paper = formula = past_training = "a test"
    acts_on = "bias"
    learned = "0"

    def __init__(self, shape, *, slope: float):
        super().__init__(shape)
        self.slope = slope

    def distance_bias(self, r, layer):
        return -self.slope * r.float().expand(self.shape.n_heads, -1)
"""


def test_a_part_may_come_from_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steep_of_a_sum.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    parts = ["rope", {"name": "steep", "slope": 0.5}]
    model = model_of(encoding("sum", parts=parts, plugins=["steep_of_a_sum"]))

    class Steep(Naive):
        def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
            return s - 0.5 * (i - j)

    want = exactly(model, text(N), lambda wide: All(wide, [rotary(wide), Steep(wide.encoding)]))
    assert apart(logits(model, text(N)), want) < CLOSE
    with pytest.raises(UserError, match="steep"):
        encoding("sum", parts=parts)  # not named on the command line
    with pytest.raises(UserError, match="slope"):
        encoding("sum", parts=["steep"], plugins=["steep_of_a_sum"])  # no YAML, no default


# Parameters


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


# What a sum declares


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
