"""Comparisons with transformers and x-transformers: LIBRARIES, printed by scripts/encoding_differences.py.

Most libraries compute angles in float32, which drift with the position, so windows have 512 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.families.absolute import sinusoids
from posenc.encodings.t5 import bucket
from posenc.model.kernels import attend
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


def future() -> Tensor:
    return torch.full((N, N), torch.finfo(torch.float32).min).triu(1)


def sinusoidal_gptj() -> float:
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    ours = sinusoids(POS, WIDTH, BASE)
    ours = torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=-1)  # theirs: all sines, then all cosines
    return largest(ours, create_sinusoidal_positions(N, WIDTH))


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


def dynamic_bias_xt() -> float:
    from x_transformers.x_transformers import DynamicPositionBias

    ours = filled("dynamic_bias")
    theirs = DynamicPositionBias(32, heads=HEADS, depth=2, log_distance=True)
    for layer in theirs.mlp[:2]:
        layer[-1] = torch.nn.ReLU()  # a SiLU there, a ReLU in the paper
    for n, layer in enumerate((theirs.mlp[0][0], theirs.mlp[1][0], theirs.mlp[2]), start=1):
        layer.weight.copy_(ours.get_parameter(f"w{n}").view_as(layer.weight))
        layer.bias.copy_(ours.get_parameter(f"b{n}"))
    return largest(ours.bias(POS, POS, 0).tril(), theirs(N, N).tril())


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


def rope_xt() -> float:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    x, ours = rotated(layout="interleaved", fraction=0.25)
    freqs, scale = RotaryEmbedding(WIDTH // 4).forward_from_seq_len(N)
    return largest(ours, apply_rotary_pos_emb(x, freqs, scale))


def xpos_xt() -> float:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    # only products can be compared: it counts from another middle
    q, k = normal(1, 1, N, WIDTH), normal(1, 1, N, WIDTH, seed=1)
    freqs, scale = RotaryEmbedding(WIDTH, use_xpos=True).forward_from_seq_len(N)
    their_q, their_k = apply_rotary_pos_emb(q, freqs, scale), apply_rotary_pos_emb(k, freqs, scale**-1.0)
    our_q, our_k = filled("xpos", 1).rotate(q, k, POS, POS, 0)
    return largest((our_q @ our_k.mT).tril(), (their_q @ their_k.mT).tril())


def pope_xt() -> float:
    from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

    made, theirs = filled("pope"), PolarEmbedding(WIDTH, HEADS)
    q, k = normal(2, 1, HEADS, N, WIDTH)
    theirs.learned_bias.copy_(-made.get_parameter("delta")[0].abs()[:, None])  # clamped to [-2 pi, 0] there
    made.get_parameter("delta").copy_(theirs.learned_bias[:, 0])
    freqs, bias = theirs(POS)
    our_q, our_k = made.rotate(q, k, POS, POS, 0)
    return largest(our_q @ our_k.mT, apply_polar_pos_emb(q, freqs) @ apply_polar_pos_emb(k, freqs + bias).mT)


def attention_of(theirs: Any, made: Encoding, x: Tensor, heads: int, layer: int = 0) -> Tensor:
    """Our attention with another module's projections."""
    projections = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    q, k, v = (one(x).unflatten(-1, (heads, WIDTH)).transpose(1, 2) for one in projections)
    out: Tensor = theirs.o_proj if hasattr(theirs, "o_proj") else theirs.out_proj
    return out(attend(q, k, v, x, POS, made, layer).transpose(1, 2).flatten(2))  # type: ignore[operator,no-any-return]


def rnope_swa_cohere() -> float:
    """A whole attention layer of each kind, in the order of theirs."""
    from transformers import Cohere2Config
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
    from transformers.models.cohere2 import modeling_cohere2 as cohere

    heads, layers, width = 4, 8, 4 * WIDTH
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads}
    config = Cohere2Config(num_hidden_layers=layers, sliding_window=100, attn_implementation="eager", **sizes)
    made = filled("rnope_swa", heads, layers, window=100)
    x, found = normal(1, N, width), 0.0
    rotations = cohere.Cohere2RotaryEmbedding(config)(x, POS[None])
    for layer, kind in enumerate(config.layer_types):
        theirs = cohere.Cohere2Attention(config, layer)
        for seed, parameter in enumerate(theirs.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed) * width**-0.5)
        create = create_sliding_window_causal_mask if kind == "sliding_attention" else create_causal_mask
        mask = create(config, x, attention_mask=None, past_key_values=None, position_ids=POS[None])
        found = max(
            found, largest(attention_of(theirs, made, x, heads, layer), theirs(x, rotations, mask)[0])
        )
    return found


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


