"""The law of somebody else's callable beside one of posenc's encodings."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.laws.subject import Subject
from posenc.laws.verdict import (
    LawNotApplicableError,
    Verdict,
    largest_difference,
    require,
    require_below,
    with_bound,
)

# Bound on differences of float32 scores at 8T: angles in float32 give 1e-5, a wrong slope or base 1e-1.
SCORES_BOUND = 1e-3


def same(subject: Subject) -> Verdict:
    """Its scores are those of the encoding that it is compared with, up to 16T."""
    model = subject.fresh().eval()
    like = subject.like
    assert like is not None
    has_parameters = len(list(like.parameters())) > 0
    # Somebody else's function has other weights, so their scores cannot be the same.
    if has_parameters:
        raise LawNotApplicableError(f"{like.name} has learned values")
    hooks = model.encoding.hooks & {"bias", "rotate"}
    # A callable gets positions, so it has a `bias` even where the encoding of posenc has one by distance.
    hooks_of_like = {"bias" if hook == "distance_bias" else hook for hook in like.hooks}
    require(hooks == hooks_of_like, f"{like.name} acts on {', '.join(sorted(hooks_of_like))}")
    # bf16 has every whole number up to 256, 8T here: a bias that is rounded to it shows beyond
    pos = torch.arange(2 * subject.longest())
    largest = 0.0
    for layer in range(len(model.blocks)):
        scores = scores_of(model.encoding, pos, layer)  # (H, S, S)
        scores_of_like = scores_of(like, pos, layer)
        difference = largest_difference(scores, scores_of_like)
        require_below(difference, SCORES_BOUND, f"its scores are not those of {like.name}")
        largest = max(largest, difference)
    return Verdict("pass", with_bound(largest, SCORES_BOUND), f"as {like.name}")


@torch.no_grad()
def scores_of(encoding: Encoding, pos: Tensor, layer: int) -> Tensor:
    """Return scores (H, S, S) as the encoding makes them.

    A bias is relative to that of the query itself: the softmax ignores what all scores of a query share.
    """
    if "rotate" in encoding.hooks:
        shape = (2, 1, encoding.shape.n_heads, len(pos), encoding.shape.head_dim)
        # By a seed of its own: both encodings must turn the same vectors.
        q, k = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        q, k = encoding.rotate(q, k, pos, pos, layer)
        # The attention hides the future, so the scores of future keys may differ.
        return (q @ k.mT)[0].tril()  # (H, S, S)
    bias = encoding.bias(pos, pos, layer)  # (H, S, S)
    return (bias - bias.diagonal(dim1=1, dim2=2)[..., None]).tril()
