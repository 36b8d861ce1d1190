"""Put posenc's encodings into somebody else's model: an attention module, and parts for two libraries.

- `Attention`: causal multi-head attention with an encoding, in the place of a model's own.
- `score_mod`: a bias, as FlexAttention wants it.
- `RotaryEmbedding`: cos and sin of a rotation, as `apply_rotary_pos_emb` of transformers wants them.
- `attention_function`: a bias or anything else that acts on scores, for the registry of attention functions
  of transformers.

B batch, T queries, S keys, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.model.attention import Attention as ModelAttention
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend, fused_mask

__all__ = ["Attention", "RotaryEmbedding", "attention_function", "make_encoding", "score_mod"]

# (scores, text, head, index of the query, index of the key) -> scores, of one pair or of many
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def make_encoding(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    train_length: int,
    n_layers: int = 1,
    head_dim: int | None = None,
    seed: int = 0,
    **parameters: Any,
) -> Encoding:
    """Build an encoding with its initial values, which all layers of a model can share.

    `train_length` is T, the length that the model is trained at. Parameters that are left out are those of
    `conf/encoding/NAME.yaml`. Raises UserError.
    """
    width = d_model // n_heads if head_dim is None else head_dim
    encoding = build_encoding(
        name,
        d_model=d_model,
        n_heads=n_heads,
        head_dim=width,
        n_layers=n_layers,
        train_length=train_length,
        **parameters,
    )
    initialize_encoding(encoding, "encoding", seed)
    return encoding


class Attention(nn.Module):
    """Attend causally with several heads and an encoding: x (B, T, d_model) -> (B, T, d_model).

    The encoding is a name, or an encoding of `make_encoding` that all layers share. Its hooks decide the
    kernel: PyTorch's fused one for rotations, FlexAttention on a GPU for biases and gates, else blocks of
    queries. An encoding that adds to the embeddings or carries numbers from layer to layer is refused, since
    it acts outside of one attention.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        encoding: str | Encoding,
        *,
        train_length: int | None = None,
        layer: int = 0,
        qk_norm: bool = False,
        **parameters: Any,
    ) -> None:
        """Build the module. An encoding by name takes `train_length` and `parameters`. Raises UserError."""
        super().__init__()
        if d_model % n_heads:
            raise UserError("n_heads", n_heads, f"does not divide d_model={d_model}")
        if isinstance(encoding, str):
            if train_length is None:
                raise UserError("train_length", None, "is needed: T, the length that the model is trained at")
            encoding = make_encoding(
                encoding,
                d_model=d_model,
                n_heads=n_heads,
                train_length=train_length,
                n_layers=layer + 1,
                **parameters,
            )
        _check_hooks(encoding, {"embed"}, "it adds to the embeddings: x = encoding.embed(x, positions, 0)")
        if encoding.for_one_pass() is not encoding:
            raise UserError("encoding", encoding.name, "it carries numbers from layer to layer")
        self.encoding = encoding
        self.layer = layer
        self.attention = ModelAttention(d_model, n_heads, layer, qk_norm=qk_norm)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Attend in x (B, T, d_model) at positions (T,), which are 0..T-1 by default."""
        length = x.shape[1]
        if positions is None:
            positions = torch.arange(length, device=x.device)
        mask = fused_mask(self.encoding, self.layer, length, positions)
        output: Tensor = self.attention(x, positions, self.encoding, length, mask)
        return output


def score_mod(encoding: Encoding, length: int, *, layer: int = 0, device: str = "cpu") -> ScoreMod:
    """Return the `score_mod` of an encoding's bias for FlexAttention, at up to `length` tokens.

    A bias by distance becomes a table (H, length), any other bias a table (H, length, length). The block mask
    has to be causal. Raises UserError for an encoding that does more than to add a bias.
    """
    _check_hooks(encoding, encoding.hooks - {"bias", "distance_bias"}, "it is not a bias alone")
    positions = torch.arange(length, device=device)
    if "bias" in encoding.hooks:
        pairs = encoding.bias(positions, positions, layer)  # (H, T, S)
        return lambda score, text, head, query, key: score + pairs[head, query, key]
    table = encoding.distance_bias(positions, layer)  # (H, length)

    def add_bias(score: Tensor, text: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = torch.clamp(query - key, min=0)  # pairs of the future are masked afterwards
        return score + table[head, distance]

    return add_bias


class RotaryEmbedding(nn.Module):
    """Cos and sin of a rotation, in the place of `model.rotary_emb` of a Llama of transformers.

    It pairs the number i of a head with i + D/2 (`layout="half"`), as `apply_rotary_pos_emb` of transformers
    does. So the projections of a model that was trained in transformers stay as they are.
    """

    def __init__(self, encoding: Encoding) -> None:
        """Keep the rotation. An encoding without hooks turns nothing; any other one raises UserError."""
        super().__init__()
        if encoding.hooks:
            _check_rotation(encoding)
        self.encoding = encoding

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (B, T, D) each in the type of x, for position_ids (B, T)."""
        if not isinstance(self.encoding, Rotary):
            shape = (*position_ids.shape, self.encoding.shape.head_dim)
            ones = torch.ones(shape, device=x.device, dtype=x.dtype)
            return ones, torch.zeros_like(ones)
        rows = [self.encoding.angles(positions) for positions in position_ids]
        cos = torch.stack([cos for cos, _ in rows])  # (B, T, D/2)
        sin = torch.stack([sin for _, sin in rows])
        return torch.cat((cos, cos), dim=-1).to(x), torch.cat((sin, sin), dim=-1).to(x)


