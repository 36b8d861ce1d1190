"""The law of somebody else's callable beside one of posenc's encodings."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.laws.subject import Subject
from posenc.laws.verdict import NotApplicableError, Verdict, bounded, largest, require, within

EQUAL = 1e-3  # of float32 scores at 8T: angles in float32 are off by 1e-5; a wrong slope or base by 1e-1


def same(subject: Subject) -> Verdict:
    """Its scores are those of the encoding that it is compared with, up to 16T."""
    model = subject.fresh().eval()
    like = subject.like
    assert like is not None
    if any(True for _ in like.parameters()):
        raise NotApplicableError(f"{like.name} has learned values")
    hooks = model.encoding.hooks & {"bias", "rotate"}
    hooks_of_like = {"bias" if hook == "distance_bias" else hook for hook in like.hooks}
    require(hooks == hooks_of_like, f"{like.name} acts on {', '.join(sorted(hooks_of_like))}")
    # bf16 has every whole number up to 256, 8T here: a bias that is rounded to it shows beyond
    pos = torch.arange(2 * subject.longest())
    off = 0.0
    for layer in range(len(model.blocks)):
        scores = scores_of(model.encoding, pos, layer)  # (H, S, S)
        scores_of_like = scores_of(like, pos, layer)
        reason = f"its scores are not those of {like.name}"
        off = max(off, within(largest(scores, scores_of_like), EQUAL, reason))
    return Verdict("pass", bounded(off, EQUAL), f"as {like.name}")


@torch.no_grad()
def scores_of(encoding: Encoding, pos: Tensor, layer: int) -> Tensor:
    """Return what the encoding makes of scores, up to what the softmax takes away from each query."""
    if "rotate" in encoding.hooks:
        shape = (2, 1, encoding.shape.n_heads, len(pos), encoding.shape.head_dim)
        q, k = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        q, k = encoding.rotate(q, k, pos, pos, layer)
        return (q @ k.mT)[0].tril()  # (H, S, S)
    bias = encoding.bias(pos, pos, layer)  # (H, S, S)
    return (bias - bias.diagonal(dim1=1, dim2=2)[..., None]).tril()
