"""An encoding as the attention function of models of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend, fused_mask
from posenc.nn.checks import check_carries_nothing, check_encoding, check_hooks, check_shape

OF_POSENC = "encoding_of_posenc"  # an attribute of the functions that `attention_function` makes


def register_attention(name: str, encoding: Encoding) -> None:
    """Let models of transformers attend by an encoding: `model.set_attn_implementation(name)` chooses it.

    A later call with the same name replaces the encoding in all models that have chosen the name.
    An encoding with parameters has to be a part of the model as well, or its optimizer, `to` and `state_dict`
    do not see them: `model.position_bias = encoding`.
    Raises UserError for a name of transformers' own, and for an encoding that `attention_function` refuses.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if not isinstance(name, str):
        raise UserError("name", name, "is not a text", hint='register_attention("posenc_alibi", encoding)')
    function = attention_function(encoding)
    registered = AttentionInterface().get(name)
    # "eager" stands for a function of each model, so that no registry has it.
    if name == "eager" or not (registered is None or hasattr(registered, OF_POSENC)):
        problem = "transformers has an attention function of this name"
        raise UserError("name", name, problem, hint=f'choose another one, such as "posenc_{encoding.name}"')
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)


def attention_function(encoding: Encoding) -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function for transformers. `register_attention` makes and registers it.

    It gets queries and keys as the model has rotated them. Attention is causal, over texts of equal length
    at positions 0, 1, 2, ..., and nothing else: where a model asks for a mask, a window, sinks, capped scores
    or dropout, a pass raises UserError. So it does for a static cache, for a model with other heads or with
    more layers than the encoding was made for, and if transformers was given no mask function beside this
    one. Raises UserError for an encoding that needs more than these queries and keys.
    """
    check_encoding(encoding)
    needs_more = {"embed", "shift", "adjust", "rotate", "prepare", "output"}
    check_hooks(encoding, needs_more, "it needs more than rotated queries and keys")
    check_carries_nothing(encoding)

    def attend_in_transformers(
        module: nn.Module,
        query: Tensor,  # (B, H, T, D), the last T of the S tokens
        key: Tensor,  # (B, H or fewer, S, D)
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **further_arguments: Any,
    ) -> tuple[Tensor, None]:
        """Return the output (B, T, H, D)."""
        _, n_heads, n_queries, head_dim = query.shape
        layer_index = int(getattr(module, "layer_idx", None) or 0)
        check_shape(encoding, layer=layer_index, n_heads=n_heads, head_dim=head_dim)
        _check_mask(module, attention_mask, queries=n_queries, keys=key.shape[2])
        _check_nothing_is_lost(module, further_arguments, keys=key.shape[2])
        query_heads_per_key_head = n_heads // key.shape[1]
        key = key.repeat_interleave(query_heads_per_key_head, dim=1)
        value = value.repeat_interleave(query_heads_per_key_head, dim=1)
        if scaling is not None:  # the kernels multiply by D^-1/2
            query = query * (scaling * head_dim**0.5)
        positions = torch.arange(key.shape[2], device=key.device)
        mask = fused_mask(encoding, layer_index, n_queries, positions)
        # Hooks that read the layer's input are refused above, so that any tensor can stand for it.
        layer_input = query
        layer = Layer(encoding, layer_index, positions, mask)
        output = attend(Heads(query, key, value), layer_input, layer)  # (B, H, T, D)
        return output.transpose(1, 2).contiguous(), None

    setattr(attend_in_transformers, OF_POSENC, encoding)
    return attend_in_transformers


# --- what is refused
def _check_mask(module: nn.Module, mask: Tensor | None, *, queries: int, keys: int) -> None:
    """Raise UserError for a mask, and where transformers hands over none although one is needed."""
    if mask is not None:
        problem = "posenc.nn takes no mask: give texts of one length, and a cache that grows with them"
        raise UserError("attention_mask", None, problem)
    # `sdpa_mask` makes no mask for the first pass with an empty static cache, whose last keys are no tokens.
    # In a later pass of several tokens it makes one, so that no pass with a growing cache is refused here.
    if 1 < queries < keys:
        problem = f"{queries} tokens with {keys} keys: posenc.nn takes no static cache"
        raise UserError("past_key_values", None, problem, hint="use transformers.DynamicCache, its default")
    config = getattr(module, "config", None)
    if config is not None:
        _check_mask_function(config._attn_implementation)


def _check_mask_function(name: str) -> None:
    """Raise UserError if transformers makes no mask for an attention function, or one of another kind.

    Without a mask function it hands over None whatever the texts are. The one of FlashAttention does so for
    static caches.
    """
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if AttentionMaskInterface().get(name) is not sdpa_mask:
        problem = f"{name!r} was registered without sdpa_mask, so that padding would be ignored"
        hint = f"use posenc.nn.register_attention({name!r}, encoding), which registers both"
        raise UserError("attention_mask", None, problem, hint=hint)


def _check_nothing_is_lost(module: nn.Module, arguments: Mapping[str, Any], keys: int) -> None:
    """Raise UserError where a model of transformers asks its attention for more than causal attention.

    Its other arguments, such as `position_ids`, are for kernels of other kinds and change no number here.
    """
    window = arguments.get("sliding_window")
    if window is not None and window >= keys:
        window = None  # it hides nothing
    refused = {
        "dropout": arguments.get("dropout") or None,
        "sliding_window": window,  # of Mistral
        "softcap": arguments.get("softcap"),  # of Gemma 2
        "s_aux": arguments.get("s_aux"),  # sinks of gpt-oss
        "position_bias": arguments.get("position_bias"),  # of T5
    }
    for key, value in refused.items():
        if value is not None:
            printed = value if isinstance(value, int | float) else None
            raise UserError(key, printed, "posenc.nn.attention_function does not have it")
    is_causal = arguments.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal:
        raise UserError("is_causal", False, "posenc.nn.attention_function is causal")
