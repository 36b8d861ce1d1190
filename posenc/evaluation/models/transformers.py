"""Measure a causal language model of transformers, and let the extensions act in it that can.

Without an extension the model runs untouched. An extension that rescales frequencies sets the rotation's own
table. An extension that masks keys or scales scores replaces the attention function. An extension that needs
queries and keys before their rotation is refused: transformers does not show them. Each pass begins with the
rotation as it was loaded, since some types (`dynamic`) keep the scale of the longest text so far.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.extensions import NotForThisEncodingError, build_extension, extensions, leaves
from posenc.evaluation.models.callables import (
    CallableModel,
    LogitsOf,
    NextLogits,
    OnLayer,
)

ATTENTION_NAME = "posenc"  # the name of the attention function in the registry of transformers
QUERY_BLOCK = 512  # queries that the attention function handles at once
LENGTH_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")  # T in configurations
TABLE_NAMES = ("wpe", "embed_positions", "position_embeddings")  # tables of learned positions in models
USABLE_HOOKS = {"rotate", "scores", "visible"}  # hooks of an extension that can act in transformers
ATTENTION_HOOKS = {"scores", "visible"}  # hooks that need another attention function


class KnownRotary(Rotary):
    """Rotate by the frequencies of a checkpoint's configuration."""

    def __init__(self, shape: Shape, name: str, theta: Tensor, base: float) -> None:
        super().__init__(shape, base=base, layout="half", width=2 * len(theta))
        self.name = name  # type: ignore[misc]
        self.theta = theta.double().cpu()  # (pairs,)

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        return self.theta if device is None else self.theta.to(device)


