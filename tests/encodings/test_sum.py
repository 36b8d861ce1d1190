"""Sums of encodings: order, parameters, declarations, settings; formulas are in test_formulas."""

import re

import pytest
import torch
from naive_formulas import Example
from tiny_model import OPTIMIZATION
from tiny_model import encoding_of as encoding

from posenc.core.errors import UserError
from posenc.encodings.attention_options.sink import KeyWithoutValue
from posenc.encodings.base import HOOKS, Encoding
from posenc.encodings.options import build_options
from posenc.encodings.pattern import Pattern
from posenc.encodings.sum import Sum
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.model.kernels import Heads, Layer, attend
from posenc.training.optimizer import build_optimizer

MODEL = ModelShape("small", 16, 2, 2, 2)
WINDOW = {"window": 3, "scale": "none"}


def sum_of(*parts):
    return encoding("sum", parts=list(parts))


def test_embeddings_come_in_the_order_of_the_parts():
    """sinusoidal scales what was added before it by sqrt(d)."""
    learned = encoding("learned")
    sinusoidal = encoding("sinusoidal")
    torch.nn.init.normal_(learned.get_parameter("table"))
    x = torch.zeros(1, 16, 16)
    pos = torch.arange(16)
    rows = learned.embed(x, pos, 0)
    waves = sinusoidal.embed(x, pos, 0)
    learned_first = Sum(learned.shape, parts=[learned, sinusoidal])
    learned_last = Sum(learned.shape, parts=[sinusoidal, learned])
    assert torch.allclose(learned_first.embed(x, pos, 0), 4 * rows + waves)
    assert torch.allclose(learned_last.embed(x, pos, 0), rows + waves)


def test_biases_come_before_changes_of_scores():
    """scale_invariant scales the bias with the score, whatever the order of the parts."""
    bias_last = Example("sum", heads=2, parts=["scale_invariant", "t5"])
    bias_first = Example("sum", heads=2, parts=["t5", "scale_invariant"])
    bias_first.encoding.members[0].table.data = bias_last.encoding.members[1].table.data
    bias_first.t = bias_last.t
    assert torch.allclose(bias_last.attention(), bias_first.attention(), atol=1e-6)


CLAMPED = {"name": "learned", "beyond": "clamp"}
REFUSED = [
    (["rope", "xpos"], "rope and xpos cannot .*: each rotates queries and keys, which only one may do"),
    (["fox", "stick_breaking", "stick_breaking"], "each makes weights of the scores, which only one may do"),
    ([CLAMPED, {"name": "hybrid", "beyond": "truncate"}], "parts differ .*clamp.*truncate"),
    ([], r"parts=\[\]"),
    (["alibi", "rop"], "did you mean: rope"),
    ([{"name": "rope", "base": 0.5}], r"base=0\.5"),
]


@pytest.mark.parametrize(("parts", "message"), REFUSED, ids=str)
def test_parts_that_are_refused(parts, message):
    with pytest.raises(UserError) as caught:
        encoding("sum", parts=parts)
    assert re.search(message, caught.value.text(), re.S)


# --- Parameters of a sum in a sum
LEARNED_SLOPES = {"name": "alibi", "learned_slopes": True}
INNER_TABLE = "members.0.members.1.table"


@pytest.fixture(scope="module")
def nested():
    """A decoder with a sum of five parts in a sum, of which the second part has weight decay."""
    inner = sum_of("kerple_log", "learned", "t5", LEARNED_SLOPES, "learned")
    inner.parts[1].decayed = True
    model = Decoder(MODEL, 13, Sum(inner.shape, parts=[inner, encoding("t5")]))
    initialize(model, 5)
    return model


@pytest.fixture(scope="module")
def nested_parameters(nested):
    return dict(nested.encoding.named_parameters())


def test_parameters_are_named_by_the_place_of_their_part(nested_parameters):
    inner_names = ["0.a", "0.b", "1.table", "2.table", "3.slope", "4.table"]
    names = [f"members.0.members.{name}" for name in inner_names]
    assert list(nested_parameters) == [*names, "members.1.table"]


def test_each_part_draws_its_own_initial_values(nested_parameters):
    assert nested_parameters[INNER_TABLE].std() > 0
    assert not nested_parameters["members.1.table"].any()  # t5 starts at zero


