"""The decoder and its initial values: pre-norm blocks with RMSNorm, tied embeddings, no dropout, no biases.

B batch, S tokens of a window, V vocabulary. The output is wanted for the last T tokens of the window: T = S
in training, fewer where an evaluation scores only these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.shared.composed import Composed
from posenc.model.attention import Attention, LatentAttention
from posenc.model.kernels import fused_mask
from posenc.model.norm import rms_norm, rms_norm_for_product

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# Make the attention of a block: (d_model, n_heads, number of the layer) -> module.
MakeAttention = Callable[[int, int, int], Attention | LatentAttention]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder; `name` is for display."""

    name: str
    d_model: int
    n_layers: int
    n_heads: int
    mlp_ratio: int
    short_conv: int | None = None  # tokens that the short convolution sees; None: there is none

    @property
    def head_dim(self) -> int:
        """Return the width of a head."""
        return self.d_model // self.n_heads


class Mlp(nn.Module):
    """Apply two linear maps with a squared ReLU between them (Primer, arXiv 2109.08668)."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # A backward pass written out was 0.97 to 1.13 times as fast: not worth its lines.
        return self.down(F.relu(self.up(x)).square())


class ShortConv(nn.Module):
    """Add to each channel a learned, weighted sum of it over the last few tokens.

    With it every token knows the tokens just before it, even without an encoding.
    Source: Canon layers, arXiv 2512.17351.
    """

    def __init__(self, d_model: int, tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model, 1, tokens))

    def forward(self, x: Tensor) -> Tensor:
        """Add the weighted sums to x (B, S, d_model); tokens before the window count as zero."""
        channels, _, tokens = self.weight.shape
        past = F.pad(x, (0, 0, tokens - 1, 0)).mT  # (B, d_model, S + tokens - 1)
        return x + F.conv1d(past, self.weight.to(x.dtype), groups=channels).mT


class Block(nn.Module):
    """Apply attention, then the MLP, each with a norm before it and a residual connection."""

    def __init__(self, shape: ModelShape, layer: int, attention: MakeAttention) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.d_model)
        self.short_conv = ShortConv(shape.d_model, shape.short_conv) if shape.short_conv else None
        self.attention = attention(shape.d_model, shape.n_heads, layer)
        self.mlp_norm = nn.RMSNorm(shape.d_model)
        self.mlp = Mlp(shape.d_model, shape.mlp_ratio * shape.d_model)

    def forward(
        self, x: Tensor, pos: Tensor, encoding: Encoding, n_targets: int, mask: BlockMask | None = None
    ) -> Tensor:
        """Compute the last T = `n_targets` tokens: x (B, S, d_model), pos (S,) -> (B, T, d_model)."""
        # The hook `prepare` makes gates and sums of the normed input, which need float32. Without that hook
        # only matrix products read it, so it is rounded to their dtype at once.
        norm = rms_norm if "prepare" in encoding.hooks else rms_norm_for_product
        normed = norm(x, self.attention_norm.weight)  # (B, S, d_model)
        if self.short_conv is not None:
            normed = self.short_conv(normed)
        attended = self.attention(normed, pos, encoding, n_targets, mask)
        x = x[:, -n_targets:] + attended
        return x + self.mlp(rms_norm_for_product(x, self.mlp_norm.weight))


class Decoder(nn.Module):
    """Map token ids to next-token logits.

    The attention sees one encoding, the effective one: it is `encoding` together with the options of
    positions and attention. A test-time extension replaces it: for all passes by
    `replace_effective_encoding`, or for one pass by the argument `encoding`.
    """

    def __init__(
        self,
        shape: ModelShape,
        vocab_size: int,
        encoding: Encoding,
        options: Sequence[Encoding] = (),
        attention: MakeAttention = Attention,
    ) -> None:
        """Build the modules; `initialize` fills them. Raises ValueError for parameters out of range."""
        super().__init__()
        self.shape = shape
        self.vocab_size = vocab_size
        self.encoding = encoding
        self.options = nn.ModuleList(options)
        effective = Composed(encoding.shape, (encoding, *options)) if options else encoding
        # A tuple hides it from torch, which would register its parameters under a second name.
        self._effective = (effective,)
        # It is also the output map. It is left empty: the random values of nn.Embedding would make torch
        # import its compiler on the meta device, which takes 2 s in every check of settings.
        self.embedding = nn.Embedding.from_pretrained(torch.empty(vocab_size, shape.d_model), freeze=False)
        self.blocks = nn.ModuleList(Block(shape, layer, attention) for layer in range(shape.n_layers))
        self.norm = nn.RMSNorm(shape.d_model)

    def replace_effective_encoding(self, encoding: Encoding) -> None:
        """Let the attention see this encoding from now on. Its parameters must be those of the model."""
        self._effective = (encoding,)

    @property
    def effective_encoding(self) -> Encoding:
        """Return the encoding with its options, as the attention sees it."""
        return self._effective[0]

    def forward(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        n_targets: int | None = None,
        encoding: Encoding | None = None,
    ) -> Tensor:
        """Return the logits of the last T tokens: (B, T, V).

        tokens     (B, S) int64
        pos        (S,) int64; None: those of the encoding. Positions must count up by one, unless the
                   encoding has a `positions` hook.
        n_targets  T; None: all tokens. The other tokens are left out of the last block and the output map.
        encoding   replaces the effective encoding in this pass
        """
        if pos is None:
            # Drawn positions are the same in every pass over a window of this length.
            generator = generator_for(self.encoding.seed, "forward")
            pos = self.positions(tokens.shape[1], generator, encoding)
        hidden = self.hidden(tokens, pos, n_targets, encoding)  # (B, T, d_model)
        return F.linear(hidden, self.embedding.weight)  # (B, T, V)

    def output_weight(self, dtype: torch.dtype) -> Tensor:
        """Return the output map, which is the embedding: (V, d_model), for hidden states of this type."""
        # Autocast does not round it where a product is made with `out=`, as in the loss.
        return self.embedding.weight.to(dtype)

    def hidden(
        self, tokens: Tensor, pos: Tensor, n_targets: int | None = None, encoding: Encoding | None = None
    ) -> Tensor:
        """Return what the output map reads: (B, T, d_model), normed, in the dtype of matrix products."""
        window = tokens.shape[1]
        n_targets = window if n_targets is None else n_targets
        encoding = self.effective_encoding if encoding is None else encoding
        encoding = encoding.for_one_pass()
        x = self.embedding(tokens)  # (B, S, d_model)
        for layer, block in enumerate(self.blocks):
            if "embed" in encoding.hooks:
                x = encoding.embed(x, pos, layer)
            is_last = layer == len(self.blocks) - 1
            # Only the last block may leave tokens out: those of the others become keys in later layers.
            queries = n_targets if is_last else window
            # Made here and not in the attention, since a compiled block cannot make a mask.
            mask = fused_mask(encoding, layer, queries, pos)
            x = block(x, pos, encoding, queries, mask)  # (B, S, d_model); after the last (B, T, d_model)
        return rms_norm_for_product(x, self.norm.weight)

    def positions(self, n: int, generator: torch.Generator, encoding: Encoding | None = None) -> Tensor:
        """Return the encoding's positions for a window of n tokens: (n,) int64 on the model's device."""
        encoding = self.effective_encoding if encoding is None else encoding
        return encoding.positions(n, self.training, generator).to(self.embedding.weight.device)


@torch.no_grad()
def initialize(model: Decoder, seed: int) -> None:
    """Fill every parameter from (seed, parameter name), so that values do not depend on other parameters.

    Weights are normal, with these standard deviations:
      token embeddings  d_model^-1/2. Tied logits then have unit variance, and sinusoidal positions expect it.
      linear maps       fan_in^-1/2; of the two that write into the residual stream this is multiplied by
                        (2 n_layers)^-1/2, as in GPT-2
    The short convolution is uniform, as torch's are. Norms are one. The encoding and its options have their
    own rules.
    """
    initialize_encoding(model.encoding, "encoding", seed)
    for number, option in enumerate(model.options):
        assert isinstance(option, Encoding)
        initialize_encoding(option, f"options.{number}", seed)
    for name, parameter in model.named_parameters():
        if not name.startswith(("encoding.", "options.")):
            # drawn on the CPU, so that every device starts from the same values
            value = torch.empty(parameter.shape, dtype=torch.float32)
            _fill(name, value, model.shape, generator_for(seed, name))
            parameter.copy_(value)


def _fill(name: str, value: Tensor, shape: ModelShape, generator: torch.Generator) -> None:
    """Fill a parameter of the decoder itself in place, by its name and its size."""
    if name == "embedding.weight":
        nn.init.normal_(value, std=shape.d_model**-0.5, generator=generator)
    elif value.ndim == 1:  # a norm
        nn.init.ones_(value)
    elif name.endswith("short_conv.weight"):  # uniform, as torch's Conv1d
        bound = value.shape[2] ** -0.5
        nn.init.uniform_(value, -bound, bound, generator=generator)
    else:
        std = value.shape[1] ** -0.5
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            std *= (2 * shape.n_layers) ** -0.5
        nn.init.normal_(value, std=std, generator=generator)


@dataclass(frozen=True)
class ParameterCounts:
    """The trained parameters of a model: all of them, and those of its parts."""

    total: int
    embedding: int  # of the tokens
    encoding: int
    options: int


def count_parameters(model: Decoder) -> ParameterCounts:
    """Count the trained parameters."""
    return ParameterCounts(
        total=_count_numbers(model),
        embedding=model.embedding.weight.numel(),
        encoding=_count_numbers(model.encoding),
        options=_count_numbers(model.options),
    )


def count_block_weights(model: Decoder) -> int:
    """Count the trained parameters of the blocks, which are without those of the encoding and its options."""
    return _count_numbers(model.blocks)


def _count_numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def forward_flops(model: Decoder, length: int) -> int:
    """Count the FLOPs per token of a forward pass over `length` tokens.

    Counted are the products with weights, and those of the attention with all `length` keys, which is twice
    what a causal mask needs. So does PaLM (arXiv 2204.02311, appendix B), from which the MFU comes. The maps
    that an encoding itself has, such as the gate of `fox`, are left out: at most a twelfth of a block.
    """
    weights = model.embedding.weight.numel()  # once, as the output map
    key_value_width = 0  # of all layers
    for module in model.blocks.modules():
        if isinstance(module, nn.Linear):
            weights += module.weight.numel()
        if isinstance(module, Attention | LatentAttention):
            key_value_width += module.key_value_width
    for option in model.options:
        assert isinstance(option, Encoding)
        weights += option.weights_in_products()
    return 2 * weights + 2 * key_value_width * length


def training_flops(model: Decoder, length: int) -> int:
    """Count the FLOPs per token of a training step: each product needs two more in the backward pass."""
    return 3 * forward_flops(model, length)
