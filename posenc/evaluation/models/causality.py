"""Tell whether a model of transformers sees later tokens. Its losses would not be those of predictions then.

An encoder that is loaded as a language model finds the token that it is to predict in its input. The
configuration does not always say so: some decoders have a setting that lets them see the whole text, and
code of a checkpoint's own can do anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.evaluation.models.transformers import TransformersModel

TOKENS = 16  # of a text; two passes over them take less than one over a window of a hundred tokens
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


@torch.no_grad()
def effect_of_later_tokens(model: TransformersModel) -> EffectOfLaterTokens | None:
    """Return how far logits move when only later tokens differ; None if T has no two tokens.

    Two texts of random tokens share their first half. In a causal model all logits there are the same: the
    shapes of both passes are equal, so mostly even their rounding is. The whole second half differs, because
    a single token among many would move little.
    """
    n_shared = min(TOKENS, model.shape.train_length) // 2
    if n_shared < 1 or model.vocab_size < 2:
        return None
    generator = generator_for(0, "causality", model.vocab_size)
    text = torch.randint(model.vocab_size, (1, 2 * n_shared), generator=generator)
    shift = torch.randint(1, model.vocab_size, (1, n_shared), generator=generator)
    other_text = text.clone()
    other_text[:, n_shared:] = (text[:, n_shared:] + shift) % model.vocab_size
    logits = _logits_of_beginning(model, text, n_shared)
    change = _logits_of_beginning(model, other_text, n_shared) - logits
    spread = float(logits.square().mean().sqrt())
    share = float(change.square().mean().sqrt()) / spread if spread > 0 else 0.0
    return EffectOfLaterTokens(share, rounding=_largest_rounding(model))


def _logits_of_beginning(model: TransformersModel, text: Tensor, n_tokens: int) -> Tensor:
    """Return the logits (1, n, V) at the first tokens of a text, less their mean, which a softmax ignores."""
    logits = model(text, text.shape[1])[:, :n_tokens].float()
    return logits - logits.mean(-1, keepdim=True)


def _largest_rounding(model: TransformersModel) -> float:
    """Return the share of the spread that rounding may move logits by: half of the digits of their type.

    Errors grow from layer to layer, but not so far: of bf16, with eight binary digits, 9% remain, and 0.03%
    of float32. An encoder moves by a large part of the spread, as half of what it sees is other text.
    """
    eps = torch.finfo(model.dtype).eps
    if getattr(model.model.config, "quantization_config", None):
        eps = max(eps, QUANTISED_EPS)
    return math.sqrt(eps)
