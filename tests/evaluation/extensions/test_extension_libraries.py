"""Frequencies against transformers, which shares no line with ours. Its numbers are float32."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.evaluation.extensions import build_extension
from posenc.model.decoder import Decoder, ModelShape

T, WIDTH, BASE = 2048, 64, 10000.0
LONG = 4 * T
CLOSE = 1e-6  # of the frequency: float32, its powers with rounded exponents
SHAPE = ModelShape("wide", d_model=WIDTH, n_layers=1, n_heads=1, mlp_ratio=1)


def library(kind: str, **parameters: Any) -> tuple[Tensor, float]:
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    values = {"rope_type": kind, "rope_theta": BASE, "factor": LONG / T, **parameters}
    config = SimpleNamespace(
        rope_parameters={**values, "original_max_position_embeddings": T},
        max_position_embeddings=T,
        hidden_size=WIDTH,
        num_attention_heads=1,
        head_dim=WIDTH,
        standardize_rope_params=lambda: None,
    )
    theta, factor = rope.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=LONG)
    return theta, float(factor)


def ours(name: str, **knobs: Any) -> tuple[Tensor, float]:
    """Frequencies at 4T, and the factor on cos and sin (of longrope on the logits, its root)."""
    own = build_encoding(
        "rope", d_model=WIDTH, n_heads=1, head_dim=WIDTH, n_layers=1, train_length=T, base=BASE
    )
    built = build_extension({"name": name, **knobs}, Decoder(SHAPE, 2, own))
    assert built is not None
    acting: Any = built.effective_encoding(LONG)
    turning = next(part for part in acting.parts if "rotate" in part.hooks)
    cos, sin = turning.angles(torch.arange(3))
    times = float((cos**2 + sin**2).sqrt().mean())
    if name == "longrope":
        times *= math.sqrt(built.resolved(LONG)["logits"])
    return turning.frequencies(torch.device("cpu")), times


DIVISORS = [1 + k / 8 for k in range(WIDTH // 2)]
LONG_FACTORS = {"long_factor": DIVISORS, "short_factor": [1.0] * 32}
WIDE = {"beta_fast": 8.0, "beta_slow": 2.0}
MSCALE = {"mscale": 0.707, "mscale_all_dim": 0.5}


@pytest.mark.parametrize(
    "name, knobs, kind, parameters",
    [
        ("pi", {}, "linear", {}),
        ("dynamic_ntk", {"factor": 2.0}, "dynamic", {"factor": 2.0}),
        ("longrope", {"factors": DIVISORS}, "longrope", LONG_FACTORS),
        ("yarn", {}, "yarn", {}),
        ("yarn", WIDE, "yarn", WIDE),
        ("yarn", MSCALE, "yarn", MSCALE),
        (
            "llama3",
            {"factor": 8.0, "high_freq_factor": 16.0},
            "llama3",
            {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 16.0},
        ),
    ],
)
def test_frequencies_and_temperature(
    name: str, knobs: dict[str, Any], kind: str, parameters: dict[str, Any]
) -> None:
    theta, factor = library(kind, **parameters)
    found, times = ours(name, **knobs)
    assert float((found / theta.double() - 1).abs().max()) < CLOSE
    assert math.isclose(times, factor, rel_tol=1e-6)
