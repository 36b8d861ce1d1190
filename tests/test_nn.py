"""posenc.nn: encodings in somebody else's model, against formulas and against transformers itself."""

import hf_models
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import posenc
from posenc.core.errors import UserError
from posenc.encodings import list_encodings

WIDTH = 32
HEADS = 4
T = hf_models.T
SIZES = {"d_model": WIDTH, "n_heads": HEADS, "n_layers": 2, "train_length": T}
OUTSIDE = {"binary", "hybrid", "integer", "learned", "normalized", "pattern", "sinusoidal", "tape"}
OUTSIDE |= {"sinusoidal_trainable", "sum"}


def made(name, **parameters):
    return posenc.nn.make_encoding(name, **SIZES, **parameters)


def heads(length=T, seed=0):
    """Return queries, keys and values, (1, H, T, D) each."""
    return torch.randn(3, 1, HEADS, length, WIDTH // HEADS, generator=torch.Generator().manual_seed(seed))


# --- the module
@pytest.mark.parametrize("name", sorted(set(list_encodings()) - OUTSIDE))
def test_attention_takes_every_encoding_that_acts_inside_of_it(name):
    torch.manual_seed(0)
    attention = posenc.nn.Attention(WIDTH, HEADS, name, train_length=T)
    x = torch.randn(2, T, WIDTH, requires_grad=True)
    output = attention(x)
    output[:, : T // 2].sum().backward()
    assert output.shape == x.shape
    assert output.isfinite().all()
    assert not x.grad[:, T // 2 :].any()  # causal


@pytest.mark.parametrize(
    ("name", "message"), [("sinusoidal", "adds to the embeddings"), ("tape", "from layer to layer")]
)
def test_what_acts_outside_of_the_attention_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        posenc.nn.Attention(WIDTH, HEADS, name, train_length=T)


def test_a_name_needs_the_training_length():
    with pytest.raises(UserError, match="train_length"):
        posenc.nn.Attention(WIDTH, HEADS, "alibi")


def test_alibi_by_the_module_is_the_formula():
    torch.manual_seed(0)
    attention = posenc.nn.Attention(WIDTH, HEADS, "alibi", train_length=T)
    x = torch.randn(1, T, WIDTH)
    q, k, v = attention.attention.qkv(x).view(1, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    slopes = 2.0 ** (-8 * torch.arange(1, HEADS + 1) / HEADS)
    scores = q @ k.mT * (WIDTH // HEADS) ** -0.5 - slopes[:, None, None] * distance
    weights = scores.masked_fill(distance < 0, float("-inf")).softmax(-1)
    expected = attention.attention.out((weights @ v).transpose(1, 2).reshape(1, T, WIDTH))
    torch.testing.assert_close(attention(x), expected)


# --- FlexAttention
@pytest.mark.parametrize("name", ["alibi", "t5", "fire"])
def test_a_score_mod_is_the_bias(name):
    encoding = made(name)
    q, k, v = heads()
    pos = torch.arange(T)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device="cpu")
    with torch.no_grad():
        given = flex_attention(q, k, v, score_mod=posenc.nn.score_mod(encoding, T), block_mask=mask)
        bias = encoding.bias(pos, pos, 0).masked_fill(pos[:, None] < pos, float("-inf"))
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)


def test_what_is_no_bias_has_no_score_mod():
    with pytest.raises(UserError, match="not a bias alone"):
        posenc.nn.score_mod(made("rope"), T)


# --- transformers
@pytest.fixture
def llama():
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("llama", **(hf_models.SIZES | hf_models.LLAMA))
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def tokens():
    return torch.randint(250, (2, 2 * T), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_a_rotation_in_llama_is_the_one_of_transformers(llama, tokens):
    expected = llama(tokens).logits
    llama.model.rotary_emb = posenc.nn.RotaryEmbedding(made("rope", base=500.0, layout="half"))
    torch.testing.assert_close(llama(tokens).logits, expected, atol=1e-5, rtol=1e-4)
    llama.model.rotary_emb = posenc.nn.RotaryEmbedding(made("rope", base=20.0, layout="half"))
    assert (llama(tokens).logits - expected).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "parameters"), [("rope", {}), ("rope", {"fraction": 0.5}), ("xpos", {}), ("alibi", {})]
)
def test_a_rotation_that_llama_has_no_place_for_is_refused(name, parameters):
    with pytest.raises(UserError, match="encoding="):
        posenc.nn.RotaryEmbedding(made(name, **parameters))


@torch.no_grad()
def test_an_attention_function_without_a_bias_changes_nothing(llama, tokens):
    expected = llama(tokens).logits
    attend_by(llama, made("nope"))
    torch.testing.assert_close(llama(tokens).logits, expected, atol=1e-5, rtol=1e-4)


def attend_by(llama, encoding):
    """Let a Llama attend by an encoding."""
    transformers.AttentionInterface.register("of_posenc", posenc.nn.attention_function(encoding))
    transformers.AttentionMaskInterface.register("of_posenc", transformers.masking_utils.sdpa_mask)
    llama.set_attn_implementation("of_posenc")


@torch.no_grad()
def test_a_bias_in_llama_is_that_of_its_formula(llama, tokens):
    """transformers' own eager attention adds a mask of four dimensions, here with the bias."""
    encoding = made("alibi")
    pos = torch.arange(tokens.shape[1])
    llama.model.rotary_emb = posenc.nn.RotaryEmbedding(made("nope"))
    bias = encoding.bias(pos, pos, 0).masked_fill(pos[:, None] < pos, torch.finfo(torch.float32).min)
    llama.set_attn_implementation("eager")
    expected = llama(tokens, attention_mask=bias[None].expand(2, -1, -1, -1)).logits
    attend_by(llama, encoding)
    torch.testing.assert_close(llama(tokens).logits, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_decoding_with_a_cache_is_a_pass_over_all(llama, tokens):
    attend_by(llama, made("alibi"))
    cache = llama(tokens[:, :-1], use_cache=True).past_key_values
    last = llama(tokens[:, -1:], past_key_values=cache).logits
    torch.testing.assert_close(last, llama(tokens).logits[:, -1:], atol=1e-5, rtol=1e-4)


def test_texts_of_different_length_are_refused(llama, tokens):
    attend_by(llama, made("alibi"))
    padded = torch.ones_like(tokens)
    padded[0, :5] = 0
    with pytest.raises(ValueError, match="takes no mask"):
        llama(tokens, attention_mask=padded)