def test_equal_parts_draw_different_values(nested_parameters):
    assert not torch.equal(nested_parameters[INNER_TABLE], nested_parameters["members.0.members.4.table"])


def test_every_part_has_the_seed_of_the_model(nested):
    inner, _ = nested.encoding.parts
    assert [part.seed for part in inner.parts] == [5] * 5


def test_each_part_decides_on_its_weight_decay(nested, nested_parameters):
    groups = build_optimizer(nested, OPTIMIZATION, "fp32").param_groups
    decayed = set()
    for group in groups:
        if group["weight_decay"]:
            decayed.update(id(parameter) for parameter in group["params"])
    names = [name for name, parameter in nested_parameters.items() if id(parameter) in decayed]
    assert names == [INNER_TABLE]


# --- Declarations
@pytest.mark.parametrize(
    ("parts", "true_ones"),
    [
        (["alibi", "rope"], {"relative", "prefix_stable", "penalty", "uses_positions"}),
        (["alibi", "learned"], {"prefix_stable", "penalty", "uses_positions"}),
        (["alibi", "normalized"], {"penalty", "uses_positions"}),
        (["nope", "rope"], {"relative", "prefix_stable", "uses_positions", "decouples"}),
    ],
    ids=[
        "alibi+rope",
        "alibi+learned",
        "alibi+normalized",
        "nope+rope",
    ],  # a set has another order in each process
)
def test_a_sum_declares_what_its_parts_do(parts, true_ones):
    made = sum_of(*parts)
    names = ("relative", "prefix_stable", "penalty", "uses_positions", "decouples")
    assert {name for name in names if getattr(made, name)} == true_ones


def test_a_sum_refuses_what_its_parts_do():
    made = sum_of("rnope_swa", "stick_breaking")
    assert set(made.refuses) == {"attention.window", "attention.scale"}
    with pytest.raises(UserError, match=r"attention\.window"):
        build_options(made.shape, made, positions={"name": "contiguous"}, attention=WINDOW)


def test_a_sum_warns_as_its_parts_do():
    many_buckets = {"name": "t5", "buckets": 32, "max_distance": 128}
    warnings = encoding(**many_buckets).warnings()
    assert warnings
    assert sum_of("rope", many_buckets).warnings() == warnings


@pytest.mark.parametrize(
    ("parts", "end"), [(["alibi", "xpos", {"name": "binary", "bits": 5}], 32), (["alibi"], None)], ids=str
)
def test_a_sum_ends_with_its_first_part_that_does(parts, end):
    assert sum_of(*parts).ends_at == end


@pytest.mark.parametrize(
    ("parts", "policy"), [([CLAMPED, "alibi"], "clamp"), (["rope", "alibi"], None)], ids=str
)
def test_a_sum_has_the_policy_of_its_parts(parts, policy):
    assert sum_of(*parts).beyond == policy


# --- patterns of layers, as published, by configuration alone; `period`: the layers of the second part
TWO_BASES = ["rope", {"name": "rope", "base": 1e6}]
PUBLISHED = {
    "SWAN": {"period": [0, 0, 0, 1], "windows": [4, None], "scales": ["none", "logn"]},
    "iRoPE": {"period": [0, 0, 0, 1], "windows": [4, None], "scales": ["none", "floor"], "floor_scale": 4},
    "Gemma 3": {"parts": TWO_BASES, "period": [0, 0, 0, 0, 0, 1], "windows": [4, None], "scales": []},
    "SmolLM3": {"period": [0, 0, 0, 1], "windows": [], "scales": []},
}


@pytest.mark.parametrize("layer", [0, 3, 5])
@pytest.mark.parametrize("model", PUBLISHED)
@torch.no_grad()
def test_patterns_of_published_models(model, layer):
    example = Example("pattern", layer=layer, **PUBLISHED[model])
    assert (example.attention() - example.naive_attention()).abs().max() < 2e-5