def shaw_speecht5() -> float:
    """SpeechT5 has the keys' vectors alone, and for both directions."""
    from transformers.models.speecht5 import modeling_speecht5 as speech

    heads, width = 4, 4 * WIDTH
    made = filled("shaw", heads)
    made.get_parameter("added").zero_()
    positions = speech.SpeechT5RelativePositionalEncoding(WIDTH, 17)
    positions.pe_k.weight[17:].copy_(made.get_parameter("keys")[0, 0])  # distances 0, 1, ..., 16 of the past
    theirs = speech.SpeechT5Attention(width, heads, bias=False).eval()
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=seed) * width**-0.5)
    x = normal(1, N, width)
    want = theirs(x, attention_mask=future()[None, None], position_bias=positions(x))[0]
    return largest(attention_of(theirs, made, x, heads), want)


def transformer_xl_xlnet() -> float:
    """XLNet's attention is Transformer-XL's; its sinusoids are all sines, then all cosines."""
    from transformers import XLNetConfig, XLNetModel
    from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

    heads, width = 4, 4 * WIDTH
    made = filled("transformer_xl", heads)
    config = XLNetConfig(vocab_size=8, d_model=width, n_layer=1, n_head=heads, d_inner=1, attn_type="uni")
    theirs = XLNetRelativeAttention(config).eval()
    w = made.get_parameter("w")[0]  # (H, D, d)
    theirs.r.copy_(torch.cat((w[..., 0::2], w[..., 1::2]), dim=-1).permute(2, 0, 1))
    theirs.r_w_bias.copy_(made.get_parameter("u")[0])
    theirs.r_r_bias.copy_(made.get_parameter("v")[0])
    waves = XLNetModel(config).relative_positional_encoding(N, N)[:, 0]  # of the distances N, N - 1, ..., 0
    mapped = torch.einsum("rc,chd->rhd", waves, theirs.r)[:, None]
    q, k, v = (normal(1, heads, N, WIDTH, seed=seed) for seed in (1, 2, 3))
    mask = torch.ones(N, N).triu(1)[..., None, None]
    want = theirs.rel_attn_core(*(one.permute(2, 0, 1, 3) for one in (q, k, v)), mapped, attn_mask=mask)
    ours = attend(q, k, v, k.transpose(1, 2).flatten(2), POS, made, 0)
    return largest(ours.permute(2, 0, 1, 3), want)


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
    x = normal(1, N, width, seed=50)
    want = theirs(x, position_embeddings=rotation(x, POS[None]), attention_mask=future()[None, None])[0]
    return largest(a(x, POS, own, N), want)


# (encoding, library): how the difference is measured, and what is allowed
LIBRARIES: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("sinusoidal", "transformers GPT-J"): (sinusoidal_gptj, 1e-4),
    ("alibi 12 heads", "transformers Bloom, slopes"): (alibi_bloom, 1e-7),
    ("t5", "transformers T5, 2000 buckets"): (t5_buckets, 0),
    ("dynamic_bias", "x-transformers with ReLU"): (dynamic_bias_xt, 1e-5),
    ("rope half", "transformers Llama"): (rope_llama, 2e-4),
    ("rope interleaved", "transformers GPT-J"): (rope_gptj, 2e-4),
    ("rope fraction 0.25", "x-transformers"): (rope_xt, 2e-4),
    ("xpos", "x-transformers"): (xpos_xt, 1e-3),
    ("pope", "x-transformers"): (pope_xt, 1e-3),
    ("rnope_swa", "transformers Cohere2, 8 layers"): (rnope_swa_cohere, 5e-5),
    ("fox", "x-transformers"): (fox_xt, 5e-4),  # its sums are float32, to -400
    ("cope", "x-transformers"): (cope_xt, 1e-5),
    ("shaw", "transformers SpeechT5 (keys)"): (shaw_speecht5, 3e-6),
    ("transformer_xl", "transformers XLNet"): (transformer_xl_xlnet, 1e-5),
    ("attention=mla", "transformers DeepSeek-V3"): (mla_deepseek, 2e-5),
}
