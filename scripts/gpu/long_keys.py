"""Compare PyTorch's fused attention with posenc's blocks where there are more than 65,536 keys.

Kernels count in 16 bits there in some versions of PyTorch (its issues 162588 and 187227).
"""

from __future__ import annotations

from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.building import build_of_shape
from posenc.model import kernels
from posenc.model.inputs import Heads, Layer
from posenc.settings.tree import EncodingSettings

HEADS = 8
WIDTH = 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def compare(keys: int, last_queries: int, precision: str, device: str) -> dict[str, object]:
    """Return the largest relative difference of an output vector, for each way in which posenc attends.

    masked   the last queries alone, with a mask of booleans, as in the last layer of an evaluation
    causal   every key's own query, as in the other layers
    """
    generator = torch.Generator(device).manual_seed(3)
    size = (1, HEADS, keys, WIDTH)
    vectors = [torch.randn(size, generator=generator, device=device) for _ in range(3)]
    heads = Heads(*(vector.to(DTYPES[precision]) for vector in vectors))
    differences: dict[str, object] = {}
    for name, queries in (("masked", last_queries), ("causal", keys)):
        differences[name] = _difference(heads._replace(q=heads.q[:, :, -queries:]))
    return differences


@torch.no_grad()
def _difference(heads: Heads) -> float:
    """Return the largest of all queries and heads; the blocks compute in float32."""
    q, k, v = heads
    scale = WIDTH**-0.5
    queries = q.shape[2]
    keys = k.shape[2]
    if queries == keys:
        fused = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    else:
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        fused = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
    exact = _by_blocks(Heads(q.float(), k.float(), v.float()))
    relative = (fused.float() - exact).norm(dim=-1) / exact.norm(dim=-1)
    return float(relative.max())


def _by_blocks(heads: Heads) -> Tensor:
    keys = heads.k.shape[2]
    shape = Shape(HEADS * WIDTH, HEADS, WIDTH, 1, keys)
    encoding = build_of_shape(shape, EncodingSettings(name="nope"))
    pos = torch.arange(keys, device=heads.k.device)
    no_input = heads.k.new_empty(0)  # this encoding does not read the layer's input

    def blocks(*inputs: object) -> str:
        return "blocks"

    with patch.object(kernels, "choose_kernel", blocks):
        return kernels.attend(heads, no_input, Layer(encoding, 0, pos))
