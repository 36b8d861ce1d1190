"""A sum of encodings: all of them at once, such as a bias on top of rotated queries and keys.

Formula: embeddings in the order of the parts, biases added, masks intersected, score changes one after
another. `encoding=sum encoding.parts=[alibi,rope]`; a part with parameters of its own is a mapping,
`encoding.parts=[alibi,{name:rope,base:500000.0}]`, the others keep those of their YAML.
Parts that both rotate, both draw positions, or both replace the softmax or the values are refused.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape

# Hooks that only one part may have.
ALONE = ("positions", "rotate", "weights", "values")


def declare_as(own: Encoding, parts: Sequence[Encoding]) -> None:
    """Declare of an encoding what holds of all its parts. ValueError where they differ past T."""
    policies = {part.beyond for part in parts} - {None}
    if len(policies) > 1:
        raise ValueError(f"parts differ in what is done past T: {sorted(map(str, policies))}")
    own.beyond = next(iter(policies), None)
    own.ends_at = min((part.ends_at for part in parts if part.ends_at is not None), default=None)
    own.prefix_stable = all(part.prefix_stable for part in parts)
    own.relative = all(part.relative for part in parts)
    own.uses_positions = any(part.uses_positions for part in parts)


class Composed(Encoding):
    """Encodings acting as one: a sum, or an encoding with its options. ValueError where two conflict."""

    def __init__(self, shape: Shape, parts: Sequence[Encoding]) -> None:
        super().__init__(shape)
        self.parts = tuple(parts)  # a tuple: modules in it are not registered twice
        for hook in ALONE:
            having = self._having(hook)
            if len(having) > 1:
                names = " and ".join(getattr(part, "name", type(part).__name__.lower()) for part in having)
                raise ValueError(f"{names} cannot act together: each decides the {hook} alone")
            if having and getattr(type(self), hook) is getattr(Encoding, hook):
                setattr(self, hook, getattr(having[0], hook))  # answered by that part
        declare_as(self, parts)
        biased = self._having("bias", "distance_bias")
        self.penalty = bool(biased) and all(part.penalty for part in biased)
        self.cost = math.prod(part.cost[0] for part in parts), math.prod(part.cost[1] for part in parts)
        self.decouples = all(part.decouples for part in parts)

    @cached_property
    def hooks(self) -> frozenset[str]:
        return frozenset().union(*(part.hooks for part in self.parts))

    def _having(self, *hooks: str) -> list[Encoding]:
        return [part for part in self.parts if part.hooks & set(hooks)]

    def warnings(self) -> list[str]:
        return [text for part in self.parts for text in part.warnings()]

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        for part in self._having("embed"):
            x = part.embed(x, pos, layer)
        return x

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        none = torch.zeros(self.shape.n_heads, len(r), device=r.device)
        return sum((part.distance_bias(r, layer) for part in self._having("distance_bias")), none)  # (H, R)

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        none = torch.zeros(self.shape.n_heads, len(q_pos), len(k_pos), device=q_pos.device)
        biased = self._having("bias", "distance_bias")
        return sum((part.bias(q_pos, k_pos, layer) for part in biased), none)  # (H, T, S)

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        seen = super().visible(q_pos, k_pos, layer)  # (T, S), from the first part with heads on (H, T, S)
        for part in self._having("visible"):
            seen = seen & part.visible(q_pos, k_pos, layer)
        return seen

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Any:
        return [part.prepare(x, q, k, layer) for part in self.parts]

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        for part, own in zip(self.parts, state or [None] * len(self.parts), strict=True):
            s = part.scores(s, q, k, q_pos, k_pos, own, layer)
        return s


class Sum(Composed):
    """Several encodings acting together."""

    name = "sum"
    paper = "none: each part has its own"
    formula = "the parts' hooks one after another, their biases added"
    acts_on = "several"
    past_training = "as its parts do, together"

    def __init__(self, shape: Shape, *, parts: list[Encoding]) -> None:
        if not parts:
            raise ValueError("parts=[]: at least one encoding")
        super().__init__(shape, parts)
        self.members = nn.ModuleList(parts)
        self.refuses = {option: reason for part in parts for option, reason in part.refuses.items()}
