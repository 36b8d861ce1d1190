"""A model of transformers before its weights are read, and what its passes take by the sizes of its parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.core.machine import wait_for
from posenc.encodings.base import Encoding
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.models.transformers import TransformersModel, shape_of
from posenc.running.hf_checkpoint import Checkpoint, StoredTensor, stored_tensors

FLOAT_BYTES = 4
# What a layer holds for a token at once besides keys and values: about so many times its width, and so many
# times the width of its MLP. Measured with SmolLM2-135M at 8192 and 16,384 tokens.
WIDTHS_HELD = 10
MLP_WIDTHS_HELD = 3
ATTENTION_LENGTH = 1024  # tokens of the attention that is timed
ATTENTION_SECONDS = 0.1  # of timing it
EXPERT = "experts"  # in the names of weights of which a token passes through a few alone


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Hold the sizes that decide time and memory of a pass."""

    parameters: int
    weight_bytes: int  # in memory
    products: int  # multiplications of a token with the weights of the layers
    vocab_size: int
    width: int
    mlp_width: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int

    def attention_flops(self, window: int) -> float:
        """Return the FLOPs of a token in causal attention over a window, of all layers."""
        keys = window / 2  # on average
        return 4.0 * keys * self.heads * self.head_dim * self.layers

    def memory(self, tokens: int, logits: int) -> float:
        """Return the bytes of weights and of a pass over `tokens` tokens, with so many logits at once."""
        held = WIDTHS_HELD * self.width + MLP_WIDTHS_HELD * self.mlp_width
        held += 2 * self.heads * self.head_dim + 2 * self.key_heads * self.head_dim
        # the softmax of a block of logits is as large as the block, and its logarithm too
        return self.weight_bytes + FLOAT_BYTES * (held * tokens + 3 * logits)


def sizes_of(checkpoint: Checkpoint, bytes_a_weight: float | None) -> ModelSizes | None:
    """Return the sizes of a checkpoint by its configuration and the headers of its files; None if unknown.

    `bytes_a_weight` is that of the loaded weights; None: as in the files.
    """
    tensors = stored_tensors(checkpoint)
    if tensors is None:
        return None
    config = checkpoint.text_config
    shape = shape_of(config, 1)
    parameters = sum(tensor.numbers for tensor in tensors)
    weight_bytes = sum(tensor.bytes for tensor in tensors)
    if bytes_a_weight is not None:
        weight_bytes = round(bytes_a_weight * parameters)
    return ModelSizes(
        parameters=parameters,
        weight_bytes=weight_bytes,
        products=sum(_products(tensor, config) for tensor in tensors),
        vocab_size=config.vocab_size,
        width=shape.d_model,
        mlp_width=getattr(config, "intermediate_size", None) or 4 * shape.d_model,
        layers=shape.n_layers,
        heads=shape.n_heads,
        key_heads=getattr(config, "num_key_value_heads", None) or shape.n_heads,
        head_dim=shape.head_dim,
    )


def _products(tensor: StoredTensor, config: Any) -> int:
    """Return with how many numbers of a weight a token is multiplied: none of the vocabulary's tables."""
    if len(tensor.shape) < 2 or config.vocab_size in tensor.shape:
        return 0
    if EXPERT not in tensor.name:
        return tensor.numbers
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    used = getattr(config, "num_experts_per_tok", None) or 1
    return tensor.numbers * used // experts


class UnloadedModel(CallableModel):
    """A model of transformers of which configuration and sizes are known. `loaded` reads its weights."""

    has_known_weights = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        train_length: int,
        encoding: Encoding | None,
        sizes: ModelSizes | None,
        load: Callable[[], TransformersModel],
    ) -> None:
        config = checkpoint.text_config
        super().__init__(_no_pass, config.vocab_size, train_length)
        self.shape = shape_of(config, train_length)
        if encoding is None:
            encoding = Encoding(self.shape)
            encoding.name = config.model_type  # type: ignore[misc]
        self.encoding = encoding
        self.effective_encoding = encoding
        self.sizes = sizes
        self._load = load

    def loaded(self) -> TransformersModel:
        """Read the weights. Raises UserError."""
        return self._load()


def _no_pass(tokens: Tensor) -> Tensor:
    raise AssertionError("its weights are not read")


@functools.cache
def attention_seconds_a_flop(device: torch.device, heads: int, head_dim: int, dtype: torch.dtype) -> float:
    """Time causal attention as transformers makes it, by SDPA; return its seconds by FLOP."""
    length = ATTENTION_LENGTH
    q, k, v = (torch.ones(1, heads, length, head_dim, device=device, dtype=dtype) for _ in range(3))
    best = float("inf")
    end = perf_counter() + ATTENTION_SECONDS
    while perf_counter() < end or best == float("inf"):
        began = perf_counter()
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
        wait_for(device)
        best = min(best, perf_counter() - began)
    return best / (4.0 * heads * head_dim * length**2 / 2)
