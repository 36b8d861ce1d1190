"""Encodings equal those of other libraries (RoPE that of Llama: tests/running/test_hf.py)."""

import pytest
import torch
from tiny_model import encoding_of

from posenc.encodings.t5 import bucket
from posenc.model.attention import LatentAttention

transformers = pytest.importorskip("transformers")
xt = pytest.importorskip("x_transformers.x_transformers")
from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402

HEADS, WIDTH, N = 8, 64, 512  # x-transformers' angles are float32, which drift with the position
POS = torch.arange(N)


def normal(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def filled(name, heads=HEADS, **params):
    """Every parameter normal, so that none is zero."""
    made = encoding_of(name, 128, heads, WIDTH, 1, **params)
    for seed, parameter in enumerate(made.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=seed) * made.shape.d_model**-0.5)
    return made


def alibi():
    # slope x key index, which the softmax cannot tell from -slope x distance
    by_key = build_alibi_tensor(torch.ones(1, 2), 12, torch.float32)[:, 0]  # (H, 2)
    ours = filled("alibi", 12).distance_bias(torch.tensor([1]), 0)[:, 0]
    return -ours, by_key[:, 1] - by_key[:, 0]


def t5():
    r = torch.arange(2000)
    return bucket(r, 32, 128), T5Attention._relative_position_bucket(-r, False, 32, 128)


def xpos():
    # only products can be compared: it counts from another middle
    q, k = normal(1, 1, N, WIDTH), normal(1, 1, N, WIDTH, seed=1)
    freqs, scale = xt.RotaryEmbedding(WIDTH, use_xpos=True).forward_from_seq_len(N)
    their_q, their_k = xt.apply_rotary_pos_emb(q, freqs, scale), xt.apply_rotary_pos_emb(k, freqs, 1 / scale)
    our_q, our_k = filled("xpos", 1).rotate(q, k, POS, POS, 0)
    return (our_q @ our_k.mT).tril(), (their_q @ their_k.mT).tril()


def fox():
    made, x, s = filled("fox"), normal(1, N, HEADS * WIDTH), torch.zeros(1, HEADS, N, N)
    theirs = xt.DataDependentAlibi(HEADS * WIDTH, HEADS)
    theirs.to_forget_gates[0].weight.copy_(made.get_parameter("gate")[0])
    theirs.to_forget_gates[0].bias.copy_(made.get_parameter("offset")[0])
    ours = made.scores(s, s, s, POS, POS, made.prepare(x, x, x, 0), 0)
    return ours[0].tril(), theirs(x)[0].tril()


def cope():
    made, q, s = filled("cope", p_max=64), normal(1, HEADS, N, WIDTH), normal(1, HEADS, N, N, seed=2)
    theirs = xt.CoPE(WIDTH, HEADS, 65)
    theirs.pos_emb.copy_(made.get_parameter("table")[0])
    want = theirs(q, s.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.finfo(s.dtype).max))
    return (made.scores(s, q, q, POS, POS, made.prepare(q, q, q, 0), 0) - s).tril(), want.tril()


def mla():
    heads, width = 4, 8 * WIDTH
    own = filled("rope", 1, layout="interleaved")  # the rotary part is one head's width
    a = LatentAttention(width, heads, 0, kv_rank=96, q_rank=160, rope_dim=WIDTH)
    for seed, parameter in enumerate(a.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=seed) * parameter.shape[-1] ** -0.5)
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads}
    ranks = {"q_lora_rank": 160, "kv_lora_rank": 96, "qk_rope_head_dim": a.rope_dim}
    parts = {"qk_nope_head_dim": a.head_dim, "v_head_dim": a.head_dim, "rope_theta": 10000.0}
    config = transformers.DeepseekV3Config(rope_scaling=None, attention_bias=False, **sizes, **ranks, **parts)
    config._attn_implementation = "eager"
    theirs, rotation = v3.DeepseekV3Attention(config, 0).eval(), v3.DeepseekV3RotaryEmbedding(config)
    # their kv_b_proj has each head's key rows, then its value rows; ours all keys, then all values
    up = a.kv_up.weight.unflatten(0, (2, heads, a.head_dim)).transpose(0, 1).flatten(0, 2)
    queries = {"q_a_proj": a.q_down.weight, "q_a_layernorm": a.q_norm.weight, "q_b_proj": a.q_up.weight}
    keys = {"kv_a_proj_with_mqa": a.kv_down.weight, "kv_a_layernorm": a.kv_norm.weight, "kv_b_proj": up}
    for name, weight in {**queries, **keys, "o_proj": a.out.weight}.items():
        theirs.get_submodule(name).weight.copy_(weight)
    x, future = normal(1, N, width, seed=50), torch.full((N, N), torch.finfo(torch.float32).min).triu(1)
    want = theirs(x, position_embeddings=rotation(x, POS[None]), attention_mask=future[None, None])[0]
    return a(x, POS, own, N), want


# fox: float32 sums to -400
ALLOWED = {alibi: 1e-7, t5: 0, xpos: 1e-3, cope: 1e-5, fox: 5e-4, mla: 2e-5}


@pytest.mark.parametrize("both", ALLOWED, ids=lambda both: both.__name__)
@torch.no_grad()
def test_largest_difference(both):
    ours, theirs = both()
    assert (ours.double() - theirs.double()).abs().max().item() <= ALLOWED[both]
