"""Causal multi-head attention with an encoding, in the place of a model's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.encodings.registry import encoding_class
from posenc.model.attention import Attention as ModelAttention
from posenc.model.kernels import fused_mask
from posenc.nn.building import initial_encoding
from posenc.nn.checks import (
    check_carries_nothing,
    check_encoding,
    check_hooks,
    check_shape,
    check_whole,
    head_width,
)
from posenc.settings.signature import parameters_of


class Attention(nn.Module):
    """Attend causally with several heads and an encoding: x (B, T, d_model) -> (B, T, d_model).

    The encoding is a name, or an encoding that `make_encoding` built and all layers share. Its hooks decide
    the kernel: PyTorch's fused one for rotations, FlexAttention on a GPU for biases and gates, else blocks of
    queries. An encoding that adds to the embeddings or carries numbers from layer to layer is refused, since
    it acts outside of a single attention.
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
        """Build the module. Raises UserError.

        `train_length` and `parameters` are for an encoding by name: one that is built has its own.
        """
        super().__init__()
        head_dim = head_width(d_model, n_heads)
        check_whole("layer", layer, least=0)
        if isinstance(encoding, str):
            _check_parameters(parameters, declared=_parameters_of(encoding, parameters))
            if train_length is None:
                raise UserError("train_length", None, "is needed: T, the length that the model is trained at")
            # Its warnings would speak of a model of `layer` + 1 layers, which nobody has.
            encoding = initial_encoding(
                encoding,
                d_model=d_model,
                n_heads=n_heads,
                n_layers=layer + 1,
                train_length=train_length,
                **parameters,
            )
        else:
            check_encoding(encoding, allowed="a name, or what posenc.nn.make_encoding returns")
            _check_parameters(parameters, declared=())
            _check_unused({"train_length": train_length, **parameters})
            check_shape(encoding, d_model=d_model, n_heads=n_heads, head_dim=head_dim, layer=layer)
        check_hooks(encoding, {"embed"}, "it adds to the embeddings: x = encoding.embed(x, positions, 0)")
        check_carries_nothing(encoding)
        self.encoding = encoding
        self.d_model = d_model
        self.layer = layer
        self._checked: tuple[Tensor, int] | None = None  # the last positions and their version
        self.attention = ModelAttention(d_model, n_heads, layer, qk_norm=qk_norm)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Attend in x (B, T, d_model) at positions (T,), which are 0..T-1 by default.

        Raises UserError for tensors of other shapes. So it does for positions with gaps if the encoding has a
        bias by distance, or a mask: its kernels count distances in tokens.
        """
        _check_input(x, self.d_model)
        length = x.shape[1]
        if positions is None:
            positions = torch.arange(length, device=x.device)
        else:
            _check_positions(positions, length)
            self._check_once(positions)
        mask = fused_mask(self.encoding, self.layer, length, positions)
        output: Tensor = self.attention(x, positions, self.encoding, length, mask)
        return output

    def _check_once(self, positions: Tensor) -> None:
        """Raise UserError for gaps that the encoding would not see. Asking a GPU makes it wait."""
        if torch.compiler.is_compiling():
            return
        # A tensor may be changed in place, which its version counts. One of inference mode counts nothing.
        if positions.is_inference():
            _check_neighbours(self.encoding, positions)
            return
        version = positions._version
        if self._checked is None or positions is not self._checked[0] or version != self._checked[1]:
            _check_neighbours(self.encoding, positions)
            self._checked = (positions, version)


# --- what is refused

# What other attention modules take and `Attention` does not, with what to write instead.
NOT_OF_ATTENTION = {
    "n_layers": "give all layers one encoding: make_encoding(NAME, n_layers=...)",
    "head_dim": "heads share d_model: head_dim is d_model / n_heads",
    "dropout": "it has no dropout: put nn.Dropout behind it",
    "device": "write Attention(...).to(device)",
    "dtype": "write Attention(...).to(dtype)",
    "bias": "its linear maps have no bias",
    "is_causal": "it is always causal",
    "causal": "it is always causal",
    "n_kv_heads": "it has as many heads of keys as of queries",
    "num_kv_heads": "it has as many heads of keys as of queries",
    "batch_first": "x is (B, T, d_model)",
}


def _check_parameters(parameters: Mapping[str, Any], *, declared: Collection[str]) -> None:
    """Raise UserError for what belongs to an attention module and is no parameter of the encoding."""
    for key, value in parameters.items():
        if key in NOT_OF_ATTENTION and key not in declared:
            raise UserError(key, value, "posenc.nn.Attention does not take it", hint=NOT_OF_ATTENTION[key])


def _parameters_of(name: str, parameters: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the parameters of an encoding by name. Raises UserError for an unknown name."""
    return parameters_of(encoding_class(name, parameters.get("plugins", ())))


def _check_unused(arguments: Mapping[str, Any]) -> None:
    """Raise UserError for arguments that a built encoding would ignore."""
    for key, value in arguments.items():
        if value is not None:
            raise UserError(key, value, "is for an encoding by name", hint="give it to make_encoding")


def _check_input(x: object, d_model: int) -> None:
    """Raise UserError for anything but a tensor (B, T, d_model). It looks at shapes alone."""
    if not isinstance(x, Tensor):
        raise UserError("x", type(x).__name__, "is not a tensor", allowed=f"a tensor (B, T, {d_model})")
    if x.dim() != 3 or x.shape[2] != d_model:
        problem = f"wrong shape for d_model={d_model}"
        raise UserError("x", tuple(x.shape), problem, allowed=f"a tensor (B, T, {d_model})")


def _check_positions(positions: object, length: int) -> None:
    """Raise UserError for anything but a tensor (T,). It looks at shapes alone."""
    allowed = f"a tensor ({length},), shared by all texts of the batch"
    if not isinstance(positions, Tensor):
        hint = "write torch.tensor(positions, device=x.device)"
        raise UserError("positions", type(positions).__name__, "is not a tensor", allowed=allowed, hint=hint)
    if positions.shape != (length,):
        problem = f"wrong shape for {length} tokens"
        raise UserError("positions", tuple(positions.shape), problem, allowed=allowed)


def _check_neighbours(encoding: Encoding, positions: Tensor) -> None:
    """Raise UserError for positions with gaps where a bias by distance, or a mask, would not see them."""
    sees_pairs = bool(encoding.hooks & {"bias", "positions"})
    if sees_pairs or encoding.hooks.isdisjoint({"distance_bias", "visible"}):
        return
    if not bool((positions.diff() == 1).all()):
        problem = f"have gaps, and {encoding.name} counts distances in tokens"
        raise UserError("positions", None, problem, hint="train with gaps: posenc train positions=randomized")
