"""The decoder: pre-norm blocks with RMSNorm, tied embeddings, no dropout, no bias terms; its initial values.

B batch, S tokens of the window, T the last of them that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.encodings.initial_values import initialize_encoding
from posenc.encodings.shared.composed import Composed
from posenc.model.attention import Attention, LatentAttention
from posenc.model.norm import rms_norm, rms_norm_for_product

MakeAttention = Callable[[int, int, int], Attention | LatentAttention]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder; `name` is for display."""

    name: str
    d_model: int
    n_layers: int
    n_heads: int
    mlp_ratio: int
    short_conv: int | None = None  # tokens

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def weights(self) -> int:
        """The weights of the blocks, without what an encoding adds."""
        return self.n_layers * (4 + 2 * self.mlp_ratio) * self.d_model**2


class Mlp(nn.Module):
    """Two linear maps with a squared ReLU between them (Primer, arXiv 2109.08668)."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # A gradient of its own was 0.97 to 1.13 times as fast, with the same bits: not worth it.
        return self.down(F.relu(self.up(x)).square())


class ShortConv(nn.Module):
    """Each channel's weighted sum over the last few tokens, added to its input.

    With it every token knows the ones just before, whatever the encoding says of positions.
    Source: Canon layers, arXiv 2512.17351.
    """

    def __init__(self, d_model: int, tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model, 1, tokens))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, S, d_model) -> the same; tokens before the window count as zero."""
        channels, _, tokens = self.weight.shape
        past = F.pad(x, (0, 0, tokens - 1, 0)).mT  # (B, d_model, S + tokens - 1)
        return x + F.conv1d(past, self.weight.to(x.dtype), groups=channels).mT


class Block(nn.Module):
    """Attention, then the MLP, each with a norm before it and a residual connection."""

    def __init__(self, shape: ModelShape, layer: int, attention: MakeAttention) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.d_model)
        self.short_conv = ShortConv(shape.d_model, shape.short_conv) if shape.short_conv else None
        self.attention = attention(shape.d_model, shape.n_heads, layer)
        self.mlp_norm = nn.RMSNorm(shape.d_model)
        self.mlp = Mlp(shape.d_model, shape.mlp_ratio * shape.d_model)

    def forward(self, x: Tensor, pos: Tensor, encoding: Encoding, n_targets: int) -> Tensor:
        """Return the last `n_targets` tokens: x (B, S, d_model) -> (B, T, d_model)."""
        # `prepare` gets this input: its gates and sums need it in float32
        norm = rms_norm if "prepare" in encoding.hooks else rms_norm_for_product
        normed = norm(x, self.attention_norm.weight)
        if self.short_conv is not None:
            normed = self.short_conv(normed)
        attended = self.attention(normed, pos, encoding, n_targets)
        x = x[:, -n_targets:] + attended
        return x + self.mlp(rms_norm_for_product(x, self.mlp_norm.weight))


