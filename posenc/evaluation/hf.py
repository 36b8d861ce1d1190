"""A causal language model of transformers as a subject: what it is told, and extensions of what it knows.

As trained it runs untouched, in float32: a half-precision ALiBi (BLOOM's, MPT's) cannot tell far positions
apart. An extension that rescales frequencies sets the rotation's own table; one that masks keys or scales
scores takes the place of the attention function. What needs queries and keys before their rotation is
refused: transformers does not show them. Each pass begins from the rotation as loaded, since some types
(`dynamic`) keep the scale of the longest text that they have seen.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.extensions import NotForThisEncodingError, build_extension, extensions, leaves
from posenc.evaluation.foreign import Foreign, NotApplicableError

ATTENTION = "posenc"  # the name of its attention function in transformers
BLOCK = 512  # queries at once in that function
LENGTHS = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")  # names of T
TABLES = ("wpe", "embed_positions", "position_embeddings")  # names of learned positions
ABLE = {"rotate", "scores", "visible"}  # hooks of an extension that transformers has a place for


class KnownRotary(Rotary):
    """Its frequencies, as the checkpoint's configuration gives them."""

    def __init__(self, shape: Shape, name: str, theta: Tensor, base: float) -> None:
        super().__init__(shape, base=base, layout="half", width=2 * len(theta))
        self.name, self.theta = name, theta.double().cpu()  # type: ignore[misc]

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        return self.theta.to(device) if device is not None else self.theta


class HuggingFace(Foreign):
    """`model` of transformers, loaded in float32; `bos`: the token in the place of a window's first."""

    is_known = True

    def __init__(self, model: nn.Module, train_length: int, bos: int | None = None) -> None:
        whole: Any = model.config
        config = whole.get_text_config()
        super().__init__(model, config.vocab_size, train_length)
        self.bos, self.config = bos, config
        heads, width = getattr(config, "num_attention_heads", 1), config.hidden_size  # Mamba has none
        head_dim = getattr(config, "head_dim", None) or width // heads
        self.shape = Shape(width, heads, head_dim, config.num_hidden_layers, train_length)
        self.rotations = {place: one for place, one in model.named_modules() if hasattr(one, "rope_type")}
        self.fixed: str | None = None  # why extensions cannot change its frequencies
        self.encoding = self.effective_encoding = self._encoding()
        self.keeps = "logits_to_keep" in inspect.signature(type(model).forward).parameters

    @property
    def model(self) -> Any:
        """The model of transformers."""
        return self.function

    def _encoding(self) -> Encoding:
        """Describe its encoding, as far as extensions can change it: named after the architecture."""
        found, name = Encoding(self.shape), self.config.model_type
        found.name = name  # type: ignore[misc]
        if biased_instead(self.config):  # Falcon: its rotation is there and not used
            return found
        rotation: Any = next(iter(self.rotations.values()), None)
        if len(self.rotations) == 1 and hasattr(rotation, "inv_freq"):
            given = rope_settings(self.config)
            if rotation.rope_type != "default":
                self.fixed = f"its rotation is scaled already ({rotation.rope_type})"
                return found
            return KnownRotary(self.shape, name, rotation.inv_freq, float(given[0]["rope_theta"]))
        if self.rotations:
            self.fixed = "its layers have rotations of their own"
        for place, module in self.model.named_modules():
            if isinstance(module, nn.Embedding) and place.rpartition(".")[2] in TABLES:
                found.ends_at = module.num_embeddings - int(getattr(module, "offset", 0))
                break
        return found

    def check(self, settings: Mapping[str, Any], window: int, tune: bool) -> None:
        """Raise NotForThisEncodingError for an extension that cannot act in this model."""
        try:
            extension = build_extension(settings, self, tune=tune)
        except NotForThisEncodingError as error:
            if self.fixed is None:
                raise
            which = extensions()[str(settings["name"])]
            raise NotForThisEncodingError(which, self.config.model_type, self.fixed) from error
        if extension is None:
            return
        acting = leaves(extension.effective_encoding(window))
        unable = [part.name for part in acting if part.hooks - ABLE or "prepare" in part.hooks]
        reason = None
        if unable:
            reason = "it needs queries and keys before their rotation, which transformers does not show"
        elif attention_parts(acting) and not getattr(self.model, "_supports_attention_backend", False):
            reason = "transformers lets nothing into the attention of this architecture"
        elif attention_parts(acting) and any(hasattr(one, "sinks") for one in self.modules()):
            reason = "its attention has learned sinks, which would be lost"
        if reason:
            raise NotForThisEncodingError(type(extension), self.config.model_type, reason)

    @torch.no_grad()
    def forward(self, tokens: Tensor, n_targets: int, encoding: Encoding | None = None) -> Tensor:
        """Return the logits of the last tokens, (B, T, V), of tokens (B, S)."""
        if (highest := int(tokens.max())) >= self.vocab_size:
            problem = f"the text has token {highest}, the model {self.vocab_size}"
            raise UserError("subject.tokenizer", None, problem, hint="the one that it was trained with")
        if self.bos is not None:
            tokens = tokens.clone()
            tokens[:, 0] = self.bos
        if self.config.model_type == "mpt":
            self.config.max_seq_len = tokens.shape[1]  # what its bias is made for: longer ones fail
        acting = self.effective_encoding if encoding is None else encoding
        with self._rotated(acting), self._attending(acting):
            kept = {"logits_to_keep": n_targets} if self.keeps else {}
            try:
                found = self.model(tokens, use_cache=False, **kept)
            except (IndexError, RuntimeError) as error:
                if "out of bounds" not in str(error) and "out of range" not in str(error):
                    raise
                raise NotApplicableError(f"n/a: {first_line(error)}") from error  # GPT-J's table of angles
        return self.checked(found.logits[:, -n_targets:], (len(tokens), n_targets))

    @contextmanager
    def _rotated(self, acting: Encoding) -> Iterator[None]:
        """Put a copy in each rotation's place, with the frequencies of an extension; itself at the end."""
        for place, own in self.rotations.items():
            rotation: Any = copy.deepcopy(own)
            if acting is not self.effective_encoding and isinstance(self.effective_encoding, KnownRotary):
                part = next((one for one in leaves(acting) if isinstance(one, Rotary)), None)
                theta = torch.zeros_like(rotation.inv_freq)  # `drop`: nothing turns
                if part is not None:
                    theta = part.acting_frequencies(torch.device("cpu")).to(theta)
                    louder, _ = part.angles(torch.zeros(1, dtype=torch.int64))  # cos of 0 times a factor
                    rotation.attention_scaling = float(louder[0, 0])
                rotation.inv_freq = theta
            self.model.set_submodule(place, rotation)
        try:
            yield
        finally:
            for place, own in self.rotations.items():
                self.model.set_submodule(place, own)

    @contextmanager
    def _attending(self, acting: Encoding) -> Iterator[None]:
        """Put posenc's attention function in the place of the model's where an extension acts there."""
        parts = attention_parts(leaves(acting))
        if not parts:
            yield
            return
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask

        def attend(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
            return attention(parts, module, *args, **kwargs), None

        AttentionInterface.register(ATTENTION, attend)
        AttentionMaskInterface.register(ATTENTION, eager_mask)
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(ATTENTION)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)


