"""Laws of positions: what a shift leaves alone, whether they count at all, and penalties by distance."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.laws.order import SAME
from posenc.laws.subject import FAR, LONGEST, Subject, largest, logits, tokens
from posenc.laws.verdict import NotApplicableError, Verdict, require, within

SHIFTED = 5e-5  # cosines of other angles are rounded otherwise: 2e-6 is usual; float32 angles 3e-4


def shift(subject: Subject) -> Verdict:
    """Positions that all move alike, near and far."""
    if not subject.declared.relative:
        raise NotApplicableError("not declared relative")
    model, n = subject.anywhere(subject.fresh()), subject.longest(2)
    ids, pos = tokens(model, n), torch.arange(n)
    before, off = logits(model, ids, pos), 0.0
    for by in (1, 1000, FAR - LONGEST * subject.train_length):
        try:
            moved = largest(before, logits(model, ids, pos + by))
        except ValueError as error:
            raise NotApplicableError(f"refuses far positions: {error}") from error
        off = moved if not moved < off else off
        within(off, SHIFTED, f"logits move when all positions move by {by}")
    return Verdict("pass", within(off, SHIFTED, ""))


def positions(subject: Subject) -> Verdict:
    """First what they are, then whether they are used as declared."""
    _are_positions(subject)
    model, n = subject.anywhere(subject.fresh()), max(2, subject.train_length // 2)
    ids, pos = tokens(model, n), torch.arange(n)
    before, used = logits(model, ids, pos), subject.declared.uses_positions
    for change, moved in _changes(pos).items():
        off = largest(before, logits(model, ids, moved))
        if used and off > SAME:
            return Verdict("pass", f"{off:.1e} by {change}")
        require(used or off == 0, f"declared unused, and {change} changes logits", f"{off:.1e}")
    require(not used, "declared used, and no change of positions changes logits")
    return Verdict("pass", "0", "declared: uses no positions")


def _changes(pos: Tensor) -> dict[str, Tensor]:
    """Other positions for the same tokens. A stretch alone is too little: a share of the length stays."""
    n = len(pos)
    gap = pos + n * (pos >= n // 2)
    return {"a gap in the middle": gap, "a stretch": 3 * pos, "a long stretch": (FAR - 1) // n * pos}


def _are_positions(subject: Subject) -> None:
    n = subject.train_length
    for training in (True, False):
        model = subject.fresh().train(training)
        pos = model.positions(n, generator_for(1, "law"))
        require(
            pos.shape == (n,) and pos.dtype == torch.int64, f"positions are {pos.dtype} {tuple(pos.shape)}"
        )
        require(
            int(pos[0]) >= 0 and bool((pos.diff() > 0).all()), "positions do not increase from 0 or above"
        )
        again = model.positions(n, generator_for(1, "law"))
        require(torch.equal(pos, again), "positions depend on more than their generator")


def penalty(subject: Subject) -> Verdict:
    """A bias of a query near, past T and far, over keys at all distances to 8T and a few beyond."""
    encoding = subject.declared
    if not encoding.penalty:
        raise NotApplicableError("not declared a penalty")
    if not encoding.hooks & {"bias", "distance_bias"}:
        raise NotApplicableError("its penalty is made of the text, not of distances")
    model = subject.fresh().eval()
    near = subject.train_length * LONGEST
    fallen = 0.0
    for layer in range(len(model.blocks)):
        for at in (subject.train_length - 1, near, FAR - 1):
            bias = _by_distance(model.effective_encoding, at, near, layer)  # (H, R)
            require(bool(bias.isfinite().all()), f"its bias at position {at} is not finite")
            rise = bias.diff(dim=-1) - 1e-6 * bias[:, 1:].abs()  # float32 rounds
            require(bool((rise <= 0).all()), "its bias rises with the distance", f"{bias.diff().max():.1e}")
            fallen = max(fallen, (bias[:, 0] - bias[:, -1]).max().item())
    require(fallen > 0, "declares a penalty, and its bias is the same at every distance")
    return Verdict("pass", f"falls by up to {fallen:.3g}")


@torch.no_grad()
def _by_distance(encoding: Encoding, at: int, near: int, layer: int) -> Tensor:
    """Bias (H, R) of the query at position `at` for growing distances."""
    r = torch.unique(torch.cat((torch.arange(near + 1), 2 ** torch.arange(17))).clamp_max(at))  # ascending
    bias: Tensor = encoding.bias(torch.tensor([at]), at - r.flip(0), layer)  # (H, 1, R), oldest key first
    return bias[:, 0].flip(-1)
