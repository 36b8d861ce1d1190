"""Put posenc's encodings into another model: an attention module, parts for FlexAttention and transformers.

- `Attention`: causal multi-head attention with an encoding, which replaces a model's own.
- `score_mod`: a bias for PyTorch's FlexAttention.
- `RotaryEmbedding`: cos and sin of a rotation, as `apply_rotary_pos_emb` of transformers takes them.
- `register_attention`: let models of transformers attend by an encoding: a bias or anything else that acts on
  scores. `attention_function` makes the function alone.

B batch, T queries, S keys, H heads, D head width.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.registry import encoding_class
from posenc.encodings.shared.rotary import Rotary
from posenc.model.attention import Attention as ModelAttention
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend, fused_mask
from posenc.settings.signature import parameters_of

__all__ = [
    "Attention",
    "RotaryEmbedding",
    "attention_function",
    "make_encoding",
    "register_attention",
    "score_mod",
]

# (score, batch, head, query, key) -> score, all but the score indices; FlexAttention vectorises it over pairs
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
    """Build an encoding with its initial values. All layers of a model can share it.

    `train_length` is T, the length that the model is trained at. Parameters that are left out have the values
    of `conf/encoding/NAME.yaml`. Warns of what the encoding itself warns of, such as layers in which it does
    nothing. Raises UserError.
    """
    encoding = _initial_encoding(
        name,
        seed=seed,
        d_model=d_model,
        n_heads=n_heads,
        head_dim=head_dim,
        n_layers=n_layers,
        train_length=train_length,
        **parameters,
    )
    for text in encoding.warnings():
        warnings.warn(f"{name}: {text}", stacklevel=2)
    return encoding


def _initial_encoding(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    train_length: int,
    n_layers: int,
    head_dim: int | None = None,
    seed: int = 0,
    **parameters: Any,
) -> Encoding:
    """Build an encoding as `make_encoding` does, without warnings. Raises UserError."""
    if head_dim is None:
        head_dim = _head_width(d_model, n_heads)
    sizes = {
        "d_model": d_model,
        "n_heads": n_heads,
        "head_dim": head_dim,
        "n_layers": n_layers,
        "train_length": train_length,
    }
    for key, size in sizes.items():
        _check_whole(key, size, least=1)
    encoding = build_encoding(name, **sizes, **parameters)
    initialize_encoding(encoding, "encoding", seed)
    return encoding


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
        head_dim = _head_width(d_model, n_heads)
        _check_whole("layer", layer, least=0)
        if isinstance(encoding, str):
            _check_parameters(parameters, declared=_parameters_of(encoding, parameters))
            if train_length is None:
                raise UserError("train_length", None, "is needed: T, the length that the model is trained at")
            # Its warnings would speak of a model of `layer` + 1 layers, which nobody has.
            encoding = _initial_encoding(
                encoding,
                d_model=d_model,
                n_heads=n_heads,
                n_layers=layer + 1,
                train_length=train_length,
                **parameters,
            )
        else:
            _check_encoding(encoding, allowed="a name, or what posenc.nn.make_encoding returns")
            _check_parameters(parameters, declared=())
            _check_unused({"train_length": train_length, **parameters})
            _check_shape(encoding, d_model=d_model, n_heads=n_heads, head_dim=head_dim, layer=layer)
        _check_hooks(encoding, {"embed"}, "it adds to the embeddings: x = encoding.embed(x, positions, 0)")
        _check_carries_nothing(encoding)
        self.encoding = encoding
        self.d_model = d_model
        self.layer = layer
        self._checked_positions: Tensor | None = None
        self.attention = ModelAttention(d_model, n_heads, layer, qk_norm=qk_norm)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Attend in x (B, T, d_model) at positions (T,), which are 0..T-1 by default.

        Raises UserError for tensors of other shapes. So it does for positions with gaps and an encoding whose
        bias is by distance: its kernels count distances in tokens.
        """
        _check_input(x, self.d_model)
        length = x.shape[1]
        if positions is None:
            positions = torch.arange(length, device=x.device)
        else:
            _check_positions(positions, length)
            if positions is not self._checked_positions:  # asking a GPU makes it wait, so once for a tensor
                _check_neighbours(self.encoding, positions)
                self._checked_positions = positions
        mask = fused_mask(self.encoding, self.layer, length, positions)
        output: Tensor = self.attention(x, positions, self.encoding, length, mask)
        return output


