"""Every encoding equals its paper's formula in float64, computed by another route, with its gradients."""

import itertools
from functools import partial

import pytest
import torch
from naive_formulas import BIASES, CASES, NEAR, POSITIONS, ROWS, SCORES, Example

from posenc.encodings import list_encodings
from posenc.encodings.shared import head_network
from posenc.model import kernels

CLOSE = 2e-5  # of float32 outputs around 1
FARTHEST = torch.tensor([0, 1, 2, 63, 64, 255, 256, 257, 1000, 4096, 8191, 65536])
PLACES = [*((where, 3, 1) for where in POSITIONS), ("contiguous", 1, 0), ("contiguous", 4, 1)]
LIMITED = ["nope", "alibi", "rope", "rnope_swa", "hard_alibi", "shaw", "fox", "cope", "transformer_xl"]
LIMITS = [(5, "none"), (1, "none"), (None, "logn"), (None, "ssmax"), (5, "logn")]
ROW_CASES = [
    (name, {"per_layer": per_layer, "combine": combine})
    for name, per_layer, combine in itertools.product(ROWS, (False, True), ("add", "concat"))
] + [
    ("learned", {"beyond": "clamp"}),
    ("hybrid", {"beyond": "clamp", "learned_share": 0.6, "base": 500.0}),
    ("sinusoidal", {"base": 500.0}),
    ("binary", {"bits": 17}),
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(head_network, "PAIRS", 7)  # of the network over heads in `dape`


def apart(a, b):
    """The largest difference, as a share of a row's largest number where that is above 1."""
    return ((a.double() - b) / b.abs().amax(-1, keepdim=True).clamp_min(1)).abs().max().item()


def test_every_encoding_has_a_formula_here():
    assert set(SCORES) | set(ROWS) == set(list_encodings())


@pytest.mark.parametrize("where, heads, layer", PLACES)
@pytest.mark.parametrize("name, params", CASES, ids=str)
@torch.no_grad()
def test_attention(name, params, where, heads, layer):
    if name == "xpos" and where == "near and far":
        pytest.skip("refuses windows over 65 536 positions")
    example = Example(name, POSITIONS[where], heads=heads, layer=layer, **params)
    want, close = example.naive_attention(), CLOSE if where != "near and far" else 1e-4
    assert apart(example.attention(), want) < close
    assert apart(example.attention(wanted=4), want[:, -4:]) < close
    with kernels.changed_limits(max_scores=1):  # queries one by one
        assert apart(example.attention(), want) < close


@pytest.mark.parametrize("window, scale", LIMITS)
@pytest.mark.parametrize("where", ["contiguous", "gaps"])
@pytest.mark.parametrize("name", LIMITED)
@torch.no_grad()
def test_attention_with_a_window_or_a_scale(name, where, window, scale):
    """A window is a distance between positions; log n counts the keys that are visible, by layer."""
    if name == "rnope_swa" and window:
        pytest.skip("has a window of its own")
    for layer in (0, 1):
        example = Example(name, POSITIONS[where], layer=layer, attention_window=window, attention_scale=scale)
        assert apart(example.attention(), example.naive_attention()) < CLOSE


@pytest.mark.parametrize("heads", [1, 8, 12])
@pytest.mark.parametrize("name, params", [case for case in CASES if case[0] in BIASES], ids=str)
@torch.no_grad()
def test_biases_at_far_distances(name, params, heads):
    example = Example(name, heads=heads, **params)
    bias = example.encoding.bias(FARTHEST, FARTHEST, 1)  # (H, T, S)
    assert bias.dtype == torch.float32
    assert bias.isfinite().all()
    for (t, i), (s, j) in itertools.combinations_with_replacement(enumerate(FARTHEST.tolist()), 2):
        want = torch.tensor([BIASES[name](example, h, j, i) for h in range(heads)], dtype=torch.float64)
        assert apart(bias[:, s, t], want) < 5e-6, (j, i)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(example.encoding.bias(FARTHEST, FARTHEST, 1), bias)


@pytest.mark.parametrize("where", ["contiguous", "gaps", "far"])
@pytest.mark.parametrize("name, params", ROW_CASES, ids=str)
@torch.no_grad()
def test_embedding(name, params, where):
    example = Example(name, POSITIONS[where], **params)
    for layer in (0, 1):
        assert apart(example.embedding(layer), example.naive_embedding(layer)) < 1e-6
    per_layer = params.get("per_layer", False)
    assert torch.equal(example.embedding(1), example.t["x"]) != per_layer


GRADIENTS = [case for case in CASES if case not in [("rope", {}), ("sum", {})]] + ROW_CASES


@pytest.mark.parametrize("name, params", GRADIENTS, ids=str)
def test_gradients(name, params):
    """Of each tensor along a random direction, by central differences of the formula in float64."""
    example = Example(name, NEAR[:10], heads=2, **params)
    for tensor in example.tensors.values():
        tensor.requires_grad_()
    made, naive = example.attention, example.naive_attention
    if name in ROWS:
        layer = 1 if params.get("per_layer") else 0
        made, naive = partial(example.embedding, layer), partial(example.naive_embedding, layer)
    weights = torch.randn(made().shape, generator=torch.Generator().manual_seed(3))
    (made() * weights).sum().backward()
    for key, tensor in example.tensors.items():
        if tensor.grad is None:
            assert key in "qkvx", key  # not an input of this encoding
            continue
        direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(key))).double()
        sums = []
        for step in (1e-5, -1e-5):
            example.read(**{key: tensor.detach().double() + step * direction})
            sums.append((naive() * weights).sum().item())
        example.read()
        want = (sums[0] - sums[1]) / 2e-5
        got = (tensor.grad.double() * direction).sum().item()
        assert got == pytest.approx(want, rel=1e-3, abs=1e-3 * weights.norm().item() ** 0.5), key
