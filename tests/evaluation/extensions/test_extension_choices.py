"""What each extension takes, what it refuses, and what its knobs come to."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from extending import BASE, LONG, T, extension_of, logits, model_of, refused, theta_of

from posenc.core.errors import UserError
from posenc.encodings.options import SCALES, Window
from posenc.evaluation.extensions import NotForThisEncodingError

TOKENS = list(range(13)) * 3
FREQUENCIES = ("pi", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "llama3", "longrope")
DISTANCES = ("rerope", "self_extend", "sinks", "lm_infinite")


@pytest.mark.parametrize(
    "name, knobs, key",
    [
        ("pi", {"factor": 0.5}, "factor"),
        ("pi", {"factor": math.inf}, "factor"),
        ("ntk", {"factor": math.nan}, "factor"),
        ("dynamic_ntk", {"factor": 0}, "factor"),
        ("ntk_by_parts", {"beta_slow": -1.0}, "beta_slow"),
        ("ntk_by_parts", {"beta_slow": 0.0}, "beta_slow"),  # over the index
        ("yarn", {"beta_slow": 4.0, "beta_fast": 4.0}, "beta_fast"),
        ("yarn", {"mscale": -1.0}, "mscale"),
        ("llama3", {"high_freq_factor": 1.0}, "high_freq_factor"),
        ("llama3", {"original_context": 0}, "original_context"),
        ("longrope", {"factors": [1.0, 2.0]}, "factors"),
        ("longrope", {"factors": [1.0, 2.0, 0.0, 3.0]}, "factors[2]"),
        ("rerope", {"window": 0}, "window"),
        ("rerope", {"window": "0.3x"}, "window"),
        ("rerope", {"leak": 0.5}, "leak"),
        ("self_extend", {"window": T}, "window"),
        ("self_extend", {"group": 0}, "group"),
        ("window", {"window": 0}, "window"),
        ("sinks", {"sinks": 0}, "sinks"),
        ("sinks", {"sinks": T}, "sinks"),
        ("lm_infinite", {"sinks": 0}, "sinks"),
        ("scale", {"temperature": 0.0}, "temperature"),
    ],
)
def test_a_knob_out_of_range_is_named(name: str, knobs: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as caught:
        extension_of(model_of("rope"), name, **knobs)
    assert caught.value.key == f"extend.{key}"
    assert not isinstance(caught.value, NotForThisEncodingError)


def test_a_number_is_used_at_every_window_and_auto_grows_with_it() -> None:
    fixed, auto = (extension_of(model_of("rope"), "pi", factor=f) for f in (2, "auto"))
    assert [fixed.resolved(w)["factor"] for w in (4, T, 64)] == [2, 2, 2]
    assert [auto.resolved(w)["factor"] for w in (4, T, 64)] == [1, 1, 8]
    dynamic = extension_of(model_of("rope"), "dynamic_ntk", factor=4.0)
    assert [dynamic.resolved(w)["factor"] for w in (4, T, 2 * T, 64)] == [1, 1, 5, 29]


def test_a_group_is_as_small_as_training_allows() -> None:
    extension = extension_of(model_of("rope"), "self_extend", window=5)
    for window in (T, T + 1, 2 * T, LONG, 8 * T):
        g = extension.resolved(window)["group"]
        reached = [
            max([(window - 1) // size + 5 - 5 // size] if window > 5 else [0]) for size in range(1, g + 1)
        ]
        assert reached[-1] < T
        assert all(far >= T for far in reached[:-1])
    assert extension_of(model_of("rope"), "self_extend", group=3).resolved(T)["group"] == 3


def test_pairs_of_partial_rotary_and_dropped_ones() -> None:
    """D' = 4 of 8 numbers; of 4 pairs the last two still."""
    partial = extension_of(model_of("rope", fraction=0.5), "ntk").effective_encoding(LONG)
    base = BASE * 4 ** (4 / 2)
    assert torch.allclose(theta_of(partial), torch.tensor([1.0, base**-0.5], dtype=torch.float64))
    dropped = extension_of(model_of("rope", drop_low=0.5), "ntk").effective_encoding(LONG)
    base = BASE * 4 ** (8 / 6)
    assert torch.allclose(theta_of(dropped), torch.tensor([1, base**-0.25, 0, 0], dtype=torch.float64))
    for name in ("pi", "ntk_by_parts", "yarn", "llama3"):
        slower = theta_of(extension_of(model_of("rope", drop_low=0.5), name).effective_encoding(LONG))
        assert (slower[:2] > 0).all() and not slower[2:].any()
    assert "single pair" in refused(model_of("rope", fraction=0.25), "ntk")


@pytest.mark.parametrize(
    "encoding, names, reason",
    [
        ("alibi", FREQUENCIES, "no frequencies"),
        ("xpos", ["pi"], "does more by position"),
        ("pope", ["pi"], "does not turn pairs"),
        ("rope", ["longrope"], "extend.factors, a list of 4"),
        ("sinusoidal", DISTANCES, "does not act by distance alone"),
        *((encoding, ["rerope"], "does not act by distance alone") for encoding in ("fire", "shaw", "dape")),
        ("stick_breaking", ["sinks", "scale", "yarn"], "no "),
        ("fox", ["sinks"], "counts along all of the text"),
        ("rnope_swa", ["sinks"], "by a window that the model was trained with"),
        ("scale_invariant", ["logn"], "already"),
        ("nope", ["drop"], "nothing to remove"),
        ("pope", ["drop"], "at position 0 too"),
        ("stick_breaking", ["drop"], "the softmax"),
    ],
)
def test_what_it_does_not_apply_to(encoding: str, names: list[str], reason: str) -> None:
    model = model_of(encoding)
    for name in names:
        assert reason in refused(model, name)


def test_options_are_refused_too() -> None:
    own = model_of("rope").encoding
    assert "window hides" in refused(model_of("rope", Window(own.shape, window=4)), "sinks")
    assert "already" in refused(model_of("rope", SCALES["logn"](own.shape, counted=(own,))), "logn")
    mixed = model_of("sum", parts=["alibi", "learned"])
    assert "learned does not act by distance alone" in refused(mixed, "rerope")


@pytest.mark.parametrize("name", ["rope", "rnope_swa", "t5", "shaw", "fox", "learned", "binary"])
def test_dropped_is_a_model_without_positions(name: str) -> None:
    model, plain = model_of(name), model_of("nope")
    plain.load_state_dict(model.state_dict(), strict=False)
    acting = extension_of(model, "drop").effective_encoding(LONG)
    assert acting.beyond is None
    found, expected = (logits(one, TOKENS[:LONG], of) for one, of in ((model, acting), (plain, None)))
    assert torch.allclose(found, expected, atol=1e-5)
