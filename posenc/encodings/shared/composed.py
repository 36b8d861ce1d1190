"""Several encodings that act as one: a sum, or an encoding together with its options."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape, StepCost, hooks_on_scores

# Hooks that only one part may have, and what each of several parts with the hook does.
EXCLUSIVE_HOOKS = {
    "positions": "each draws the positions of all",
    "rotate": "each rotates queries and keys",
    "weights": "each makes weights of the scores",
    "sink": "each adds a sink to the softmax",
    "values": "each makes the output of weights and values",
}


def declare_as(encoding: Encoding, parts: Sequence[Encoding]) -> None:
    """Set what an encoding declares to what its parts declare together.

    Raises ValueError if the parts have different policies past T.
    """
    # Two policies cannot both hold: one part would cut the text that the other one extends.
    policies = {part.beyond for part in parts} - {None}
    if len(policies) > 1:
        raise ValueError(f"parts differ in what is done past T: {sorted(map(str, policies))}")
    encoding.beyond = next(iter(policies), None)
    # The part that ends first ends the whole.
    ends = [part.ends_at for part in parts if part.ends_at is not None]
    encoding.ends_at = min(ends, default=None)
    encoding.prefix_stable = all(part.prefix_stable for part in parts)
    encoding.relative = all(part.relative for part in parts)
    encoding.uses_positions = any(part.uses_positions for part in parts)
    encoding.replaces_product = any(part.replaces_product for part in parts)
    encoding.scales_with_q = all(part.scales_with_q for part in parts)


def changes_scores(part: Encoding) -> bool:
    """Tell whether a part changes scores, weights or values otherwise than by a bias or a sink."""
    return "prepare" in part.hooks or bool(hooks_on_scores(part))


def sum_of_learned(parts: Sequence[Encoding]) -> int | None:
    """Return how many parameters the parts declare together; None if one of them declares nothing."""
    total = 0
    for part in parts:
        count = part.learned_parameters()
        if count is None:
            return None
        total += count
    return total


def refusals_of(parts: Sequence[Encoding]) -> dict[str, str]:
    """Return which options the parts refuse, with their reasons."""
    refusals: dict[str, str] = {}
    for part in parts:
        refusals |= part.refuses
    return refusals


def _names(parts: Sequence[Encoding]) -> str:
    """Return the names of parts for an error; a whole of several parts has none."""
    return " and ".join(getattr(part, "name", type(part).__name__.lower()) for part in parts)


class Composed(Encoding):
    """Let several encodings act as one. Raises ValueError if two of them conflict."""

    def __init__(self, shape: Shape, parts: Sequence[Encoding]) -> None:
        super().__init__(shape)
        # Not an nn.ModuleList, which would register parameters a second time: the model has them already.
        self.parts = tuple(parts)
        for hook, what_each_does in EXCLUSIVE_HOOKS.items():
            parts_with_hook = self._parts_with(hook)
            if len(parts_with_hook) > 1:
                names = _names(parts_with_hook)
                raise ValueError(f"{names} cannot act together: {what_each_does}, which only one may do")
            is_written_here = getattr(type(self), hook) is not getattr(Encoding, hook)
            if parts_with_hook and not is_written_here:
                # the method of that part becomes the method of the whole
                setattr(self, hook, getattr(parts_with_hook[0], hook))
        turning = [part for part in self.parts if part.replaces_product or "rotate" in part.hooks]
        if len(turning) > 1:
            raise ValueError(f"{_names(turning)} cannot act together: each decides the product q . k alone")
        declare_as(self, parts)
        # It only adds gates to the scores if a single part changes scores, and that part only adds gates.
        changing_scores = [part for part in self.parts if changes_scores(part)]
        self.cumulates_gates = len(changing_scores) == 1 and changing_scores[0].cumulates_gates
        biased = self._parts_with("bias", "distance_bias")
        self.penalty = bool(biased) and all(part.penalty for part in biased)
        # each part makes the step longer by its factor
        self.cost = StepCost(
            at_64=math.prod(part.cost.at_64 for part in parts),
            at_512=math.prod(part.cost.at_512 for part in parts),
        )
        self.decouples = all(part.decouples for part in parts)

    @cached_property
    def hooks(self) -> frozenset[str]:
        # The class itself has nearly all hooks. With those of its parts a faster kernel may serve.
        return frozenset().union(*(part.hooks for part in self.parts))

    def _parts_with(self, *hooks: str) -> list[Encoding]:
        """Return the parts that have at least one of the hooks."""
        return [part for part in self.parts if part.hooks & set(hooks)]

    def warnings(self) -> list[str]:
        warnings: list[str] = []
        for part in self.parts:
            warnings += part.warnings()
        return warnings

    def learned_parameters(self) -> int | None:
        return sum_of_learned(self.parts)

    def for_one_pass(self) -> Encoding:
        parts = [part.for_one_pass() for part in self.parts]
        is_same = all(part is again for part, again in zip(self.parts, parts, strict=True))
        # The same object where possible: FlexAttention's masks are kept by encoding, and a new one has none.
        return self if is_same else Composed(self.shape, parts)

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        for part in self._parts_with("embed"):
            x = part.embed(x, pos, layer)
        return x

    def shift(self, k: Tensor, v: Tensor, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        for part in self._parts_with("shift"):
            k, v = part.shift(k, v, x, layer)
        return k, v

    def adjust(
        self, q: Tensor, k: Tensor, x: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        for part in self._parts_with("adjust"):
            q, k = part.adjust(q, k, x, q_pos, k_pos, layer)
        return q, k

    def unrotated_numbers(self, layer: int) -> list[int]:
        unrotated = set(range(self.shape.head_dim))
        for part in self.parts:
            unrotated &= set(part.unrotated_numbers(layer))
        return sorted(unrotated)

    def output(self, y: Tensor, x: Tensor, layer: int) -> Tensor:
        for part in self._parts_with("output"):
            y = part.output(y, x, layer)
        return y

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        bias = torch.zeros(self.shape.n_heads, len(r), device=r.device)  # (H, R)
        for part in self._parts_with("distance_bias"):
            bias = bias + part.distance_bias(r, layer)
        return bias

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        bias = torch.zeros(self.shape.n_heads, len(q_pos), len(k_pos), device=q_pos.device)  # (H, T, S)
        for part in self._parts_with("bias", "distance_bias"):
            bias = bias + part.bias(q_pos, k_pos, layer)  # by default it looks `distance_bias` up
        return bias

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        visible = super().visible(q_pos, k_pos, layer)  # (T, S), or (H, T, S) after a part with masks by head
        for part in self._parts_with("visible"):
            visible = visible & part.visible(q_pos, k_pos, layer)
        return visible

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Any:
        return [part.prepare(x, q, k, layer) for part in self.parts]

    def gates_of(self, state: Any) -> tuple[Tensor, Tensor | None]:
        for part, state_of_part in zip(self.parts, state, strict=True):
            if part.cumulates_gates:
                return part.gates_of(state_of_part)
        return super().gates_of(state)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        states = state or [None] * len(self.parts)  # `prepare` was not called if no part has that hook
        # In the order of the parts, which matters: a temperature scales what earlier parts have added.
        for part, state_of_part in zip(self.parts, states, strict=True):
            s = part.scores(s, q, k, q_pos, k_pos, state_of_part, layer)
        return s