def _check_rotation(encoding: Encoding) -> None:
    """Raise UserError for an encoding that is not a rotation of whole heads as transformers has it."""
    is_rotation = isinstance(encoding, Rotary) and encoding.hooks == {"rotate"} and encoding.turns_only
    if not is_rotation:
        raise UserError("encoding", encoding.name, "it does more than to turn pairs by frequencies")
    assert isinstance(encoding, Rotary)
    if encoding.layout != "half" or encoding.width != encoding.shape.head_dim:
        problem = f"it turns {encoding.width} of {encoding.shape.head_dim} numbers, {encoding.layout}"
        raise UserError("encoding", encoding.name, problem, allowed='layout="half", whole heads')


def attention_function(encoding: Encoding) -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function for `transformers.AttentionInterface.register`.

    It gets queries and keys as the model has rotated them. Attention is causal, over texts of equal length: a
    mask is refused. Raises UserError for an encoding that needs more than these queries and keys.
    """
    _check_hooks(encoding, {"embed", "rotate", "prepare"}, "it needs more than rotated queries and keys")

    def attend_in_transformers(
        module: nn.Module,
        query: Tensor,  # (B, H, T, D)
        key: Tensor,  # (B, H or fewer, S, D)
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Return the output (B, T, H, D)."""
        if attention_mask is not None:
            raise ValueError("posenc.nn.attention_function takes no mask: give texts of one length")
        queries_a_key = query.shape[1] // key.shape[1]  # heads
        key = key.repeat_interleave(queries_a_key, dim=1)
        value = value.repeat_interleave(queries_a_key, dim=1)
        if scaling is not None:  # the kernels multiply by D^-1/2
            query = query * (scaling * query.shape[-1] ** 0.5)
        number = int(getattr(module, "layer_idx", None) or 0)
        positions = torch.arange(key.shape[2], device=key.device)
        mask = fused_mask(encoding, number, query.shape[2], positions)
        layer = Layer(encoding, number, positions, mask)
        output = attend(Heads(query, key, value), query, layer)  # (B, H, T, D)
        return output.transpose(1, 2).contiguous(), None

    return attend_in_transformers


def _check_hooks(encoding: Encoding, unfit: set[str] | frozenset[str], problem: str) -> None:
    """Raise UserError if the encoding has one of these hooks."""
    if encoding.hooks & unfit:
        raise UserError("encoding", encoding.name, problem)
