"""Measure any function from tokens to logits, as if it were posenc's own decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.errors import UserError, first_line
from posenc.encodings.base import Encoding, Shape
from posenc.evaluation.errors import NotApplicableError

# The memory of a pass is estimated by the number of heads. A function does not say how many it has.
ASSUMED_HEADS = 32
# 64 MB in float32. All logits of 16,384 targets with a vocabulary of 49,152 would take 3.2 GB.
LOGITS_AT_ONCE = 1 << 24

OnLayer = Callable[[float], None]  # called with the share of a pass that is done
LogitsOf = Callable[[slice], Tensor]  # from columns of a pass's targets to their logits (B, columns, V)


@dataclass(frozen=True)
class TargetLosses:
    """The losses of targets, and whether each target is the model's first choice."""

    nats: Tensor  # (B, n) float32
    is_best: Tensor | None  # (B, n) bool; None: not asked for


def blocks_of_targets(targets: Tensor, vocab_size: int) -> Iterator[slice]:
    """Yield the columns of targets (B, n) whose logits are made at once."""
    batch_size, n_targets = targets.shape
    columns = max(1, LOGITS_AT_ONCE // (batch_size * vocab_size))
    for start in range(0, n_targets, columns):
        yield slice(start, start + columns)


def losses_of_logits(logits: Tensor, targets: Tensor, *, with_best: bool) -> TargetLosses:
    """Return the losses of targets (B, n) by their logits (B, n, V), computed in float32."""
    # In bf16 the losses between 2 and 4 nats would be multiples of 1/64.
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    # By the logits as the model made them, since greedy decoding does not cast them.
    is_best = logits.argmax(-1) == targets if with_best else None
    return TargetLosses(losses.view_as(targets), is_best)


def join_losses(parts: Sequence[TargetLosses]) -> TargetLosses:
    """Join the losses of neighbouring blocks of targets."""
    best = [part.is_best for part in parts if part.is_best is not None]
    nats = torch.cat([part.nats for part in parts], dim=1)
    return TargetLosses(nats, is_best=torch.cat(best, dim=1) if best else None)


@dataclass(frozen=True)
class NextLogits:
    """The logits of the token after a text, and what the model keeps of the text to go on from it."""

    logits: Tensor  # (B, V)
    past: Any  # the text itself, or keys and values


class CallableModel(nn.Module):
    """A model that is a function from tokens (B, W) int64 to logits (B, W, V), or to an object with `logits`.

    The function makes its own positions; posenc gives it tokens alone. If it is a module, it is registered
    here, so that it moves to the device, too.
    """

    # True if the name of the run directory covers the weights, so that records stored there are of this model
    has_known_weights = False
    bos: int | None = None  # the token before every text, if there is one
    end_tokens: frozenset[int] = frozenset()  # a text that the model writes ends with one of these

    def __init__(self, function: Callable[[Tensor], Any], vocab_size: int, train_length: int) -> None:
        super().__init__()
        self.function = function
        self.vocab_size = vocab_size
        # Of these sizes only the heads and T are looked at. The others have any value.
        self.encoding = Encoding(Shape(1, ASSUMED_HEADS, 1, 1, train_length))
        self.effective_encoding = self.encoding
        self.shape = self.encoding.shape

    @property
    def first_tokens(self) -> list[int]:
        """Return the tokens before every text: BOS, or none."""
        return [] if self.bos is None else [self.bos]

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of its weights; float32 for a function without weights."""
        dtypes = (weight.dtype for weight in self.parameters() if weight.is_floating_point())
        return next(dtypes, torch.float32)

    def loaded(self, device: torch.device) -> CallableModel:
        """Return the model with its weights on a device, in evaluation mode.

        A subclass may not have read them yet, and raises UserError for weights that it cannot measure.
        """
        return self.to(device).eval()

    def for_trial(self, share: float) -> CallableModel:
        """Return the model for a pass over this share of a window, from which the memory of all is estimated.

        A subclass that passes over a window in parts makes the parts smaller by this share, too.
        """
        return self

    def positions(self, n: int, generator: torch.Generator, encoding: Encoding | None = None) -> Tensor:
        """Return 0..n-1. The function does not see them, but a pass needs to know how many there are."""
        return torch.arange(n)

    def forward(self, tokens: Tensor, n_targets: int, encoding: Encoding | None = None) -> Tensor:
        """Return the logits of the last n targets, (B, n, V), of tokens (B, W).

        `encoding` is not used, since no extension can act in a function. Raises NotApplicableError past the
        end of a table of positions, and UserError if the function does not return logits.
        """
        try:
            output = self.function(tokens)
        except IndexError as error:  # a table of positions that ends
            raise NotApplicableError(f"n/a: {type(error).__name__}: {first_line(error)}") from error
        logits = getattr(output, "logits", output)
        return self.checked(logits, tuple(tokens.shape))[:, -n_targets:]

    @torch.no_grad()
    def losses(
        self,
        tokens: Tensor,
        targets: Tensor,
        encoding: Encoding | None = None,
        *,
        with_best: bool = False,
        on_layer: OnLayer | None = None,
    ) -> TargetLosses:
        """Return the losses of the last targets (B, n) of tokens (B, W), a block of logits at a time.

        Raises what `target_logits` raises.
        """
        logits_of = self.target_logits(tokens, targets.shape[1], encoding, on_layer)
        losses = [
            losses_of_logits(logits_of(columns), targets[:, columns], with_best=with_best)
            for columns in blocks_of_targets(targets, self.vocab_size)
        ]
        return join_losses(losses)

    def target_logits(
        self,
        tokens: Tensor,
        n_targets: int,
        encoding: Encoding | None = None,
        on_layer: OnLayer | None = None,
    ) -> LogitsOf:
        """Make a pass over tokens (B, W), and return the function from columns of the last targets to logits.

        Here the pass makes all logits at once, and `on_layer` is not called, since the layers of a function
        are unknown. Subclasses do better. Raises what `forward` raises.
        """
        logits = self(tokens, n_targets, encoding)  # (B, n, V)
        return lambda columns: logits[:, columns]

    @torch.no_grad()
    def next_logits(self, tokens: Tensor, past: Any = None, encoding: Encoding | None = None) -> NextLogits:
        """Return the logits of the token after a text.

        `tokens` (B, n) are the whole text, or what follows the text whose `past` an earlier call returned.
        Raises what `forward` raises.
        """
        # A function keeps no keys and values, so its past is the text, which is read again for each token.
        text = tokens if past is None else torch.cat((past, tokens), dim=1)
        return NextLogits(self(text, 1, encoding)[:, -1], past=text)

    def checked(self, logits: object, text_shape: tuple[int, ...]) -> Tensor:
        """Return the logits if they are (B, S, V) for a text of shape (B, S). Raises UserError otherwise."""
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise UserError("subject", type(logits).__name__, "gives no logits", allowed="a tensor (B, W, V)")
        shape = tuple(logits.shape)
        described = f"logits {shape}"
        # A shape such as (W, B, V) would give losses as well, but of the wrong tokens.
        if len(shape) != 3 or shape[:2] != text_shape:
            allowed = str((*text_shape, self.vocab_size))
            raise UserError("subject", described, f"are none of tokens {text_shape}", allowed=allowed)
        # More logits than tokens are normal: many models round their vocabulary up for the sake of speed.
        if shape[2] < self.vocab_size:
            raise UserError("subject", described, f"the tokenizer has {self.vocab_size} tokens")
        return logits
