"""drop: nothing of the encoding is left, and nothing else goes with it."""

from __future__ import annotations

import pytest
import torch
from extending import LONG, extension_of, logits, model_of
from torch import Tensor

from posenc.encodings.base import Encoding

TOKENS = list(range(13)) * 3


def dropped(name: str, *options: Encoding, **params: object) -> tuple[Tensor, Tensor]:
    """Logits of the model without its encoding, and of a model with the same weights that has none."""
    model, plain = model_of(name, *options, **params), model_of("nope", *options)
    plain.load_state_dict(model.state_dict(), strict=False)
    acting = extension_of(model, "drop").effective_encoding(LONG)
    return logits(model, TOKENS[:LONG], acting), logits(plain, TOKENS[:LONG])


@pytest.mark.parametrize("name", ["rope", "rnope_swa", "t5", "shaw", "fox", "learned", "binary"])
def test_what_is_left_is_a_model_without_positions(name: str) -> None:
    found, expected = dropped(name)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("beyond", ["truncate", "refuse", "clamp"])
def test_without_a_table_no_window_is_too_long(beyond: str) -> None:
    model = model_of("learned", beyond=beyond)
    acting = extension_of(model, "drop").effective_encoding(LONG)
    assert acting.beyond is None and model.effective_encoding.beyond == beyond
    assert logits(model, TOKENS[:LONG], acting).isfinite().all()
