"""Measure where the real attention looks when its inputs are random."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.encodings.shared.composed import Composed
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend
from posenc.pictures.panels import Numbers

WINDOWS = 32  # random windows in a mean
MOST_QUERIES = 16  # of each window, at its end
SMOOTHING = 20  # a weight becomes the mean of its neighbours up to 1/20 of the distance away


class _Recorder(Composed):
    """Pass an encoding through, and keep the weights that the attention hands to the `values` hook."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__(encoding.shape, (encoding,))
        # The attention works through blocks of queries and begins with the last block.
        self.blocks: list[Tensor] = []

    @cached_property
    def hooks(self) -> frozenset[str]:
        # The attention hands its weights only to an encoding that declares this hook.
        return super().hooks | {"values"}

    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        self.blocks.append(p)
        return p @ v


def random_generator(purpose: str, number: int = 0) -> torch.Generator:
    """Return a source of random inputs with a fixed seed, so that a picture is the same every time."""
    return generator_for(0, "picture", purpose, number)


def attention_weights(encoding: Encoding, keys: int, queries: int, draw: int) -> Tensor:
    """Return the attention weights (H, T, S) in layer 0 for random inputs of unit variance.

    There are S = `keys` tokens, and the last T = `queries` of them are the queries.
    """
    generator = random_generator("attention", draw)
    shape = encoding.shape
    stream = torch.randn(1, keys, shape.d_model, generator=generator)  # (1, S, d_model)
    # Unit variance in each number, as normalised layers have. So the scores of a plain product have unit
    # variance, too.
    q, k = torch.randn(2, 1, shape.n_heads, keys, shape.head_dim, generator=generator)  # (1, H, S, D)
    recorder = _Recorder(encoding)
    # The weights do not depend on the values, so that these may be zeros.
    heads = Heads(q[:, :, -queries:], k, torch.zeros_like(k))
    attend(heads, stream, Layer(recorder, 0, torch.arange(keys)))
    blocks = []
    # The attention works from the last block of queries to the first (it reuses freed memory), and hands its
    # blocks over in that order.
    for weights in reversed(recorder.blocks):
        all_heads = weights.expand(*weights.shape[:3], -1)
        # A block ends at the last key that its queries see. The keys behind it have no weight.
        blocks.append(F.pad(all_heads, (0, keys - weights.shape[-1])))
    return torch.cat(blocks, dim=2)[0]


def mean_weights(encoding: Encoding, keys: int) -> Numbers:
    """Return the mean weight that a query gives to the key at distance r: (H, R).

    The queries are the last ones of random windows; the middle one of them sees `keys` keys. The means are
    smoothed over neighbouring distances, because those of random inputs are noisy.
    """
    queries = min(MOST_QUERIES, max(1, keys // 4))  # few, compared with the keys that they see
    window = keys + queries // 2
    distances = window - queries + 1
    total = torch.zeros(encoding.shape.n_heads, distances, dtype=torch.float64)  # (H, R)
    for draw in range(WINDOWS):
        weights = attention_weights(encoding, window, queries, draw).double()  # (H, T, S)
        for query in range(queries):
            # Only the distances that every query has, so that each mean is over as many weights.
            seen_keys = weights[:, query, : distances + query]
            total += seen_keys.flip(-1)[:, :distances]
    return smooth((total / (WINDOWS * queries)).detach().numpy())


def smooth(values: Numbers) -> Numbers:
    """Return means (H, R) over the neighbours of each distance, more of them the farther it is."""
    count = values.shape[1]
    distances = np.arange(count)
    reach = distances // SMOOTHING
    low = np.maximum(distances - reach, 0)
    high = np.minimum(distances + reach + 1, count)
    # Differences of running sums: one pass, whatever the width of the neighbourhood.
    sums = np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))  # sums[i]: of the first i values
    means: Numbers = (sums[:, high] - sums[:, low]) / (high - low)
    return means
