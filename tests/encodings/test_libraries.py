"""Encodings equal those of other libraries (RoPE that of Llama: tests/running/test_hf.py).

The tests import them: they take seconds, and every worker reads this file.
"""

import pytest
import torch
from tiny_model import encoding_of

from posenc.encodings.t5 import bucket
from posenc.evaluation.extensions import build_extension
from posenc.model.attention import LatentAttention
from posenc.model.decoder import Decoder, ModelShape

HEADS = 8
WIDTH = 64
N = 512  # x-transformers' angles are float32, which drift with the position
POS = torch.arange(N)


@pytest.fixture(scope="module")
def xt():
    return pytest.importorskip("x_transformers.x_transformers")


def normal(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def filled(name, heads=HEADS, **params):
    """Build an encoding for T = 128 and draw every parameter, so that none is zero."""
    encoding = encoding_of(name, 128, heads, WIDTH, 1, **params)
    for seed, parameter in enumerate(encoding.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=seed) * encoding.shape.d_model**-0.5)
    return encoding


def largest_difference(first, second):
    return (first.double() - second.double()).abs().max().item()


@torch.no_grad()
def test_alibi_is_that_of_bloom():
    """Bloom adds slope x key index, which the softmax cannot tell from -slope x distance."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    by_key = build_alibi_tensor(torch.ones(1, 2), 12, torch.float32)[:, 0]  # (H, 2)
    slopes = by_key[:, 1] - by_key[:, 0]
    bias = filled("alibi", 12).distance_bias(torch.tensor([1]), 0)[:, 0]
    assert largest_difference(-bias, slopes) <= 1e-7


def test_buckets_are_those_of_t5():
    from transformers.models.t5.modeling_t5 import T5Attention

    r = torch.arange(2000)
    expected = T5Attention._relative_position_bucket(-r, False, 32, 128)
    assert torch.equal(bucket(r, 32, 128), expected)


@torch.no_grad()
def test_xpos_is_that_of_x_transformers(xt):
    """Only products of queries and keys can be compared: posenc counts from another middle."""
    q = normal(1, 1, N, WIDTH)
    k = normal(1, 1, N, WIDTH, seed=1)
    rotated_q, rotated_k = filled("xpos", 1).rotate(q, k, POS, POS, 0)
    frequencies, scale = xt.RotaryEmbedding(WIDTH, use_xpos=True).forward_from_seq_len(N)
    expected_q = xt.apply_rotary_pos_emb(q, frequencies, scale)
    expected_k = xt.apply_rotary_pos_emb(k, frequencies, 1 / scale)
    scores = (rotated_q @ rotated_k.mT).tril()
    expected = (expected_q @ expected_k.mT).tril()
    assert largest_difference(scores, expected) <= 1e-3


@torch.no_grad()
def test_fox_is_the_data_dependent_alibi_of_x_transformers(xt):
    encoding = filled("fox")
    x = normal(1, N, HEADS * WIDTH)
    library = xt.DataDependentAlibi(HEADS * WIDTH, HEADS)
    library.to_forget_gates[0].weight.copy_(encoding.get_parameter("gate")[0])
    library.to_forget_gates[0].bias.copy_(encoding.get_parameter("offset")[0])
    no_scores = torch.zeros(1, HEADS, N, N)
    state = encoding.prepare(x, x, x, 0)
    bias = encoding.scores(no_scores, no_scores, no_scores, POS, POS, state, 0)
    assert largest_difference(bias[0].tril(), library(x)[0].tril()) <= 5e-4  # float32 sums to -400


@torch.no_grad()
def test_cope_is_that_of_x_transformers(xt):
    encoding = filled("cope", p_max=64)
    q = normal(1, HEADS, N, WIDTH)
    scores = normal(1, HEADS, N, N, seed=2)
    library = xt.CoPE(WIDTH, HEADS, 65)
    library.pos_emb.copy_(encoding.get_parameter("table")[0])
    future = torch.ones(N, N).triu(1).bool()
    expected = library(q, scores.masked_fill(future, -torch.finfo(scores.dtype).max))
    state = encoding.prepare(q, q, q, 0)
    bias = encoding.scores(scores, q, q, POS, POS, state, 0) - scores
    assert largest_difference(bias.tril(), expected.tril()) <= 1e-5


# --- Latent attention
def latent_attention(width, heads):
    attention = LatentAttention(width, heads, 0, kv_rank=96, q_rank=160, rope_dim=WIDTH)
    for seed, parameter in enumerate(attention.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=seed) * parameter.shape[-1] ** -0.5)
    return attention


def deepseek_attention(attention, width, heads):
    """Return the attention of DeepSeek-V3 with the weights of posenc's, and its rotation."""
    import transformers
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

    config = transformers.DeepseekV3Config(
        rope_scaling=None,
        attention_bias=False,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        q_lora_rank=160,
        kv_lora_rank=96,
        qk_rope_head_dim=attention.rope_dim,
        qk_nope_head_dim=attention.head_dim,
        v_head_dim=attention.head_dim,
        rope_theta=10000.0,
    )
    config._attn_implementation = "eager"
    library = v3.DeepseekV3Attention(config, 0).eval()
    # Its kv_b_proj has each head's key rows, then its value rows; posenc has all keys, then all values.
    by_head = attention.kv_up.weight.unflatten(0, (2, heads, attention.head_dim)).transpose(0, 1)
    weights = {
        "q_a_proj": attention.q_down.weight,
        "q_a_layernorm": attention.q_norm.weight,
        "q_b_proj": attention.q_up.weight,
        "kv_a_proj_with_mqa": attention.kv_down.weight,
        "kv_a_layernorm": attention.kv_norm.weight,
        "kv_b_proj": by_head.flatten(0, 2),
        "o_proj": attention.out.weight,
    }
    for name, weight in weights.items():
        library.get_submodule(name).weight.copy_(weight)
    return library, v3.DeepseekV3RotaryEmbedding(config)


@torch.no_grad()
def test_latent_attention_is_that_of_deepseek_v3():
    heads = 4
    width = 8 * WIDTH
    attention = latent_attention(width, heads)
    library, rotation = deepseek_attention(attention, width, heads)
    x = normal(1, N, width, seed=50)
    future = torch.full((N, N), torch.finfo(torch.float32).min).triu(1)
    expected = library(x, position_embeddings=rotation(x, POS[None]), attention_mask=future[None, None])[0]
    rope = filled("rope", 1, layout="interleaved")  # the rotary part is as wide as one head
    assert largest_difference(attention(x, POS, rope, N), expected) <= 2e-5


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("attention_factor", [None, 1.3])
def test_yarn_is_that_of_transformers(truncate, attention_factor):
    """gpt-oss has truncate=false."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": truncate,
        "attention_factor": attention_factor,
    }
    config = LlamaConfig(hidden_size=64, num_attention_heads=1, head_dim=64, rope_parameters=rope)
    theta, gain = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    encoding = encoding_of("rope", 512, 1, WIDTH, 1)
    model = Decoder(ModelShape("one", 64, 1, 1, 1), 5, encoding)
    knobs = {"truncate": truncate, "attention_factor": attention_factor}
    acting = build_extension({"name": "yarn", **knobs}, model).effective_encoding(2048)
    (part,) = acting.parts
    assert largest_difference(part.acting_frequencies(torch.device("cpu")), theta) < 1e-7
    assert part.gain == pytest.approx(gain)
