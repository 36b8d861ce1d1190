"""Hold a model of transformers before its weights are read, and tell by its sizes what its passes take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.machine import fastest_seconds
from posenc.encodings.base import Encoding, Shape
from posenc.evaluation.models.callables import LOGITS_AT_ONCE, CallableModel
from posenc.evaluation.models.causality import effect_of_later_tokens
from posenc.evaluation.models.configurations import shape_of, size_in_layers, tokens_kept
from posenc.evaluation.models.transformers import TransformersModel
from posenc.running.checkpoint_checks import CAUSAL_MODELS
from posenc.running.hf_checkpoint import HfCheckpoint, StoredTensor

FLOAT_BYTES = 4
# How many numbers a layer holds for a token at once besides queries, keys and values: so many times its
# width, and so many times the width of its MLP. Measured with SmolLM2-135M at 8192 and 16,384 tokens.
WIDTHS_HELD = 10
MLP_WIDTHS_HELD = 3
ATTENTION_LENGTH = 1024  # tokens of the attention that is timed
ATTENTION_SECONDS = 0.1  # for so long it is timed
EXPERTS = ".experts."  # in the names of weights of which each token meets a part: the experts it is sent to


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

    @property
    def bytes_a_weight(self) -> float:
        """Return the bytes of a weight in memory."""
        return self.weight_bytes / self.parameters

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
        return self.weight_bytes + FLOAT_BYTES * (numbers_a_token * tokens + 3 * logits)


def attention_flops(shape: Shape, window: int) -> float:
    """Return the FLOPs of a token in causal attention over a window, of all layers."""
    keys = window / 2  # on average
    return 4.0 * keys * shape.n_heads * shape.head_dim * shape.n_layers


def model_sizes(config: Any, tensors: Sequence[StoredTensor], bytes_a_weight: float | None) -> ModelSizes:
    """Return the sizes of a model by its configuration and its weights.

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
    )


def products_with(weight_name: str, weight_shape: tuple[int, ...], config: Any) -> int:
    """Return how many multiplications a token makes with a weight of the layers.

    Vectors and the tables of the vocabulary count as none, and of experts those that a token is sent to.
    """
    # A look-up in the embedding multiplies nothing, and the output layer acts on targets alone.
    if len(weight_shape) < 2 or config.vocab_size in weight_shape:
        return 0
    numbers = math.prod(weight_shape)
    if EXPERTS not in weight_name:
        return numbers
    # Mixtral has the first name, Qwen's mixtures the second.
    n_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    experts_a_token = getattr(config, "num_experts_per_tok", None) or 1
    return numbers * experts_a_token // n_experts


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
        effect = effect_of_later_tokens(model)
        if effect is not None and not effect.is_rounding:
            change = f"logits move by {effect.change:.2g} of their spread when only later tokens differ"
            problem = f"sees later tokens: {change}, and rounding explains {effect.rounding:.2g} at most"
            raise UserError("subject.path", self._path, problem, allowed=CAUSAL_MODELS)
        return model

    def memory(self, batch_tokens: int, window: int, n_targets: int) -> float:
        """Return the bytes of weights and of a pass that has so many targets in each window."""
        logits = min(LOGITS_AT_ONCE, n_targets * self.vocab_size)
        sizes = self.sizes
        n_windows = max(1, batch_tokens // window)
        if self.chunk_tokens is None or self.chunk_tokens >= window:
            return sizes.memory(max(batch_tokens, window), logits)
        tokens_at_once = n_windows * self.chunk_tokens
        numbers_of_keys = tokens_kept(self._config, window, self.chunk_tokens) * sizes.kept_numbers
        # the hidden states of targets once by chunks, and once joined
        numbers_of_targets = 2 * min(n_targets, window) * sizes.shape.d_model
        # Which keys a chunk sees is a table here. A pass over a whole window needs none.
        numbers_of_mask = self.chunk_tokens * window
        numbers_of_window = numbers_of_keys + numbers_of_targets + numbers_of_mask
        return sizes.memory(tokens_at_once, logits) + FLOAT_BYTES * n_windows * numbers_of_window


def _no_pass(tokens: Tensor) -> Tensor:
    """Stand in for the function that a model without its weights does not have."""
    raise AssertionError("its weights are not read")


@functools.cache
def attention_seconds_a_flop(device: torch.device, heads: int, head_dim: int, dtype: torch.dtype) -> float:
    """Time causal attention as transformers makes it, by SDPA; return the seconds of one FLOP."""
    length = ATTENTION_LENGTH
    # The time of a product does not depend on its numbers.
    q, k, v = (torch.ones(1, heads, length, head_dim, device=device, dtype=dtype) for _ in range(3))

    def attend() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    seconds = fastest_seconds(attend, device, ATTENTION_SECONDS)
    one_layer = Shape(heads * head_dim, heads, head_dim, n_layers=1, train_length=length)
    return seconds / (length * attention_flops(one_layer, length))