class TransformersModel(CallableModel):
    """Measure a model of transformers. The token `bos` replaces the first token of every window.

    A model that `is_placed` stays on the devices that it was loaded to.
    """

    has_known_weights = True

    def __init__(
        self, model: nn.Module, train_length: int, bos: int | None = None, *, is_placed: bool = False
    ) -> None:
        whole_config: Any = model.config
        config = whole_config.get_text_config()
        super().__init__(model, config.vocab_size, train_length)
        self.bos = bos
        self.is_placed = is_placed
        self.config = config
        self.shape = shape_of(config, train_length)
        modules = dict(model.named_modules())
        self.rotations = {name: module for name, module in modules.items() if hasattr(module, "rope_type")}
        self.fixed_rotation_reason = self._why_frequencies_are_fixed()
        self.encoding = self._described_encoding()
        self.effective_encoding = self.encoding
        self.can_limit_logits = "logits_to_keep" in inspect.signature(type(model).forward).parameters

    @property
    def model(self) -> Any:
        """Return the model of transformers."""
        return self.function

    def to(self, *arguments: Any, **options: Any) -> Self:
        """Move the model, unless it has its place: layers on several devices, or quantised weights."""
        return self if self.is_placed else super().to(*arguments, **options)

    @property
    def rotates(self) -> bool:
        """Tell whether the model uses its rotations. Falcon may have them, and use a bias instead."""
        return bool(self.rotations) and not has_bias_instead(self.config)

    def _why_frequencies_are_fixed(self) -> str | None:
        """Return why no extension can change the frequencies of the rotation; None if one can."""
        if not self.rotates:
            return None
        rotation: Any = next(iter(self.rotations.values()))
        if len(self.rotations) > 1 or not hasattr(rotation, "inv_freq"):
            return "its layers have rotations of their own"
        if rotation.rope_type != "default":
            return f"its rotation is scaled already ({rotation.rope_type})"
        return None

    def _described_encoding(self) -> Encoding:
        """Describe the encoding as far as extensions can change it, under the name of the architecture."""
        name = self.config.model_type
        if self.rotates and self.fixed_rotation_reason is None:
            rotation: Any = next(iter(self.rotations.values()))
            base = float(rope_settings(self.config)[0]["rope_theta"])
            return KnownRotary(self.shape, name, rotation.inv_freq, base)
        encoding = Encoding(self.shape)
        encoding.name = name  # type: ignore[misc]
        encoding.ends_at = table_size(self.model)
        return encoding

    def check(self, settings: Mapping[str, Any], window: int, tune: bool) -> None:
        """Raise NotForThisEncodingError for an extension that cannot act in this model."""
        architecture = self.config.model_type
        try:
            extension = build_extension(settings, self, tune=tune)
        except NotForThisEncodingError as error:
            if self.fixed_rotation_reason is None:
                raise
            kind = extensions()[str(settings["name"])]
            raise NotForThisEncodingError(kind, architecture, self.fixed_rotation_reason) from error
        if extension is None:
            return
        reason = self._why_it_cannot_act(leaves(extension.effective_encoding(window)))
        if reason is not None:
            raise NotForThisEncodingError(type(extension), architecture, reason)

    def _why_it_cannot_act(self, parts: Sequence[Encoding]) -> str | None:
        """Return why an extension of these parts cannot act in this model; None if it can."""
        if any(part.hooks - USABLE_HOOKS or "prepare" in part.hooks for part in parts):
            return "it needs queries and keys before their rotation, which transformers does not show"
        if not attention_parts(parts):
            return None
        if not getattr(self.model, "_supports_attention_backend", False):
            return "transformers lets nothing into the attention of this architecture"
        if any(hasattr(module, "sinks") for module in self.modules()):
            return "its attention has learned sinks, which would be lost"
        return None

    @torch.no_grad()
    def forward(self, tokens: Tensor, n_targets: int, encoding: Encoding | None = None) -> Tensor:
        """Return the logits of the last n targets, (B, n, V), of tokens (B, W).

        Raises UserError for tokens that the model does not have, NotApplicableError past its last position.
        """
        options = {"logits_to_keep": n_targets} if self.can_limit_logits else {}
        with self._acting(encoding):
            output = self.model(self._inputs(tokens), use_cache=False, **options)
        return self.checked(output.logits[:, -n_targets:], (len(tokens), n_targets))

    @torch.no_grad()
    def target_logits(
        self,
        tokens: Tensor,
        n_targets: int,
        encoding: Encoding | None = None,
        on_layer: OnLayer | None = None,
    ) -> LogitsOf:
        """Make a pass over tokens (B, W), and return the function from columns of the last targets to logits.

        At 16,384 targets and a vocabulary of 49,152 all logits would take 3.2 GB, so only hidden states are
        kept.
        """
        decoder = self.model.base_model
        if decoder is self.model:  # it has no module that returns hidden states
            return super().target_logits(tokens, n_targets, encoding)
        with self._acting(encoding), self._reporting_layers(on_layer):
            output = decoder(self._inputs(tokens), use_cache=False)
        hidden = output.last_hidden_state[:, -n_targets:]  # (B, n, d)

        def logits_of(columns: slice) -> Tensor:
            hidden_block = hidden[:, columns]
            return self.checked(self._logits_of_hidden(output, hidden_block), tuple(hidden_block.shape[:2]))

        return logits_of

    @torch.no_grad()
    def next_logits(self, tokens: Tensor, past: Any = None, encoding: Encoding | None = None) -> NextLogits:
        """Return the logits behind a text (B, n); `past` is as in CallableModel.

        Keys and values of earlier tokens are kept where that is exact: where the model rotates them, and no
        extension acts on scores.
        """
        acting = self.effective_encoding if encoding is None else encoding
        takes_past = "past_key_values" in inspect.signature(type(self.model).forward).parameters
        if not self.rotates or not takes_past or attention_parts(leaves(acting)):
            return super().next_logits(tokens, past, encoding)
        inputs = self._inputs(tokens) if past is None else tokens.to(self.model.device)
        options = {"logits_to_keep": 1} if self.can_limit_logits else {}
        with self._acting(encoding):
            output = self.model(inputs, past_key_values=past, use_cache=True, **options)
        logits = self.checked(output.logits[:, -1:], (len(tokens), 1))
        return NextLogits(logits[:, -1], past=output.past_key_values)

    @torch.no_grad()
    def _logits_of_hidden(self, output: Any, hidden: Tensor) -> Tensor:
        """Return the logits (B, n, V) of hidden states (B, n, d). `output` is the decoder's.

        It calls the model with its decoder replaced by one that returns these states. So what an architecture
        does to its logits (a cap in Gemma 2, a factor in Granite and Cohere) is done by its own code.
        """
        decoder = self.model.base_model
        output_of_block = type(output)(**{**output, "last_hidden_state": hidden})
        tokens = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        # accelerate sets a `forward` of the object itself, beside that of its class, for several devices
        forward_of_object = vars(decoder).get("forward")
        decoder.forward = lambda *_, **__: output_of_block
        try:
            logits: Tensor = self.model(tokens, use_cache=False).logits
        finally:
            if forward_of_object is None:
                del decoder.forward
            else:
                decoder.forward = forward_of_object
        return logits

    @contextmanager
    def _reporting_layers(self, on_layer: OnLayer | None) -> Iterator[None]:
        """Call `on_layer` with the share of the layers that are done, after each layer."""
        layers = layers_of(self.model, self.shape.n_layers)
        if on_layer is None or layers is None:
            yield
            return
        handles = []
        for number, layer in enumerate(layers, start=1):
            share = number / len(layers)
            handles.append(layer.register_forward_hook(lambda *_, share=share: on_layer(share)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _inputs(self, tokens: Tensor) -> Tensor:
        """Return the tokens (B, W) as the model takes them, with BOS. Raises UserError for unknown ones."""
        highest = int(tokens.max())
        if highest >= self.vocab_size:
            problem = f"the text has token {highest}, the model {self.vocab_size}"
            raise UserError("subject.tokenizer", None, problem, hint="the one that it was trained with")
        if self.bos is not None:
            tokens = tokens.clone()
            tokens[:, 0] = self.bos
        if self.config.model_type == "mpt":
            # its bias is made for this many tokens, and longer texts fail
            self.config.max_seq_len = tokens.shape[1]
        return tokens.to(self.model.device)

    @contextmanager
    def _acting(self, encoding: Encoding | None) -> Iterator[None]:
        """Let an encoding act, or that of training. Raises NotApplicableError past the last position."""
        acting = self.effective_encoding if encoding is None else encoding
        with self._rotated(acting), self._attending(acting):
            try:
                yield
            except (IndexError, RuntimeError) as error:
                # a table of positions ends, as GPT-J's table of angles does
                message = str(error)
                if "out of bounds" not in message and "out of range" not in message:
                    raise
                raise NotApplicableError(f"n/a: {first_line(error)}") from error

    @contextmanager
    def _rotated(self, acting: Encoding) -> Iterator[None]:
        """Replace each rotation by a copy, with the frequencies of an extension; put it back at the end."""
        is_extended = acting is not self.effective_encoding and isinstance(
            self.effective_encoding, KnownRotary
        )
        for name, original in self.rotations.items():
            rotation: Any = copy.deepcopy(original)
            if is_extended:
                set_rotation(rotation, acting)
            self.model.set_submodule(name, rotation)
        try:
            yield
        finally:
            for name, original in self.rotations.items():
                self.model.set_submodule(name, original)

    @contextmanager
    def _attending(self, acting: Encoding) -> Iterator[None]:
        """Replace the model's attention function by posenc's if the acting encoding needs that."""
        parts = attention_parts(leaves(acting))
        if not parts:
            yield
            return
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask

        def attend(
            module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any
        ) -> tuple[Tensor, None]:
            return attention(parts, q, k, v, mask, score_options(module, q.shape[-1], options)), None

        AttentionInterface.register(ATTENTION_NAME, attend)
        AttentionMaskInterface.register(ATTENTION_NAME, eager_mask)
        implementation = self.model.config._attn_implementation
        self.model.set_attn_implementation(ATTENTION_NAME)
        try:
            yield
        finally:
            self.model.set_attn_implementation(implementation)


def set_rotation(rotation: Any, acting: Encoding) -> None:
    """Give a rotation of transformers the frequencies and the attention scale of the acting encoding."""
    rotary = next((part for part in leaves(acting) if isinstance(part, Rotary)), None)
    if rotary is None:  # the extension took the rotation away: nothing turns
        rotation.inv_freq = torch.zeros_like(rotation.inv_freq)
        return
    cosines, _ = rotary.angles(torch.zeros(1, dtype=torch.int64))
    rotation.attention_scaling = float(cosines[0, 0])  # the cosine of 0, times YaRN's factor
    rotation.inv_freq = rotary.acting_frequencies(torch.device("cpu")).to(rotation.inv_freq)


def attention_parts(parts: Sequence[Encoding]) -> list[Encoding]:
    """Return the parts that act on scores or on which keys are seen."""
    return [part for part in parts if part.hooks & ATTENTION_HOOKS]


@dataclass(frozen=True)
class ScoreOptions:
    """Say how one layer of the model makes scores from products of queries and keys."""

    layer: int
    scale: float
    softcap: float | None  # the scores s become c tanh(s / c)


def score_options(module: nn.Module, head_dim: int, options: Mapping[str, Any]) -> ScoreOptions:
    """Return the options of a layer, from what transformers passes to its attention function."""
    scaling = options.get("scaling")
    return ScoreOptions(
        layer=getattr(module, "layer_idx", None) or 0,
        scale=head_dim**-0.5 if scaling is None else scaling,
        softcap=options.get("softcap"),
    )


def attention(
    parts: Sequence[Encoding], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: ScoreOptions
) -> Tensor:
    """Return softmax(scores + mask) v as transformers wants it, (B, S, H, D), with the parts' hooks.

    q (B, H, S, D); k and v (B, KV, S, D), each head of which serves H/KV heads of queries; mask (B, 1, S, S).
    """
    length = q.shape[2]
    queries_a_key = q.shape[1] // k.shape[1]  # heads
    k = k.repeat_interleave(queries_a_key, 1)  # (B, H, S, D)
    v = v.repeat_interleave(queries_a_key, 1)  # (B, H, S, D)
    pos = torch.arange(length, device=q.device)
    blocks = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        q_pos = pos[start:end]
        k_pos = pos[:end]
        s = (q[:, :, start:end] @ k[:, :, :end].mT).float() * options.scale  # (B, H, queries, keys)
        if options.softcap is not None:
            s = torch.tanh(s / options.softcap) * options.softcap
        allowed = q_pos[:, None] >= k_pos  # (queries, keys)
        for part in parts:
            if "scores" in part.hooks:
                s = part.scores(s, q, k, q_pos, k_pos, None, options.layer)
            if "visible" in part.hooks:
                allowed = allowed & part.visible(q_pos, k_pos, options.layer)
        if mask is not None:
            s = s + mask[:, :, start:end, :end]
        p = s.masked_fill(~allowed, float("-inf")).softmax(-1).to(v.dtype)
        blocks.append(p @ v[:, :, :end])  # (B, H, queries, D)
    return torch.cat(blocks, dim=2).transpose(1, 2)


def layers_of(model: nn.Module, count: int) -> nn.ModuleList | None:
    """Return the layers of a model: the first list of as many modules as its configuration says."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((layers for layers in lists if len(layers) == count), None)


# --- what a configuration says


def shape_of(config: Any, train_length: int) -> Shape:
    """Return the sizes of a model, by its configuration."""
    heads = getattr(config, "num_attention_heads", 1)  # Mamba has none
    width = config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // heads
    return Shape(width, heads, head_dim, config.num_hidden_layers, train_length)


def has_bias_instead(config: Any) -> bool:
    """Tell whether slope times distance replaces the model's rotation (Falcon's setting `alibi`)."""
    with suppress(AttributeError):
        return bool(config.alibi)
    return False


def table_size(model: nn.Module) -> int | None:
    """Return how many positions a table of learned positions has; None without one."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in TABLE_NAMES:
            return module.num_embeddings - int(getattr(module, "offset", 0))
    return None


def rope_settings(config: Any) -> list[dict[str, Any]]:
    """Return the settings of the rotation: one for all layers, or one for each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_kind_of_layer = [value for value in parameters.values() if isinstance(value, dict)]
    if by_kind_of_layer:
        return by_kind_of_layer
    return [parameters] if parameters else []


def trained_length(config: Any) -> int:
    """Return T of a configuration: the length before its rotation was scaled, if it was. Raises UserError."""
    config = config.get_text_config()
    candidates = [settings.get("original_max_position_embeddings") for settings in rope_settings(config)]
    candidates.append(getattr(config, "original_max_position_embeddings", None))
    if not has_bias_instead(config):  # the length in Falcon's configuration is a default, not T
        candidates += [getattr(config, name, None) for name in LENGTH_NAMES]
    lengths = [int(length) for length in candidates if length]
    if not lengths:
        hint = "context_length=2048, or what the model was trained at"
        raise UserError("context_length", "auto", "this model's configuration does not say it", hint=hint)
    return lengths[0]
