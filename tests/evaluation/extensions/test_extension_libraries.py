"""Frequencies against transformers, which shares no line with ours. Its numbers are float32."""

import math
from types import SimpleNamespace

import pytest
import torch

from posenc.encodings import build_encoding
from posenc.evaluation.extensions import build_extension
from posenc.model.decoder import Decoder, ModelShape

T, WIDTH, BASE = 2048, 64, 10000.0
LONG = 4 * T
DIVISORS = [1 + k / 8 for k in range(WIDTH // 2)]
WIDE = {"beta_fast": 8.0, "beta_slow": 2.0}
MSCALE = {"mscale": 0.707, "mscale_all_dim": 0.5}
LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 16.0}


@pytest.mark.parametrize(
    ("name", "knobs", "kind", "given"),
    [
        ("pi", {}, "linear", {}),
        ("dynamic_ntk", {"factor": 2.0}, "dynamic", {"factor": 2.0}),
        ("longrope", {"factors": DIVISORS}, "longrope", {"long_factor": DIVISORS, "short_factor": []}),
        ("yarn", {}, "yarn", {}),
        ("yarn", WIDE, "yarn", WIDE),
        ("yarn", MSCALE, "yarn", MSCALE),
        ("llama3", LLAMA, "llama3", LLAMA),
    ],
)
def test_frequencies(name, knobs, kind, given):
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    usual = {"rope_theta": BASE, "factor": LONG / T, "original_max_position_embeddings": T}
    config = SimpleNamespace(
        rope_parameters={**usual, **given, "rope_type": kind},
        max_position_embeddings=T, hidden_size=WIDTH, num_attention_heads=1, head_dim=WIDTH,
        standardize_rope_params=lambda: None,
    )  # fmt: skip
    theirs, factor = rope.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=LONG)
    sizes = {"d_model": WIDTH, "n_heads": 1, "head_dim": WIDTH, "n_layers": 1, "train_length": T}
    shape = ModelShape("wide", d_model=WIDTH, n_layers=1, n_heads=1, mlp_ratio=1)
    own = build_encoding("rope", **sizes, base=BASE)
    built = build_extension({"name": name, **knobs}, Decoder(shape, 2, own))
    turning = next(part for part in built.effective_encoding(LONG).parts if "rotate" in part.hooks)
    ratio = turning.frequencies(torch.device("cpu")) / theirs.double()
    assert float((ratio - 1).abs().max()) < 1e-6  # float32, its powers with rounded exponents
    cos, sin = turning.angles(torch.arange(3))
    times = float((cos**2 + sin**2).sqrt().mean())
    if name == "longrope":  # ours is on the logits, theirs its root on queries and keys
        times *= math.sqrt(built.resolved(LONG)["logits"])
    assert math.isclose(times, float(factor), rel_tol=1e-6)
