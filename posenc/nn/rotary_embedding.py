"""The rotation of an encoding, in the place of that of a Llama of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.nn.checks import check_encoding, check_shape


class RotaryEmbedding(nn.Module):
    """Cos and sin of a rotation, to replace `model.rotary_emb` of a Llama of transformers.

    Number i of a head is paired with number i + D/2 (`layout="half"`), as in `apply_rotary_pos_emb` of
    transformers, so that a model that was trained there keeps its projections.
    """

    def __init__(self, encoding: Encoding, config: Any = None) -> None:
        """Take a rotation of whole heads, or an encoding without hooks, for which nothing is rotated.

        Raises UserError for any other encoding. With the `config` of the model it also does for an encoding
        that was made for heads of another width, which a forward pass of this module cannot see: it gets the
        input of the model and no head. Without it a Llama ends in torch's error about two sizes. Models that
        rotate a part of each head (GPT-NeoX, Phi) take the width of cos for that part, in silence.
        """
        super().__init__()
        check_encoding(encoding)
        if encoding.hooks:
            _check_rotation(encoding)
        if config is not None:
            check_shape(encoding, head_dim=_rotated_width(config))
        self.encoding = encoding

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin for position_ids (B, T), each (B, T, D) in the dtype of x.

        Raises UserError if x (B, T, d_model) is wider or narrower than in the model of the encoding.
        """
        if x.dim() == 3:  # a tensor of any other shape stands for its dtype and device alone
            check_shape(self.encoding, d_model=x.shape[-1])
        if not isinstance(self.encoding, Rotary):
            shape = (*position_ids.shape, self.encoding.shape.head_dim)
            ones = torch.ones(shape, device=x.device, dtype=x.dtype)
            return ones, torch.zeros_like(ones)
        cos_sin = [self.encoding.angles(positions) for positions in position_ids]  # of each text
        cos = torch.stack([cos for cos, _ in cos_sin])  # (B, T, D/2)
        sin = torch.stack([sin for _, sin in cos_sin])
        return torch.cat((cos, cos), dim=-1).to(x), torch.cat((sin, sin), dim=-1).to(x)


def _rotated_width(config: Any) -> int:
    """Return how many numbers of a head a model of transformers rotates, by its configuration."""
    config = config.get_text_config()
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope_parameters = getattr(config, "rope_parameters", None) or {}
    return int(head_dim * rope_parameters.get("partial_rotary_factor", 1.0))


def _check_rotation(encoding: Encoding) -> None:
    """Raise UserError for an encoding that is not a rotation of whole heads as transformers has it."""
    problem = "it does more than rotate pairs by their frequencies"
    if not isinstance(encoding, Rotary):
        raise UserError("encoding", encoding.name, problem)
    if encoding.hooks != {"rotate"} or not encoding.keeps_lengths:
        raise UserError("encoding", encoding.name, problem)
    if encoding.layout != "half" or encoding.width != encoding.shape.head_dim:
        problem = f"it turns {encoding.width} of {encoding.shape.head_dim} numbers, {encoding.layout}"
        raise UserError("encoding", encoding.name, problem, allowed='layout="half", whole heads')
