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


@pytest.mark.parametrize(
    ("name", "factor", "factors"),
    [
        pytest.param("pi", 2, [2, 2, 2, 2], id="a number is used at every window"),
        pytest.param("pi", "auto", [1, 1, 2, 8], id="auto grows with the window"),
        pytest.param("dynamic_ntk", 4.0, [1, 1, 5, 29], id="a dynamic number grows with the window"),
    ],
)
def test_the_factor_at_each_window(name, factor, factors):
    extension = extension_of(model_of("rope"), name, factor=factor)
    assert [extension.resolved(window)["factor"] for window in (4, T, 2 * T, 64)] == factors


@pytest.mark.parametrize(
    ("params", "exponent", "pairs"),
    [
        pytest.param({"fraction": 0.5}, 4 / 2, lambda base: [1, base**-0.5], id="half of the numbers"),
        pytest.param(
            {"drop_low": 0.5}, 8 / 6, lambda base: [1, base**-0.25, 0, 0], id="two of four pairs still"
        ),
    ],
)
def test_a_new_base_is_for_the_pairs_that_turn(params, exponent, pairs):
    extension = extension_of(model_of("rope", **params), "ntk")
    expected = torch.tensor(pairs(BASE * 4**exponent), dtype=torch.float64)
    assert torch.allclose(theta_of(extension.effective_encoding(LONG)), expected)


def test_the_lowest_pairs_are_those_that_turn():
    """Pairs that do not turn are lower, and clipping them would change nothing."""
    model = model_of("rope", drop_low=0.5)
    extension = extension_of(model, "clip")
    theta = theta_of(extension.effective_encoding(LONG))
    assert torch.allclose(theta, torch.tensor([1.0, 0, 0, 0], dtype=torch.float64))
    assert extension.resolved(LONG) == {"pairs": 2}


def test_records_of_clipped_pairs_that_did_not_turn_are_of_an_earlier_revision():
    assert extension_of(model_of("rope", drop_low=0.5), "clip").revision == 2
    assert extension_of(model_of("rope"), "clip").revision == 1


def test_a_single_pair_that_turns_is_none_to_clip():
    assert "fewer than two pairs turn" in refused(model_of("rope", drop_low=0.75), "clip")


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("ntk_by_parts", {"beta_slow": 0.001, "beta_fast": 0.002, "ramp": "turns"}),  # all pairs are fast
        ("pi", {"factor": 1.0}),
        ("llama3", {"low_freq_factor": 0.001, "high_freq_factor": 0.002}),
    ],
    ids=str,
)
def test_frequencies_that_stay_as_trained_are_refused(name, knobs):
    extension = extension_of(model_of("rope"), name, **knobs)
    with pytest.raises(NotForThisEncodingError, match="at 32 tokens it turns by the frequencies of training"):
        extension.check_change(LONG)


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_that_change_are_not_refused(name):
    knobs = {"factors": [1.0, 1.5, 3.0, 4.5]} if name == "longrope" else {}
    extension_of(model_of("rope"), name, **knobs).check_change(LONG)


def test_a_temperature_is_a_change():
    all_fast = {"beta_slow": 0.001, "beta_fast": 0.002, "ramp": "turns"}
    extension_of(model_of("rope"), "yarn", **all_fast).check_change(LONG)
    paper = {"mscale": 1.0, "mscale_all_dim": 1.0}
    extension_of(model_of("rope"), "yarn", **all_fast, **paper).check_change(LONG)


def test_an_extension_may_change_nothing_up_to_t():
    extension_of(model_of("rope"), "pi").check_change(T)


def test_a_single_pair_has_no_new_base():
    assert "single pair" in refused(model_of("rope", fraction=0.25), "ntk")


@pytest.mark.parametrize(
    ("encoding", "names", "reason"),
    [
        ("alibi", FREQUENCIES, "no frequencies"),
        ("rope", ["longrope"], "one for each of 4 pairs"),
        ("sinusoidal", DISTANCES, "does not act by distance alone"),
        ("fox", ["sinks"], "counts along all of the text"),
        ("nope", ["drop"], "nothing to remove"),
    ],
    ids=["alibi", "rope", "sinusoidal", "fox", "nope"],
)
def test_an_encoding_is_refused_with_a_reason(encoding, names, reason):
    model = model_of(encoding)
    for name in names:
        assert reason in refused(model, name)


def built(**changes):
    """Build a model with other positions or another attention, at the T of tiny_model."""
    return tiny_model.build("rope", SimpleNamespace(vocab_size=13), base=BASE, **changes)


# --- Positions drawn below 16 T in training
LENGTH = tiny_model.T


def randomized(*, dense):
    return built(positions={"name": "randomized", "max": None, "dense": dense})


def test_an_offset_shows_no_longer_distances():
    model = built(positions={"name": "offset", "max": None})
    assert extension_of(model, "pi").resolved(4 * LENGTH) == {"factor": 4}


@pytest.mark.parametrize("name", ["pi", "rerope"])
@pytest.mark.parametrize("dense", [False, True])
def test_positions_drawn_with_gaps_show_distances_up_to_their_limit(dense, name):
    model = randomized(dense=dense)
    assert extension_of(model, name).effective_encoding(16 * LENGTH) is model.effective_encoding


def test_beyond_the_limit_of_drawn_positions_a_factor_grows():
    assert extension_of(randomized(dense=True), "pi").resolved(32 * LENGTH) == {"factor": 2}


def test_a_window_behind_sinks_is_as_long_as_the_limit_of_drawn_positions():
    """Dense ones are evaluated at 0, 1, 2, ..."""
    knobs = extension_of(randomized(dense=True), "sinks").resolved(LENGTH)
    assert knobs == {"sinks": 4, "window": 16 * LENGTH - 4}


@pytest.mark.parametrize("name", ["sinks", "lm_infinite"])
def test_where_positions_have_gaps_windows_of_keys_are_refused(name):
    assert "gaps" in refused(randomized(dense=False), name)


# --- Latent attention, which turns a part of each head
@pytest.fixture(scope="module")
def latent():
    return built(attention=partial(LatentAttention, kv_rank=None, q_rank=None, rope_dim=16))


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_of_a_decoupled_part_cannot_be_made_anew(latent, name):
    """Its turned queries and keys come together with those of the content."""
    assert "turns a part of each head" in refused(latent, name)


def test_frequencies_of_a_decoupled_part_are_changed(latent):
    theta = theta_of(extension_of(latent, "pi", factor=2).effective_encoding(LONG))
    assert theta.tolist() == pytest.approx([BASE ** (-k / 8) / 2 for k in range(8)])


@pytest.mark.parametrize("name", ["rope", "rnope_swa", "t5", "shaw", "fox"])
def test_dropped_is_a_model_without_positions(name):
    model = model_of(name)
    without_positions = model_of("nope")
    without_positions.load_state_dict(model.state_dict(), strict=False)
    acting = extension_of(model, "drop").effective_encoding(LONG)
    dropped = logits(model, TOKENS[:LONG], acting)
    assert acting.beyond is None
    assert torch.allclose(dropped, logits(without_positions, TOKENS[:LONG]), atol=1e-5)
