"""Models that are more than an encoding: positions that are drawn, decoupled rotary parts."""

from __future__ import annotations

from typing import Any

import pytest
from extending import BASE, LONG, T, decoding, extension_of, latent_model, refused, theta_of

from posenc.encodings import build_encoding
from posenc.encodings.options import build_options, distance_limit, position_limit
from posenc.model.decoder import Decoder

DISTANCES = ("rerope", "self_extend", "sinks", "lm_infinite")


def drawn_model(name: str, **settings: Any) -> Decoder:
    drawn = {"name": name, "max": None, **settings}
    own = build_encoding(
        "rope",
        d_model=16,
        n_heads=2,
        head_dim=8,
        n_layers=2,
        train_length=T,
        position_limit=position_limit(drawn, T),
        distance_limit=distance_limit(drawn, T),
    )
    options = build_options(own.shape, own, positions=drawn, window=None, scale="none")
    built: Decoder = decoding.model_of(own, *options)
    return built


def test_a_drawn_start_shows_no_larger_distance() -> None:
    assert extension_of(drawn_model("offset"), "pi").resolved(4 * T) == {"factor": 4}


@pytest.mark.parametrize("dense", [False, True])
def test_positions_drawn_with_gaps_show_distances_up_to_their_limit(dense: bool) -> None:
    model = drawn_model("randomized", dense=dense)  # below 16 T
    extension = extension_of(model, "pi")
    assert extension.effective_encoding(16 * T) is model.effective_encoding
    assert extension_of(model, "rerope").effective_encoding(16 * T) is model.effective_encoding
    if dense:  # evaluated at 0, 1, 2, ...
        assert extension.resolved(32 * T) == {"factor": 2}
        assert extension_of(model, "sinks").resolved(T) == {"sinks": 4, "window": 16 * T - 4}
        return
    for name in ("sinks", "lm_infinite"):
        assert "gaps" in refused(model, name)


def test_decoupled_rotary_parts() -> None:
    """Their turned queries and keys come with the content's, so that distances cannot be made anew."""
    model = latent_model("rope", base=BASE)
    for name in DISTANCES:
        assert "turns a part of each head" in refused(model, name)
    slower = theta_of(extension_of(model, "pi", factor=2).effective_encoding(LONG))
    assert slower.tolist() == [0.5, BASE**-0.5 / 2]
