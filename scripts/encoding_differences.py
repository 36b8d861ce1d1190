"""Largest difference of each encoding to the paper's formula in float64 and to other people's libraries.

From the root of a clone, with the test dependencies installed: python scripts/encoding_differences.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "encodings"))

import formulas

from posenc.encodings import build_encoding
from posenc.encodings.alibi import slopes
from posenc.encodings.base import Encoding
from posenc.encodings.rope import RoPE
from posenc.encodings.sinusoidal import sinusoids
from posenc.encodings.t5 import bucket

HEAD_DIM, BASE = 64, 10000.0
SHORT = torch.arange(512)  # the libraries make their angles in float32, which drifts with the position
LONG = torch.tensor([0, 1, 2, 63, 64, 255, 256, 257, 1000, 4096, 8191, 65536])


def encoding(name: str, heads: int = 8, **params: object) -> Encoding:
    sizes = {"d_model": heads * HEAD_DIM, "n_heads": heads, "head_dim": HEAD_DIM, "n_layers": 1}
    return build_encoding(name, train_length=128, **sizes, **params)


def largest(ours: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference, in float64."""
    return (ours.double() - theirs.double()).abs().max().item()


def vectors(n: int) -> Tensor:
    """(1, 1, n, D), the same every time."""
    return torch.randn(1, 1, n, HEAD_DIM, generator=torch.Generator().manual_seed(0))


def turned(x: Tensor, pos: Tensor, **params: object) -> Tensor:
    rope = encoding("rope", **params)
    assert isinstance(rope, RoPE)
    return rope.rotate(x, x, pos, pos, 0)[0]


def rope_formula() -> float:
    x, found = vectors(len(LONG)), 0.0
    for layout in ("interleaved", "half"):
        for fraction, drop_low in ((1.0, 0.0), (0.25, 0.0), (1.0, 0.25)):
            chosen = {"base": BASE, "layout": layout, "fraction": fraction, "drop_low": drop_low}
            rows = [formulas.rope(x[0, 0, n].tolist(), int(t), **chosen) for n, t in enumerate(LONG)]
            want = torch.tensor(rows, dtype=torch.float64)
            found = max(found, largest(turned(x, LONG, **chosen)[0, 0], want))
    return found


def rope_llama() -> float:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=HEAD_DIM, num_attention_heads=1, head_dim=HEAD_DIM)
    assert config.rope_parameters["rope_theta"] == BASE
    x = vectors(len(SHORT))
    cos, sin = LlamaRotaryEmbedding(config)(x, SHORT[None])
    return largest(turned(x, SHORT, layout="half"), apply_rotary_pos_emb(x, x, cos, sin)[0])


def rope_gptj() -> float:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    x = vectors(len(SHORT))
    sin, cos = create_sinusoidal_positions(len(SHORT), HEAD_DIM)[None].chunk(2, dim=-1)
    theirs = apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)
    return largest(turned(x, SHORT, layout="interleaved"), theirs)


def rope_x_transformers() -> float:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    x, quarter = vectors(len(SHORT)), HEAD_DIM // 4
    freqs, scale = RotaryEmbedding(quarter).forward_from_seq_len(len(SHORT))
    theirs = apply_rotary_pos_emb(x, freqs, scale)
    return largest(turned(x, SHORT, layout="interleaved", fraction=0.25), theirs)


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


def sinusoidal_formula() -> float:
    rows = [formulas.sinusoid(int(t), HEAD_DIM, BASE) for t in LONG]
    return largest(sinusoids(LONG, HEAD_DIM, BASE), torch.tensor(rows, dtype=torch.float64))


def sinusoidal_gptj() -> float:
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    theirs = create_sinusoidal_positions(len(SHORT), HEAD_DIM)  # all sines, then all cosines
    ours = sinusoids(SHORT, HEAD_DIM, BASE)
    return largest(torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=-1), theirs)


def sinusoidal_x_transformers() -> float:
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    embedding = ScaledSinusoidalEmbedding(HEAD_DIM)
    with torch.no_grad():
        theirs = embedding(torch.zeros(1, len(SHORT), HEAD_DIM)) / embedding.scale
    ours = sinusoids(SHORT, HEAD_DIM, BASE)
    return largest(torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=-1), theirs)


FORMULA = "formula, float64, positions to 65536"

# (encoding, against what): how it is measured, and what the tests allow
COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("rope", FORMULA): (rope_formula, 1e-6),
    ("rope half", "transformers Llama, 512 positions"): (rope_llama, 2e-4),
    ("rope interleaved", "transformers GPT-J, 512 positions"): (rope_gptj, 2e-4),
    ("rope fraction 0.25", "x-transformers, 512 positions"): (rope_x_transformers, 2e-4),
    ("alibi", FORMULA): (alibi_formula, 1e-3),  # biases reach 46 341: float32 has 3e-8 of that
    ("alibi 8 heads", "transformers Bloom, slopes"): (lambda: alibi_bloom(8), 1e-7),
    ("alibi 12 heads", "transformers Bloom, slopes"): (lambda: alibi_bloom(12), 1e-7),
    ("alibi 8 heads", "transformers MPT, 512 positions"): (lambda: alibi_mpt(8), 1e-7),
    ("alibi 12 heads", "transformers MPT, 512 positions"): (lambda: alibi_mpt(12), 5e-5),
    ("alibi 12 heads", "x-transformers, 512 positions"): (lambda: alibi_x_transformers(12), 1e-7),
    ("t5", "formula in whole numbers, 2000 buckets"): (t5_formula, 0),
    ("t5", "transformers T5, 2000 buckets"): (t5_transformers, 0),
    ("t5", "x-transformers, bias of 512 positions"): (t5_x_transformers, 0),
    ("sinusoidal", FORMULA): (sinusoidal_formula, 1e-7),
    ("sinusoidal", "transformers GPT-J, 512 positions"): (sinusoidal_gptj, 1e-4),
    ("sinusoidal", "x-transformers, 512 positions"): (sinusoidal_x_transformers, 1e-4),
}


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("encoding", "against")
    table.add_column("largest difference", justify="right")
    for (name, against), (measure, _) in COMPARISONS.items():
        table.add_row(name, against, f"{measure():.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
