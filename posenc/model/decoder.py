"""The decoder: pre-norm blocks with RMSNorm, tied embeddings, no dropout, no bias terms.

B batch, T tokens wanted, S tokens of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding
from posenc.encodings.sum import Composed
from posenc.model.choice import AttentionChoice
from posenc.model.fused import rms_norm, rms_norm_for_product, squared_relu


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder; `name` is for people."""

    name: str
    d_model: int
    n_layers: int
    n_heads: int
    mlp_ratio: int

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads


class Mlp(nn.Module):
    """Two linear maps with a squared ReLU between them (Primer, arXiv 2109.08668)."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(squared_relu(self.up(x)))


class Block(nn.Module):
    """Attention, then the MLP, each behind a norm and beside the residual stream."""

    def __init__(self, shape: ModelShape, layer: int, attention: AttentionChoice) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.d_model)
        self.attention = attention.build(shape.d_model, shape.n_heads, layer)
        self.mlp_norm = nn.RMSNorm(shape.d_model)
        self.mlp = Mlp(shape.d_model, shape.mlp_ratio * shape.d_model)

    def forward(self, x: Tensor, pos: Tensor, encoding: Encoding, wanted: int) -> Tensor:
        """x (B, S, d_model) -> the last `wanted` tokens (B, T, d_model)."""
        # `prepare` sees this input: its gates and sums want it in float32
        norm = rms_norm if "prepare" in encoding.hooks else rms_norm_for_product
        attended = self.attention(norm(x, self.attention_norm.weight), pos, encoding, wanted)
        x = x[:, -wanted:] + attended
        return x + self.mlp(rms_norm_for_product(x, self.mlp_norm.weight))


class Decoder(nn.Module):
    """Token ids to next-token logits, with an encoding behind its hooks and options that act beside it."""

    def __init__(
        self,
        shape: ModelShape,
        vocab_size: int,
        encoding: Encoding,
        options: Sequence[Encoding] = (),
        attention: AttentionChoice | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.vocab_size = vocab_size
        self.encoding = encoding
        self.options = nn.ModuleList(options)
        # In a tuple, so that its parameters are not registered under a second name.
        self._acting = (Composed(encoding.shape, (encoding, *options)) if options else encoding,)
        self.embedding = _embedding(vocab_size, shape.d_model)  # also the output map
        choice = attention or AttentionChoice()
        self.blocks = nn.ModuleList(Block(shape, layer, choice) for layer in range(shape.n_layers))
        self.norm = nn.RMSNorm(shape.d_model)

    @property
    def acting(self) -> Encoding:
        """The encoding together with its options: what the attention sees."""
        return self._acting[0]

    def forward(
        self, tokens: Tensor, pos: Tensor, wanted: int | None = None, acting: Encoding | None = None
    ) -> Tensor:
        """tokens (B, S) int64 at positions pos (S,) int64 -> logits of the last `wanted` tokens (B, T, V).

        `pos` counts up by one unless a `positions` hook chose it: a `distance_bias` is looked up by how many
        tokens lie between. `wanted` None means all. Only those tokens go through the last block's queries and
        the output map. `acting` takes the place of the encoding as trained (a test-time extension).
        """
        return F.linear(self.hidden(tokens, pos, wanted, acting), self.embedding.weight)  # (B, T, V)

    def hidden(
        self, tokens: Tensor, pos: Tensor, wanted: int | None = None, acting: Encoding | None = None
    ) -> Tensor:
        """The same up to the output map: (B, T, d_model), normed, in the dtype of its product."""
        window = tokens.shape[1]
        wanted = window if wanted is None else wanted
        acting = self.acting if acting is None else acting
        embeds = "embed" in acting.hooks
        x = self.embedding(tokens)  # (B, S, d_model)
        for layer, block in enumerate(self.blocks):
            if embeds:
                x = acting.embed(x, pos, layer)
            last = layer == len(self.blocks) - 1
            x = block(x, pos, acting, wanted if last else window)
        return rms_norm_for_product(x, self.norm.weight)

    def positions(self, n: int, generator: torch.Generator, acting: Encoding | None = None) -> Tensor:
        """The encoding's positions for a window of n tokens, on the model's device: (n,) int64."""
        acting = self.acting if acting is None else acting
        return acting.positions(n, self.training, generator).to(self.embedding.weight.device)


def _embedding(vocab_size: int, d_model: int) -> nn.Embedding:
    """`nn.Embedding(vocab_size, d_model)`, except that values are drawn only where there is storage for them.

    Without it, as in every check of a command, torch imports its compiler for the draw (2 s).
    """
    weight = torch.empty(vocab_size, d_model)
    if not weight.is_meta:
        nn.init.normal_(weight)
    return nn.Embedding.from_pretrained(weight, freeze=False)


def count_parameters(model: Decoder) -> dict[str, int]:
    """How many parameters are trained: in all, in the token embedding, in the encoding, in its options."""
    return {
        "total": sum(p.numel() for p in model.parameters()),
        "embedding": model.embedding.weight.numel(),
        "encoding": sum(p.numel() for p in model.encoding.parameters()),
        "options": sum(p.numel() for p in model.options.parameters()),
    }
