"""What each extension takes and refuses, what its knobs come to, and models with more than an encoding."""

from functools import partial
from types import SimpleNamespace

import pytest
import tiny_model
import torch
from extending import BASE, LONG, T, extension_of, logits, model_of, refused, theta_of

from posenc.core.errors import UserError
from posenc.evaluation.extensions import NotForThisEncodingError
from posenc.model.attention import LatentAttention

TOKENS = list(range(13)) * 3
FREQUENCIES = ("pi", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "llama3", "longrope")
DISTANCES = ("rerope", "self_extend", "dca", "string", "sinks", "lm_infinite")


# an extension, knobs of which the last one is out of range
WRONG = [
    ("ntk_by_parts", {"beta_slow": 0.0}),  # over the index
    ("yarn", {"beta_slow": 4.0, "beta_fast": 4.0}),
    ("llama3", {"high_freq_factor": 1.0}),
    ("longrope", {"factors": [1.0, 2.0]}),
    ("rerope", {"window": "0.3x"}),
    ("self_extend", {"window": T}),
    ("dca", {"chunk": T + 1}),
    ("string", {"near": 3, "shift": 3}),
    ("scale", {"temperature": 0.0}),
]


@pytest.mark.parametrize("name, knobs", WRONG, ids=str)
def test_a_knob_out_of_range_is_named(name, knobs):
    with pytest.raises(UserError) as caught:
        extension_of(model_of("rope"), name, **knobs)
    assert caught.value.key == f"extend.{[*knobs][-1]}"
    assert not isinstance(caught.value, NotForThisEncodingError)


def test_a_number_is_used_at_every_window_and_auto_grows_with_it():
    model, windows = model_of("rope"), (4, T, 2 * T, 64)
    known = {("pi", 2): [2, 2, 2, 2], ("pi", "auto"): [1, 1, 2, 8], ("dynamic_ntk", 4.0): [1, 1, 5, 29]}
    for (name, factor), factors in known.items():
        extension = extension_of(model, name, factor=factor)
        assert [extension.resolved(window)["factor"] for window in windows] == factors


def test_pairs_of_partial_rotary_and_dropped_ones():
    """D' = 4 of 8 numbers; of 4 pairs the last two still."""
    partial = extension_of(model_of("rope", fraction=0.5), "ntk").effective_encoding(LONG)
    base = BASE * 4 ** (4 / 2)
    assert torch.allclose(theta_of(partial), torch.tensor([1.0, base**-0.5], dtype=torch.float64))
    dropped = extension_of(model_of("rope", drop_low=0.5), "ntk").effective_encoding(LONG)
    base = BASE * 4 ** (8 / 6)
    assert torch.allclose(theta_of(dropped), torch.tensor([1, base**-0.25, 0, 0], dtype=torch.float64))
    assert "single pair" in refused(model_of("rope", fraction=0.25), "ntk")


REFUSED = {
    "alibi": (FREQUENCIES, "no frequencies"),
    "rope": (["longrope"], "extend.factors, a list of 4"),
    "sinusoidal": (DISTANCES, "does not act by distance alone"),
    "fox": (["sinks"], "counts along all of the text"),
    "nope": (["drop"], "nothing to remove"),
}


@pytest.mark.parametrize("encoding", REFUSED)
def test_what_it_does_not_apply_to(encoding):
    model, (names, reason) = model_of(encoding), REFUSED[encoding]
    assert all(reason in refused(model, name) for name in names)


def built(**changes):
    """A model of other positions or another attention, at the T of tiny_model."""
    return tiny_model.build("rope", SimpleNamespace(vocab_size=13), base=BASE, **changes)


@pytest.mark.parametrize("dense", [False, True])
def test_positions_drawn_with_gaps_show_distances_up_to_their_limit(dense):
    length = tiny_model.T
    offset = built(positions={"name": "offset", "max": None})
    assert extension_of(offset, "pi").resolved(4 * length) == {"factor": 4}
    model = built(positions={"name": "randomized", "max": None, "dense": dense})  # below 16 T
    extension = extension_of(model, "pi")
    assert extension.effective_encoding(16 * length) is model.effective_encoding
    assert extension_of(model, "rerope").effective_encoding(16 * length) is model.effective_encoding
    if dense:  # evaluated at 0, 1, 2, ...
        assert extension.resolved(32 * length) == {"factor": 2}
        assert extension_of(model, "sinks").resolved(length) == {"sinks": 4, "window": 16 * length - 4}
        return
    assert all("gaps" in refused(model, name) for name in ("sinks", "lm_infinite"))


def test_decoupled_rotary_parts():
    """Their turned queries and keys come with the content's, so that distances cannot be made anew."""
    model = built(attention=partial(LatentAttention, kv_rank=None, q_rank=None, rope_dim=16))
    assert all("turns a part of each head" in refused(model, name) for name in DISTANCES)
    slower = theta_of(extension_of(model, "pi", factor=2).effective_encoding(LONG))
    assert slower.tolist() == pytest.approx([BASE ** (-k / 8) / 2 for k in range(8)])


@pytest.mark.parametrize("name", ["rope", "rnope_swa", "t5", "shaw", "fox"])
def test_dropped_is_a_model_without_positions(name):
    model, plain = model_of(name), model_of("nope")
    plain.load_state_dict(model.state_dict(), strict=False)
    acting = extension_of(model, "drop").effective_encoding(LONG)
    assert acting.beyond is None
    found, expected = (logits(one, TOKENS[:LONG], of) for one, of in ((model, acting), (plain, None)))
    assert torch.allclose(found, expected, atol=1e-5)
