"""Make the logits of a model of transformers from hidden states, only those that are needed.

All logits of a window of 16,384 tokens and a vocabulary of 49k would take 3.2 GB.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TRIAL_TOLERANCE = 0.01  # of the spread of logits; those of another module are off by as much as the spread


@torch.no_grad()
def decoder_of(model: Any, tokens: Tensor) -> Any:
    """Return the module whose hidden states become the model's logits; None if there is no such module.

    Mostly it is the base model. OPT calls a part of that, so each is tried with a few tokens (1, W). Without
    such a module the model makes all logits at once.
    """
    if not has_decoder(model):
        return None
    candidates = (model.base_model, model.get_decoder())
    return next((decoder for decoder in candidates if _makes_logits_of(model, decoder, tokens)), None)


def has_decoder(model: Any) -> bool:
    """Tell whether a model has a part that returns hidden states, from which logits can be made."""
    return model.base_model is not model


def _makes_logits_of(model: Any, decoder: Any, tokens: Tensor) -> bool:
    """Tell whether the model, given hidden states of this module, makes the logits of a whole pass."""
    # A block, and not all of them: ProphetNet makes the logits of whole passes alone.
    start = tokens.shape[1] // 2
    try:
        output = decoder(tokens, use_cache=False)
        logits = logits_of_hidden(model, decoder, output, output.last_hidden_state[:, start:])
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False  # it takes or returns something else
    expected = model(tokens, use_cache=False).logits[:, start:]
    # Both are made by the same products. In another module's place logits would be those of other states.
    return is_close(logits, expected, TRIAL_TOLERANCE)


@torch.no_grad()
def logits_of_hidden(model: Any, decoder: Any, output: Any, hidden: Tensor) -> Tensor:
    """Return the logits (B, n, V) of hidden states (B, n, d). `output` is what the decoder returned.

    The model is called with a decoder that only returns these states. So the model's own code does what
    the architecture does to its logits (a cap in Gemma 2, a factor in Granite and Cohere).
    """
    output_of_block = type(output)(**{**output, "last_hidden_state": hidden})
    # The replaced decoder does not read them. Only their number must be right.
    tokens = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
    # For several devices accelerate gives the object a `forward` of its own, which must be put back.
    forward_of_object = vars(decoder).get("forward")
    decoder.forward = lambda *_, **__: output_of_block
    try:
        logits: Tensor = model(tokens, use_cache=False).logits
    finally:
        if forward_of_object is None:
            del decoder.forward
        else:
            decoder.forward = forward_of_object
    return logits


def without_past(output: Any) -> Any:
    """Return what a decoder returned without its keys and values.

    What is left is needed for the logits, whose head reads fields of this very type.
    """
    # Setting the field to None would leave the keys and values in the output, which is a dictionary too.
    fields = {name: value for name, value in output.items() if name != "past_key_values"}
    return type(output)(**fields)


def is_close(logits: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Tell whether logits are the expected ones, up to a share of their spread."""
    if logits.shape != expected.shape:
        return False
    largest_change = (logits - expected).abs().max()
    return bool(largest_change <= tolerance * expected.float().std())