class Decoder(nn.Module):
    """Token ids to next-token logits, with an encoding behind its hooks and options that act beside it."""

    def __init__(
        self,
        shape: ModelShape,
        vocab_size: int,
        encoding: Encoding,
        options: Sequence[Encoding] = (),
        attention: MakeAttention = Attention,
    ) -> None:
        """`attention(d_model, n_heads, layer)` makes a block's; ValueError for parameters out of range."""
        super().__init__()
        self.shape = shape
        self.vocab_size = vocab_size
        self.encoding = encoding
        self.options = nn.ModuleList(options)
        # in a tuple, so that its parameters are not registered under a second name
        self._effective = (Composed(encoding.shape, (encoding, *options)) if options else encoding,)
        # Also the output map. `initialize` fills it: drawn on the meta device, as in every check, torch would
        # import its compiler (2 s).
        self.embedding = nn.Embedding.from_pretrained(torch.empty(vocab_size, shape.d_model), freeze=False)
        self.blocks = nn.ModuleList(Block(shape, layer, attention) for layer in range(shape.n_layers))
        self.norm = nn.RMSNorm(shape.d_model)

    def replace_effective_encoding(self, encoding: Encoding) -> None:
        """Let the attention see this encoding, made of the same parameters, in training and after it."""
        self._effective = (encoding,)

    @property
    def effective_encoding(self) -> Encoding:
        """The encoding with its options: what the attention sees."""
        return self._effective[0]

    def forward(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        n_targets: int | None = None,
        encoding: Encoding | None = None,
    ) -> Tensor:
        """Return the logits of the last `n_targets` tokens (None: all): tokens, pos -> (B, T, V).

        tokens (B, S) int64; pos (S,) int64 counts up by one unless a `positions` hook chose it; None: the
        encoding's own. Only the last tokens go through the last block's queries and the output map.
        `encoding` replaces the trained one (a test-time extension).
        """
        if pos is None:
            pos = self.positions(tokens.shape[1], generator_for(self.encoding.seed, "forward"), encoding)
        return F.linear(self.hidden(tokens, pos, n_targets, encoding), self.embedding.weight)  # (B, T, V)

    def hidden(
        self, tokens: Tensor, pos: Tensor, n_targets: int | None = None, encoding: Encoding | None = None
    ) -> Tensor:
        """Return the normed input of the output map, (B, T, d_model), in the dtype of its product."""
        window = tokens.shape[1]
        n_targets = window if n_targets is None else n_targets
        encoding = self.effective_encoding if encoding is None else encoding
        encoding = encoding.for_one_pass()
        embeds = "embed" in encoding.hooks
        x = self.embedding(tokens)  # (B, S, d_model)
        for layer, block in enumerate(self.blocks):
            if embeds:
                x = encoding.embed(x, pos, layer)
            last = layer == len(self.blocks) - 1
            x = block(x, pos, encoding, n_targets if last else window)
        return rms_norm_for_product(x, self.norm.weight)

    def positions(self, n: int, generator: torch.Generator, encoding: Encoding | None = None) -> Tensor:
        """Return the encoding's positions for a window of n tokens: (n,) int64 on the model's device."""
        encoding = self.effective_encoding if encoding is None else encoding
        return encoding.positions(n, self.training, generator).to(self.embedding.weight.device)


@torch.no_grad()
def initialize(model: Decoder, seed: int) -> None:
    """Fill every parameter from (seed, parameter name), so that no encoding shifts another's values.

    Token embeddings have standard deviation d^-1/2, which sinusoidal positions suppose and which gives tied
    logits of unit variance. Linear maps: normal, fan_in^-1/2; the two that write into the residual stream
    are smaller by (2 n_layers)^-1/2 (GPT-2). Norms: one. The encoding and its options have their own rules.
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
    elif value.ndim == 1:
        nn.init.ones_(value)
    elif name.endswith("short_conv.weight"):  # as torch's Conv1d
        bound = value.shape[2] ** -0.5
        nn.init.uniform_(value, -bound, bound, generator=generator)
    else:
        std = value.shape[1] ** -0.5
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            std *= (2 * shape.n_layers) ** -0.5
        nn.init.normal_(value, std=std, generator=generator)


def count_parameters(model: Decoder) -> dict[str, int]:
    """Count the trained parameters: total, token embedding, encoding, options."""
    return {
        "total": sum(p.numel() for p in model.parameters()),
        "embedding": model.embedding.weight.numel(),
        "encoding": sum(p.numel() for p in model.encoding.parameters()),
        "options": sum(p.numel() for p in model.options.parameters()),
    }


def forward_flops(model: Decoder, length: int) -> int:
    """Count the FLOPs a token of one forward pass over `length` tokens: what MFU counts as useful.

    Products with weights, and those of the attention with every key of the window as in PaLM (arXiv
    2204.02311, appendix B), twice what a causal mask needs.
    """
    weights = model.embedding.weight.numel()  # once, as the output map
    widths = 0  # of a query or key, and of a value, of every head
    for own in model.blocks.modules():
        if isinstance(own, nn.Linear):
            weights += own.weight.numel()
        if isinstance(own, Attention | LatentAttention):
            widths += own.n_heads * (2 * own.head_dim + getattr(own, "rope_dim", 0))
    return 2 * weights + 2 * widths * length


def training_flops(model: Decoder, length: int) -> int:
    """Count the FLOPs a token of one training step: each product needs two more in the backward pass."""
    return 3 * forward_flops(model, length)