REFUSED_PATTERNS = [  # of two parts
    ({"period": [2]}, "must hold indices of parts, from 0 to 1"),
    ({"period": []}, "must hold indices of parts"),
    ({"windows": [3]}, "must have one value for each of the 2 parts"),
    ({"scales": ["logn"]}, "must have one value for each of the 2 parts"),
    ({"windows": [0, None]}, "window=0"),
    ({"scales": ["floor", "none"], "floor_scale": 0}, "floor_scale=0"),
    (
        {"parts": ["rope", "sinusoidal"], "period": [0, 1]},
        "sinusoidal acts at the input alone, and layer 0 has rope",
    ),
    ({"parts": ["stick_breaking", "nope"], "scales": ["logn", "none"]}, "stick_breaking takes no scale"),
    ({"parts": ["rnope_swa", "nope"], "windows": [4, None]}, "rnope_swa takes no window"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED_PATTERNS, ids=str)
def test_patterns_that_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        encoding("pattern", **{"scales": [], "windows": [], **settings})


def test_a_part_that_acts_in_no_layer_is_named_and_has_no_hooks():
    """Gemma 3's pattern needs six layers, and the models here have fewer."""
    pattern = encoding("pattern", parts=["rope", "nope", "fox"], period=[0, 1], windows=[], scales=[])
    assert pattern.warnings() == ["parts[2] (fox) acts in none of the 2 layers: see period"]
    assert "prepare" not in pattern.hooks


def test_a_pattern_refuses_what_its_parts_refuse():
    pattern = encoding("pattern", parts=["hard_alibi", "nope"], period=[0, 1], windows=[], scales=[])
    reasons = {option: reason for option, reason in pattern.refuses.items() if option.startswith("positions")}
    assert reasons == dict(encoding("hard_alibi").refuses)
    assert reasons


def test_a_pattern_whose_parts_carry_nothing_is_its_own_pass():
    """A GPU's block masks are kept by the encoding: a copy in every pass would make them anew."""
    pattern = encoding("pattern", parts=["rope", "nope"], period=[0, 1], windows=[4, None], scales=[])
    assert pattern.for_one_pass() is pattern


class OwnSink(KeyWithoutValue):
    """An author's encoding with a learned sink, as the option `sink` is one."""

    name = "own_sink"

    def __init__(self, shape):
        super().__init__(shape)
        self.s = torch.nn.Parameter(torch.tensor([1.5, -0.5]))

    def sink(self, layer):
        return self.s


def attended(encoding, layer):
    """Return the output of a layer for fixed heads, as training computes it."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, x = (torch.randn(1, 2, 16, 8, generator=generator) for _ in range(4))
    x = x.transpose(1, 2).flatten(2)  # (B, T, d_model)
    return attend(Heads(q, k, v), x, Layer(encoding, layer, torch.arange(16)))


@pytest.mark.parametrize("other", ["nope", "stick_breaking"])
def test_a_part_with_a_sink_has_it_in_its_layers_alone(other):
    with_sink = OwnSink(encoding("nope").shape)
    without_sink = encoding(other)
    pattern = Pattern(
        with_sink.shape,
        parts=[with_sink, without_sink],
        period=[0, 1],
        windows=[],
        scales=[],
        floor_scale=None,
        floor_weight=0.1,
    )
    for layer, part in enumerate((with_sink, without_sink)):
        assert torch.allclose(attended(pattern, layer), attended(part, layer), atol=1e-6)


def test_a_sum_has_the_sink_of_its_part():
    with_sink = OwnSink(encoding("nope").shape)
    whole = Sum(with_sink.shape, parts=[encoding("alibi"), with_sink])
    assert torch.equal(whole.sink(0), with_sink.s)
    assert attended(whole, 0).isfinite().all()


# All layers share the positions, and `weights` of a layer hold its sink.
@pytest.mark.parametrize("hook", sorted(set(HOOKS) - {"positions", "sink"}))
def test_a_pattern_asks_the_part_of_a_layer_for_every_hook(hook):
    assert getattr(Pattern, hook) is not getattr(Encoding, hook)


@pytest.mark.parametrize("parts", [["rope", "carope"], ["rope", "repo"], ["pope", "path"]], ids=str)
def test_two_parts_that_both_decide_the_product_are_refused(parts):
    with pytest.raises(UserError, match=f"{parts[0]} and {parts[1]} cannot act together"):
        encoding("sum", parts=parts)


def test_an_error_of_a_part_says_where_the_part_stands():
    with pytest.raises(UserError, match=r"encoding=hope: turns=-1\.0.*in encoding\.parts\[1\]"):
        encoding("sum", parts=["alibi", {"name": "hope", "turns": -1.0}])
