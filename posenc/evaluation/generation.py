"""Let a model write: the tokens after a prompt, or the marked tokens of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.models.scoring import ModelPass
from posenc.evaluation.passes import (
    EvalContext,
    WindowBatch,
    WindowInputs,
    Windows,
    raise_no_room,
    run_in_batches,
)


def generate(context: EvalContext, tokens: np.ndarray, is_generated: np.ndarray) -> np.ndarray:
    """Replace the marked tokens of windows (N, W + 1) by what the model would write there.

    It writes its first choice after all tokens before, those that it wrote included. Raises
    NotApplicableError, OutOfMemoryError.
    """
    length = tokens.shape[1]  # W + 1
    window = length - 1
    inputs = inputs_of_whole_windows(context, window)
    # A copy, since other protocols score the same windows with the right tokens.
    generated = tokens.copy()

    def continue_batch(batch: WindowBatch) -> None:
        text = batch.tokens.clone()  # (B, W + 1)
        is_marked = torch.from_numpy(is_generated[batch.numbers])  # (B, W + 1)
        # Answers of one size begin at different columns, so a pass serves all windows that are marked there.
        is_marked_anywhere = is_marked.any(dim=0)  # (W + 1,)
        # From left to right, because a token depends on those that the model wrote before it.
        for column in torch.nonzero(is_marked_anywhere).flatten().tolist():
            context.check_stop()
            choice = _choice_at(context, text, column, batch)
            # The windows that are not marked here keep the token that they were given.
            text[:, column] = torch.where(is_marked[:, column], choice, text[:, column])
        generated[batch.numbers] = text.numpy()

    # Most passes end at the column whose token is asked for. Those over whole windows have all outputs from
    # there on, of which the first ones have most.
    n_outputs = 1
    if not inputs.encoding.prefix_stable:
        first_column = int(np.flatnonzero(is_generated.any(axis=0)).min(initial=window))
        n_outputs = length - first_column
    run_in_batches(context, Windows.of_tokens(tokens, n_outputs), continue_batch, inputs)
    return generated


def inputs_of_whole_windows(context: EvalContext, window: int) -> WindowInputs:
    """Return the encoding and the positions of windows that the model reads from their first token on.

    Raises NotApplicableError if the encoding truncates.
    """
    inputs = context.window_inputs(window, n_targets=1)
    if inputs.n_inputs < window:
        raise NotApplicableError("n/a: beyond=truncate loses the beginning of the window")
    return inputs


def _choice_at(context: EvalContext, text: Tensor, column: int, batch: WindowBatch) -> Tensor:
    """Return the likeliest token for a column of text (B, W + 1), given those before it: (B,)."""
    # If later tokens do not change the vectors of earlier ones, the pass can end at the column.
    if batch.encoding.prefix_stable:
        return _first_choice(context, text[:, :column], batch.pos[:column], batch.encoding, n_outputs=1)
    # What precedes would have other vectors in a shorter text. Tokens from the column on are not seen.
    n_later = text.shape[1] - column
    return _first_choice(context, text[:, :-1], batch.pos, batch.encoding, n_outputs=n_later)


@torch.no_grad()
def write_text(
    context: EvalContext,
    prompt: Sequence[int],
    count: int,
    window_inputs: WindowInputs,
    is_enough: Callable[[list[int]], bool],
) -> list[int]:
    """Return at most `count` tokens that the model writes after a prompt, always its first choice.

    It stops earlier at one of the model's end tokens, or once `is_enough` is true of the tokens so far. The
    encoding and the positions are those of `inputs_of_whole_windows`. Raises OutOfMemoryError.
    """
    context.model.to(context.device).eval()
    scorer = context.scorer
    encoding = window_inputs.encoding
    # The text is a single window, so it has the first draw of positions.
    pos = window_inputs.draws[0]
    written: list[int] = []
    past: Any = None  # what the model keeps of the text, such as keys and values
    # Asked before each token, since a model of billions of parameters takes seconds for one.
    while len(written) < count and not is_enough(written):
        context.check_stop()
        text = torch.tensor([[*prompt, *written]])  # (1, n)
        try:
            # Inside of `try`, because the memory of a GPU may run out here as well.
            inputs = text.to(context.device)
            choice, past = scorer.next_token(inputs, pos[: text.shape[1]], encoding, past)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            raise_no_room(error, text.shape[1])
        if choice in scorer.end_tokens:
            break
        # The end token itself is no part of the text, so it is not appended.
        written.append(choice)
    return written


def _first_choice(
    context: EvalContext, inputs: Tensor, pos: Tensor, encoding: Encoding, n_outputs: int
) -> Tensor:
    """Return the likeliest token at the first of the last `n_outputs` places: (B,) on the CPU.

    inputs (B, W) are at positions pos (W,). With one output it is the token after them all.
    """
    model_pass = ModelPass(inputs=inputs.to(context.device), pos=pos, encoding=encoding, n_targets=n_outputs)
    return context.scorer.first_choice(model_pass)
