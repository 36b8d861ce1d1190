"""The base of all options of the attention: its key, the value that chooses it, how it is built."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape

NONE = "none"  # the value that switches options off; `normalizer` has another, `softmax`
PAIRS_AT_ONCE = 1 << 21  # most pairs of a query and a key whose masks are in memory at once


class AttentionOption(Encoding):
    """A small encoding that acts beside any other one: `attention.<key>=<choice>`.

    An encoding lists in `refuses` the options that make no sense with it, as `attention.<key>`.
    """

    key: ClassVar[str]
    choice: ClassVar[str | type]  # the value that chooses it (logn), or the type of any such value (int)
    off: ClassVar[str | bool | None] = None  # the value of the key that switches its options off
    order: ClassVar[int] = 0  # options with a lower number act earlier
    # why it makes no sense with latent attention (`attention=mla`), as conf/attention/mla.yaml says it, too
    misfit_of_latents: ClassVar[str | None] = None
    hint_at_misfit: ClassVar[str] = ""  # what to type instead, if `misfit` returns a reason
    relative = True

    @classmethod
    def for_value(cls, shape: Shape, value: Any, acting: Sequence[Encoding]) -> Self:
        """Build the option from the value of its setting; `acting` are the encodings that act before it."""
        return cls(shape)

    @classmethod
    def misfit(cls, encoding: Encoding) -> str | None:
        """Return why the option makes no sense with this encoding, as its hooks tell; None if it does."""
        return None


class Normalizer(AttentionOption):
    """Replace the softmax."""

    off = "softmax"
    acts_on = "weights"
    uses_positions = False

    @classmethod
    def misfit(cls, encoding: Encoding) -> str | None:
        # Weights of stick-breaking, for one, are no normalised scores: another normaliser would undo it.
        if not encoding.hooks.isdisjoint({"weights", "sink"}):
            return "it divides the attention by a rule of its own, so there is no softmax to replace"
        return None


class Gate(AttentionOption):
    """Multiply what the attention returns by gates, sigmoid(W x) of the layer's normed input x.

    A subclass says how many gates a layer has, and which numbers of the output each of them multiplies.
    """

    off = NONE
    acts_on = "output"
    uses_positions = False

    def __init__(self, shape: Shape, *, gates: int) -> None:
        super().__init__(shape)
        # No offset: sigmoid(0) is 1/2, so that gates begin half open.
        self.w = nn.Parameter(torch.empty(shape.n_layers, gates, shape.d_model))  # (L, gates, d_model)
        self.n_gates = gates

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.n_gates * self.shape.d_model

    def weights_in_products(self) -> int:
        return self.learned_parameters()

    def gates(self, x: Tensor, layer: int) -> Tensor:
        """Return the gates of each token, between 0 and 1: (B, T, d_model) -> (B, T, gates)."""
        return torch.sigmoid(F.linear(x, self.w[layer]))


class CountingOption(AttentionOption):
    """Count how many keys each query may see, for an option that needs the number.

    `counted` are the encodings whose masks decide what is visible.
    """

    order = 1  # after the window, whose keys it counts

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape)
        self.counted = tuple(counted)  # a tuple, so that modules are not registered a second time

    @classmethod
    def for_value(cls, shape: Shape, value: Any, acting: Sequence[Encoding]) -> Self:
        return cls(shape, counted=acting)

    def visible_keys(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return n_i, the number of keys that each of the last T of S tokens sees: (H or 1, T) float32."""
        queries = len(q_pos)
        earlier_keys = len(k_pos) - queries
        # Without a mask the number is the token's index plus 1, with no look at pairs.
        with_masks = [encoding for encoding in self.counted if "visible" in encoding.hooks]
        if not with_masks:
            index_of_query = torch.arange(earlier_keys, len(k_pos), device=q_pos.device)
            return (index_of_query + 1)[None].float()
        # In blocks of queries, since not all pairs of a long window fit into memory.
        size = max(1, PAIRS_AT_ONCE // len(k_pos))
        counts: list[Tensor] = []
        for start in range(0, queries, size):
            stop = min(start + size, queries)
            keys_of_block = k_pos[: earlier_keys + stop]
            counts.append(_count_visible(with_masks, q_pos[start:stop], keys_of_block, layer))
        return torch.cat(counts, dim=-1).float()


def _count_visible(masks: Sequence[Encoding], q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
    """Return how many keys each of the last T of S tokens sees through all masks: (H or 1, T) int64."""
    queries = len(q_pos)
    keys = len(k_pos)
    index_of_query = torch.arange(keys - queries, keys, device=q_pos.device)[:, None]  # (T, 1)
    index_of_key = torch.arange(keys, device=q_pos.device)  # (S,)
    # By index and not by position: drawn positions have gaps, and keys are counted.
    is_visible = (index_of_key <= index_of_query)[None]  # (1, T, S)
    for encoding in masks:
        is_visible = is_visible & encoding.visible(q_pos, k_pos, layer)
    is_itself = index_of_key == index_of_query  # (T, S); the attention always shows a query its own key
    return (is_visible | is_itself).sum(-1)