def score_mod(
    encoding: Encoding, length: int, *, layer: int = 0, device: torch.device | str | None = None
) -> ScoreMod:
    """Return the `score_mod` of an encoding's bias for FlexAttention, at up to `length` tokens.

    A bias by distance becomes a table (H, length), any other bias a table (H, length, length). The table is
    made here: while a learned bias is trained, call `score_mod` again for each forward pass. Without `device`
    it is on the device of the encoding's tensors. FlexAttention's block mask has to be causal. Raises
    UserError for an encoding that changes anything but the bias.
    """
    _check_encoding(encoding)
    _check_whole("length", length, least=1)
    _check_whole("layer", layer, least=0)
    _check_shape(encoding, layer=layer)
    _check_hooks(encoding, encoding.hooks - {"bias", "distance_bias"}, "it is not a bias alone")
    if not encoding.hooks:
        return lambda score, batch, head, query, key: score
    positions = torch.arange(length, device=_device_of(encoding) if device is None else device)
    if "bias" in encoding.hooks:
        bias = encoding.bias(positions, positions, layer)  # (H, T, S)
        return lambda score, batch, head, query, key: score + bias[head, query, key]
    table = encoding.distance_bias(positions, layer)  # (H, length)

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # The block mask hides keys of the future, whose distance is negative: any bias will do for them.
        distance = torch.clamp(query - key, min=0)
        return score + table[head, distance]

    return add_bias


