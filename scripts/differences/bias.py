"""Biases by distance."""

from __future__ import annotations

import math
from collections.abc import Callable

import formulas
import formulas_bias
import torch
from differences.common import FORMULA, LONG, SHORT, encoding, largest
from torch import Tensor

from posenc.encodings.alibi import slopes
from posenc.encodings.base import Encoding
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


def alibi_learned_formula() -> float:
    ours = formulas_bias.started("alibi", 12, learned_slopes=True)
    formulas_bias.spread(ours)
    logs = ours.get_parameter("slope").tolist()
    return by_distance(ours, lambda r: [-math.exp(log) * r for log in logs])


def alibi_learned_x_transformers() -> float:
    from x_transformers.x_transformers import AlibiPositionalBias

    ours = formulas_bias.started("alibi", 12, learned_slopes=True)
    theirs = AlibiPositionalBias(12)(len(SHORT), len(SHORT)).tril()
    with torch.no_grad():
        return largest(ours.bias(SHORT, SHORT, 0), theirs)


def by_distance(ours: Encoding, formula: Callable[[int], list[float]], *, relative: bool = False) -> float:
    """Largest difference of a bias to the formula's for each head; `relative`: as a share of the bias."""
    want = torch.tensor([formula(int(r)) for r in LONG], dtype=torch.float64).T
    with torch.no_grad():
        found = ours.distance_bias(LONG, 0).double()
    size = want.abs().clamp_min(1) if relative else 1.0
    return largest(found / size, want / size)


def kerple_log_formula() -> float:
    ours = formulas_bias.started("kerple_log", 8)
    raw = [ours.get_parameter(name).tolist() for name in "ab"]
    a, b = ([0.01 + formulas_bias.softplus(value) for value in one] for one in raw)
    return by_distance(ours, lambda r: [formulas_bias.kerple_log(r, *one) for one in zip(a, b, strict=True)])


def kerple_power_formula() -> float:
    ours = formulas_bias.started("kerple_power", 8)
    a = [0.01 + formulas_bias.softplus(value) for value in ours.get_parameter("a").tolist()]
    b = [0.01 + 1.99 * formulas_bias.sigmoid(value) for value in ours.get_parameter("b").tolist()]
    return by_distance(
        ours,
        lambda r: [formulas_bias.kerple_power(r, *one) for one in zip(a, b, strict=True)],
        relative=True,
    )


def sandwich_formula() -> float:
    return by_distance(
        encoding("sandwich"), lambda r: [formulas_bias.sandwich(r, head, 8) for head in range(1, 9)]
    )


def fire_formula() -> float:
    """Of every pair of the positions, the network as wide as it starts."""
    ours, found = formulas_bias.started("fire", 8, layers=1), 0.0
    raw_c, raw_factor, *weights = (
        ours.get_parameter(name)[0] for name in ("c", "factor", "w1", "b1", "w2", "b2")
    )
    network = formulas_bias.network(*weights)
    c = 1e-6 + formulas_bias.softplus(raw_c.item())
    threshold = 64 / 4 * (1e-6 + formulas_bias.softplus(raw_factor.item()))
    with torch.no_grad():
        bias = ours.bias(LONG, LONG, 0)  # (H, T, S)
    for t, i in enumerate(LONG.tolist()):
        rows = [network(formulas_bias.fire_share(i, j, c, threshold)) for j in LONG[: t + 1].tolist()]
        found = max(found, largest(bias[:, t, : t + 1], torch.tensor(rows, dtype=torch.float64).T))
    return found


def dynamic_bias(log_distance: bool = True) -> Encoding:
    """Its last layer, which starts at zero, filled."""
    ours = formulas_bias.started("dynamic_bias", 8, log_distance=log_distance)
    torch.nn.init.normal_(ours.get_parameter("w3"), std=32**-0.5, generator=torch.Generator().manual_seed(1))
    return ours


def dynamic_weights(ours: Encoding) -> list[Tensor]:
    return [ours.get_parameter(name) for name in ("w1", "b1", "w2", "b2", "w3", "b3")]


def dynamic_bias_formula(log_distance: bool) -> float:
    ours = dynamic_bias(log_distance)
    network = formulas_bias.network(*dynamic_weights(ours))
    return by_distance(
        ours, lambda r: network(math.log(1 + r) if log_distance else r / 64), relative=not log_distance
    )


def dynamic_bias_x_transformers() -> float:
    from x_transformers.x_transformers import DynamicPositionBias

    ours = dynamic_bias()
    theirs = DynamicPositionBias(32, heads=8, depth=2, log_distance=True)
    linear = [theirs.mlp[0][0], theirs.mlp[1][0], theirs.mlp[2]]
    for layer in theirs.mlp[:2]:
        layer[-1] = torch.nn.ReLU()  # there a SiLU, in the paper a ReLU
    weights = dynamic_weights(ours)
    weights[0] = weights[0][:, None]
    with torch.no_grad():
        for n, layer in enumerate(linear):
            layer.weight.copy_(weights[2 * n])
            layer.bias.copy_(weights[2 * n + 1])
        return largest(ours.bias(SHORT, SHORT, 0).tril(), theirs(len(SHORT), len(SHORT)).tril())


COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("alibi", FORMULA): (alibi_formula, 1e-3),  # biases reach 46 341: float32 has 3e-8 of that
    ("alibi 8 heads", "transformers Bloom, slopes"): (lambda: alibi_bloom(8), 1e-7),
    ("alibi 12 heads", "transformers Bloom, slopes"): (lambda: alibi_bloom(12), 1e-7),
    ("alibi 8 heads", "transformers MPT, 512 positions"): (lambda: alibi_mpt(8), 1e-7),
    ("alibi 12 heads", "transformers MPT, 512 positions"): (lambda: alibi_mpt(12), 5e-5),
    ("alibi 12 heads", "x-transformers, 512 positions"): (lambda: alibi_x_transformers(12), 1e-7),
    ("alibi learned slopes", FORMULA): (alibi_learned_formula, 2e-2),  # biases reach 127 000 here
    ("alibi learned slopes", "x-transformers, start, 512 positions"): (alibi_learned_x_transformers, 2e-4),
    ("t5", "formula in whole numbers, 2000 buckets"): (t5_formula, 0),
    ("t5", "transformers T5, 2000 buckets"): (t5_transformers, 0),
    ("t5", "x-transformers, bias of 512 positions"): (t5_x_transformers, 0),
    ("kerple_log", FORMULA): (kerple_log_formula, 5e-6),
    ("kerple_power, share of the bias", FORMULA): (kerple_power_formula, 3e-6),
    ("fire", FORMULA): (fire_formula, 1e-6),
    ("sandwich", FORMULA): (sandwich_formula, 5e-6),  # biases reach 64
    ("dynamic_bias", FORMULA): (lambda: dynamic_bias_formula(True), 1e-6),
    ("dynamic_bias distance, share of the bias", FORMULA): (lambda: dynamic_bias_formula(False), 1e-7),
    ("dynamic_bias", "x-transformers with ReLU, 512 positions"): (dynamic_bias_x_transformers, 1e-5),
}
