"""Models of other packages at posenc's shape, from tokens (B, T) to logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from posenc.model.decoder import ModelShape

VOCABULARY = 256  # bytes


def x_transformers(position: str, attention: str) -> Callable[[ModelShape, int], nn.Module]:
    """No biases, squared ReLU and tied embeddings, as in posenc; LayerNorm, which torch has as one kernel."""

    def build(shape: ModelShape, length: int) -> nn.Module:
        from x_transformers import Decoder as Layers
        from x_transformers import TransformerWrapper

        options: dict[str, Any] = {
            "rope": {"rotary_pos_emb": True},
            "alibi": {"alibi_pos_bias": True, "alibi_num_heads": shape.n_heads},
            "t5": {"rel_pos_bias": True},
        }.get(position, {})
        layers = Layers(
            dim=shape.d_model,
            depth=shape.n_layers,
            heads=shape.n_heads,
            attn_dim_head=shape.head_dim,
            attn_flash=attention == "flash",
            ff_mult=shape.mlp_ratio,
            ff_relu_squared=True,
            ff_no_bias=True,
            verbose=False,
            **options,
        )
        return TransformerWrapper(
            num_tokens=VOCABULARY,
            max_seq_len=length,
            attn_layers=layers,
            use_abs_pos_emb=position == "learned",
            tie_embedding=True,
        )

    return build


class _Logits(nn.Module):
    """A model of transformers as tokens to logits: no cache, no loss of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return found


def gpt2(attention: str) -> Callable[[ModelShape, int], nn.Module]:
    def build(shape: ModelShape, length: int) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=length,
            n_embd=shape.d_model,
            n_layer=shape.n_layers,
            n_head=shape.n_heads,
            n_inner=shape.mlp_ratio * shape.d_model,
            activation_function="gelu_pytorch_tanh",  # one kernel; its default is five
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation=attention,
        )
        return _Logits(GPT2LMHeadModel(config))

    return build


def llama(attention: str) -> Callable[[ModelShape, int], nn.Module]:
    """Its MLP is gated: three maps, so two thirds of the width have as many parameters."""

    def build(shape: ModelShape, length: int) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=shape.d_model,
            intermediate_size=8 * round(2 * shape.mlp_ratio * shape.d_model / 3 / 8),
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            max_position_embeddings=length,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation=attention,
        )
        return _Logits(LlamaForCausalLM(config))

    return build


def nano_gpt(shape: ModelShape, length: int) -> nn.Module:
    """The `nano-gpt` of the package index, after nanoGPT. Its MLP is always four times as wide."""
    from nano_gpt.config import GPTConfig
    from nano_gpt.model import GPT

    config = GPTConfig(
        block_size=length,
        vocab_size=VOCABULARY,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.d_model,
    )

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = GPT(config, None)

        def forward(self, tokens: Tensor) -> Tensor:
            found: Tensor = self.model(tokens)[0]
            return found

    return Logits()
