"""posenc.nn: encodings in somebody else's model, against formulas and against transformers itself."""

import hf_models
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import posenc
from posenc.core.errors import UserError
from posenc.encodings import list_encodings
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.rotary import Rotary

WIDTH = 32
HEADS = 4
T = hf_models.T
SIZES = {"d_model": WIDTH, "n_heads": HEADS, "n_layers": 2, "train_length": T}
OUTSIDE = {"binary", "hybrid", "integer", "learned", "normalized", "sinusoidal", "tape"}
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


NO_LENGTHS = [0, -5, "32", 32.5, 32.0, True, None]


@pytest.mark.parametrize("length", NO_LENGTHS)
def test_a_training_length_is_a_whole_number_from_1(length):
    with pytest.raises(UserError, match=r"train_length.*\n  allowed: a whole number from 1"):
        posenc.nn.make_encoding("alibi", d_model=WIDTH, n_heads=HEADS, train_length=length)


@pytest.mark.parametrize("length", NO_LENGTHS[:-1])
def test_a_training_length_of_an_encoding_by_name_is_a_whole_number_from_1(length):
    with pytest.raises(UserError, match=r"train_length=.*\n  allowed: a whole number from 1"):
        posenc.nn.Attention(WIDTH, HEADS, "alibi", train_length=length)


@pytest.mark.parametrize("written", ["32", 32.0])
def test_a_whole_number_of_another_type_is_shown_as_it_should_be(written):
    with pytest.raises(UserError, match=r"write train_length=32$"):
        posenc.nn.Attention(WIDTH, HEADS, "alibi", train_length=written)


def test_a_training_length_of_numpy_is_a_whole_number():
    attention = posenc.nn.Attention(WIDTH, HEADS, "alibi", train_length=np.int64(T))
    assert attention.encoding.shape.train_length == T


def test_a_built_encoding_takes_no_training_length():
    with pytest.raises(UserError, match="train_length=99: is for an encoding by name"):
        posenc.nn.Attention(WIDTH, HEADS, made("alibi"), train_length=99)


def test_a_built_encoding_takes_no_parameters():
    with pytest.raises(UserError, match=r"base=20\.0: is for an encoding by name"):
        posenc.nn.Attention(WIDTH, HEADS, made("rope"), base=20.0)


def test_an_encoding_for_other_heads_is_refused():
    with pytest.raises(UserError, match="n_heads=2: alibi was made for n_heads=4"):
        posenc.nn.Attention(WIDTH, 2, made("alibi"))


def test_a_layer_beyond_those_of_the_encoding_is_refused():
    with pytest.raises(UserError, match="layer=2: alibi was made for n_layers=2"):
        posenc.nn.Attention(WIDTH, HEADS, made("alibi"), layer=2)


def test_heads_that_do_not_share_the_width_evenly_are_refused():
    with pytest.raises(UserError, match="n_heads=5: does not divide d_model=32"):
        posenc.nn.make_encoding("alibi", d_model=WIDTH, n_heads=5, train_length=T)


@pytest.mark.parametrize("n_heads", [0, -4, 4.0, "4", True])
def test_a_number_of_heads_is_a_whole_number_from_1(n_heads):
    with pytest.raises(UserError, match=r"n_heads=.*\n  allowed: a whole number from 1"):
        posenc.nn.Attention(WIDTH, n_heads, "alibi", train_length=T)


@pytest.mark.parametrize("key", ["d_model", "n_heads", "n_layers", "head_dim"])
def test_each_size_of_an_encoding_is_a_whole_number_from_1(key):
    with pytest.raises(UserError, match=f"{key}=0: too small"):
        posenc.nn.make_encoding("alibi", **(SIZES | {key: 0}))


@pytest.mark.parametrize("name", ["alibi", "fire"])
def test_a_layer_by_name_is_a_whole_number_from_0(name):
    with pytest.raises(UserError, match="layer=-1: too small"):
        posenc.nn.Attention(WIDTH, HEADS, name, train_length=T, layer=-1)


