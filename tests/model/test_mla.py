"""Latent attention: by loops in float64, and settings that are refused."""

import cmath
import math

import pytest
import torch
from composed import train_settings
from tiny_decoder import norm

from posenc.config.yaml_files import settings_in
from posenc.core.errors import UserError
from posenc.core.paths import choice_file
from posenc.model.attention import LatentAttention
from posenc.model.decoder import ModelShape
from posenc.running.model_parts import build_model
from posenc.settings.tree import AttentionSettings, EncodingSettings

SHAPE = ModelShape("small", d_model=24, n_layers=2, n_heads=3, mlp_ratio=2)
T, VOCABULARY = 8, 13
RANKS = {"kv_rank": 10, "q_rank": 14, "rope_dim": 4}
DRAWN = [0, 1, 5, 6, 30, 31, 90, 127]


def model_of(encoding="rope", *, window=None, scale="none", options=None, **ranks):
    """Build a model of the settings that a run has.

    The weights of norms and scales are drawn, since ones would hide them.
    """
    attention = {"name": "mla", **RANKS, **ranks, "window": window, "scale": scale, **(options or {})}
    settings = train_settings(f"encoding={encoding}", f"context_length={T}", "seed=1", "attention=mla")
    settings = settings.with_changes(attention=AttentionSettings(**attention))
    if encoding == "rope":
        rope = {"name": "rope", "base": 100.0, "layout": "half", "fraction": 1.0, "drop_low": 0.0}
        settings = settings.with_changes(encoding=EncodingSettings(**rope))
    model = build_model(settings, SHAPE, VOCABULARY)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
        for parameter in model.options.parameters():
            parameter.uniform_(0.1, 1, generator=generator)
    return model.eval()


def turn(encoding, x, t):
    """Return RoPE's vector: pairs (k, k + D/2) as complex numbers times e^(i t theta_k), base 100."""
    if encoding == "nope":
        return x
    half = len(x) // 2
    pairs = [complex(x[k], x[k + half]) * cmath.exp(1j * t * 100.0 ** (-k / half)) for k in range(half)]
    return torch.tensor([z.real for z in pairs] + [z.imag for z in pairs], dtype=torch.float64)


def exactly(attention, encoding, x, pos, **options):
    """Return (T, d) by the paper's formulas, a token and a head at a time, in float64.

    Options: `window`; `slopes` of ssmax and `sinks`, one for each head; `gates`, a row (d_model,) for each;
    `norms`, D weights of the output for each.
    """
    window = options.get("window")
    slopes = options.get("slopes")
    sinks = options.get("sinks")
    gates = options.get("gates")
    norms = options.get("norms")
    head_dim = attention.head_dim
    rope_dim = attention.rope_dim
    weights = {name: parameter.detach().double() for name, parameter in attention.named_parameters()}
    w_dkv, w_kr = weights["kv_down.weight"].split((attention.kv_rank, rope_dim))
    w_q = weights["q_up.weight"].split(head_dim + rope_dim)  # by head
    w_uk, w_uv = (weight.split(head_dim) for weight in weights["kv_up.weight"].chunk(2))
    latent = [norm(w_dkv @ token, weights["kv_norm.weight"]) for token in x]
    k_rotary = [turn(encoding, w_kr @ token, t) for token, t in zip(x, pos, strict=True)]
    outputs = []
    for i, query_pos in enumerate(pos):
        by_head = []
        visible = [j for j in range(i + 1) if window is None or query_pos - pos[j] < window]
        q_latent = norm(weights["q_down.weight"] @ x[i], weights["q_norm.weight"])
        for h in range(attention.n_heads):
            factor = slopes[h] * math.log(len(visible)) if slopes else 1.0
            content, rotary = (w_q[h] @ q_latent).split((head_dim, rope_dim))
            rotary = turn(encoding, rotary, query_pos)
            scores = [content @ (w_uk[h] @ latent[j]) + rotary @ k_rotary[j] for j in visible]
            scores = torch.stack(scores) * factor / math.sqrt(head_dim + rope_dim)
            if sinks is not None:
                scores = torch.cat((scores, sinks[h : h + 1]))
            probabilities = torch.softmax(scores, 0)[: len(visible)]
            values = torch.stack([w_uv[h] @ latent[j] for j in visible])
            gate = 1.0 if gates is None else torch.sigmoid(gates[h] @ x[i])
            output = probabilities @ values
            if norms is not None:
                output = norm(output, norms[h])
            by_head.append(gate * output)
        outputs.append(weights["out.weight"] @ torch.cat(by_head))
    return torch.stack(outputs)


