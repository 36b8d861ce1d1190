"""The two models of docs/python.md that posenc.nn becomes a part of, as the page has them."""

import pytest
import tiny
import torch
import torch.nn.functional as F

import posenc

LENGTH = 48  # longer than the 32 tokens of the page's train_length
SLOPES = 2.0 ** (-8 * torch.arange(1, 5) / 4)  # ALiBi's of four heads


def block_with(text):
    """Return the Python block of the page that has a text in it."""
    page = (tiny.ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    return next(block for block in blocks if text in block)


@pytest.fixture(scope="module")
def page():
    """Return the names that the two blocks define. One training step is enough here."""
    torch.manual_seed(0)
    names = {"torch": torch, "posenc": posenc}
    for text in ("class GPT", "register_attention"):
        exec(block_with(text).replace("range(30)", "range(1)"), names)
    return names


@pytest.fixture
def tokens(page):
    return page["text"][None, :LENGTH]


def alibi_bias(length=LENGTH):
    """Return ALiBi's bias with -inf for keys of the future, (H, T, T)."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (-SLOPES[:, None, None] * distance).masked_fill(distance < 0, float("-inf"))


class AttentionByFormula(torch.nn.Module):
    """Attend with the linear maps of a posenc.nn.Attention and ALiBi's formula."""

    def __init__(self, attention):
        super().__init__()
        self.maps = attention.attention

    def forward(self, x):
        q, k, v = self.maps.qkv(x).view(1, LENGTH, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=alibi_bias()[None])
        return self.maps.out(y.transpose(1, 2).flatten(2))


@torch.no_grad()
def test_the_model_in_the_manner_of_nanogpt_has_the_logits_of_the_formula(page, tokens):
    gpt = page["GPT"](256, width=32, heads=4, layers=2, encoding="alibi", train_length=32)
    logits = gpt(tokens)
    for block in gpt.blocks:
        block.attention = AttentionByFormula(block.attention)
    torch.testing.assert_close(logits, gpt(tokens), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_model_in_the_manner_of_nanogpt_is_causal(page, tokens):
    gpt = page["gpt"]  # with `fox`, after a step of training
    beginning = gpt(tokens[:, :20])
    torch.testing.assert_close(gpt(tokens)[:, :20], beginning, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_llama_has_the_logits_of_the_formula(page, tokens):
    """transformers' own eager attention adds a mask of four dimensions, here with the bias."""
    llama = page["llama"].eval()
    logits = llama(tokens).logits
    llama.set_attn_implementation("eager")
    bias = alibi_bias().clamp_min(torch.finfo(torch.float32).min)
    expected = llama(tokens, attention_mask=bias[None]).logits
    llama.set_attn_implementation("alibi")
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_bias_of_flex_attention_is_the_formula_and_hides_later_tokens(page):
    from torch.nn.attention.flex_attention import flex_attention

    names = dict(page)
    exec(block_with("create_block_mask"), names)
    q, k, v = names["q"], names["k"], names["v"]
    output = flex_attention(q, k, v, score_mod=names["bias"], block_mask=names["causal"])
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=alibi_bias(q.shape[2])[None])
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
