"""Any model as a subject: a function from tokens to logits, in the place of posenc's own decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.encodings.base import Encoding, Shape
from posenc.model.decoder import Decoder

# Nothing is known of its heads: so many are assumed where memory is estimated before a pass is tried.
HEADS = 32


class NotApplicableError(Exception):
    """This window cannot be measured with this encoding; the message is the record's note."""


class Foreign(nn.Module):
    """`function(tokens (B, W) int64) -> logits (B, W, V)`, or an object with `logits`; a module moves along.

    It has positions of its own: W tokens are all that it is told.
    """

    is_known = False  # whether its directory is that of these weights, so that stored cells are its own

    def __init__(self, function: Callable[[Tensor], Any], vocab_size: int, train_length: int) -> None:
        super().__init__()
        self.function, self.vocab_size = function, vocab_size  # a module is registered
        self.encoding = self.effective_encoding = Encoding(Shape(1, HEADS, 1, 1, train_length))
        self.shape = self.effective_encoding.shape

    def positions(self, n: int, generator: torch.Generator, encoding: Encoding | None = None) -> Tensor:
        """Return 0..n-1: only their number counts."""
        return torch.arange(n)

    def forward(self, tokens: Tensor, n_targets: int, encoding: Encoding | None = None) -> Tensor:
        """Return the logits of the last tokens: (B, T, V). `encoding` is its own: nothing else can act."""
        try:
            found = self.function(tokens)
        except IndexError as error:  # a table of positions that ends
            raise NotApplicableError(f"n/a: {type(error).__name__}: {first_line(error)}") from error
        return self.checked(getattr(found, "logits", found), tuple(tokens.shape))[:, -n_targets:]

    def checked(self, logits: object, tokens: tuple[int, ...]) -> Tensor:
        """Return the logits of tokens (B, S), (B, S, V). Raises UserError for any other shape."""
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise UserError("subject", type(logits).__name__, "gives no logits", allowed="a tensor (B, W, V)")
        shape, wanted = tuple(logits.shape), (*tokens, self.vocab_size)
        if len(shape) != 3 or shape[:2] != wanted[:2]:
            problem = f"are none of tokens {wanted[:2]}"
            raise UserError("subject", f"logits {shape}", problem, allowed=f"{wanted}")
        if shape[2] < wanted[2]:
            raise UserError("subject", f"logits {shape}", f"the tokenizer has {wanted[2]} tokens")
        return logits


Subject = Decoder | Foreign  # what the protocols measure
