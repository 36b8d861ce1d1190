"""The attention function that posenc puts into models of transformers: its memory, and its masks."""

import hf_models
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.evaluation.extensions import build_extension
from posenc.evaluation.models.transformers import TransformersModel
from posenc.evaluation.models.transformers_attention import AttentionParts, ScoreOptions, attention
from posenc.model.kernels import changed_limits
from posenc.training.memory import peak_bytes

SHORT = 1024


@pytest.mark.parametrize("name", ["window", "self_extend", "logn"])
def test_memory_grows_with_the_tokens_and_not_with_their_pairs(name):
    subject = TransformersModel(hf_models.random_model("llama", **hf_models.LLAMA), hf_models.T)
    extension = build_extension({"name": name}, subject)

    def make_pass(window):
        tokens = torch.zeros(1, window, dtype=torch.int64)
        subject.target_logits(tokens, 1, extension.effective_encoding(window))

    scores = 8 * 4 * 2 * SHORT  # of eight queries in the longer window
    with changed_limits(max_scores=scores):
        assert peak_bytes(make_pass, 2 * SHORT) < 2.2 * peak_bytes(make_pass, SHORT)


class KeysOfProducts(TorchDispatchMode):
    """A context that notes how many columns the batched products in it have."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.seen.add(args[1].shape[-1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["self_extend", "dca", "rerope"])
def test_products_have_few_numbers_of_keys(name):
    """oneDNN keeps code and memory for each: SmolLM2 with self_extend took 6.5 GB at 32,768 tokens."""
    subject = TransformersModel(hf_models.random_model("llama", **hf_models.LLAMA), hf_models.T)
    encoding = build_extension({"name": name}, subject).effective_encoding(SHORT)
    tokens = torch.zeros(1, SHORT, dtype=torch.int64)
    with changed_limits(max_scores=8 * 4 * SHORT, block_sizes=8), KeysOfProducts() as keys:
        subject.target_logits(tokens, 1, encoding)
    # numbers of keys in scores, the head's width in sums of values, and in products of the weights
    assert 8 <= len(keys.seen) <= 8 + 8 + 2


def test_a_mask_may_be_numbers_that_are_added():
    q, k, v = torch.randn(3, 2, 4, 8, 16, generator=torch.Generator().manual_seed(0))
    options = ScoreOptions(layer=0, scale=0.25, softcap=None, sinks=None)
    is_visible = torch.ones(2, 1, 8, 8, dtype=torch.bool).triu(-3)  # the four nearest keys
    numbers = torch.zeros(is_visible.shape).masked_fill(~is_visible, torch.finfo(torch.float32).min)
    by_mask = attention(AttentionParts.of(()), q, k, v, is_visible, options)
    torch.testing.assert_close(attention(AttentionParts.of(()), q, k, v, numbers, options), by_mask)
    assert not torch.allclose(attention(AttentionParts.of(()), q, k, v, None, options), by_mask)
