"""Extensions that turn pairs more slowly: the frequencies of a rotary encoding, changed for a window.

theta_k are the trained frequencies in radians a token, highest first, k = 0..D'/2-1 for a rotated width D';
those that are zero (p-RoPE's dropped ones) stay zero. s is the factor: W/T with `factor: auto`, 1 up to T.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.families.rotary import Rotary
from posenc.evaluation.extend._base import Extension, RefusedError, check_range
from posenc.evaluation.extend._parts import moves, name_of, together, with_random_numbers
from posenc.evaluation.extend._scores import Times
from posenc.model.decoder import Decoder

Factor = float | Literal["auto"]


class Rescaled(Extension):
    """theta_k made smaller by a subclass; at s = 1 the trained encoding itself.

    What else acts by distance (a bias in a sum, a window, a law of the scores) keeps the true distances.
    """

    applies = (
        "encodings that turn pairs of queries and keys by pos * theta and change them by position in no "
        "other way (so not where pairs fade as well), alone or in a sum"
    )

    def __init__(self, model: Decoder, *, factor: Factor) -> None:
        super().__init__(model)
        self.turning = _turning(self.parts)
        if factor != "auto":
            check_range("factor", factor, 1)
        self.factor = factor

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        """theta (D'/2,) float64 at the factor s > 1."""
        raise NotImplementedError

    def logits(self, s: float) -> float:
        """What the logits are multiplied by at the factor s."""
        return 1.0

    def s(self, window: int) -> float:
        """The factor at a window of W tokens."""
        return max(1.0, self.span(window) / self.reach) if self.factor == "auto" else self.factor

    def acting(self, window: int) -> Encoding:
        s = self.s(window)
        if s == 1:
            return self.model.acting
        slower = with_frequencies(self.turning, lambda theta: self.rescaled(theta, s))
        parts = [slower if part is self.turning else part for part in self.parts]
        times = self.logits(s)
        shape = self.model.acting.shape
        return together(shape, parts if times == 1 else [*parts, Times(shape, times)])

    def resolved(self, window: int) -> dict[str, Any]:
        s = self.s(window)
        times = self.logits(s)
        return {"factor": s} if times == 1 else {"factor": s, "logits": times}


def with_frequencies(part: Rotary, change: Callable[[Tensor], Tensor]) -> Rotary:
    """The same encoding, its parameters shared, turning by change(theta) instead of theta."""
    trained = part.frequencies
    changed = copy.copy(part)
    changed.frequencies = lambda device=None: change(trained(device))  # type: ignore[method-assign]
    return changed


def stretched_base(theta: Tensor, s: float) -> Tensor:
    """theta of the base b s^(D'/(D'-2)) instead of b: the first stays, the last is divided by s."""
    k = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
    return theta * s ** (-k / (len(theta) - 1))  # 2k/(D'-2)


def check_pairs(part: Rotary) -> None:
    """Raises RefusedError where a base says nothing, because a single pair turns by 1 whatever it is."""
    if len(part.frequencies(torch.device("cpu"))) < 2:
        raise RefusedError("with a single pair the base changes nothing")


def by_parts(theta: Tensor, s: float, length: int, slow: float, fast: float) -> Tensor:
    """(1 - gamma) theta/s + gamma theta, gamma rising from 0 at `slow` turns in `length` to 1 at `fast`."""
    kept = ((length * theta / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)  # gamma (D'/2,)
    return (1 - kept) * theta / s + kept * theta


def check_betas(slow: float, fast: float) -> None:
    """Raises UserError unless 0 <= slow < fast."""
    check_range("beta_slow", slow, 0)
    check_range("beta_fast", fast, slow, above=True)


def none_kept(extension: Rescaled, fast: float) -> list[str]:
    """A warning where no frequency turns `fast` times within the training length."""
    most = float(extension.turning.frequencies(torch.device("cpu"))[0]) * extension.reach / (2 * math.pi)
    if most >= fast:
        return []
    return [
        f"{extension.name}: no frequency is kept: the fastest turns {most:.1f} times within "
        f"{extension.reach} tokens, less than extend.beta_fast={fast:g}"
    ]


def _turning(parts: tuple[Encoding, ...]) -> Rotary:
    """The one part that turns pairs. Raises RefusedError where there is none, or it does more than that."""
    rotating = [part for part in parts if "rotate" in part.hooks]
    if not rotating:
        raise RefusedError("no frequencies turn its queries and keys")
    part = rotating[0]  # a rotation decides alone, so there is no second
    if not isinstance(part, Rotary):
        raise RefusedError(f"{name_of(part)} does not turn pairs by frequencies")
    tried = with_random_numbers(part)
    assert isinstance(tried, Rotary)
    if moves(with_frequencies(tried, torch.zeros_like), torch.tensor([0, 1, 5])):
        raise RefusedError(f"{name_of(part)} does more by position than to turn pairs")
    return part
