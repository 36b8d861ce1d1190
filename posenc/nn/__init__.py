"""Put posenc's encodings into another model: an attention module, parts for FlexAttention and transformers.

- `Attention`: causal multi-head attention with an encoding, which replaces a model's own.
- `score_mod`: a bias for PyTorch's FlexAttention.
- `RotaryEmbedding`: cos and sin of a rotation, as `apply_rotary_pos_emb` of transformers takes them.
- `register_attention`: let models of transformers attend by an encoding: a bias or anything else that acts on
  scores. `attention_function` makes the function alone.

B batch, T queries, S keys, H heads, D head width.
"""

from posenc.nn.attention import Attention
from posenc.nn.building import make_encoding
from posenc.nn.flex_attention import ScoreMod, score_mod
from posenc.nn.rotary_embedding import RotaryEmbedding
from posenc.nn.transformers_attention import attention_function, register_attention

__all__ = [
    "Attention",
    "RotaryEmbedding",
    "ScoreMod",
    "attention_function",
    "make_encoding",
    "register_attention",
    "score_mod",
]
