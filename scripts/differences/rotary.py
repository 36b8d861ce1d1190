"""The rotary family."""

from __future__ import annotations

from collections.abc import Callable

import formulas
import formulas_rotary
import torch
from differences.common import BASE, FORMULA, HEAD_DIM, LONG, SHORT, encoding, largest, vectors
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.rope import RoPE
from posenc.model.kernels import attend

FAR = int(LONG[-1]) + 1
KEYS = FAR - 1 - LONG  # at the distances of LONG from the query at position 65536


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


def scored(made: Encoding, layer: int = 0) -> Tensor:
    """Products of the query at position 65536 and the keys at KEYS in a window of all: (S,) float64."""
    pos = torch.arange(FAR)
    with torch.no_grad():
        q, k = made.rotate(vectors(1), vectors(FAR), pos[-1:], pos, layer)
    return k[0, 0, KEYS].double() @ q[0, 0, 0].double()


def by_formula(product: Callable[[list[float], list[float], int, int], float]) -> Tensor:
    """The same by a formula of one query, one key and their positions."""
    q, k = vectors(1)[0, 0, 0].tolist(), vectors(FAR)[0, 0, KEYS].tolist()
    found = [product(q, one, FAR - 1, int(j)) for one, j in zip(k, KEYS, strict=True)]
    return torch.tensor(found, dtype=torch.float64)


def xpos_formula() -> float:
    return max(
        largest(
            scored(encoding("xpos", layout=layout)),
            by_formula(lambda q, k, i, j, at=layout: formulas_rotary.xpos(q, k, i, j, layout=at)),
        )
        for layout in ("interleaved", "half")
    )


def xpos_x_transformers() -> float:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    # only products can be compared: it counts from a middle one further on
    q, k = vectors(len(SHORT)), vectors(2 * len(SHORT))[:, :, len(SHORT) :]
    freqs, scale = RotaryEmbedding(HEAD_DIM, use_xpos=True).forward_from_seq_len(len(SHORT))
    their_q, their_k = apply_rotary_pos_emb(q, freqs, scale), apply_rotary_pos_emb(k, freqs, scale**-1.0)
    our_q, our_k = encoding("xpos").rotate(q, k, SHORT, SHORT, 0)
    return largest((our_q @ our_k.mT).tril(), (their_q @ their_k.mT).tril())


def hope_formula() -> float:
    found = 0.0
    for layout, turns in (("interleaved", 1.0), ("half", 1.0), ("interleaved", 0.01)):
        ours = scored(encoding("hope", layout=layout, turns=turns))

        def product(
            q: list[float], k: list[float], i: int, j: int, at: str = layout, least: float = turns
        ) -> float:
            return formulas_rotary.hope(q, k, i, j, 128, layout=at, turns=least)

        found = max(found, largest(ours, by_formula(product)))
    return found


def polar(heads: int = 1) -> Encoding:
    """Its angles beside those of the positions fill the paper's range."""
    made = encoding("pope", heads)
    delta = made.get_parameter("delta")
    torch.nn.init.uniform_(delta, -2 * torch.pi, 0, generator=torch.Generator().manual_seed(0))
    return made


def pope_formula() -> float:
    made = polar()
    delta = made.get_parameter("delta")[0, 0].tolist()
    return largest(scored(made), by_formula(lambda q, k, i, j: formulas_rotary.pope(q, k, i, j, delta)))


def pope_x_transformers() -> float:
    from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

    made, theirs, heads = polar(8), PolarEmbedding(HEAD_DIM, 8), 8
    x = vectors(2 * heads * len(SHORT)).view(2, 1, heads, len(SHORT), HEAD_DIM)
    with torch.no_grad():
        theirs.learned_bias.copy_(made.get_parameter("delta")[0][:, None])
        freqs, bias = theirs(SHORT)
        their_q, their_k = apply_polar_pos_emb(x[0], freqs), apply_polar_pos_emb(x[1], freqs + bias)
        our_q, our_k = made.rotate(x[0], x[1], SHORT, SHORT, 0)
        return largest(our_q @ our_k.mT, their_q @ their_k.mT)


def rnope_swa_cohere() -> float:
    """A whole attention layer of each kind, in the order of theirs."""
    from transformers import Cohere2Config
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
    from transformers.models.cohere2 import modeling_cohere2 as cohere

    heads, layers, window, width = 4, 8, 100, 4 * HEAD_DIM
    config = Cohere2Config(
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        num_hidden_layers=layers,
        sliding_window=window,
        attn_implementation="eager",
    )
    generator = torch.Generator().manual_seed(0)
    sizes = {"d_model": width, "n_heads": heads, "head_dim": HEAD_DIM, "n_layers": layers}
    made = build_encoding("rnope_swa", train_length=128, window=window, **sizes)
    x, found = torch.randn(1, len(SHORT), width, generator=generator), 0.0
    rotations = cohere.Cohere2RotaryEmbedding(config)(x, SHORT[None])
    for layer, kind in enumerate(config.layer_types):
        theirs = cohere.Cohere2Attention(config, layer)
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter, std=width**-0.5, generator=generator)
        create = create_sliding_window_causal_mask if kind == "sliding_attention" else create_causal_mask
        mask = create(config, x, attention_mask=None, past_key_values=None, position_ids=SHORT[None])
        with torch.no_grad():
            want = theirs(x, rotations, mask)[0]
            q, k, v = (
                one(x).view(1, -1, heads, HEAD_DIM).transpose(1, 2)
                for one in (theirs.q_proj, theirs.k_proj, theirs.v_proj)
            )
            ours = attend(q, k, v, x, SHORT, made, layer).transpose(1, 2).reshape(x.shape)
            found = max(found, largest(theirs.o_proj(ours), want))
    return found


COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("rope", FORMULA): (rope_formula, 1e-6),
    ("rope half", "transformers Llama, 512 positions"): (rope_llama, 2e-4),
    ("rope interleaved", "transformers GPT-J, 512 positions"): (rope_gptj, 2e-4),
    ("rope fraction 0.25", "x-transformers, 512 positions"): (rope_x_transformers, 2e-4),
    ("xpos", FORMULA): (xpos_formula, 5e-6),
    ("xpos", "x-transformers, 512 positions"): (xpos_x_transformers, 1e-3),
    ("hope", FORMULA): (hope_formula, 5e-6),
    ("pope", FORMULA): (pope_formula, 5e-6),
    ("pope", "x-transformers, 512 positions"): (pope_x_transformers, 1e-3),
    ("rnope_swa", "transformers Cohere2, 8 layers, 512 positions"): (rnope_swa_cohere, 5e-5),
}