NEAR = [0, 1, 2, 5, 6, 7, 8, 20]
FAR = list(range(65529, 65537))
SMALL = {"kv_rank": 24, "q_rank": 1, "rope_dim": 2}


@pytest.mark.parametrize("wanted", [T, 3], ids=["all tokens", "the last three"])
@pytest.mark.parametrize(
    ("encoding", "pos", "settings"),
    [
        pytest.param("rope", DRAWN, {}, id="drawn positions"),
        pytest.param("rope", FAR, SMALL, id="far positions, small ranks"),
        pytest.param("nope", DRAWN, SMALL, id="nope"),
        pytest.param("rope", NEAR, {"window": 3}, id="window"),
        pytest.param("rope", NEAR, {"scale": "ssmax", "window": 3}, id="window and scale"),
    ],
)
@torch.no_grad()
def test_latent_attention_is_the_papers_formula(encoding, pos, settings, wanted):
    model = model_of(encoding, **settings)
    x = torch.randn(T, 24, generator=torch.Generator().manual_seed(3))
    slopes_of_layers = next(iter(model.options.parameters()), None)
    for layer, block in enumerate(model.blocks):
        assert isinstance(block.attention, LatentAttention)
        slopes = None if slopes_of_layers is None else slopes_of_layers[layer].tolist()
        window = settings.get("window")
        expected = exactly(block.attention, encoding, x.double(), pos, window=window, slopes=slopes)
        output = block.attention(x[None], torch.tensor(pos), model.effective_encoding, wanted)[0]
        assert (output.double() - expected[-wanted:]).abs().max() < 5e-6


@pytest.mark.parametrize("wanted", [T, 3], ids=["all tokens", "the last three"])
@torch.no_grad()
def test_latent_attention_has_sinks_and_gates(wanted):
    model = model_of("rope", options={"normalizer": "sink", "gate": "head"})
    x = torch.randn(T, 24, generator=torch.Generator().manual_seed(3))
    by_key = {option.key: parameter.double() for option in model.options for parameter in option.parameters()}
    for layer, block in enumerate(model.blocks):
        sinks = by_key["normalizer"][layer]
        gates = by_key["gate"][layer]
        expected = exactly(block.attention, "rope", x.double(), NEAR, sinks=sinks, gates=gates)
        output = block.attention(x[None], torch.tensor(NEAR), model.effective_encoding, wanted)[0]
        assert (output.double() - expected[-wanted:]).abs().max() < 5e-6


@pytest.mark.parametrize("normalizer", ["entmax", "asentmax"])
def test_latent_attention_has_sparse_weights(normalizer):
    model = model_of("rope", options={"normalizer": normalizer})
    logits = model(torch.arange(T)[None] % VOCABULARY)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_latent_attention_norms_its_outputs():
    model = model_of("rope", options={"output_norm": True})
    x = torch.randn(T, 24, generator=torch.Generator().manual_seed(3))
    (option,) = model.options
    for layer, block in enumerate(model.blocks):
        norms = option.g[layer].double()
        expected = exactly(block.attention, "rope", x.double(), NEAR, norms=norms)
        output = block.attention(x[None], torch.tensor(NEAR), model.effective_encoding, T)[0]
        assert (output.double() - expected).abs().max() < 5e-6


@pytest.mark.parametrize("key", ["key_offset", "token_shift"])
def test_latent_attention_refuses_shifted_keys_for_the_reason_of_its_yaml(key):
    with pytest.raises(UserError) as caught:
        model_of("rope", options={key: True})
    comments = {setting.key: setting.comment for setting in settings_in(choice_file("attention", "mla"))}
    reason = comments[key].removeprefix("refused with mla: ")
    assert f"attention.{key}=true: makes no sense with attention=mla: {reason}" in caught.value.text()
