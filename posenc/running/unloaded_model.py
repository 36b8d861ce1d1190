"""Hold a model of transformers before its weights are read, and tell by its sizes what its passes take."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.core.machine import fastest_seconds
from posenc.encodings.base import Encoding, Shape
from posenc.evaluation.models.callables import LOGITS_AT_ONCE, CallableModel
from posenc.evaluation.models.causality import TOKENS, check_causality
from posenc.evaluation.models.configurations import (
    has_bias_instead,
    local_window,
    shape_of,
    size_in_layers,
    tokens_kept,
)
from posenc.evaluation.models.transformers import TransformersModel
from posenc.running.hf_checkpoint import EAGER, HfCheckpoint
from posenc.running.stored_tensors import StoredTensor

FLOAT_BYTES = 4
# How many numbers a layer holds for a token at once besides queries, keys and values: so many times its
# width, and so many times the width of its MLP. Measured with SmolLM2-135M at 8192 and 16,384 tokens.
WIDTHS_HELD = 10
MLP_WIDTHS_HELD = 3
HALF_BYTES = 2  # of a number in bf16 or fp16
BYTES_AMONG_HALVES = 2.5  # of a number where weights are halves: the norms compute in float32
ATTENTION_LENGTH = 1024  # tokens of the attention that is timed
ATTENTION_SECONDS = 0.1  # for so long it is timed
SDPA = "sdpa"  # the attention that transformers chooses where it can; it keeps no scores
LAYER_NUMBER = re.compile(r"\.\d+\.")  # in the names of weights of layers: layers.0., h.0., blocks.0.
# DeepSeek and GLM store a layer that predicts a second token, with tables of its own.
TABLES_IN_LAYERS = (".embed_tokens.weight", ".shared_head.head.weight")
EXPERTS = ".experts."  # in the names of weights of which each token meets a part: the experts it is sent to


@dataclass(frozen=True)
class ScoresHeld:
    """How many float32 numbers `eager` attention holds at its peak for each head and pair of tokens."""

    by_floats: float  # with weights in float32
    by_halves: float  # with weights in two bytes


# Counted with 8 heads in windows of 512 and 1024 tokens. Most architectures make scores, add a mask to them,
# and take the softmax in float32, also of halves.
COMMON_SCORES = ScoresHeld(2.0, 2.5)
SCORES_BY_ARCHITECTURE = {
    "bloom": ScoresHeld(4.0, 3.5),
    "codegen": ScoresHeld(3.0, 2.5),
    "falcon": ScoresHeld(3.5, 2.5),
    "gpt_neo": ScoresHeld(3.0, 2.5),
    "gpt_oss": ScoresHeld(3.5, 1.5),  # it copies its scores to put the sink beside them; halves stay halves
    "gptj": ScoresHeld(3.0, 2.5),
    "mpt": ScoresHeld(3.0, 3.0),
}
# SDPA gets no mask where only later tokens are hidden. One of a local window is made in several steps, which
# hold so many float32 numbers for each pair of tokens. All heads share it.
MASK_HELD = 1.3


@dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """What the attention of a model holds for each pair of tokens in a window."""

    name: str  # as transformers calls it: sdpa, eager, ...
    numbers_a_score: float  # float32 numbers for each head; 0 if no scores are kept
    local_window: int | None  # tokens that layers with a local window see

    def numbers_a_pair(self, n_heads: int, window: int) -> float:
        """Return the float32 numbers that a pair of tokens takes in a window."""
        has_local_mask = self.local_window is not None and self.local_window < window
        if not self.numbers_a_score:
            return MASK_HELD if has_local_mask else 0.0
        n_masks = 1 if self.local_window is None else 2  # of global layers, and of local ones
        return n_heads * self.numbers_a_score + n_masks

    def without_scores(self) -> AttentionSizes:
        """Return the sizes where posenc's attention takes its place, which makes scores block by block."""
        return dataclasses.replace(self, numbers_a_score=0.0)


