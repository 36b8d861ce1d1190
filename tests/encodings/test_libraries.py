"""Encodings equal those of other libraries; scripts/encoding_differences.py prints by how much they differ.

Most libraries compute angles in float32, which drift with the position, so windows have 512 tokens.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.t5 import bucket
from posenc.model.mla import LatentAttention

HEADS, WIDTH, BASE, N = 8, 64, 10000.0, 512
POS = torch.arange(N)


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def filled(name: str, heads: int = HEADS, layers: int = 1, **params: Any) -> Encoding:
    """Every parameter normal, so that none is zero."""
    sizes = {"d_model": heads * WIDTH, "n_heads": heads, "head_dim": WIDTH, "n_layers": layers}
    made = build_encoding(name, train_length=128, **sizes, **params)
    for seed, parameter in enumerate(made.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=seed) * made.shape.d_model**-0.5)
    return made


def largest(ours: Tensor, theirs: Tensor) -> float:
    return (ours.double() - theirs.double()).abs().max().item()


def alibi_bloom(heads: int = 12) -> float:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    # slope x key index, which the softmax cannot tell from -slope x distance
    by_key = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0]  # (H, 2)
    ours = filled("alibi", heads).distance_bias(torch.tensor([1]), 0)[:, 0]
    return largest(-ours, by_key[:, 1] - by_key[:, 0])


def t5_buckets() -> float:
    from transformers.models.t5.modeling_t5 import T5Attention

    r = torch.arange(2000)
    return largest(bucket(r, 32, 128), T5Attention._relative_position_bucket(-r, False, 32, 128))


def rotated(**params: Any) -> tuple[Tensor, Tensor]:
    """Vectors (1, 1, N, D) and what rope makes of them."""
    x = normal(1, 1, N, WIDTH)
    return x, filled("rope", 1, **params).rotate(x, x, POS, POS, 0)[0]


def rope_llama() -> float:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=1, head_dim=WIDTH)
    x, ours = rotated(layout="half")
    cos, sin = LlamaRotaryEmbedding(config)(x, POS[None])
    return largest(ours, apply_rotary_pos_emb(x, x, cos, sin)[0])


def rope_gptj() -> float:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    x, ours = rotated(layout="interleaved")
    sin, cos = create_sinusoidal_positions(N, WIDTH)[None].chunk(2, dim=-1)
    return largest(ours, apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2))


def xpos_xt() -> float:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    # only products can be compared: it counts from another middle
    q, k = normal(1, 1, N, WIDTH), normal(1, 1, N, WIDTH, seed=1)
    freqs, scale = RotaryEmbedding(WIDTH, use_xpos=True).forward_from_seq_len(N)
    their_q, their_k = apply_rotary_pos_emb(q, freqs, scale), apply_rotary_pos_emb(k, freqs, scale**-1.0)
    our_q, our_k = filled("xpos", 1).rotate(q, k, POS, POS, 0)
    return largest((our_q @ our_k.mT).tril(), (their_q @ their_k.mT).tril())


def fox_xt() -> float:
    from x_transformers.x_transformers import DataDependentAlibi

    made, x = filled("fox"), normal(1, N, HEADS * WIDTH)
    theirs = DataDependentAlibi(HEADS * WIDTH, HEADS)
    theirs.to_forget_gates[0].weight.copy_(made.get_parameter("gate")[0])
    theirs.to_forget_gates[0].bias.copy_(made.get_parameter("offset")[0])
    s = torch.zeros(1, HEADS, N, N)
    return largest(made.scores(s, s, s, POS, POS, made.prepare(x, x, x, 0), 0)[0].tril(), theirs(x)[0].tril())


def cope_xt() -> float:
    from x_transformers.x_transformers import CoPE

    made, q, s = filled("cope", p_max=64), normal(1, HEADS, N, WIDTH), normal(1, HEADS, N, N, seed=2)
    theirs = CoPE(WIDTH, HEADS, 65)
    theirs.pos_emb.copy_(made.get_parameter("table")[0])
    want = theirs(q, s.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.finfo(s.dtype).max))
    return largest((made.scores(s, q, q, POS, POS, made.prepare(q, q, q, 0), 0) - s).tril(), want.tril())


def mla_deepseek() -> float:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

    heads, width = 4, 8 * WIDTH
    own = filled("rope", 1, layout="interleaved")  # the rotary part is one head's width
    a = LatentAttention(width, heads, 0, kv_rank=96, q_rank=160, rope_dim=WIDTH)
    for seed, parameter in enumerate(a.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=seed) * parameter.shape[-1] ** -0.5)
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads}
    ranks = {"q_lora_rank": 160, "kv_lora_rank": 96, "qk_rope_head_dim": a.rope_dim}
    parts = {"qk_nope_head_dim": a.head_dim, "v_head_dim": a.head_dim, "rope_theta": BASE}
    config = DeepseekV3Config(rope_scaling=None, attention_bias=False, **sizes, **ranks, **parts)
    config._attn_implementation = "eager"
    theirs, rotation = v3.DeepseekV3Attention(config, 0).eval(), v3.DeepseekV3RotaryEmbedding(config)
    # their kv_b_proj has each head's key rows, then its value rows; ours all keys, then all values
    up = a.kv_up.weight.unflatten(0, (2, heads, a.head_dim)).transpose(0, 1).flatten(0, 2)
    for linear, weight in (
        (theirs.q_a_proj, a.q_down.weight),
        (theirs.q_a_layernorm, a.q_norm.weight),
        (theirs.q_b_proj, a.q_up.weight),
        (theirs.kv_a_proj_with_mqa, a.kv_down.weight),
        (theirs.kv_a_layernorm, a.kv_norm.weight),
        (theirs.kv_b_proj, up),
        (theirs.o_proj, a.out.weight),
    ):
        linear.weight.copy_(weight)
    x, future = normal(1, N, width, seed=50), torch.full((N, N), torch.finfo(torch.float32).min).triu(1)
    want = theirs(x, position_embeddings=rotation(x, POS[None]), attention_mask=future[None, None])[0]
    return largest(a(x, POS, own, N), want)


# (encoding, library): how the difference is measured, and what is allowed
LIBRARIES: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("alibi 12 heads", "transformers Bloom, slopes"): (alibi_bloom, 1e-7),
    ("t5", "transformers T5, 2000 buckets"): (t5_buckets, 0),
    ("rope half", "transformers Llama"): (rope_llama, 2e-4),
    ("rope interleaved", "transformers GPT-J"): (rope_gptj, 2e-4),
    ("xpos", "x-transformers"): (xpos_xt, 1e-3),
    ("fox", "x-transformers"): (fox_xt, 5e-4),  # its sums are float32, to -400
    ("cope", "x-transformers"): (cope_xt, 1e-5),
    ("attention=mla", "transformers DeepSeek-V3"): (mla_deepseek, 2e-5),
}


@pytest.mark.parametrize("name, library", list(LIBRARIES))
def test_largest_difference(name: str, library: str) -> None:
    pytest.importorskip("x_transformers" if library.startswith("x-") else "transformers")
    measure, allowed = LIBRARIES[name, library]
    with torch.no_grad():
        assert measure() <= allowed


@pytest.mark.slow
def test_the_script_prints_a_table() -> None:
    pytest.importorskip("x_transformers")
    script = Path(__file__).parents[2] / "scripts" / "encoding_differences.py"
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert "largest difference" in out and "DeepSeek-V3" in out and "stick_breaking" in out
