"""experiment=fox_pro: one layer of the forgetting transformer's "Pro" block, in plain floats."""

import itertools
import math

import pytest
import torch
from composed import train_settings

from posenc.model.decoder import ModelShape
from posenc.running.model_parts import build_model

SHAPE = ModelShape("small", d_model=12, n_layers=2, n_heads=3, mlp_ratio=2)
HEADS = 3
WIDTH = 4  # of a head
T = 7
LAYER = 1
EPSILON = 1e-6
PRO = {"qk_norm": True, "token_shift": True, "output_norm": True, "gate": "element"}


def model_with(*overrides):
    """Build a model whose parameters are drawn, since ones and zeros would hide them."""
    model = build_model(train_settings(*overrides, f"context_length={T}"), SHAPE, 13)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model.eval()


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def normed(x, weights, epsilon):
    size = math.sqrt(dot(x, x) / len(x) + epsilon)
    return [w * value / size for w, value in zip(weights, x, strict=True)]


def heads_of(rows):
    """Split the rows of a matrix by head."""
    return [rows[h * WIDTH : (h + 1) * WIDTH] for h in range(HEADS)]


def shifted(rows, shares):
    """Mix the row of each token with that of the token before, of which the first one has none."""
    before = [[0.0] * WIDTH, *rows[:-1]]
    mixed = []
    for row, previous, share in zip(rows, before, shares, strict=True):
        mixed.append([(1 - share) * a + share * b for a, b in zip(row, previous, strict=True)])
    return mixed


def by_the_formula(model, x, options):
    """Return what the attention of LAYER returns for the inputs x, a list of rows, a token at a time."""
    attention = model.blocks[LAYER].attention
    p = {name: parameter.tolist() for name, parameter in attention.named_parameters()}
    o = {}
    for option in model.options:
        o |= {name: parameter[LAYER].tolist() for name, parameter in option.named_parameters()}
    forget_w = model.encoding.gate[LAYER].tolist()
    forget_b = model.encoding.offset[LAYER].tolist()
    d = HEADS * WIDTH
    w_q, w_k, w_v = (heads_of(p["qkv.weight"][part * d : (part + 1) * d]) for part in range(3))
    machine = torch.finfo(torch.float32).eps  # epsilon of nn.RMSNorm
    joined = [[] for _ in x]
    for h in range(HEADS):
        q = [times(w_q[h], token) for token in x]
        k = [times(w_k[h], token) for token in x]
        v = [times(w_v[h], token) for token in x]
        if options.get("token_shift"):
            k = shifted(k, [sigmoid(dot(o["w_keys"][h], token)) for token in x])
            v = shifted(v, [sigmoid(dot(o["w_values"][h], token)) for token in x])
        if options.get("qk_norm"):
            q = [normed(row, p["q_norm.weight"], machine) for row in q]
            k = [normed(row, p["k_norm.weight"], machine) for row in k]
        forgets = [math.log(sigmoid(dot(forget_w[h], token) + forget_b[h])) for token in x]
        for i in range(len(x)):
            scores = [
                dot(q[i], k[j]) / math.sqrt(WIDTH) + math.fsum(forgets[j + 1 : i + 1]) for j in range(i + 1)
            ]
            total = math.fsum(math.exp(score) for score in scores)
            weights = [math.exp(score) / total for score in scores]
            output = [dot(weights, [v[j][n] for j in range(i + 1)]) for n in range(WIDTH)]
            if options.get("output_norm"):
                output = normed(output, o["g"][h], EPSILON)
            if options.get("gate"):
                gates = times(heads_of(o["w"])[h], x[i])
                output = [value * sigmoid(gate) for value, gate in zip(output, gates, strict=True)]
            joined[i] += output
    return torch.tensor([times(p["out.weight"], row) for row in joined], dtype=torch.float64)


def difference(model, options, wanted=T):
    """Return the largest difference between a layer of the model and the formula."""
    x = torch.randn(T, HEADS * WIDTH, generator=torch.Generator().manual_seed(3))
    attention = model.blocks[LAYER].attention
    output = attention(x[None], torch.arange(T), model.effective_encoding, wanted)[0]
    return (output.double() - by_the_formula(model, x.tolist(), options)[-wanted:]).abs().max()


@pytest.mark.parametrize("wanted", [T, 3], ids=["all tokens", "the last three"])
@torch.no_grad()
def test_the_block_is_that_of_the_paper(wanted):
    assert difference(model_with("experiment=fox_pro"), PRO, wanted) < 2e-5


@pytest.mark.parametrize("option", ["attention.token_shift=true", "attention.output_norm=true"])
@torch.no_grad()
def test_each_part_acts_alone(option):
    key = option.removeprefix("attention.").removesuffix("=true")
    assert difference(model_with("encoding=fox", option), {key: True}) < 2e-5


@torch.no_grad()
def test_a_shift_looks_at_no_later_token():
    model = model_with("experiment=fox_pro")
    tokens = torch.arange(T)[None]
    changed = tokens.clone()
    changed[0, -1] = 12
    assert torch.equal(model(tokens)[:, :-1], model(changed)[:, :-1])


def test_every_parameter_of_the_block_has_a_gradient():
    model = model_with("experiment=fox_pro")
    model(torch.arange(T)[None]).square().sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters()
    )


def test_the_parts_are_options_of_any_encoding():
    for name, option in itertools.product(("rope", "nope"), ("token_shift", "output_norm")):
        model = model_with(f"encoding={name}", f"attention.{option}=true")
        assert model(torch.arange(T)[None]).isfinite().all()
