"""Measure a causal language model of transformers, with or without an extension.

Without an extension the model runs untouched. How an extension acts depends on what it changes:
- frequencies: it sets the tables of the model's rotation
- scores, or which keys are seen: posenc's attention function takes the place of the model's
- distances: in addition posenc rotates queries and keys, in architectures whose rotation is known

If layers turn by different frequencies, an extension acts in those that see the whole text. Each pass begins
with the rotation as it was loaded, since some types (`dynamic`) keep the scale of the longest text so far.

A pass goes over the whole window at once, or with `chunk_tokens` over a part of it at a time. The keys and
values of earlier parts are kept then, so that the numbers are the same where `why_not_in_chunks` is None.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.extensions import (
    Extension,
    NotForThisEncodingError,
    build_extension,
    extensions,
    leaves,
)
from posenc.evaluation.extensions.redistanced import Redistanced
from posenc.evaluation.models.callables import (
    CallableModel,
    LogitsOf,
    NextLogits,
    OnLayer,
)
from posenc.evaluation.models.configurations import (
    DYNAMIC,
    GLOBAL_LAYERS,
    LOCAL_LAYERS,
    LONGROPE,
    has_bias_instead,
    scaled_types,
    shape_of,
)
from posenc.evaluation.models.rotations import (
    KnownRotary,
    ModelRotation,
    Obstacle,
    rotations_of,
    why_rotation_is_fixed,
)
from posenc.evaluation.models.transformers_attention import AttentionParts, attention, score_options

ATTENTION_NAME = "posenc"  # the name of the attention function in the registry of transformers
TABLE_NAMES = ("wpe", "embed_positions", "position_embeddings")  # tables of positions in models
TRIAL_TOKENS = 8  # of passes that find out which module's hidden states become logits, and whether chunks do
OTHER_IN_CHUNKS = ("moshi",)  # beyond its local window; a short text in chunks does not show it
CHUNKS_TOLERANCE = 0.3  # of the spread of logits; in bf16 and eight bits other products round differently
TRIAL_TOLERANCE = 0.01  # of the spread of logits; those of another module are off by as much as the spread
USABLE_HOOKS = {"rotate", "scores", "visible"}  # hooks of an extension that can act in transformers
# Architectures in which posenc can rotate in the model's place. A test of each says that it rotates in all
# layers, after all other changes to queries and keys, and turns number i of a head with number i + D'/2.
# Others turn neighbours (Cohere, GLM) or leave out layers (SmolLM3, Llama 4).
KNOWN_ATTENTIONS = (
    *("apertus", "arcee", "bitnet", "gemma", "gemma2", "gemma3_text", "gpt_neox", "gpt_oss", "granite"),
    *("llama", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "starcoder2"),
)
# Settings of architectures whose layers choose the keys that each query sees, or make one key of several
# tokens. Each tells its attention function in its own way, which posenc's cannot follow.
SETTINGS_OF_CHOSEN_KEYS = ("index_topk", "index_topk_blocks", "indexer_budget", "compress_rates")


class TransformersModel(CallableModel):
    """A model of transformers. The token `bos`, if given, replaces the first token of every window.

    With `is_placed` the model stays on the devices that it was loaded to. With `chunk_tokens` losses are made
    by passes over so many tokens of each window at a time.
    """

    has_known_weights = True

    def __init__(
        self,
        model: nn.Module,
        train_length: int,
        bos: int | None = None,
        *,
        is_placed: bool = False,
        chunk_tokens: int | None = None,
    ) -> None:
        # A model of images and text keeps the sizes of its language model in a configuration inside of it.
        whole_config: Any = model.config
        config = whole_config.get_text_config()
        super().__init__(model, config.vocab_size, train_length)
        self.bos = bos
        self.end_tokens = end_tokens_of(model)
        self.is_placed = is_placed
        self.chunk_tokens = chunk_tokens
        self.config = config
        self.shape = shape_of(config, train_length)
        self.rotations = rotations_of(model)
        self.rotation_obstacle = why_rotation_is_fixed(self.rotations) if self.rotates else None
        self.rotation = self._known_rotation()
        self.encoding = self._described_encoding()
        self.effective_encoding = self.encoding
        # Of the class: on several devices accelerate gives the object a `forward` of its own.
        self.can_limit_logits = "logits_to_keep" in inspect.signature(type(model).forward).parameters

    @property
    def model(self) -> Any:
        """Return the model of transformers."""
        return self.function

    @property
    def has_decoder(self) -> bool:
        """Tell whether the model has a part that returns hidden states, from which logits can be made."""
        return self.model.base_model is not self.model

    @property
    def should_make_own_logits(self) -> bool:
        """Tell whether logits are to be made from hidden states, because the model would make all of them.

        Those of a whole window are 3.2 GB for 16,384 tokens and a vocabulary of 49k.
        """
        return not self.can_limit_logits and self._decoder is not None

    @functools.cached_property
    def _decoder(self) -> Any:
        """Return the module whose hidden states become the model's logits; None if there is no such module.

        Mostly it is the base model. OPT calls a part of that, so each is tried with a few tokens. Without
        such a module the model makes all logits at once.
        """
        if not self.has_decoder:
            return None
        candidates = (self.model.base_model, self.model.get_decoder())
        return next((decoder for decoder in candidates if self._makes_logits_of(decoder)), None)

    @torch.no_grad()
    def _makes_logits_of(self, decoder: Any) -> bool:
        """Tell whether the model, given hidden states of this module, makes the logits of a whole pass."""
        tokens = self._trial_tokens()
        # A block, and not all of them: ProphetNet makes the logits of whole passes alone.
        start = tokens.shape[1] // 2
        try:
            output = decoder(tokens, use_cache=False)
            logits = self._logits_of_hidden(decoder, output, output.last_hidden_state[:, start:])
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return False  # it takes or returns something else
        expected = self.model(tokens, use_cache=False).logits[:, start:]
        # Both are made by the same products. In another module's place logits would be those of other states.
        return _is_close(logits, expected, TRIAL_TOLERANCE)

    def _trial_tokens(self) -> Tensor:
        """Return a few tokens (1, W): the last ones, since padding and other marks mostly are the first."""
        n_tokens = min(TRIAL_TOKENS, self.vocab_size, self.shape.train_length)
        first = self.vocab_size - n_tokens
        return torch.arange(first, self.vocab_size, device=self.model.device)[None]

    def to(self, *arguments: Any, **options: Any) -> Self:
        """Move the model to a device, unless it is placed: on several devices, or with quantised weights."""
        return self if self.is_placed else super().to(*arguments, **options)

    def for_trial(self, share: float) -> CallableModel:
        """Return the model for a pass over this share of a window, in chunks that are smaller by it, too."""
        if self.chunk_tokens is None:
            return self
        trial = copy.copy(self)
        trial.chunk_tokens = max(1, round(share * self.chunk_tokens))
        return trial

    @property
    def rotates(self) -> bool:
        """Tell whether the model uses its rotations. Falcon can have them and use a bias instead."""
        return bool(self.rotations) and not has_bias_instead(self.config)

    def _known_rotation(self) -> ModelRotation | None:
        """Return the rotation that extensions change; None if the model has none, or one that is fixed."""
        if not self.rotates or self.rotation_obstacle is not None:
            return None
        # There is one: several modules are an obstacle, which the line above has excluded.
        (module,) = self.rotations.values()
        return ModelRotation.read(module, self.config)

    def _described_encoding(self) -> Encoding:
        """Return an encoding that stands for the model's, under the name of its architecture.

        It has the rotation if extensions can change that. All else of the encoding stays in the model.
        """
        name = self.config.model_type
        if self.rotation is not None:
            return KnownRotary(self.shape, name, self.rotation)
        encoding = Encoding(self.shape)
        encoding.name = name  # type: ignore[misc]
        # Past its end torch raises an IndexError on a CPU, and on a GPU the process is lost.
        encoding.ends_at = table_size(self.model)
        return encoding

    def check(self, settings: Mapping[str, Any], window: int, tune: bool) -> None:
        """Raise NotForThisEncodingError for an extension that cannot act in this model."""
        architecture = self.config.model_type
        try:
            extension = build_extension(settings, self, tune=tune)
        except NotForThisEncodingError as error:
            obstacle = self.rotation_obstacle
            if obstacle is None:
                raise
            kind = extensions()[str(settings["name"])]
            raise NotForThisEncodingError(kind, architecture, obstacle.reason, hint=obstacle.hint) from error
        if extension is None:
            return
        parts = leaves(extension.effective_encoding(window))
        obstacle = self._obstacle_in_attention(extension, parts)
        obstacle = obstacle or self._obstacle_in_rotation(extension, parts)
        if obstacle is not None:
            raise NotForThisEncodingError(type(extension), architecture, obstacle.reason, hint=obstacle.hint)
        if not tune:  # knobs are still to be chosen
            extension.check_change(window)

    def _obstacle_in_attention(self, extension: Extension, parts: Sequence[Encoding]) -> Obstacle | None:
        """Return why the parts of an extension cannot act in the attention; None if nothing prevents it."""
        # Redistanced declares `prepare` as well, which posenc's attention function calls itself.
        parts_by_hooks = [part for part in parts if not isinstance(part, Redistanced)]
        if any(part.hooks - USABLE_HOOKS for part in parts_by_hooks):
            return Obstacle("it acts where transformers lets nothing in")
        if AttentionParts.of(parts) and not getattr(self.model, "_supports_attention_backend", False):
            return Obstacle("transformers lets nothing into the attention of this architecture")
        if AttentionParts.of(parts) and any(hasattr(self.config, name) for name in SETTINGS_OF_CHOSEN_KEYS):
            return Obstacle("the layers of this architecture choose which keys a query sees")
        if changes_distances(parts) and self.config.model_type not in KNOWN_ATTENTIONS:
            reason = "it needs queries and keys before their rotation, out of reach in this architecture"
            return Obstacle(reason, f"extend=yarn, pi, ...; {extension.name} acts in llama, qwen3, phi3, ...")
        return None

    def _obstacle_in_rotation(self, extension: Extension, parts: Sequence[Encoding]) -> Obstacle | None:
        """Return why the parts of an extension cannot change the rotation; None if they can, or do not."""
        is_as_trained = self.encoding in parts and not changes_distances(parts)
        if self.rotation is None or is_as_trained:
            return None
        (module,) = self.rotations.values()
        if not self.rotation.follows_tables(module):
            return Obstacle("its rotation makes its frequencies anew in each pass")
        if self.rotation.scaled_lengths is None:
            return None
        rope_type = self.rotation.rope_type
        original_length = self.rotation.scaled_lengths.before
        scaled_length = self.rotation.scaled_lengths.after
        # An extension may act beyond the scaling or in its place. Only the user knows which is meant.
        if self.shape.train_length <= original_length:
            lengths = f"from {original_length} to {scaled_length} tokens"
            reason = f"its rotation is scaled already ({rope_type}), {lengths}"
            beyond_scaling = f"context_length={scaled_length}: from there on"
            hint = f"{beyond_scaling}; subject.rope_scaling=false: without its scaling"
            return Obstacle(reason, hint)
        parts_within = leaves(extension.effective_encoding(original_length))
        # Up to that length the model turns by its short table, but posenc would turn by the long one.
        if rope_type == LONGROPE and changes_distances(parts_within):
            reason = f"its frequencies up to {original_length} tokens are others than beyond ({rope_type})"
            return Obstacle(reason)
        return None

    @torch.no_grad()
    def forward(self, tokens: Tensor, n_targets: int, encoding: Encoding | None = None) -> Tensor:
        """Return the logits of the last n targets, (B, n, V), of tokens (B, W).

        Raises UserError for tokens that the model does not have, NotApplicableError past its last position.
        """
        if self.should_make_own_logits:
            return self.target_logits(tokens, n_targets, encoding)(slice(None))
        options = {"logits_to_keep": n_targets} if self.can_limit_logits else {}
        with self._with_encoding(encoding):
            # Keys and values of all layers would stay in memory, and nothing reads them.
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

        Only hidden states are kept: logits of 16,384 targets and a vocabulary of 49,152 would take 3.2 GB.
        """
        decoder = self._decoder
        if decoder is None:
            return super().target_logits(tokens, n_targets, encoding)
        inputs = self._inputs(tokens)
        with self._with_encoding(encoding):
            if self.chunk_tokens is None or self.chunk_tokens >= inputs.shape[1]:
                with self._reporting_layers(on_layer):
                    output = decoder(inputs, use_cache=False)
                hidden = output.last_hidden_state[:, -n_targets:]  # (B, n, d)
            else:
                output, hidden = self._pass_in_chunks(decoder, inputs, n_targets, self.chunk_tokens, on_layer)

        def logits_of(columns: slice) -> Tensor:
            hidden_block = hidden[:, columns]
            logits = self._logits_of_hidden(decoder, output, hidden_block)
            return self.checked(logits, tuple(hidden_block.shape[:2]))

        return logits_of

    def _pass_in_chunks(
        self, decoder: Any, inputs: Tensor, n_targets: int, chunk_tokens: int, on_layer: OnLayer | None
    ) -> tuple[Any, Tensor]:
        """Make a pass over inputs (B, W), so many tokens of each window at a time.

        Return the output of the last chunk without keys and values, and the hidden states of the targets
        (B, n, d). Those of other tokens are dropped with their chunk.
        """
        length = inputs.shape[1]
        first_target = length - n_targets
        past = None
        hidden_of_chunks = []
        for start in range(0, length, chunk_tokens):
            chunk = inputs[:, start : start + chunk_tokens]
            part = _ShareOfPass(start / length, chunk.shape[1] / length)
            with self._reporting_layers(None if on_layer is None else part.reporter(on_layer)):
                output = decoder(chunk, past_key_values=past, use_cache=True)
            past = output.past_key_values
            n_before_targets = max(first_target - start, 0)
            if n_before_targets < chunk.shape[1]:  # an empty slice would keep the whole chunk in memory
                hidden_of_chunks.append(output.last_hidden_state[:, n_before_targets:])
        return _without_past(output), torch.cat(hidden_of_chunks, dim=1)

    def why_not_in_chunks(self, acting: Encoding) -> str | None:
        """Return why passes in chunks would give other numbers while an encoding acts; None if they do not.

        Only modules and configuration are looked at, so that an outline of the model is enough.
        """
        parameters = inspect.signature(type(self.model.base_model).forward).parameters
        other_layers = set(getattr(self.config, "layer_types", None) or ()) - {GLOBAL_LAYERS, LOCAL_LAYERS}
        # Mamba and its relatives carry a state that is no list of keys and values.
        is_stateful = getattr(self.model, "_is_stateful", False) or bool(other_layers)
        by_window = [name for name in scaled_types(self.config) if name in (DYNAMIC, LONGROPE)]
        if not self.has_decoder:
            return f"{self.config.model_type} has no part that returns hidden states"
        if self.config.model_type in OTHER_IN_CHUNKS:
            return f"{self.config.model_type} sees other tokens of earlier chunks than of a whole pass"
        if "past_key_values" not in parameters or is_stateful:
            return f"{self.config.model_type} keeps another state than keys and values of earlier tokens"
        if by_window and self.rotates:
            return f"its rotation is {by_window[0]}: its frequencies depend on the length of the whole text"
        if AttentionParts.of(leaves(acting)):
            return "the extension acts in the attention, which posenc computes over whole windows"
        return None

    @torch.no_grad()
    def check_chunks(self) -> None:
        """Raise UserError if a short text in two chunks has other logits than in one pass.

        `why_not_in_chunks` knows architectures by their modules. Some differ without a sign of it (CPM-Ant).
        """
        tokens = self._trial_tokens()
        n_tokens = tokens.shape[1]
        whole = copy.copy(self)
        whole.chunk_tokens = None
        expected = whole.target_logits(tokens, n_tokens)(slice(None))
        in_chunks = copy.copy(self)
        in_chunks.chunk_tokens = max(1, n_tokens // 2)
        try:
            logits = in_chunks.target_logits(tokens, n_tokens)(slice(None))
            is_same = _is_close(logits, expected, CHUNKS_TOLERANCE)
        except RuntimeError:
            is_same = False
        if not is_same:
            problem = f"would give other numbers: {self.config.model_type} in chunks is another model"
            raise UserError("subject.chunk_tokens", self.chunk_tokens, problem, hint="measure without it")

    @torch.no_grad()
    def next_logits(self, tokens: Tensor, past: Any = None, encoding: Encoding | None = None) -> NextLogits:
        """Return the logits of the token after a text, as CallableModel does.

        Keys and values of earlier tokens are kept if that is exact: if the model rotates them by frequencies
        that do not depend on the length of the text, and no extension acts on scores.
        """
        acting = self.effective_encoding if encoding is None else encoding
        takes_past = "past_key_values" in inspect.signature(type(self.model).forward).parameters
        # longrope turns all keys by other frequencies once the text is longer than its first length, but the
        # keys that were kept until then are turned already.
        keys_stay = self.rotation is not None and self.rotation.rope_type != LONGROPE
        if not keys_stay or not takes_past or AttentionParts.of(leaves(acting)):
            return super().next_logits(tokens, past, encoding)
        inputs = self._inputs(tokens) if past is None else tokens.to(self.model.device)
        with self._with_encoding(encoding):
            if self.should_make_own_logits:
                output = self._decoder(inputs, past_key_values=past, use_cache=True)
                hidden = output.last_hidden_state[:, -1:]
                logits = self._logits_of_hidden(self._decoder, _without_past(output), hidden)
            else:
                options = {"logits_to_keep": 1} if self.can_limit_logits else {}
                output = self.model(inputs, past_key_values=past, use_cache=True, **options)
                logits = output.logits[:, -1:]
        logits = self.checked(logits, (len(tokens), 1))
        return NextLogits(logits[:, -1], past=output.past_key_values)

    @torch.no_grad()
    def _logits_of_hidden(self, decoder: Any, output: Any, hidden: Tensor) -> Tensor:
        """Return the logits (B, n, V) of hidden states (B, n, d). `output` is what the decoder returned.

        The model is called with a decoder that only returns these states. So the model's own code does what
        the architecture does to its logits (a cap in Gemma 2, a factor in Granite and Cohere).
        """
        output_of_block = type(output)(**{**output, "last_hidden_state": hidden})
        # The replaced decoder does not read them. Only their number must be right.
        tokens = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        # For several devices accelerate gives the object a `forward` of its own, which must be put back.
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
            # `share=share` binds the number of this layer. Without it all hooks would report the last one.
            handles.append(layer.register_forward_hook(lambda *_, share=share: on_layer(share)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _inputs(self, tokens: Tensor) -> Tensor:
        """Return the tokens (B, W) for the model, with BOS. Raises UserError for tokens that it lacks."""
        highest = int(tokens.max())
        if highest >= self.vocab_size:
            problem = f"the text has token {highest}, the model {self.vocab_size}"
            raise UserError("subject.tokenizer", None, problem, hint="the one that it was trained with")
        if self.bos is not None:
            # The batch is scored against its own tokens afterwards, so BOS must not enter it.
            tokens = tokens.clone()
            tokens[:, 0] = self.bos
        if self.config.model_type == "mpt":
            # it makes its bias for so many tokens, and fails at longer texts
            self.config.max_seq_len = tokens.shape[1]
        return tokens.to(self.model.device)

    @contextmanager
    def _with_encoding(self, encoding: Encoding | None) -> Iterator[None]:
        """Let `encoding` act in the model; None is that of training.

        Raises NotApplicableError past the last position.
        """
        acting = self.effective_encoding if encoding is None else encoding
        with self._with_rotation_of(acting), self._with_attention_of(acting):
            try:
                yield
            except (IndexError, RuntimeError) as error:
                # torch has no error of its own for the end of a table, such as GPT-J's table of angles
                message = str(error)
                if "out of bounds" not in message and "out of range" not in message:
                    raise
                raise NotApplicableError(f"n/a: {first_line(error)}") from error

    @contextmanager
    def _with_rotation_of(self, acting: Encoding) -> Iterator[None]:
        """Replace each rotation by a copy with an extension's frequencies, and put it back at the end."""
        for name, original in self.rotations.items():
            # Also for the model as trained: a `dynamic` rotation keeps the scale of the longest text so far.
            copied: Any = copy.deepcopy(original)
            if self.rotation is not None and acting is not self.effective_encoding:
                self._set_rotation(self.rotation, copied, leaves(acting))
            self.model.set_submodule(name, copied)
        try:
            yield
        finally:
            for name, original in self.rotations.items():
                self.model.set_submodule(name, original)

    def _set_rotation(self, rotation: ModelRotation, copied: Any, parts: Sequence[Encoding]) -> None:
        """Let a copy of the rotation's module turn as the parts of an extension do."""
        if changes_distances(parts):
            rotation.stop(copied)  # the attention function turns queries and keys
            return
        rotary = next((part for part in parts if isinstance(part, Rotary)), None)  # None: `drop` removed it
        rotation.write(copied, rotary)

    @contextmanager
    def _with_attention_of(self, acting: Encoding) -> Iterator[None]:
        """Replace the model's attention function by posenc's while an encoding acts, if it needs that."""
        parts = AttentionParts.of(leaves(acting))
        if not parts:
            yield
            return
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        as_trained = AttentionParts.of(())

        def attend(
            module: nn.Module,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            attention_mask: Tensor | None = None,
            **layer_options: Any,
        ) -> tuple[Tensor, None]:
            """Compute the attention of a layer, as trained if it turns by another rotation."""
            options = score_options(module, q, k, layer_options)
            is_extended = self.rotation is None or self.rotation.acts_in(options.layer, self.config)
            acting_parts = parts if is_extended else as_trained
            output = attention(acting_parts, q, k, v, attention_mask, options)
            return output.contiguous(), None  # JetMoe views it with another shape

        AttentionInterface.register(ATTENTION_NAME, attend)
        # It makes no mask where only later tokens are hidden. One for all pairs of 16,384 tokens took 1 GB.
        AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
        # As it was before this pass, since a user may have chosen `eager` for the model.
        implementation = self.model.config._attn_implementation
        self.model.set_attn_implementation(ATTENTION_NAME)
        try:
            yield
        finally:
            self.model.set_attn_implementation(implementation)


def _is_close(logits: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Tell whether logits are the expected ones, up to a share of their spread."""
    if logits.shape != expected.shape:
        return False
    largest_change = (logits - expected).abs().max()
    return bool(largest_change <= tolerance * expected.float().std())


def _without_past(output: Any) -> Any:
    """Return what a decoder returned without its keys and values.

    What is left is needed for the logits, whose head reads fields of this very type.
    """
    # Setting the field to None would leave the keys and values in the output, which is a dictionary too.
    fields = {name: value for name, value in output.items() if name != "past_key_values"}
    return type(output)(**fields)


@dataclass(frozen=True)
class _ShareOfPass:
    """The part of a pass that a chunk is."""

    before: float  # the share of the pass that is done before
    size: float

    def reporter(self, on_layer: OnLayer) -> OnLayer:
        """Return a function that is called with the share of the chunk, and reports that of the pass."""
        return lambda share: on_layer(self.before + self.size * share)


def changes_distances(parts: Sequence[Encoding]) -> bool:
    """Tell whether the parts of an extension need queries and keys before their rotation."""
    return any(isinstance(part, Redistanced) for part in parts)


def layers_of(model: nn.Module, count: int) -> nn.ModuleList | None:
    """Return the layers of a model: its first list of `count` modules. None if it has no such list."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((layers for layers in lists if len(layers) == count), None)


def end_tokens_of(model: Any) -> frozenset[int]:
    """Return the tokens at which transformers stops writing: none, one or several."""
    end = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if end is None:
        return frozenset()
    return frozenset([end] if isinstance(end, int) else end)


def table_size(model: nn.Module) -> int | None:
    """Return how many positions a table has, of learned positions or of angles; None without one."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in TABLE_NAMES:
            # OPT's table has two rows before position 0, and its module says so in `offset`.
            return module.num_embeddings - int(getattr(module, "offset", 0))
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in TABLE_NAMES and buffer.ndim == 2:  # GPT-J and CodeGen: (positions, D)
            return buffer.shape[0]
    return None
