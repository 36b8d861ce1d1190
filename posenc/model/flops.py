"""Floating-point operations of the decoder: what MFU counts as useful.

Counted: the products with the weights (attention, MLP, output map) and the two products of the attention,
each with every key of the window as in PaLM (arXiv 2204.02311, appendix B): twice what a causal mask needs.
Not counted: norms, softmax, the optimizer, and whatever an encoding adds. Backward is two forward passes.
"""

from __future__ import annotations

from torch import nn

from posenc.model.attention import Attention
from posenc.model.decoder import Decoder
from posenc.model.mla import LatentAttention

BACKWARD = 2  # of a forward pass: a product for the input's gradient and one for the weight's


def product_weights(model: Decoder) -> int:
    """N: weights that every token is multiplied with. The embedding counts once, as the output map."""
    maps = (one for block in model.blocks for one in block.modules() if isinstance(one, nn.Linear))
    return sum(one.weight.numel() for one in maps) + model.embedding.weight.numel()


def forward_flops(model: Decoder, length: int) -> int:
    """Operations a token of a window of `length` tokens in one forward pass: 2 N + attention."""
    attention = 0
    for own in model.modules():
        if not isinstance(own, Attention | LatentAttention):
            continue
        keys = own.head_dim + getattr(own, "rope_dim", 0)  # of a query and a key; values are head_dim wide
        attention += 2 * own.n_heads * (keys + own.head_dim) * length
    return 2 * product_weights(model) + attention


def training_flops(model: Decoder, length: int) -> int:
    """Operations a token of one training step: 6 N + 3 times the attention's."""
    return (1 + BACKWARD) * forward_flops(model, length)
