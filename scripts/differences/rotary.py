"""The rotary family."""

from __future__ import annotations

from collections.abc import Callable

import formulas
import torch
from differences.common import BASE, FORMULA, HEAD_DIM, LONG, SHORT, encoding, largest, vectors
from torch import Tensor

from posenc.encodings.rope import RoPE


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


COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("rope", FORMULA): (rope_formula, 1e-6),
    ("rope half", "transformers Llama, 512 positions"): (rope_llama, 2e-4),
    ("rope interleaved", "transformers GPT-J, 512 positions"): (rope_gptj, 2e-4),
    ("rope fraction 0.25", "x-transformers, 512 positions"): (rope_x_transformers, 2e-4),
}