def test_a_layer_of_a_built_encoding_is_a_whole_number_from_0():
    with pytest.raises(UserError, match="layer=-1: too small"):
        posenc.nn.Attention(WIDTH, HEADS, made("alibi"), layer=-1)


@pytest.mark.parametrize(
    ("encoding", "shown"), [(None, "None"), (torch.nn.Linear, "Linear"), (torch.nn.Identity(), "Identity")]
)
def test_an_attention_takes_a_name_or_an_encoding(encoding, shown):
    with pytest.raises(UserError, match=f"encoding={shown}: is not an encoding\n  allowed: a name, or"):
        posenc.nn.Attention(WIDTH, HEADS, encoding)


TAKE_NO_NAME = {
    "score_mod": lambda: posenc.nn.score_mod("alibi", T),
    "RotaryEmbedding": lambda: posenc.nn.RotaryEmbedding("alibi"),
    "attention_function": lambda: posenc.nn.attention_function("alibi"),
    "register_attention": lambda: posenc.nn.register_attention("mine", "alibi"),
}


@pytest.mark.parametrize("function", TAKE_NO_NAME.values(), ids=TAKE_NO_NAME)
def test_a_name_in_the_place_of_a_built_encoding_is_refused(function):
    with pytest.raises(UserError, match=r'(?s)encoding=alibi: is a name.*make_encoding\("alibi"'):
        function()


@pytest.mark.parametrize("of", ["a name", "a built encoding"])
@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("n_layers", 4, r"make_encoding\(NAME, n_layers=...\)"),
        ("head_dim", 16, "d_model / n_heads"),
        ("dropout", 0.1, "put nn.Dropout behind it"),
        ("device", "cuda", r"Attention\(...\).to\(device\)"),
    ],
)
def test_what_an_attention_does_not_have_is_refused(of, key, value, hint):
    encoding = "alibi" if of == "a name" else made("alibi")
    with pytest.raises(UserError, match=f"(?s)^error: {key}={value}: posenc.nn.Attention .*{hint}"):
        posenc.nn.Attention(WIDTH, HEADS, encoding, **{key: value})


@pytest.fixture
def alibi_attention():
    return posenc.nn.Attention(WIDTH, HEADS, "alibi", train_length=T)


