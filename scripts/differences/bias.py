"""Biases by distance."""

from __future__ import annotations

from collections.abc import Callable

import formulas
import torch
from differences.common import FORMULA, LONG, SHORT, encoding, largest

from posenc.encodings.alibi import slopes
from posenc.encodings.t5 import bucket


def alibi_formula() -> float:
    found = 0.0
    for heads in (8, 12):
        table = [[-formulas.alibi_slope(h + 1, heads) * int(r) for r in LONG] for h in range(heads)]
        ours = encoding("alibi", heads).distance_bias(LONG, 0)
        found = max(found, largest(ours, torch.tensor(table, dtype=torch.float64)))
    return found


def alibi_bloom(heads: int) -> float:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    # Bloom adds slope x key index, which the softmax cannot tell from -slope x distance
    by_key = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0]  # (H, 2)
    return largest(torch.tensor(slopes(heads)), by_key[:, 1] - by_key[:, 0])


def alibi_mpt(heads: int) -> float:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    last_row = build_mpt_alibi_tensor(heads, len(SHORT))[:, 0]  # (H, S) of the last query
    return largest(encoding("alibi", heads).bias(SHORT[-1:], SHORT, 0)[:, 0], last_row)


def alibi_x_transformers(heads: int) -> float:
    from x_transformers.x_transformers import AlibiPositionalBias

    theirs = AlibiPositionalBias(heads)(len(SHORT), len(SHORT)).tril()  # (H, T, S)
    return largest(encoding("alibi", heads).bias(SHORT, SHORT, 0), theirs)


def t5_formula() -> float:
    distances = torch.arange(2000)
    want = [formulas.t5_bucket(int(r), 32, 128) for r in distances]
    return largest(bucket(distances, 32, 128), torch.tensor(want))


def t5_transformers() -> float:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(2000)
    theirs = T5Attention._relative_position_bucket(-distances, False, 32, 128)
    return largest(bucket(distances, 32, 128), theirs)


def t5_x_transformers() -> float:
    from x_transformers.x_transformers import RelativePositionBias

    theirs = RelativePositionBias(1.0, causal=True, num_buckets=32, max_distance=128, heads=8)
    ours = encoding("t5")
    ours.get_parameter("table").data.copy_(theirs.relative_attention_bias.weight.T)
    with torch.no_grad():
        return largest(ours.bias(SHORT, SHORT, 0).tril(), theirs(len(SHORT), len(SHORT)).tril())


COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("alibi", FORMULA): (alibi_formula, 1e-3),  # biases reach 46 341: float32 has 3e-8 of that
    ("alibi 8 heads", "transformers Bloom, slopes"): (lambda: alibi_bloom(8), 1e-7),
    ("alibi 12 heads", "transformers Bloom, slopes"): (lambda: alibi_bloom(12), 1e-7),
    ("alibi 8 heads", "transformers MPT, 512 positions"): (lambda: alibi_mpt(8), 1e-7),
    ("alibi 12 heads", "transformers MPT, 512 positions"): (lambda: alibi_mpt(12), 5e-5),
    ("alibi 12 heads", "x-transformers, 512 positions"): (lambda: alibi_x_transformers(12), 1e-7),
    ("t5", "formula in whole numbers, 2000 buckets"): (t5_formula, 0),
    ("t5", "transformers T5, 2000 buckets"): (t5_transformers, 0),
    ("t5", "x-transformers, bias of 512 positions"): (t5_x_transformers, 0),
}