def _device_of(encoding: Encoding) -> torch.device:
    """Return the device of an encoding's tensors; the CPU if it has none."""
    tensor = next(itertools.chain(encoding.parameters(), encoding.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


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
        _check_encoding(encoding)
        if encoding.hooks:
            _check_rotation(encoding)
        if config is not None:
            _check_shape(encoding, head_dim=_rotated_width(config))
        self.encoding = encoding

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin for position_ids (B, T), each (B, T, D) in the dtype of x.

        Raises UserError if x (B, T, d_model) is wider or narrower than in the model of the encoding.
        """
        if x.dim() == 3:  # a tensor of any other shape stands for its dtype and device alone
            _check_shape(self.encoding, d_model=x.shape[-1])
        if not isinstance(self.encoding, Rotary):
            shape = (*position_ids.shape, self.encoding.shape.head_dim)
            ones = torch.ones(shape, device=x.device, dtype=x.dtype)
            return ones, torch.zeros_like(ones)
        cos_sin = [self.encoding.angles(positions) for positions in position_ids]  # of each text
        cos = torch.stack([cos for cos, _ in cos_sin])  # (B, T, D/2)
        sin = torch.stack([sin for _, sin in cos_sin])
        return torch.cat((cos, cos), dim=-1).to(x), torch.cat((sin, sin), dim=-1).to(x)


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


OF_POSENC = "encoding_of_posenc"  # an attribute of the functions that `attention_function` makes


def attention_function(encoding: Encoding) -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function for transformers. `register_attention` makes and registers it.

    It gets queries and keys as the model has rotated them. Attention is causal, over texts of equal length
    at positions 0, 1, 2, ..., and nothing else: where a model asks for a mask, a window, sinks, capped scores
    or dropout, a pass raises UserError. So it does for a static cache, for a model with other heads or with
    more layers than the encoding was made for, and if transformers was given no mask function beside this
    one. Raises UserError for an encoding that needs more than these queries and keys.
    """
    _check_encoding(encoding)
    needs_more = {"embed", "shift", "adjust", "rotate", "prepare", "output"}
    _check_hooks(encoding, needs_more, "it needs more than rotated queries and keys")
    _check_carries_nothing(encoding)

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
        _check_shape(encoding, layer=layer_index, n_heads=n_heads, head_dim=head_dim)
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


def _check_whole(key: str, value: Any, *, least: int) -> None:
    """Raise UserError for anything but a whole number from `least` on: also for 4.0, "4" and True."""
    allowed = f"a whole number from {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        # 32 and "32" look alike in print, so that the error shows the quotes.
        shown = repr(value) if isinstance(value, str) else value
        meant = str(value).removesuffix(".0")
        hint = f"write {key}={meant}" if meant.isdecimal() else ""
        raise UserError(key, shown, "is not a whole number", allowed=allowed, hint=hint)
    if int(value) < least:
        raise UserError(key, value, "too small", allowed=allowed)


def _head_width(d_model: int, n_heads: int) -> int:
    """Return the width of a head. Raises UserError if the heads do not share the model's width evenly."""
    _check_whole("d_model", d_model, least=1)
    _check_whole("n_heads", n_heads, least=1)
    if d_model % n_heads:
        raise UserError("n_heads", n_heads, f"does not divide d_model={d_model}")
    return d_model // n_heads


def _check_encoding(encoding: object, *, allowed: str = "what posenc.nn.make_encoding returns") -> None:
    """Raise UserError for a name, a class, or any other thing that is not a built encoding."""
    if isinstance(encoding, Encoding):
        return
    if isinstance(encoding, str):
        name = f'"{encoding}"'
        shown = encoding
        problem = "is a name, and here the built encoding is needed"
    else:
        name = "NAME"
        shown = _short_name(encoding)
        problem = "is not an encoding"
    hint = f"make_encoding({name}, d_model=..., n_heads=..., n_layers=..., train_length=...)"
    raise UserError("encoding", shown, problem, allowed=allowed, hint=hint)


def _short_name(value: object) -> str:
    """Return the name of a class, or that of the class of a value; `None` for None."""
    if value is None:
        return "None"
    return value.__name__ if isinstance(value, type) else type(value).__name__


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


def _rotated_width(config: Any) -> int:
    """Return how many numbers of a head a model of transformers rotates, by its configuration."""
    config = config.get_text_config()
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope_parameters = getattr(config, "rope_parameters", None) or {}
    return int(head_dim * rope_parameters.get("partial_rotary_factor", 1.0))


def _check_unused(arguments: Mapping[str, Any]) -> None:
    """Raise UserError for arguments that a built encoding would ignore."""
    for key, value in arguments.items():
        if value is not None:
            raise UserError(key, value, "is for an encoding by name", hint="give it to make_encoding")


def _check_shape(encoding: Encoding, *, layer: int = 0, **sizes: int) -> None:
    """Raise UserError for an encoding that was built for other sizes, or for too few layers."""
    name = encoding.name
    n_layers = encoding.shape.n_layers
    if layer >= n_layers:
        problem = f"{name} was made for n_layers={n_layers}; layers count from 0"
        hint = f"give the model's n_layers, {layer + 1} or more: make_encoding({name!r}, n_layers=...)"
        raise UserError("layer", layer, problem, hint=hint)
    for key, size in sizes.items():
        size_of_encoding = getattr(encoding.shape, key)
        if size != size_of_encoding:
            hint = f"give the model's {key}: make_encoding({name!r}, {key}={size}, ...)"
            raise UserError(key, size, f"{name} was made for {key}={size_of_encoding}", hint=hint)


def _check_hooks(encoding: Encoding, unfit: set[str] | frozenset[str], problem: str) -> None:
    """Raise UserError if the encoding has one of these hooks."""
    if encoding.hooks & unfit:
        raise UserError("encoding", encoding.name, problem)


def _check_carries_nothing(encoding: Encoding) -> None:
    """Raise UserError for an encoding that hands numbers from each layer to the next one.

    They would have to be forgotten between two passes, which an attention alone cannot see.
    """
    if encoding.for_one_pass() is not encoding:
        raise UserError("encoding", encoding.name, "it carries numbers from layer to layer")


def _check_neighbours(encoding: Encoding, positions: Tensor) -> None:
    """Raise UserError for positions with gaps where a bias by distance would not see them."""
    sees_pairs = bool(encoding.hooks & {"bias", "positions"})
    if sees_pairs or "distance_bias" not in encoding.hooks or torch.compiler.is_compiling():
        return
    if not bool((positions.diff() == 1).all()):
        problem = f"have gaps, and the bias of {encoding.name} counts distances in tokens"
        raise UserError("positions", None, problem, hint="train with gaps: posenc train positions=randomized")


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
