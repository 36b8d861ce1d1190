"""Sums of encodings: order, parameters, declarations, settings; formulas are in test_formulas."""

import re

import pytest
import torch
from naive_formulas import Example
from tiny_model import OPTIMIZATION
from tiny_model import encoding_of as encoding

from posenc.core.errors import UserError
from posenc.encodings.options import build_options
from posenc.encodings.sum import Sum
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.training.optimizer import build_optimizer

MODEL = ModelShape("small", 16, 2, 2, 2)
WINDOW = {"window": 3, "scale": "none"}


def sum_of(*parts):
    return encoding("sum", parts=list(parts))


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
    groups = build_optimizer(model, OPTIMIZATION, "fp32").param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert [name for name, p in own.items() if id(p) in decayed] == ["members.0.members.1.table"]


# parts -> relative, prefix_stable, penalty, uses_positions, decouples
DECLARED = [
    ("alibi rope", (True, True, True, True, False)),
    ("alibi learned", (False, True, True, True, False)),
    ("alibi normalized", (False, False, True, True, False)),
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
        build_options(made.shape, made, positions={"name": "contiguous"}, attention=WINDOW)
    many = {"name": "t5", "buckets": 32, "max_distance": 128}
    assert sum_of("rope", many).warnings() == encoding(**many).warnings() != []
    small = {"name": "binary", "bits": 5}
    assert sum_of("alibi", "xpos", small).ends_at == 32 and sum_of("alibi").ends_at is None
    assert sum_of(CLAMPED, "alibi").beyond == "clamp" and sum_of("rope", "alibi").beyond is None


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


NO_PATTERN = [  # of two parts
    ({"period": [2]}, "numbers of parts, from 0 to 1"),
    ({"period": []}, "numbers of parts"),
    ({"windows": [3]}, "one for each of 2 parts"),
    ({"scales": ["logn"]}, "one for each of 2 parts"),
    ({"windows": [0, None]}, "window=0"),
    ({"scales": ["floor", "none"], "floor_scale": 0}, "floor_scale=0"),
]


@pytest.mark.parametrize("given, words", NO_PATTERN, ids=str)
def test_a_pattern_that_is_none(given, words):
    with pytest.raises(UserError, match=words):
        encoding("pattern", **{"scales": [], "windows": [], **given})
