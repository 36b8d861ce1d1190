"""The relative family inside the scores, and latent attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import formulas
import torch
from differences.common import BASE, FORMULA, HEAD_DIM, LONG, SHORT, encoding, largest
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.model.kernels import attend
from posenc.model.mla import LatentAttention

FAR = int(LONG[-1]) + 1
KEYS = FAR - 1 - LONG  # at the distances of LONG from the query at position 65536
HEADS, WIDTH = 4, 4 * HEAD_DIM


def normal(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def filled(name: str, heads: int, **params: Any) -> Encoding:
    """Parameters of the size of a start, none of them zero, the same every time."""
    made = encoding(name, heads, **params)
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=made.shape.d_model**-0.5, generator=generator)
    return made


@torch.no_grad()
def scored(made: Encoding, q: Tensor, k: Tensor, pos: Tensor) -> Tensor:
    """Scores with content, of the last tokens: q (1, H, T, D), k (1, H, S, D) -> (H, T, S)."""
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    state = made.prepare(k.transpose(1, 2).flatten(2), q, k, 0)
    return made.scores(s, q, k, pos[-q.shape[2] :], pos, state, 0)[0]


def far_scores(made: Encoding, heads: int) -> tuple[Tensor, list[list[float]], list[list[list[float]]]]:
    """Scores (H, keys) of the query at position 65536 and KEYS, and its head's query and those keys."""
    q, k = normal(1, heads, 1, HEAD_DIM), normal(1, heads, FAR, HEAD_DIM, seed=2)
    ours = scored(made, q, k, torch.arange(FAR))[:, 0, KEYS]
    return ours, q[0, :, 0].tolist(), k[0, :, KEYS].tolist()


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def plus(a: list[float], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


def shaw_formula() -> float:
    made = filled("shaw", 1, clip=16)
    ours, [q], [keys] = far_scores(made, 1)
    table = made.get_parameter("keys")[0, 0].tolist()
    rows = [table[min(r, 16)] for r in LONG.tolist()]
    want = [dot(q, plus(k, row)) / math.sqrt(HEAD_DIM) for k, row in zip(keys, rows, strict=True)]
    found = largest(ours[0], torch.tensor(want, dtype=torch.float64))
    p, v = torch.softmax(normal(1, 1, 1, FAR, seed=3), -1), normal(1, 1, FAR, HEAD_DIM, seed=4)
    pos = torch.arange(FAR)
    with torch.no_grad():
        output = made.values(p, v, pos[-1:], pos, 0)[0, 0, 0]
    r = (FAR - 1 - pos).clamp_max(16)
    exact = p[0, 0, 0].double() @ (v[0, 0].double() + made.get_parameter("added")[0, 0].detach().double()[r])
    return max(found, largest(output, exact))


@torch.no_grad()
def shaw_speecht5() -> float:
    """SpeechT5 has the keys' vectors alone, and for both directions."""
    from transformers.models.speecht5.modeling_speecht5 import (
        SpeechT5Attention,
        SpeechT5RelativePositionalEncoding,
    )

    made = filled("shaw", HEADS, clip=16)
    keys = made.get_parameter("keys")[0, 0]
    made.get_parameter("added").zero_()
    positions = SpeechT5RelativePositionalEncoding(HEAD_DIM, 17)
    positions.pe_k.weight[17:].copy_(keys)  # distances 0, 1, ..., 16 of the past
    theirs = SpeechT5Attention(WIDTH, HEADS, bias=False).eval()
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=seed) * WIDTH**-0.5)
    x, mask = normal(1, len(SHORT), WIDTH), future(len(SHORT))
    want = theirs(x, attention_mask=mask[None, None], position_bias=positions(x))[0]
    projections = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    q, k, v = (one(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for one in projections)
    ours = attend(q, k, v, x, SHORT, made, 0).transpose(1, 2).flatten(2)
    return largest(theirs.out_proj(ours), want)


def future(n: int) -> Tensor:
    return torch.full((n, n), torch.finfo(torch.float32).min).triu(1)


def transformer_xl_formula() -> float:
    heads = 2
    made, found = filled("transformer_xl", heads), 0.0
    ours, queries, keys = far_scores(made, heads)
    for h in range(heads):
        w, u, v = (made.get_parameter(name)[0, h].tolist() for name in ("w", "u", "v"))
        want = []
        for r, k in zip(LONG.tolist(), keys[h], strict=True):
            wave = formulas.sinusoid(r, heads * HEAD_DIM, BASE)
            mapped = [dot(row, wave) for row in w]
            product = dot(plus(queries[h], u), k) + dot(plus(queries[h], v), mapped)
            want.append(product / math.sqrt(HEAD_DIM))
        found = max(found, largest(ours[h], torch.tensor(want, dtype=torch.float64)))
    return found


@torch.no_grad()
def transformer_xl_xlnet() -> float:
    """XLNet's attention is Transformer-XL's; its sinusoids hold all sines, then all cosines."""
    from transformers import XLNetConfig, XLNetModel
    from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

    made, n = filled("transformer_xl", HEADS), len(SHORT)
    config = XLNetConfig(vocab_size=8, d_model=WIDTH, n_layer=1, n_head=HEADS, d_inner=1, attn_type="uni")
    theirs = XLNetRelativeAttention(config).eval()
    w = made.get_parameter("w")[0]  # (H, D, d)
    theirs.r.copy_(torch.cat((w[..., 0::2], w[..., 1::2]), dim=-1).permute(2, 0, 1))
    theirs.r_w_bias.copy_(made.get_parameter("u")[0])
    theirs.r_r_bias.copy_(made.get_parameter("v")[0])
    waves = XLNetModel(config).relative_positional_encoding(n, n)[:, 0]  # of the distances n, n - 1, ..., 0
    mapped = torch.einsum("rc,chd->rhd", waves, theirs.r)[:, None]
    q, k, v = (normal(1, HEADS, n, HEAD_DIM, seed=seed) for seed in (1, 2, 3))
    theirs_q, theirs_k, theirs_v = (one.permute(2, 0, 1, 3) for one in (q, k, v))
    mask = torch.ones(n, n).triu(1)[..., None, None]
    want = theirs.rel_attn_core(theirs_q, theirs_k, theirs_v, mapped, attn_mask=mask)
    ours = attend(q, k, v, k.transpose(1, 2).flatten(2), SHORT, made, 0)
    return largest(ours.permute(2, 0, 1, 3), want)


def dape_formula() -> float:
    heads, found = 2, 0.0
    for bias in ("kerple_log", "alibi"):
        made = filled("dape", heads, bias=bias, hidden=32)
        ours, queries, keys = far_scores(made, heads)
        w1, b1, w2, b2 = (made.get_parameter(name)[0].tolist() for name in ("w1", "b1", "w2", "b2"))
        want = torch.zeros(heads, len(LONG), dtype=torch.float64)
        for n, r in enumerate(LONG.tolist()):
            given = [dot(queries[h], keys[h][n]) / math.sqrt(HEAD_DIM) for h in range(heads)]
            beside = [static_bias(made, bias, h, r) for h in range(heads)]
            hidden = [dot(row, given + beside) + b for row, b in zip(w1, b1, strict=True)]
            hidden = [max(a, 0.01 * a) for a in hidden]
            for h in range(heads):
                want[h, n] = given[h] + beside[h] + dot(w2[h], hidden) + b2[h]
        found = max(found, largest(ours / want.abs().clamp_min(1), want / want.abs().clamp_min(1)))
    return found


def static_bias(made: Encoding, bias: str, h: int, r: int) -> float:
    if bias == "alibi":
        return -formulas.alibi_slope(h + 1, made.shape.n_heads) * r
    a, b = (
        0.01 + math.log1p(math.exp(made.get_parameter(f"static.{name}")[h].item())) for name in ("a", "b")
    )
    return -a * math.log(1 + b * r)


def latent(pos: Tensor) -> tuple[LatentAttention, Encoding, Tensor, Tensor]:
    """Latent attention with drawn weights, its encoding, an input and its output at the positions."""
    own = encoding("rope", 1, base=BASE, layout="interleaved")  # the rotary part is one head's width
    attention = LatentAttention(2 * WIDTH, HEADS, 0, kv_rank=96, q_rank=160, rope_dim=HEAD_DIM)
    for seed, parameter in enumerate(attention.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed) * parameter.shape[-1] ** -0.5
    for norm in (attention.q_norm, attention.kv_norm):
        norm.weight.data.add_(1)
    x = normal(1, len(pos), 2 * WIDTH, seed=50)
    with torch.no_grad():
        return attention, own, x, attention(x, pos, own, len(pos))


@torch.no_grad()
def mla_formula() -> float:
    """In the absorbed form: from the latents and the shared rotary keys alone."""
    a, _, x, ours = latent(LONG)
    weights = {name: p.double() for name, p in a.named_parameters()}
    w_dkv, w_kr = weights["kv_down.weight"].split((a.kv_rank, a.rope_dim))
    w_uk, w_uv = (w.unflatten(0, (HEADS, -1)) for w in weights["kv_up.weight"].chunk(2))

    def normed(rows: Tensor, weight: Tensor) -> Tensor:
        return rows / (rows.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt() * weight

    def turned(rows: Tensor) -> Tensor:
        chosen = {"base": BASE, "layout": "interleaved", "fraction": 1.0, "drop_low": 0.0}
        pairs = zip(rows.tolist(), LONG.tolist(), strict=True)
        return torch.tensor([formulas.rope(row, t, **chosen) for row, t in pairs], dtype=torch.float64)

    tokens = x[0].double()
    latents, k_rotary = normed(tokens @ w_dkv.T, weights["kv_norm.weight"]), turned(tokens @ w_kr.T)
    queries = normed(tokens @ weights["q_down.weight"].T, weights["q_norm.weight"]) @ weights["q_up.weight"].T
    heads = []
    for h, both in enumerate(queries.unflatten(-1, (HEADS, -1)).unbind(1)):
        content, rotary = both.split((a.head_dim, a.rope_dim), dim=-1)
        scores = (content @ w_uk[h] @ latents.T + turned(rotary) @ k_rotary.T) / math.sqrt(both.shape[-1])
        weight = torch.softmax(scores + future(len(LONG)).double(), dim=-1)
        heads.append(weight @ latents @ w_uv[h].T)
    return largest(ours[0], torch.cat(heads, dim=-1) @ weights["out.weight"].T)


@torch.no_grad()
def mla_deepseek(version: int) -> float:
    import transformers
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

    a, _, x, ours = latent(SHORT)
    config = getattr(transformers, f"DeepseekV{version}Config")(
        hidden_size=2 * WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=160,
        kv_lora_rank=96,
        qk_rope_head_dim=a.rope_dim,
        qk_nope_head_dim=a.head_dim,
        v_head_dim=a.head_dim,
        rope_theta=BASE,
        rope_scaling=None,
        attention_bias=False,
    )
    config._attn_implementation = "eager"
    if version == 2:
        theirs, turning = v2.DeepseekV2Attention(config, 0).eval(), v2.DeepseekV2RotaryEmbedding(config)
    else:
        theirs, turning = v3.DeepseekV3Attention(config, 0).eval(), v3.DeepseekV3RotaryEmbedding(config)
    # their kv_b_proj has each head's key rows, then its value rows; ours all keys, then all values
    up = a.kv_up.weight.unflatten(0, (2, HEADS, a.head_dim)).transpose(0, 1).flatten(0, 2)
    for linear, weight in (
        (theirs.q_a_proj, a.q_down.weight),
        (theirs.q_a_layernorm, a.q_norm.weight),
        (theirs.q_b_proj, a.q_up.weight),
        (theirs.kv_a_proj_with_mqa, a.kv_down.weight),
        (theirs.kv_a_layernorm, a.kv_norm.weight),
        (theirs.kv_b_proj, up),
        (theirs.o_proj, a.out.weight),
    ):
        linear.weight.copy_(weight)
    mask = future(len(SHORT))[None, None]
    want = theirs(x, position_embeddings=turning(x, SHORT[None]), attention_mask=mask)[0]
    return largest(ours, want)


COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("shaw", FORMULA): (shaw_formula, 1e-6),
    ("shaw", "transformers SpeechT5 (keys), 512 positions"): (shaw_speecht5, 3e-6),
    ("transformer_xl", FORMULA): (transformer_xl_formula, 2e-6),
    ("transformer_xl", "transformers XLNet, 512 positions"): (transformer_xl_xlnet, 1e-5),
    ("dape", FORMULA): (dape_formula, 1e-6),
    ("attention=mla", FORMULA): (mla_formula, 2e-5),
    ("attention=mla", "transformers DeepSeek-V2, 512 positions"): (lambda: mla_deepseek(2), 2e-5),
    ("attention=mla", "transformers DeepSeek-V3, 512 positions"): (lambda: mla_deepseek(3), 2e-5),
}