def attention_sizes(config: Any, name: str, has_float_weights: bool) -> AttentionSizes:
    """Return what an attention of this name holds in a model with this configuration."""
    # Falcon adds its bias of positions to scores that it makes by itself, or hands over as large a mask.
    makes_scores = name == EAGER or has_bias_instead(config)
    numbers = 0.0
    if makes_scores and hasattr(config, "num_attention_heads"):  # Mamba has none
        scores = SCORES_BY_ARCHITECTURE.get(config.model_type, COMMON_SCORES)
        numbers = scores.by_floats if has_float_weights else scores.by_halves
    return AttentionSizes(name=name, numbers_a_score=numbers, local_window=local_window(config))


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes that decide time and memory of a pass."""

    shape: Shape  # its T is not used
    parameters: int
    weight_bytes: int  # in memory
    products: int  # multiplications of a token with the weights of the layers
    vocab_size: int
    mlp_width: int
    key_heads: int
    attention: AttentionSizes

    @property
    def bytes_a_weight(self) -> float:
        """Return the bytes of a weight in memory."""
        return self.weight_bytes / self.parameters

    @property
    def bytes_a_number(self) -> float:
        """Return the bytes of a number that a layer holds."""
        return FLOAT_BYTES if self.bytes_a_weight == FLOAT_BYTES else BYTES_AMONG_HALVES

    @property
    def bytes_a_key(self) -> float:
        """Return the bytes of a number of a key or value; those of packed weights are halves, too."""
        return FLOAT_BYTES if self.bytes_a_weight == FLOAT_BYTES else HALF_BYTES

    @property
    def bytes_of_copy(self) -> float:
        """Return the bytes of the copy in bf16 that autocast keeps of float32 weights; 0 of others."""
        return self.weight_bytes / 2 if self.bytes_a_weight == FLOAT_BYTES else 0.0

    @property
    def kept_numbers(self) -> int:
        """Return the numbers of the key and the value of a token in a layer."""
        return 2 * self.key_heads * self.shape.head_dim

    def memory(self, tokens: int, logits: int) -> float:
        """Return the bytes of weights and of a pass over `tokens` tokens, with so many logits at once."""
        shape = self.shape
        numbers_a_token = WIDTHS_HELD * shape.d_model + MLP_WIDTHS_HELD * self.mlp_width
        numbers_a_token += 2 * shape.n_heads * shape.head_dim + self.kept_numbers
        # the softmax of a block of logits is as large as the block, and its logarithm too
        bytes_of_logits = FLOAT_BYTES * 3 * logits
        return self.weight_bytes + self.bytes_a_number * numbers_a_token * tokens + bytes_of_logits


def attention_flops(shape: Shape, window: int) -> float:
    """Return the FLOPs of a token in causal attention over a window, of all layers."""
    keys = window / 2  # on average
    return 4.0 * keys * shape.n_heads * shape.head_dim * shape.n_layers


def model_sizes(
    config: Any, tensors: Sequence[StoredTensor], bytes_a_weight: float | None, attention: str = SDPA
) -> ModelSizes:
    """Return the sizes of a model by its configuration, its weights and the name of its attention.

    `bytes_a_weight` is that of the loaded weights. None: they take as much memory as in the files.
    """
    shape = shape_of(config, 1)
    parameters = sum(tensor.numbers for tensor in tensors)
    weight_bytes = sum(tensor.bytes for tensor in tensors)
    if bytes_a_weight is not None:
        weight_bytes = round(bytes_a_weight * parameters)
    return ModelSizes(
        shape=shape,
        parameters=parameters,
        weight_bytes=weight_bytes,
        products=sum(products_with(tensor.name, tensor.shape, config) for tensor in tensors),
        vocab_size=config.vocab_size,
        # GPT-2 leaves it out, and takes four widths.
        mlp_width=size_in_layers(config, "intermediate_size") or 4 * shape.d_model,
        key_heads=size_in_layers(config, "num_key_value_heads") or shape.n_heads,
        attention=attention_sizes(config, attention, bytes_a_weight == FLOAT_BYTES),
    )


def products_with(weight_name: str, weight_shape: tuple[int, ...], config: Any) -> int:
    """Return how many multiplications a token makes with a weight of the layers.

    Vectors and the tables of the vocabulary count as none, and of experts those that a token is sent to.
    """
    # A look-up in the embedding multiplies nothing, and the output layer acts on targets alone.
    if len(weight_shape) < 2 or _is_table(weight_name, weight_shape, config):
        return 0
    numbers = math.prod(weight_shape)
    if EXPERTS not in weight_name:
        return numbers
    # Mixtral has the first name, Qwen's mixtures the second.
    n_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    experts_a_token = getattr(config, "num_experts_per_tok", None) or 1
    return numbers * experts_a_token // n_experts


def _is_table(weight_name: str, weight_shape: tuple[int, ...], config: Any) -> bool:
    """Tell whether a weight is a table of the vocabulary: that of the embedding, or of the output layer."""
    if config.vocab_size not in weight_shape:
        return False
    # By its size alone each weight of a layer would be one in a model as wide as its vocabulary, such as one
    # of bytes with d_model=256. The names of tables are too many to list, those of layers have a number.
    is_in_layer = LAYER_NUMBER.search(weight_name) is not None
    return not is_in_layer or weight_name.endswith(TABLES_IN_LAYERS)


class UnloadedModel(CallableModel):
    """Hold the configuration and the sizes of a model of transformers. `loaded` reads its weights."""

    has_known_weights = True

    def __init__(
        self,
        checkpoint: HfCheckpoint,
        train_length: int,
        encoding: Encoding | None,
        sizes: ModelSizes,
        load: Callable[[], TransformersModel],
        chunk_tokens: int | None = None,
    ) -> None:
        config = checkpoint.text_config
        # A dry run asks this object all that it asks of a loaded model. Only a pass is an error.
        super().__init__(_no_pass, config.vocab_size, train_length)
        self.shape = shape_of(config, train_length)
        if encoding is None:  # no extension acts, so that its name is enough
            encoding = Encoding(self.shape)
            encoding.name = config.model_type  # type: ignore[misc]
        self.encoding = encoding
        self.effective_encoding = encoding
        self.sizes = sizes
        self.chunk_tokens = chunk_tokens
        self._path = checkpoint.path
        self._config = config
        self._load = load

    def loaded(self, device: torch.device) -> TransformersModel:
        """Read the weights. Raises UserError, also for a model that sees later tokens."""
        model = self._load().to(device).eval()
        n_tokens = min(TOKENS, self.shape.train_length)
        check_causality(model, "subject.path", self._path, n_tokens, device)
        if self.chunk_tokens is not None:
            model.check_chunks()
        return model

    def memory(
        self, batch_tokens: int, window: int, n_targets: int, *, has_own_attention: bool = True
    ) -> float:
        """Return the bytes of weights and of a pass that has so many targets in each window.

        Without its own attention posenc's takes its place, for an extension.
        """
        logits = min(LOGITS_AT_ONCE, n_targets * self.vocab_size)
        sizes = self.sizes
        n_windows = max(1, batch_tokens // window)
        attention = sizes.attention if has_own_attention else sizes.attention.without_scores()
        numbers_a_pair = attention.numbers_a_pair(sizes.shape.n_heads, window)
        if self.chunk_tokens is None or self.chunk_tokens >= window:
            bytes_of_pairs = FLOAT_BYTES * numbers_a_pair * n_windows * window**2
            return sizes.memory(max(batch_tokens, window), logits) + bytes_of_pairs
        tokens_at_once = n_windows * self.chunk_tokens
        numbers_of_keys = tokens_kept(self._config, window, self.chunk_tokens) * sizes.kept_numbers
        # the hidden states of targets once by chunks, and once joined
        numbers_of_targets = 2 * min(n_targets, window) * sizes.shape.d_model
        # Which keys a chunk sees is a table here. A pass over a whole window needs none.
        numbers_of_pairs = max(1.0, numbers_a_pair) * self.chunk_tokens * window
        numbers_of_window = numbers_of_keys + numbers_of_targets + numbers_of_pairs
        return sizes.memory(tokens_at_once, logits) + FLOAT_BYTES * n_windows * numbers_of_window

    def memory_of_writing(self, window: int, *, has_own_attention: bool = True) -> float:
        """Return the bytes of weights and of a pass over a window whose keys and values are kept.

        posenc's own attention keeps none: there the text is read again for each token.
        """
        sizes = self.sizes
        attention = sizes.attention if has_own_attention else sizes.attention.without_scores()
        numbers = attention.numbers_a_pair(sizes.shape.n_heads, window) * window**2
        if has_own_attention:
            # While a layer's keys are joined to those that it has, both are there.
            numbers += sizes.kept_numbers * window
            bytes_kept = sizes.bytes_a_key * sizes.kept_numbers * sizes.shape.n_layers * window
        else:
            bytes_kept = 0.0
        return sizes.memory(window, self.vocab_size) + FLOAT_BYTES * numbers + bytes_kept


def _no_pass(tokens: Tensor) -> Tensor:
    """Stand in for the function that a model without its weights does not have."""
    raise AssertionError("its weights are not read")


@functools.cache
def attention_seconds_a_flop(
    device: torch.device, heads: int, head_dim: int, dtype: torch.dtype, makes_scores: bool = False
) -> float:
    """Time causal attention of transformers, by SDPA or with all scores; return the seconds of one FLOP.

    With all scores a softmax stands between two products of every query with every key, later ones too.
    """
    length = ATTENTION_LENGTH
    # The time of a product does not depend on its numbers.
    q, k, v = (torch.ones(1, heads, length, head_dim, device=device, dtype=dtype) for _ in range(3))

    mask = torch.zeros(length, length, device=device, dtype=dtype)

    def attend() -> Tensor:
        if makes_scores:
            scores = q @ k.mT * head_dim**-0.5 + mask
            return scores.softmax(-1, dtype=torch.float32).to(dtype) @ v
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    seconds = fastest_seconds(attend, device, ATTENTION_SECONDS)
    one_layer = Shape(heads * head_dim, heads, head_dim, n_layers=1, train_length=length)
    return seconds / (length * attention_flops(one_layer, length))
