"""Score a text with a model token by token, and continue a text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.passes import inputs_given
from posenc.model.decoder import Decoder
from posenc.settings.numbers import check_between, check_whole

# This is within 10% of the best size, for windows of 32 to 512 tokens (docs/log.md).
BATCH_TOKENS = 8192  # tokens of one forward pass

LogitsOfText = Callable[[Sequence[int]], Tensor]  # a text -> the logits of the token behind it, (V,)


def window_of(model: Decoder, context: int | None, length: int) -> int:
    """Return how many tokens of a text of `length` tokens the model gets at most. Raises UserError."""
    requested = length
    if context is not None:
        requested = min(length, check_whole("context", context, least=1))
    encoding = model.effective_encoding
    try:
        window = inputs_given(encoding, requested, n_targets=1)
    except NotApplicableError as error:
        allowed = f"up to {encoding.shape.positions} tokens"
        raise UserError("context", requested, str(error), allowed=allowed) from error
    # An encoding may have no positions past a certain number, also where it refuses no length.
    limit = encoding.ends_at
    if limit is not None and window > limit:
        problem = f"no encoding of positions from {limit} on"
        raise UserError("context", requested, problem, allowed=f"to {limit}")
    return window


@torch.no_grad()
def token_nats(model: Decoder, ids: Sequence[int], context: int | None = None) -> np.ndarray:
    """Return the loss in nats of every token except the first: (len(ids) - 1,) float64.

    Each token is predicted from at most `context` tokens before it; None: from all.
    """
    count = len(ids) - 1
    if count < 1:
        raise UserError("text", None, "has no second token to score")
    model.eval()
    window = window_of(model, context, count)
    windows = torch.tensor(ids).unfold(0, window + 1, 1)  # (count - window + 1, window + 1)
    # the first window scores all its targets, each later one its last: the others have been scored
    losses = [_losses(model, windows[:1], n_targets=window)]
    for batch in windows[1:].split(max(1, BATCH_TOKENS // window)):
        if len(batch):  # split makes one empty batch of nothing
            losses.append(_losses(model, batch, n_targets=1))
    return torch.cat(losses).double().cpu().numpy()


def _losses(model: Decoder, windows: Tensor, n_targets: int) -> Tensor:
    """Return the losses of the last `n_targets` tokens of windows (B, W + 1): (B * n_targets,)."""
    windows = windows.to(model.embedding.weight.device)
    logits = model(windows[:, :-1], n_targets=n_targets)  # (B, n_targets, V)
    targets = windows[:, -n_targets:].flatten()
    # The loss is computed in float32, also where the model computes in
    # bf16: a sum of exponentials needs the digits.
    return F.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")


@torch.no_grad()
def logits_behind(model: Decoder, ids: Sequence[int], vocab_size: int, context: int | None) -> Tensor:
    """Return the logits of the token behind a text from at most `context` tokens: (vocab_size,)."""
    window = window_of(model.eval(), context, len(ids))
    inputs = torch.tensor([ids[-window:]], device=model.embedding.weight.device)  # (1, W)
    return model(inputs, n_targets=1)[0, 0, :vocab_size]


def continuation(
    logits_of: LogitsOfText,
    ids: Sequence[int],
    *,
    tokens: int,
    temperature: float,
    seed: int,
    end_tokens: Collection[int] = (),
) -> list[int]:
    """Return the tokens drawn after `ids`. `logits_of` is called with the whole text before each of them.

    The same seed draws with the same random numbers, whatever the logits; temperature 0 takes the likeliest.
    The text ends before one of the end tokens.
    """
    if not ids:
        raise UserError("prompt", None, "is empty")
    tokens = check_whole("tokens", tokens, least=1)
    check_between("temperature", temperature, 0, 100)
    generator = generator_for(check_whole("seed", seed, least=0), "sample")
    text = list(ids)
    for _ in range(tokens):
        # The draw is made on the CPU, whose generator draws the same numbers on every machine.
        logits = logits_of(text).float().cpu()  # (V,)
        # torch.multinomial would raise an error that says nothing of the context.
        if not logits.isfinite().all():
            raise UserError("context", len(text), "its logits are not finite there")
        if temperature == 0:
            choice = int(logits.argmax())
        else:
            choice = int(torch.multinomial(_shares(logits, temperature), 1, generator=generator))
        if choice in end_tokens:
            break
        text.append(choice)
    return text[len(ids) :]


def _shares(logits: Tensor, temperature: float) -> Tensor:
    """Return softmax(logits / temperature), (V,); it is finite for the smallest temperature, too."""
    # the largest logit is 0 before the division, which overflows to minus infinity at worst
    below_largest = logits.double() - logits.double().max()
    return (below_largest / temperature).softmax(0).float()
