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
    """Frequencies at 4T, and the factor on the logits."""
    own = build_encoding(
        "rope", d_model=WIDTH, n_heads=1, head_dim=WIDTH, n_layers=1, train_length=T, base=BASE
    )
    built = build_extension({"name": name, **knobs}, Decoder(SHAPE, 2, own))
    assert built is not None
    acting: Any = built.effective_encoding(LONG)
    turning = next(part for part in acting.parts if "rotate" in part.hooks)
    return turning.frequencies(torch.device("cpu")), built.resolved(LONG).get("logits", 1.0)


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest relative difference."""
    return float((found / expected.double() - 1).abs().max())


def test_pi() -> None:
    assert apart(ours("pi")[0], library("linear")[0]) < CLOSE


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_dynamic_ntk(factor: float) -> None:
    found, _ = ours("dynamic_ntk", factor=factor)
    assert apart(found, library("dynamic", factor=factor)[0]) < CLOSE


def test_longrope() -> None:
    divisors = [1 + k / 8 for k in range(WIDTH // 2)]
    theta, factor = library("longrope", long_factor=divisors, short_factor=[1.0] * 32)
    found, logits = ours("longrope", factors=divisors)
    assert apart(found, theta) < CLOSE
    assert math.isclose(logits, factor**2, rel_tol=1e-12)


def turns(k: float) -> float:
    """Of the pair k within T."""
    return T * BASE ** (-2 * k / WIDTH) / (2 * math.pi)


def test_yarn_where_no_pair_lies_on_the_ramp() -> None:
    """The library ramps over the index: here from pair 12 to 13, ours in between them."""
    knobs = {"beta_fast": turns(12.01), "beta_slow": turns(12.99)}
    theta, factor = library("yarn", **knobs)
    found, logits = ours("yarn", **knobs)
    assert apart(found, theta) < CLOSE
    assert math.isclose(logits, factor**2, rel_tol=1e-12)


def test_yarn_off_the_ramp_with_the_published_betas() -> None:
    """Pairs on the ramp differ, since the library's is linear in the index; all others agree."""
    theta, _ = library("yarn")
    found, _ = ours("yarn")
    fast, slow = ([k for k in range(WIDTH // 2) if turns(k) > 32], [k for k in range(32) if turns(k) < 1])
    sure = [*fast, *slow[1:]]  # the library's ramp ends at the next whole index
    assert len(sure) > 10
    assert apart(found[sure], theta[sure]) < CLOSE
    ramp = [k for k in range(WIDTH // 2) if k not in (*fast, *slow)]
    assert apart(found[ramp], theta[ramp]) > 0.01
