"""Every extension against its paper's formula, by pairs in float64, in several blocks of queries."""

import math

import extending
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
    """Section 3.2 of YaRN."""
    out = []
    for theta in THETA:
        turns = length * theta / (2 * math.pi)
        share = 0.0 if turns < slow else 1.0 if turns > fast else (turns - slow) / (fast - slow)
        out.append((1 - share) * theta / S + share * theta)
    return out


def by_index(slow, fast):
    """Of the released code: a ramp between the indices that turn so often, rounded outwards."""
    at = [WIDTH * math.log(T / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (fast, slow)]
    low, high = max(math.floor(at[0]), 0), min(math.ceil(at[1]), WIDTH - 1)
    shares = [min(1.0, max(0.0, (k - low) / (high - low))) for k in range(WIDTH // 2)]
    return [share * theta / S + (1 - share) * theta for share, theta in zip(shares, THETA, strict=True)]


def temperature(scale):
    return 0.1 * scale * math.log(S) + 1


def based(base):
    return [base ** (-2 * k / WIDTH) for k in range(WIDTH // 2)]


def grouped(w, g):
    return lambda i, j: i - j if i - j < w else i // g - j // g + w - w // g


def in_cache(sinks, size):
    """Places in the list of the keys that are there."""

    def distance(i, j):
        there = [m for m in range(i + 1) if m < sinks or i - m < size - sinks]
        return there.index(i) - there.index(j)

    return distance


def chunked(s):
    """Section 3 of the paper, with its three sets of query positions."""
    key, own = [j % s for j in range(LONG)], [i % s for i in range(LONG)]
    successive = [min(s + i, T - 1) for i in range(s)] * LONG

    def distance(i, j):
        if i // s == j // s:
            return own[i] - key[j]
        return (successive[i] if i // s == j // s + 1 else T - 1) - key[j]

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


def agrees(model, case, knobs, way, law=extending.rope):
    extension, text = extending.extension_of(model, case.split()[0], **knobs), drawn_text()
    acting = extension.effective_encoding(LONG)
    expected = by_pairs(text, way, law)
    assert (attended(acting, text) - expected).abs().max() < CLOSE
    assert (attended(acting, text, wanted=3) - expected[:, -3:]).abs().max() < CLOSE
    assert (by_pairs(text, Way(), law) - expected).abs().max() > 100 * CLOSE  # it changes something


@pytest.fixture(autouse=True)
def small_blocks():
    """Five queries of a full window."""
    with kernels.changed_limits(max_scores=5 * HEADS * LONG):
        yield


@pytest.mark.parametrize("case", [*ROTARY, *DISTANCE])
def test_rope(case):
    agrees(model_of("rope"), case, *{**ROTARY, **DISTANCE}[case])


@pytest.mark.parametrize("case", ["rerope", "self_extend", "dca", "string", "sinks", "lm_infinite"])
def test_a_bias_is_looked_up_at_the_new_distance(case):
    model = model_of("sum", parts=[{"name": "rope", "base": BASE}, "alibi"])
    agrees(model, case, *DISTANCE[case], extending.alibi_and_rope)


def test_cos_and_sin_are_louder_and_the_bias_is_not():
    model = model_of("sum", parts=["alibi", {"name": "rope", "base": BASE}])
    louder = (temperature(0.707) / temperature(0.4)) ** 2

    def law(q, k, r, head, theta):
        return louder * extending.rope(q, k, r, head, theta) + extending.alibi(r, head)

    agrees(model, "yarn", V2, Way(by_index(0.1, 1.0), times=lambda n: temperature(0.4) ** 2), law)


@pytest.mark.parametrize("name", ["window", "sinks"])
def test_a_trained_scale_counts_the_keys_that_are_left(name):
    own = model_of("rope").encoding
    model, text = model_of("rope", LogN(own.shape, counted=(own,))), drawn_text(26)
    knobs, way = DISTANCE[name]
    counting = Way(distance=way.distance, seen=way.seen, times=lambda n: math.log(n) / math.log(T))
    acting = extending.extension_of(model, name, **knobs).effective_encoding(26)
    assert (attended(acting, text) - by_pairs(text, counting)).abs().max() < CLOSE
    assert model.options[0].counted == (own,)  # the trained one still counts all keys


def test_a_trained_window_stays():
    own = model_of("rope").encoding
    model, text = model_of("rope", Window(own.shape, window=6)), drawn_text(26)
    for name, knobs, way in (
        ("window", {"window": 7}, Way(seen=lambda i, j: i - j < 6)),
        ("rerope", {"window": 3}, Way(distance=lambda i, j: min(i - j, 3), seen=lambda i, j: i - j < 6)),
    ):
        acting = extending.extension_of(model, name, **knobs).effective_encoding(26)
        assert (attended(acting, text) - by_pairs(text, way)).abs().max() < CLOSE


def test_the_papers_example_of_dual_chunks():
    """Figure 2 of the paper: twelve tokens, chunks of 6, trained at 10."""
    built, pos = extending.extension_of(model_of("rope"), "dca", chunk=6), torch.arange(12)
    built.reach = 10
    new = pos[:, None] - pos
    for far in built.far_pairs(12):
        new = torch.where(far.pairs(pos, pos), far.query(pos)[:, None] - far.key(pos), new)
    assert new[11].tolist() == [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0]
    assert new[7].tolist()[:8] == [7, 6, 5, 4, 3, 2, 1, 0] and int(new.tril().max()) == 9
