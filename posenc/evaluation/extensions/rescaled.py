"""The base classes of extensions that rotate by other frequencies than the model was trained with.

A rotation turns pairs of numbers of a query or key. Pair k = 0..D'/2-1 turns by theta_k radians a token,
highest first, where D' is the rotated width. Frequencies that are zero (p-RoPE drops some) stay zero. s is
the factor by which the text is longer: W/T with `factor: auto`, and 1 up to T.

The rotation of a published checkpoint may be scaled already (llama3, yarn, linear). Then theta_k are its
scaled frequencies: `yarn` counts the turns that its pairs make now, and multiplies the factor that its cos
and sin have.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.extensions.base import Extension, Times, leaves
from posenc.settings.base import without_name

Factor = float | Literal["auto"]
CPU = torch.device("cpu")


@dataclass(eq=False, kw_only=True)
class OtherFrequencies(Extension):
    """Rotate by other theta_k beyond T, which a subclass computes. Biases keep the true distances."""

    applies = (
        "encodings that turn pairs of queries and keys by pos * theta and change them by position in no "
        "other way (so not where pairs fade as well), alone or in a sum"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        part = next((part for part in self.parts if "rotate" in part.hooks), None)  # a sum has one at most
        if part is None:
            raise self.refusal("no frequencies turn its queries and keys")
        if not isinstance(part, Rotary):
            raise self.refusal(f"{part.name} does not turn pairs by frequencies")
        if not part.keeps_lengths:
            raise self.refusal(f"{part.name} does more by position than to turn pairs")
        self.turning = part

    def check_change(self, window: int) -> None:
        if window > self.reach and self._turns_as_trained(window):
            knobs = ", ".join(f"extend.{knob}" for knob in without_name(self.settings))
            reason = f"at {window} tokens it turns by the frequencies of training"
            raise self.refusal(reason, hint=f"another {knobs} would change them" if knobs else None)

    def _turns_as_trained(self, window: int) -> bool:
        """Tell whether rotation and temperature at a window of W tokens are those of training."""
        acting_parts = leaves(self.effective_encoding(window))
        other_parts = [part for part in acting_parts if part not in self.parts]
        if not other_parts:
            return True
        acting = other_parts[0]
        if len(other_parts) > 1 or not isinstance(acting, Rotary):
            return False
        if acting.gain != self.turning.gain:
            return False
        return torch.equal(acting.acting_frequencies(CPU), self.turning.acting_frequencies(CPU))

    def changed(self, theta: Tensor) -> Tensor:
        """Return the frequencies beyond T, by the trained ones: (D'/2,) float64 each."""
        raise NotImplementedError

    def effective_encoding(self, window: int) -> Encoding:
        # Frequencies that do not depend on the window would harm the model within T for nothing.
        if window <= self.reach:
            return self.trained
        # A copy: the trained encoding measures the crop line in the same evaluation.
        changed_part = self.turning.with_frequencies(self.changed)
        return self.compose([changed_part if part is self.turning else part for part in self.parts])


@dataclass(eq=False, kw_only=True)
class Rescaled(OtherFrequencies):
    """Rotate by smaller theta_k, by a factor that follows from the window."""

    least: ClassVar[float] = 1  # the smallest factor that is allowed; 0 stands for any above 0
    factor: Factor

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_factor()

    def check_factor(self) -> None:
        """Raise UserError for a factor out of range."""
        if self.factor != "auto":
            self.check_range("factor", self.factor, self.least, above=self.least == 0)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        """Return the frequencies at the factor s > 1, by the trained ones: (D'/2,) float64 each."""
        raise NotImplementedError

    def gain(self, s: float) -> float:
        """Return the number by which rotated queries and keys are multiplied at the factor s."""
        return 1.0

    def logits(self, s: float) -> float:
        """Return the number by which the logits are multiplied at the factor s."""
        return 1.0

    def s(self, window: int) -> float:
        """Return the factor at a window of W tokens."""
        if self.factor == "auto":
            return max(1.0, self.span(window) / self.reach)
        return self.factor

    def effective_encoding(self, window: int) -> Encoding:
        s = self.s(window)
        # Not a copy: by this very object passes are shared with those of the model as trained.
        if s == 1:
            return self.trained
        slower = self.turning.with_frequencies(lambda theta: self.rescaled(theta, s), gain=self.gain(s))
        parts: list[Encoding] = [slower if part is self.turning else part for part in self.parts]
        times = self.logits(s)
        if times != 1:
            # The last part, so that biases are multiplied as well: they are logits, too.
            parts.append(Times(self.shape, times))
        return self.compose(parts)

    def resolved(self, window: int) -> dict[str, Any]:
        s = self.s(window)
        values = {"factor": s}
        # stored records have "turned" for the factor of rotated queries and keys
        for key, value in (("turned", self.gain(s)), ("logits", self.logits(s))):
            if value != 1:
                values[key] = value
        return values


def by_turns(x: Tensor, theta: Tensor, s: float, length: int, turns: tuple[float, float]) -> Tensor:
    """Divide x (D'/2,) by s for slow pairs, and leave it alone for fast ones.

    A pair is slow if it turns less often within `length` tokens than the first of `turns`, and fast if it
    turns more often than the second. In between gamma, the share of x that is left alone, rises from 0 to 1.
    """
    low, high = turns
    turns_of_pair = length * theta / (2 * math.pi)  # (D'/2,)
    gamma = ((turns_of_pair - low) / (high - low)).clamp(0, 1)  # (D'/2,)
    return (1 - gamma) * x / s + gamma * x