def attention_parts(parts: tuple[Encoding, ...]) -> list[Encoding]:
    """Return those that act on scores or masks."""
    return [one for one in parts if one.hooks & {"scores", "visible"}]


def attention(
    parts: list[Encoding],
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> Tensor:
    """Return softmax(scores + mask) v as transformers wants it, (B, S, H, D), with the parts' hooks.

    q (B, H, S, D); k and v (B, KV, S, D), KV heads shared by H/KV queries each; mask (B, 1, S, S).
    """
    groups, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    pos, out = torch.arange(length, device=q.device), []
    layer = getattr(module, "layer_idx", None) or 0
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        q_pos, k_pos = pos[start:end], pos[:end]
        s = (q[:, :, start:end] @ k[:, :, :end].mT).float()  # (B, H, queries, keys)
        s = s * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        if softcap is not None:
            s = torch.tanh(s / softcap) * softcap
        allowed = q_pos[:, None] >= k_pos
        for part in parts:
            if "scores" in part.hooks:
                s = part.scores(s, q, k, q_pos, k_pos, None, layer)
            if "visible" in part.hooks:
                allowed = allowed & part.visible(q_pos, k_pos, layer)
        if mask is not None:
            s = s + mask[:, :, start:end, :end]
        p = s.masked_fill(~allowed, float("-inf")).softmax(-1).to(v.dtype)
        out.append(p @ v[:, :, :end])
    return torch.cat(out, dim=2).transpose(1, 2)


def biased_instead(config: Any) -> bool:
    """Tell whether slope times distance takes the place of the rotation that it has (Falcon's setting)."""
    with suppress(AttributeError):
        return bool(config.alibi)
    return False


def rope_settings(config: Any) -> list[dict[str, Any]]:
    """Return the rotation's settings: one, or one a kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    return [one for one in found.values() if isinstance(one, dict)] or ([found] if found else [])


def trained_length(config: Any) -> int:
    """Return T of a configuration: of its training before any scaling of its rotation. UserError."""
    config = config.get_text_config()
    names = () if biased_instead(config) else LENGTHS  # Falcon's is a default that says nothing
    before = [
        *(one.get("original_max_position_embeddings") for one in rope_settings(config)),
        getattr(config, "original_max_position_embeddings", None),
    ]
    found = [one for one in before if one] or [getattr(config, name, None) for name in names]
    length = next((int(one) for one in found if one), None)
    if length is None:
        hint = "context_length=2048, or what the model was trained at"
        raise UserError("context_length", "auto", "this model's configuration does not say it", hint=hint)
    return length
