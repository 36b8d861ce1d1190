"""Every extension against its paper's formula, by pairs in float64, in several blocks of queries."""

import math

import extending
import numpy as np
import pytest
import torch
from extending import BASE, FACTORS, HEADS, LONG, WIDTH, T, Way, attended, by_pairs, drawn_text, model_of

from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.attention_options.window import Window
from posenc.model import kernels

CLOSE = 2e-5  # of logits around 1, float32 against float64; measured 5e-6 at most
THETA = [BASE ** (-2 * k / WIDTH) for k in range(WIDTH // 2)]
S = LONG / T


def by_parts(slow, fast, length=T):
    """Return the frequencies of section 3.2 of YaRN."""
    frequencies = []
    for theta in THETA:
        turns = length * theta / (2 * math.pi)
        unscaled_share = min(1.0, max(0.0, (turns - slow) / (fast - slow)))
        frequencies.append((1 - unscaled_share) * theta / S + unscaled_share * theta)
    return frequencies


def index_that_turns(turns):
    """Return the index, not rounded, of the pair that turns so often within T."""
    return WIDTH * math.log(T / (turns * 2 * math.pi)) / (2 * math.log(BASE))


def by_index(slow, fast):
    """Return the frequencies of YaRN's released code: a ramp between two indices, rounded outwards."""
    low = max(math.floor(index_that_turns(fast)), 0)
    high = min(math.ceil(index_that_turns(slow)), WIDTH - 1)
    frequencies = []
    for k, theta in enumerate(THETA):
        scaled_share = min(1.0, max(0.0, (k - low) / (high - low)))
        frequencies.append(scaled_share * theta / S + (1 - scaled_share) * theta)
    return frequencies


def by_exact_index(slow, fast):
    """Return the same with a ramp between two indices that are not rounded."""
    low = max(index_that_turns(fast), 0)
    high = min(index_that_turns(slow), WIDTH - 1)
    frequencies = []
    for k, theta in enumerate(THETA):
        scaled_share = min(1.0, max(0.0, (k - low) / (high - low)))
        frequencies.append(scaled_share * theta / S + (1 - scaled_share) * theta)
    return frequencies


def faded(pairs):
    """Return the frequencies of which the lowest `pairs` fade out: by the square of half the angle."""
    first = len(THETA) - pairs
    shares = [1.0] * first + [math.cos(math.pi * i / (2 * (pairs - 1))) ** 2 for i in range(pairs)]
    return [theta * share for theta, share in zip(THETA, shares, strict=True)]


def temperature(scale):
    return 0.1 * scale * math.log(S) + 1


def based(base):
    return [base ** (-2 * k / WIDTH) for k in range(WIDTH // 2)]


def grouped(w, g):
    return lambda i, j: i - j if i - j < w else i // g - j // g + w - w // g


def in_cache(sinks, size):
    """Return the distance in the list of the keys that are kept: the first ones and the latest ones."""

    def distance(i, j):
        cached = [m for m in range(i + 1) if m < sinks or i - m < size - sinks]
        return cached.index(i) - cached.index(j)

    return distance


def chunked(s):
    """Return the distance of section 3 of the paper, with its three sets of query positions."""
    key = [j % s for j in range(LONG)]
    query_in_chunk = [i % s for i in range(LONG)]
    query_of_successor = [min(s + i, T - 1) for i in range(s)] * LONG

    def distance(i, j):
        chunks_apart = i // s - j // s
        if chunks_apart == 0:
            return query_in_chunk[i] - key[j]
        if chunks_apart == 1:
            return query_of_successor[i] - key[j]
        return T - 1 - key[j]

    return distance


# name, and a word where there are several -> knobs, and what it is; T = 8, W = 32, s = 4
SLOW = {"beta_slow": 0.1, "beta_fast": 1.0}
V2 = {**SLOW, "mscale": 0.707, "mscale_all_dim": 0.4}
PAPER = {"ramp": "turns", "beta_slow": 0.1, "beta_fast": 2.0, "mscale_all_dim": 1.0}
LLAMA = {"low_freq_factor": 0.1, "high_freq_factor": 2.0, "original_context": "0.5x"}
DIVIDED = [theta / divisor for theta, divisor in zip(THETA, FACTORS, strict=True)]
ROTARY = {
    "pi": ({}, Way(distance=lambda i, j: i / S - j / S)),
    "ntk": ({}, Way(based(BASE * S ** (WIDTH / (WIDTH - 2))))),
    "dynamic_ntk": ({"factor": 2.0}, Way(based(BASE * (2 * LONG / T - 1) ** (WIDTH / (WIDTH - 2))))),
    "ntk_by_parts": (SLOW, Way(by_index(0.1, 1.0))),
    "ntk_by_parts all": ({**SLOW, "beta_slow": 1e-4}, Way(by_index(1e-4, 1.0))),
    "ntk_by_parts turns": ({**SLOW, "ramp": "turns"}, Way(by_parts(0.1, 1.0))),
    "yarn paper": (PAPER, Way(by_parts(0.1, 2.0), times=lambda n: temperature(1) ** 2)),
    "yarn v2": (V2, Way(by_index(0.1, 1.0), times=lambda n: temperature(0.707) ** 2)),
    "yarn exact": (
        {**SLOW, "truncate": False},
        Way(by_exact_index(0.1, 1.0), times=lambda n: temperature(1) ** 2),
    ),
    "yarn factor": ({**SLOW, "attention_factor": 1.5}, Way(by_index(0.1, 1.0), times=lambda n: 1.5**2)),
    "clip": ({"pairs": 3}, Way(faded(3))),
    "clip hard": ({"pairs": 3, "hard": True}, Way([THETA[0], 0.0, 0.0, 0.0])),
    "resonance": ({}, Way([2 * math.pi / round(2 * math.pi / theta) for theta in THETA])),
    "llama3": (LLAMA, Way(by_parts(0.1, 2.0, T // 2))),
    "longrope": ({"factors": FACTORS}, Way(DIVIDED, times=lambda n: 1 + math.log(S) / math.log(T))),
    "logn": ({}, Way(times=lambda n: max(1.0, math.log(n) / math.log(T)))),
    "scale": ({"temperature": 0.7}, Way(times=lambda n: 1 / 0.7)),
    "drop": ({}, Way([0.0] * 4)),
}
LEAKY = Way(distance=lambda i, j: min(i - j, 3 + (i - j - 3) / 2.5))
INFINITE = Way(distance=lambda i, j: min(i - j, T - 1), seen=lambda i, j: j < 3 or i - j < T - 1)
SINKS = Way(distance=in_cache(1, 5), seen=lambda i, j: j < 1 or i - j < 4)
DISTANCE = {
    "rerope": ({"window": 3}, Way(distance=lambda i, j: min(i - j, 3))),
    "rerope leaky": ({"window": 3, "leak": 2.5}, LEAKY),
    "self_extend": ({"window": "0.5x", "group": 3}, Way(distance=grouped(4, 3))),
    "dca": ({}, Way(distance=chunked(6))),
    "dca short": ({"chunk": 3}, Way(distance=chunked(3))),
    "string": ({"shift": 4, "near": 2}, Way(distance=lambda i, j: i - j if i - j < 4 else i - j - 4 + 2)),
    "window": ({"window": 5}, Way(seen=lambda i, j: i - j < 5)),
    "sinks": ({"sinks": 1, "window": 4}, SINKS),
    "lm_infinite": ({"sinks": 3}, INFINITE),
}


def assert_agrees(model, case, knobs, way, law=extending.rope):
    """Compare an extension of the model with the same by pairs, which must differ from the model itself."""
    name = case.split()[0]
    text = drawn_text()
    acting = extending.extension_of(model, name, **knobs).effective_encoding(LONG)
    expected = by_pairs(text, way, law)
    unchanged = by_pairs(text, Way(), law)
    assert (attended(acting, text) - expected).abs().max() < CLOSE
    assert (attended(acting, text, wanted=3) - expected[:, -3:]).abs().max() < CLOSE
    assert (unchanged - expected).abs().max() > 100 * CLOSE


@pytest.fixture(autouse=True)
def small_blocks():
    """Hold the scores of five queries of a full window at a time."""
    with kernels.changed_limits(max_scores=5 * HEADS * LONG):
        yield


@pytest.mark.parametrize("case", [*ROTARY, *DISTANCE])
def test_an_extension_of_rope_is_its_papers_formula(case):
    knobs, way = (ROTARY | DISTANCE)[case]
    assert_agrees(model_of("rope"), case, knobs, way)


@pytest.mark.parametrize("case", ["rerope", "self_extend", "dca", "string", "sinks", "lm_infinite"])
def test_a_bias_is_looked_up_at_the_new_distance(case):
    model = model_of("sum", parts=[{"name": "rope", "base": BASE}, "alibi"])
    knobs, way = DISTANCE[case]
    assert_agrees(model, case, knobs, way, extending.alibi_and_rope)


def test_cos_and_sin_are_louder_and_the_bias_is_not():
    model = model_of("sum", parts=["alibi", {"name": "rope", "base": BASE}])
    louder = (temperature(0.707) / temperature(0.4)) ** 2

    def law(q, k, r, head, theta):
        return louder * extending.rope(q, k, r, head, theta) + extending.alibi(r, head)

    assert_agrees(model, "yarn", V2, Way(by_index(0.1, 1.0), times=lambda n: temperature(0.4) ** 2), law)


@pytest.mark.parametrize("name", ["window", "sinks"])
def test_a_trained_scale_counts_the_keys_that_are_left(name):
    encoding = model_of("rope").encoding
    model = model_of("rope", LogN(encoding.shape, counted=(encoding,)))
    text = drawn_text(26)
    knobs, way = DISTANCE[name]
    counting = Way(distance=way.distance, seen=way.seen, times=lambda n: math.log(n) / math.log(T))
    acting = extending.extension_of(model, name, **knobs).effective_encoding(26)
    assert (attended(acting, text) - by_pairs(text, counting)).abs().max() < CLOSE
    assert model.options[0].counted == (encoding,)  # the trained one still counts all keys


def within_six(i, j):
    return i - j < 6


@pytest.mark.parametrize(
    ("name", "knobs", "way"),
    [
        pytest.param("window", {"window": 7}, Way(seen=within_six), id="window"),
        pytest.param(
            "rerope", {"window": 3}, Way(distance=lambda i, j: min(i - j, 3), seen=within_six), id="rerope"
        ),
    ],
)
def test_a_trained_window_stays(name, knobs, way):
    model = model_of("rope", Window(model_of("rope").encoding.shape, window=6))
    text = drawn_text(26)
    acting = extending.extension_of(model, name, **knobs).effective_encoding(26)
    assert (attended(acting, text) - by_pairs(text, way)).abs().max() < CLOSE


def test_dual_chunks_have_the_distances_of_the_papers_example():
    """Figure 2 of the paper: twelve tokens, chunks of 6, trained at 10."""
    extension = extending.extension_of(model_of("rope"), "dca", chunk=6)
    extension.reach = 10
    pos = torch.arange(12)
    distances = pos[:, None] - pos
    for far in extension.far_pairs(12):
        far_distances = far.query(pos)[:, None] - far.key(pos)
        distances = torch.where(far.pairs(pos, pos), far_distances, distances)
    assert distances[11].tolist() == [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]
    assert distances[7].tolist()[:8] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert int(distances.tril().max()) == 9


@pytest.mark.parametrize(("window", "s"), [(LONG, S), (12, 1.5)])
def test_a_learned_table_is_read_between_its_rows(window, s):
    model = model_of("learned", beyond="refuse")
    table = model.encoding.table[0].detach().double().numpy()
    acting = extending.extension_of(model, "pi").effective_encoding(window)
    positions = torch.arange(window)
    rows = acting.embed(torch.zeros(1, window, WIDTH * HEADS), positions, 0)[0]
    for column in range(WIDTH * HEADS):
        expected = np.interp(positions.numpy() / s, np.arange(T), table[:, column])
        assert np.abs(rows[:, column].detach().double().numpy() - expected).max() < 1e-6
    assert model.encoding.stretch == 1  # the trained one
