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
from typing import Any, Self

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.encodings.base import Encoding
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.extensions import (
    Extension,
    NotForThisEncodingError,
    build_extension,
    extensions,
    leaves,
)
from posenc.evaluation.models.callables import (
    CallableModel,
    LogitsOf,
    NextLogits,
    OnLayer,
)
from posenc.evaluation.models.chunks import CHUNKS_TOLERANCE, pass_in_chunks, why_not_in_chunks
from posenc.evaluation.models.configurations import LONGROPE, has_bias_instead, shape_of
from posenc.evaluation.models.hidden_states import decoder_of, is_close, logits_of_hidden, without_past
from posenc.evaluation.models.layer_progress import LayerProgress
from posenc.evaluation.models.obstacles import (
    obstacle_in_attention,
    obstacle_in_rotation,
    obstacle_in_windows,
)
from posenc.evaluation.models.replaced_parts import copied_rotations, replaced_attention
from posenc.evaluation.models.rotations import (
    KnownRotary,
    ModelRotation,
    Obstacle,
    rotations_of,
    why_rotation_is_fixed,
)
from posenc.evaluation.models.transformers_attention import AttentionParts, changes_distances

TABLE_NAMES = ("wpe", "embed_positions", "position_embeddings")  # tables of positions in models
TRIAL_TOKENS = 8  # of passes that find out which module's hidden states become logits, and whether chunks do


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
    def should_make_own_logits(self) -> bool:
        """Tell whether logits are to be made from hidden states, because the model would make all of them.

        Those of a whole window are 3.2 GB for 16,384 tokens and a vocabulary of 49k.
        """
        return not self.can_limit_logits and self._decoder is not None

    @functools.cached_property
    def _decoder(self) -> Any:
        """Return the module whose hidden states become the model's logits; None if there is none."""
        return decoder_of(self.model, self._trial_tokens())

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
        obstacle = obstacle_in_attention(self.model, extension, parts)
        obstacle = obstacle or self._obstacle_in_rotation(extension, parts)
        if obstacle is not None:
            raise NotForThisEncodingError(type(extension), architecture, obstacle.reason, hint=obstacle.hint)
        if not tune:  # knobs are still to be chosen
            extension.check_change(window)

    def _obstacle_in_rotation(self, extension: Extension, parts: Sequence[Encoding]) -> Obstacle | None:
        """Return why the parts of an extension cannot change the rotation; None if they can, or do not."""
        is_as_trained = self.encoding in parts and not changes_distances(parts)
        if self.rotation is None or is_as_trained:
            return None
        train_length = self.shape.train_length
        (module,) = self.rotations.values()
        obstacle = obstacle_in_windows(self.config, train_length)
        return obstacle or obstacle_in_rotation(self.rotation, module, extension, parts, train_length)

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
        progress = LayerProgress.of(self.model, self.shape.n_layers, on_layer)
        with self._with_encoding(encoding):
            if self.chunk_tokens is None or self.chunk_tokens >= inputs.shape[1]:
                with progress.reported():
                    output = decoder(inputs, use_cache=False)
                hidden = output.last_hidden_state[:, -n_targets:]  # (B, n, d)
            else:
                chunked = pass_in_chunks(decoder, inputs, n_targets, self.chunk_tokens, progress)
                output = chunked.output
                hidden = chunked.hidden

        def logits_of(columns: slice) -> Tensor:
            hidden_block = hidden[:, columns]
            logits = logits_of_hidden(self.model, decoder, output, hidden_block)
            return self.checked(logits, tuple(hidden_block.shape[:2]))

        return logits_of

    def why_not_in_chunks(self, acting: Encoding) -> str | None:
        """Return why passes in chunks would give other numbers with an encoding; None if they do not."""
        return why_not_in_chunks(self.model, leaves(acting), rotates=self.rotates)

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
            is_same = is_close(logits, expected, CHUNKS_TOLERANCE)
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
                logits = logits_of_hidden(self.model, self._decoder, without_past(output), hidden)
            else:
                options = {"logits_to_keep": 1} if self.can_limit_logits else {}
                output = self.model(inputs, past_key_values=past, use_cache=True, **options)
                logits = output.logits[:, -1:]
        logits = self.checked(logits, (len(tokens), 1))
        return NextLogits(logits[:, -1], past=output.past_key_values)

    def _inputs(self, tokens: Tensor) -> Tensor:
        """Return the tokens (B, W) for the model, with BOS. Raises UserError for tokens that it lacks."""
        highest = int(tokens.max())
        if highest >= self.vocab_size:
            problem = f"the text has token {highest}, and the model knows those below {self.vocab_size}"
            hint = "give the tokenizer that the model was trained with: subject.tokenizer=PATH/tokenizer.json"
            raise UserError("subject.tokenizer", None, problem, hint=hint)
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
        parts = leaves(acting)
        parts_of_extension = None if acting is self.effective_encoding else parts
        rotations = copied_rotations(self.model, self.rotations, self.rotation, parts_of_extension)
        with rotations, replaced_attention(self.model, self.rotation, parts):
            try:
                yield
            except (IndexError, RuntimeError) as error:
                # torch has no error of its own for the end of a table, such as GPT-J's table of angles
                message = str(error)
                if "out of bounds" not in message and "out of range" not in message:
                    raise
                raise NotApplicableError(f"n/a: {first_line(error)}") from error


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
