"""The `attention` group: multi-head attention, the choice between it and latent attention, and its options.

B batch, T queries, S keys, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.signature import check_arguments, check_choice
from posenc.encodings.base import Encoding
from posenc.encodings.options import Scale
from posenc.model.kernels import attend
from posenc.model.mla import LatentAttention


class Attention(nn.Module):
    """Multi-head attention of one layer; it calls the encoding's hooks and knows no encoding's name."""

    decoupled = False

    def __init__(self, d_model: int, n_heads: int, layer: int, *, qk_norm: bool = False) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.layer = layer
        self.derived: dict[str, int] = {}  # parameters left null, resolved from the width
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim) if qk_norm else None

    @staticmethod
    def encoded_width(head_dim: int, **others: object) -> int:
        """Return the width of queries and keys that `rotate` gets: the whole head."""
        return head_dim

    def forward(self, x: Tensor, pos: Tensor, encoding: Encoding, n_targets: int) -> Tensor:
        """Return the last T = `n_targets` tokens' output: x (B, S, d_model), pos (S,) -> (B, T, d_model)."""
        batch, length, width = x.shape
        if n_targets == length:
            q, k, v = self._by_head(self.qkv(x), 3)
        else:
            w_q, w_kv = self.qkv.weight.split((width, 2 * width))
            (q,) = self._by_head(F.linear(x[:, -n_targets:], w_q), 1)
            k, v = self._by_head(F.linear(x, w_kv), 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        y = attend(q, k, v, x, pos, encoding, self.layer)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(batch, n_targets, width))  # (B, T, d_model)

    def _by_head(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split (B, S, parts * d_model) into `parts` of (B, H, S, D) with one copy, not one a product."""
        x = x.view(*x.shape[:2], parts, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        return x.contiguous().unbind(0)


ATTENTIONS: dict[str, type[Attention] | type[LatentAttention]] = {"mha": Attention, "mla": LatentAttention}
OPTIONS = ("window", "scale")  # of every attention


def resolve_attention(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the `attention` group and return it as a run stores it. Raises UserError."""
    options = {key: settings[key] for key in OPTIONS if key in settings}
    own = {key: value for key, value in settings.items() if key not in OPTIONS}
    checked = check_choice("attention", own, ATTENTIONS, "there is no such attention")
    if checked.get("qk_norm") is False:  # earlier runs do not have it
        del checked["qk_norm"]
    return {**checked, **check_arguments(_options, options, "attention")}


def own_parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the chosen attention alone."""
    return {key: value for key, value in settings.items() if key not in ("name", *OPTIONS)}


def _options(*, window: int | None, scale: Scale) -> None:
    """Declare the options of every attention; only the signature is used."""
