"""Tell whether a given model sees later tokens. Its losses would not be those of predictions then.

An encoder that is loaded as a language model finds the token that it is to predict in its input. The
configuration does not always say so: some decoders have a setting that lets them see the whole text, and
code of a checkpoint's own can do anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.evaluation.models.callables import CallableModel

CAUSAL_MODELS = "a model that predicts the next token, such as LlamaForCausalLM"
TOKENS = 16  # of a text; two passes over them take less than one over a window of a hundred tokens
COMPARED = 8  # tokens just before the later ones: among many a leak of the next token alone would be lost
# Eight-bit formats keep three binary digits. Some scale all tokens of a text together, so that a later token
# may change how an earlier one is rounded.
QUANTISED_EPS = 2.0**-3


@dataclass(frozen=True)
class EffectOfLaterTokens:
    """How far logits move when only later tokens differ, as a share of their spread."""

    change: float
    rounding: float  # the largest change that is taken for rounding

    @property
    def is_rounding(self) -> bool:
        """Tell whether rounding explains the change. It does not refuse logits that are no numbers."""
        return not self.change > self.rounding


def check_causality(model: CallableModel, key: str, value: str, n_tokens: int, device: torch.device) -> None:
    """Raise UserError, which names `key` and `value`, for a model that sees later tokens of such a text."""
    effect = effect_of_later_tokens(model, n_tokens, device)
    if effect is None or effect.is_rounding:
        return
    change = f"logits move by {effect.change:.2g} of their spread when only later tokens differ"
    problem = f"sees later tokens: {change}, and rounding explains {effect.rounding:.2g} at most"
    raise UserError(key, value, problem, allowed=CAUSAL_MODELS)


@torch.no_grad()
def effect_of_later_tokens(
    model: CallableModel, n_tokens: int, device: torch.device
) -> EffectOfLaterTokens | None:
    """Return how far logits move when only later tokens differ; None if the text has no two tokens.

    Two texts of random tokens share their first half. In a causal model all logits there are the same: the
    shapes of both passes are equal, so mostly even their rounding is. The whole second half differs, because
    a single token among many would move little.
    """
    n_shared = n_tokens // 2
    if n_shared < 1 or model.vocab_size < 2:
        return None
    generator = generator_for(0, "causality", model.vocab_size)
    text = torch.randint(model.vocab_size, (1, n_tokens), generator=generator)
    shift = torch.randint(1, model.vocab_size, (1, n_tokens - n_shared), generator=generator)
    other_text = text.clone()
    other_text[:, n_shared:] = (text[:, n_shared:] + shift) % model.vocab_size
    text = text.to(device)
    logits = _last_shared_logits(model, text, n_shared)
    other_logits = _last_shared_logits(model, other_text.to(device), n_shared)
    change = _share_of_spread(other_logits - logits, logits)
    effect = EffectOfLaterTokens(change, rounding=_largest_rounding(model))
    if effect.is_rounding:
        return effect
    # A function may draw numbers, such as its positions: then the same text has other logits as well.
    logits_again = _last_shared_logits(model, text, n_shared)
    noise = _share_of_spread(logits_again - logits, logits)
    return EffectOfLaterTokens(change, rounding=max(effect.rounding, 2 * noise))


def _last_shared_logits(model: CallableModel, text: Tensor, n_shared: int) -> Tensor:
    """Return the logits (1, n, V) at the last shared tokens, less their mean, which a softmax ignores."""
    first = max(0, n_shared - COMPARED)
    logits = model(text, text.shape[1])[:, first:n_shared].float()
    return logits - logits.mean(-1, keepdim=True)


def _share_of_spread(change: Tensor, logits: Tensor) -> float:
    """Return the size of a change as a share of the spread of logits; 0 for logits that are all alike."""
    spread = float(logits.square().mean().sqrt())
    return float(change.square().mean().sqrt()) / spread if spread > 0 else 0.0


def _largest_rounding(model: CallableModel) -> float:
    """Return the share of the spread that rounding may move logits by: half of the digits of their type.

    Errors grow from layer to layer, but not so far: of bf16, with eight binary digits, 9% remain, and 0.03%
    of float32. An encoder moves by a large part of the spread, as half of what it sees is other text.
    """
    # A function that is no module does not show its weights, which may be in bf16.
    shows_weights = next(model.parameters(), None) is not None
    eps = torch.finfo(model.dtype if shows_weights else torch.bfloat16).eps
    config = getattr(model.function, "config", None)
    if getattr(config, "quantization_config", None):
        eps = max(eps, QUANTISED_EPS)
    return math.sqrt(eps)
