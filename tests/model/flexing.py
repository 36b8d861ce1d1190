"""FlexAttention's path in the tests: inputs, references, and an eager stand-in for the kernel.

The stand-in computes what the GPU's kernel is asked to: blocks from the block mask, `mask_mod` in its partial
blocks alone, `score_mod` on every score.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.sum import Composed
from posenc.model import flex, flex_masks, kernels

BATCH, HEADS, WIDTH, LAYERS = 2, 4, 16, 2
SHAPE = Shape(HEADS * WIDTH, HEADS, WIDTH, LAYERS, 64)
NAMES = sorted(p.stem for p in (Path(__file__).parents[2] / "conf" / "encoding").glob("*.yaml"))
KEYS = 300  # three blocks of keys: full, partial and empty ones


def encoding(name: str) -> Encoding:
    given: dict[str, Any] = {"parts": ["alibi", "t5"]} if name == "sum" else {}
    sizes = {"d_model": HEADS * WIDTH, "n_heads": HEADS, "head_dim": WIDTH, "n_layers": LAYERS}
    return filled(build_encoding(name, train_length=64, **sizes, **given))


def filled(made: Encoding) -> Encoding:
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return made


def composed(name: str, *options: Encoding) -> Encoding:
    own = encoding(name)
    made = Composed(SHAPE, (own, *options))
    made.own = own  # holds it, so that its parameters are found
    return made


def given(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(3, BATCH, keys, HEADS, WIDTH, generator=generator).to(dtype).transpose(2, 3).unbind(0)
    )
    return q[:, :, -queries:] * 2, k, v


SERVED = [name for name in NAMES if encoding(name).hooks <= flex.SERVED]


def by_blocks(e: Encoding, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, layer: int = 0) -> Tensor:
    with patch.object(kernels, "choose", lambda *given: "blocks"):
        return kernels.attend(q, k, v, torch.zeros(BATCH, len(pos), HEADS * WIDTH), pos, e, layer)


def by_flex(
    e: Encoding, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, layer: int = 0, attention: Any = None
) -> Tensor:
    if "rotate" in e.hooks:
        q, k = e.rotate(q, k, pos[-q.shape[2] :], pos, layer)
    return flex.attend_flex(q, k, v, pos, e, layer, WIDTH**-0.5, attention)


def eager(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, blocks: Any, scale: float
) -> tuple[Tensor, Tensor]:
    """The same in plain tensors, with autograd; scores of at least float32."""
    b, h, t, s = (torch.arange(n) for n in (len(q), q.shape[1], q.shape[2], k.shape[2]))
    at = b[:, None, None, None], h[:, None, None], t[:, None], s
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * scale
    if score_mod is not None:
        scores = score_mod(scores, *at)
    full, partial = (
        dense(blocks.full_kv_num_blocks, blocks.full_kv_indices),
        dense(blocks.kv_num_blocks, blocks.kv_indices),
    )
    assert not (full & partial).any()
    block_of = (t[:, None] // flex_masks.BLOCK, s // flex_masks.BLOCK)
    seen = full[block_of] | (partial[block_of] & blocks.mask_mod(*at))
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1).to(v.dtype) @ v, scores.logsumexp(-1)


def dense(count: Tensor, which: Tensor) -> Tensor:
    """Lists of blocks -> (T blocks, S blocks) bool."""
    found = torch.zeros(which.shape[-2:], dtype=torch.bool)
    for row, (n, columns) in enumerate(zip(count[0, 0], which[0, 0], strict=True)):
        found[row, columns[:n].long()] = True
    return found