@pytest.mark.parametrize("shape", [(6, WIDTH), (2, 6, WIDTH // 2), (1, 2, 6, WIDTH)])
def test_an_input_of_another_shape_is_refused(alibi_attention, shape):
    with pytest.raises(UserError, match=r"(?s)x=.*allowed: a tensor \(B, T, 32\)"):
        alibi_attention(torch.randn(shape))


@pytest.mark.parametrize(
    "positions", [torch.arange(12).view(2, 6), torch.arange(5), torch.arange(7), list(range(6))]
)
def test_positions_of_another_shape_are_refused(alibi_attention, positions):
    with pytest.raises(UserError, match=r"(?s)positions=.*allowed: a tensor \(6,\)"):
        alibi_attention(torch.randn(2, 6, WIDTH), positions)


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


@pytest.mark.parametrize("length", [0, -1, 8.0, "8"])
def test_the_length_of_a_score_mod_is_a_whole_number_from_1(length):
    with pytest.raises(UserError, match=r"length=.*\n  allowed: a whole number from 1"):
        posenc.nn.score_mod(made("alibi"), length)


@pytest.mark.parametrize("layer", [-1, 2])
def test_the_layer_of_a_score_mod_is_one_of_the_encoding(layer):
    with pytest.raises(UserError, match=f"layer={layer}: "):
        posenc.nn.score_mod(made("alibi"), T, layer=layer)


def test_the_score_mod_of_an_encoding_without_hooks_changes_nothing():
    score = torch.ones(())
    pair = torch.tensor(2)
    assert posenc.nn.score_mod(made("nope"), T)(score, pair, pair, pair, pair) is score


def test_a_score_mod_is_on_the_device_of_its_encoding():
    score_mod = posenc.nn.score_mod(made("t5").to("meta"), T)
    pair = torch.arange(2, device="meta")
    assert score_mod(torch.ones(2, device="meta"), pair, pair, pair, pair).is_meta


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


def test_a_rotation_for_a_model_of_another_width_is_refused(llama, tokens):
    wider = posenc.nn.make_encoding("rope", **(SIZES | {"d_model": 2 * WIDTH}), layout="half")
    llama.model.rotary_emb = posenc.nn.RotaryEmbedding(wider)
    with pytest.raises(UserError, match="d_model=32: rope was made for d_model=64"):
        llama(tokens)


@pytest.mark.parametrize(("name", "parameters"), [("rope", {"layout": "half"}), ("nope", {})])
def test_a_rotation_of_wider_heads_is_refused_by_the_configuration(llama, name, parameters):
    encoding = made(name, head_dim=16, **parameters)
    with pytest.raises(UserError, match=f"head_dim=8: {name} was made for head_dim=16"):
        posenc.nn.RotaryEmbedding(encoding, llama.config)


def test_the_configuration_says_which_part_of_a_head_is_rotated():
    config = transformers.AutoConfig.for_model("gpt_neox", **hf_models.GPT_NEOX)
    posenc.nn.RotaryEmbedding(made("rope", head_dim=4, layout="half"), config)
    with pytest.raises(UserError, match="head_dim=4: rope was made for head_dim=8"):
        posenc.nn.RotaryEmbedding(made("rope", layout="half"), config)


class TrainedFrequencies(Rotary):
    """A rotation of whole heads whose frequencies are trained."""

    name = "trained_frequencies"

    def __init__(self, shape):
        super().__init__(shape, base=20.0, layout="half", width=shape.head_dim)
        self.theta = torch.nn.Parameter(super().frequencies())

    def frequencies(self, device=None):
        return self.theta


def test_frequencies_in_llama_are_trained():
    encoding = TrainedFrequencies(Shape(WIDTH, HEADS, WIDTH // HEADS, 2, T))
    cos, _ = posenc.nn.RotaryEmbedding(encoding)(torch.ones(1), torch.arange(T)[None])
    cos.sum().backward()
    assert encoding.theta.grad.abs().sum() > 0


@torch.no_grad()
def test_an_attention_function_without_a_bias_changes_nothing(llama, tokens):
    expected = llama(tokens).logits
    attend_by(llama, made("nope"))
    torch.testing.assert_close(llama(tokens).logits, expected, atol=1e-5, rtol=1e-4)


def attend_by(llama, encoding):
    """Let a Llama attend by an encoding."""
    posenc.nn.register_attention("of_posenc", encoding)
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


def test_a_learned_bias_that_is_a_part_of_a_llama_is_trained_and_saved(llama, tokens):
    encoding = made("kerple_log")
    attend_by(llama, encoding)
    llama.position_bias = encoding
    before = {name: value.clone() for name, value in encoding.named_parameters()}
    optimizer = torch.optim.SGD(llama.parameters(), lr=0.1)
    llama(tokens, labels=tokens).loss.backward()
    optimizer.step()
    saved = llama.state_dict()
    for name, value in before.items():
        assert not torch.equal(saved[f"position_bias.{name}"], value)


@torch.no_grad()
def test_decoding_with_a_cache_is_a_pass_over_all(llama, tokens):
    attend_by(llama, made("alibi"))
    cache = llama(tokens[:, :-1], use_cache=True).past_key_values
    last = llama(tokens[:, -1:], past_key_values=cache).logits
    torch.testing.assert_close(last, llama(tokens).logits[:, -1:], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["alibi", "dape", "fire", "kerple_log", "stick_breaking", "t5"])
def test_an_encoding_for_fewer_layers_than_llama_is_refused(llama, tokens, name):
    attend_by(llama, posenc.nn.make_encoding(name, **{**SIZES, "n_layers": 1}))
    with pytest.raises(UserError, match=f"layer=1: {name} was made for n_layers=1"):
        llama(tokens)


@torch.no_grad()
def test_an_encoding_for_more_layers_than_llama_is_taken(llama, tokens):
    attend_by(llama, made("alibi"))
    expected = llama(tokens).logits
    attend_by(llama, posenc.nn.make_encoding("alibi", **{**SIZES, "n_layers": 8}))
    assert torch.equal(llama(tokens).logits, expected)


def test_an_encoding_for_more_heads_than_llama_is_refused(llama, tokens):
    attend_by(llama, posenc.nn.make_encoding("alibi", **{**SIZES, "n_heads": 2 * HEADS}))
    with pytest.raises(UserError, match="n_heads=4: alibi was made for n_heads=8"):
        llama(tokens)


def test_an_encoding_for_wider_heads_than_those_of_llama_is_refused(llama, tokens):
    attend_by(llama, made("alibi", head_dim=16))
    with pytest.raises(UserError, match="head_dim=8: alibi was made for head_dim=16"):
        llama(tokens)


def test_texts_of_different_length_are_refused(llama, tokens):
    attend_by(llama, made("alibi"))
    padded = torch.ones_like(tokens)
    padded[0, :5] = 0
    with pytest.raises(UserError, match="takes no mask"):
        llama(tokens, attention_mask=padded)


@torch.no_grad()
def test_a_function_and_a_mask_registered_one_by_one_are_the_same(llama, tokens):
    encoding = made("alibi")
    attend_by(llama, encoding)
    expected = llama(tokens).logits
    transformers.AttentionInterface.register("one_by_one", posenc.nn.attention_function(encoding))
    transformers.AttentionMaskInterface.register("one_by_one", transformers.masking_utils.sdpa_mask)
    llama.set_attn_implementation("one_by_one")
    assert torch.equal(llama(tokens).logits, expected)


@torch.no_grad()
def test_an_attention_function_without_a_mask_function_is_refused(llama, tokens):
    """transformers makes no mask then, and padding was ignored in silence."""
    transformers.AttentionInterface.register("no_mask", posenc.nn.attention_function(made("alibi")))
    llama.set_attn_implementation("no_mask")
    padded = torch.ones_like(tokens)
    padded[0, :5] = 0
    with pytest.raises(UserError, match=r"register_attention\('no_mask', encoding\)"):
        llama(tokens, attention_mask=padded)


@torch.no_grad()
def test_a_mask_function_that_knows_no_static_cache_is_refused(llama, tokens):
    mask_function = transformers.masking_utils.flash_attention_mask
    transformers.AttentionInterface.register("other_mask", posenc.nn.attention_function(made("alibi")))
    transformers.AttentionMaskInterface.register("other_mask", mask_function)
    llama.set_attn_implementation("other_mask")
    with pytest.raises(UserError, match="registered without sdpa_mask"):
        llama(tokens)


@pytest.mark.parametrize("length", [1, 9])
@torch.no_grad()
def test_a_static_cache_is_refused_in_its_first_pass(llama, tokens, length):
    """transformers makes no mask for it, and the queries were taken for those of the last keys."""
    attend_by(llama, made("alibi"))
    cache = transformers.StaticCache(config=llama.config, max_cache_len=2 * T)
    with pytest.raises(UserError, match="cache"):
        llama(tokens[:, :length], past_key_values=cache)


def test_generation_with_a_static_cache_is_refused(llama, tokens):
    attend_by(llama, made("alibi"))
    with pytest.raises(UserError, match="cache"):
        llama.generate(tokens[:, :9], max_new_tokens=4, cache_implementation="static")


def test_generation_is_the_choice_of_the_best_token_in_each_pass(llama, tokens):
    attend_by(llama, made("alibi"))
    text = tokens[:1, :9]
    generated = llama.generate(text, max_new_tokens=4, do_sample=False, eos_token_id=None)
    for _ in range(4):
        with torch.no_grad():
            best = llama(text).logits[:, -1:].argmax(-1)
        text = torch.cat((text, best), dim=1)
    assert torch.equal(generated, text)


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_no_attention_function_of_transformers_is_replaced(name):
    with pytest.raises(UserError, match=f"name={name}: transformers has"):
        posenc.nn.register_attention(name, made("alibi"))


@torch.no_grad()
def test_a_registered_name_can_have_another_encoding(llama, tokens):
    attend_by(llama, made("alibi"))
    with_alibi = llama(tokens).logits
    attend_by(llama, made("nope"))
    assert not torch.allclose(llama(tokens).logits, with_alibi)


@pytest.fixture
def attend_by_alibi():
    """Return a function that attends by ALiBi in two tokens, with what a model of transformers asks for."""
    attend = posenc.nn.attention_function(made("alibi"))
    q, k, v = heads(length=2)
    return lambda **arguments: attend(torch.nn.Identity(), q, k, v, None, **arguments)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dropout", 0.1),
        ("sliding_window", 1),
        ("softcap", 50.0),
        ("s_aux", torch.zeros(HEADS)),
        ("position_bias", torch.zeros(1, HEADS, 2, 2)),
        ("is_causal", False),
    ],
)
def test_what_a_model_asks_of_its_attention_is_not_lost(attend_by_alibi, key, value):
    with pytest.raises(UserError, match=key):
        attend_by_alibi(**{key: value})


@pytest.mark.parametrize(
    "arguments",
    [{"dropout": 0.0}, {"sliding_window": 2}, {"softcap": None}, {"position_ids": torch.arange(2)[None]}],
)
def test_arguments_that_ask_for_nothing_are_ignored(attend_by_alibi, arguments):
    output, _ = attend_by_alibi(**arguments)
    assert torch.equal(output, attend_by_alibi()[0])


@pytest.mark.parametrize("name", ["alibi", "t5", "kerple_log", "hard_alibi"])
def test_positions_with_gaps_are_refused_where_an_encoding_would_not_see_them(name):
    attention = posenc.nn.Attention(WIDTH, HEADS, name, train_length=T)
    x = torch.randn(1, 6, WIDTH)
    with pytest.raises(UserError, match="counts distances in tokens"):
        attention(x, torch.arange(6) * 3)
    positions = torch.arange(6) + 5
    assert torch.equal(attention(x, positions), attention(x))
    positions[3:] += 100  # the same tensor, changed in place
    with pytest.raises(UserError, match="counts distances in tokens"):
        attention(x, positions)


def test_a_sum_that_looks_at_pairs_takes_positions_with_gaps():
    encoding = made("sum", parts=["alibi", "fire"])
    attention = posenc.nn.Attention(WIDTH, HEADS, encoding)
    x = torch.randn(1, 6, WIDTH)
    assert not torch.allclose(attention(x, torch.arange(6) * 3), attention(x))


def test_what_an_encoding_warns_of_is_a_warning():
    """Of a single layer `rnope_swa` has the one without an encoding."""
    with pytest.warns(UserWarning, match="none of the 1 layers is rotated"):
        posenc.nn.make_encoding("rnope_swa", **{**SIZES, "n_layers": 1})


@pytest.mark.parametrize("name", ["path", "fox", "alibi"])
def test_attention_takes_weights_in_bf16(name):
    attention = posenc.nn.Attention(WIDTH, HEADS, name, train_length=T).to(torch.bfloat16)
    assert attention(torch.randn(1, T, WIDTH, dtype=torch.bfloat16)).isfinite().all()


def test_a_model_that_sees_the_future_is_refused():
    attend = posenc.nn.attention_function(made("alibi"))
    layer = torch.nn.Identity()
    layer.is_causal = False
    with pytest.raises(UserError, match="is_causal"):
        attend(layer, *heads(), None)


@pytest.mark.parametrize(
    ("name", "message"),
    [("repo", "more than rotated queries"), ("tape", "more than"), ("pattern", "more than")],
)
def test_what_needs_more_than_scores_has_no_attention_function(name, message):
    with pytest.raises(UserError, match=message):
        posenc.nn.attention_function(made(name))


class CarriesNumbers(Encoding):
    """An encoding that acts on scores alone and hands numbers from layer to layer."""

    name = "carries_numbers"

    def for_one_pass(self):
        return CarriesNumbers(self.shape)


def test_what_carries_numbers_between_layers_has_no_attention_function():
    with pytest.raises(UserError, match="from layer to layer"):
        posenc.nn.attention_function(CarriesNumbers(made("nope").shape))
