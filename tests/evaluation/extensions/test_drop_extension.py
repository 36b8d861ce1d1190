"""drop: nothing of the encoding is left, and nothing else goes with it."""

from __future__ import annotations

import pytest
import torch
from extending import LONG, decoding, extension_of, logits, model_of
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.options import LogN
from posenc.evaluation.extensions import NotForThisEncodingError

TOKENS = list(range(13)) * 3


def dropped(name: str, *options: Encoding, **params: object) -> tuple[Tensor, Tensor]:
    """Logits of the model without its encoding, and of a model with the same weights that has none."""
    model, plain = model_of(name, *options, **params), model_of("nope", *options)
    plain.load_state_dict(model.state_dict(), strict=False)
    acting = extension_of(model, "drop").effective_encoding(LONG)
    return logits(model, TOKENS[:LONG], acting), logits(plain, TOKENS[:LONG])


@pytest.mark.parametrize(
    "name",
    [
        *("rope", "xpos", "scale_invariant", "rnope_swa", "alibi", "t5", "fire", "shaw", "transformer_xl"),
        *("cope", "fox", "dape", "learned", "binary", "integer", "normalized"),
    ],
)
def test_what_is_left_is_a_model_without_positions(name: str) -> None:
    found, expected = dropped(name)
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_parts_of_a_sum_go_together() -> None:
    found, expected = dropped("sum", parts=["alibi", "rope", "learned"])
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_factor_on_token_embeddings_stays() -> None:
    """sqrt(d) x + PE without PE is sqrt(d) x."""
    model, plain = model_of("sinusoidal"), model_of("nope")
    plain.load_state_dict(model.state_dict(), strict=False)
    factor = model.encoding.input_scale
    assert factor > 1

    class Larger(Encoding):
        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            return factor * x if layer == 0 else x

    found = logits(model, TOKENS[:LONG], extension_of(model, "drop").effective_encoding(LONG))
    assert torch.allclose(
        found, logits(plain, TOKENS[:LONG], Larger(model.effective_encoding.shape)), atol=1e-5
    )


@pytest.mark.parametrize("beyond", ["truncate", "refuse", "clamp"])
def test_without_a_table_no_window_is_too_long(beyond: str) -> None:
    model = model_of("learned", beyond=beyond)
    acting = extension_of(model, "drop").effective_encoding(LONG)
    assert acting.beyond is None and model.effective_encoding.beyond == beyond
    assert logits(model, TOKENS[:LONG], acting).isfinite().all()


def test_a_scale_counts_keys_without_the_windows_that_are_gone() -> None:
    own = decoding.encoding("rnope_swa", window=3)
    model = decoding.model_of(own, LogN(own.shape, counted=(own,)))
    plain = model_of("nope", LogN(own.shape, counted=()))
    plain.load_state_dict(model.state_dict(), strict=False)
    found = logits(model, TOKENS[:LONG], extension_of(model, "drop").effective_encoding(LONG))
    assert torch.allclose(found, logits(plain, TOKENS[:LONG]), atol=1e-5)


@pytest.mark.parametrize(
    "name, reason",
    [("nope", "nothing to remove"), ("pope", "at position 0 too"), ("stick_breaking", "the softmax")],
)
def test_what_cannot_be_taken_out_alone(name: str, reason: str) -> None:
    with pytest.raises(NotForThisEncodingError, match=reason):
        extension_of(model_of(name), "drop")
