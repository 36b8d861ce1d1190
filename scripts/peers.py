"""Models of one shape from posenc and from other packages, and one training step of each.

A peer is left out, with a reason, where its package is not installed or refuses the setting.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.training.device import autocast, compiled_blocks
from posenc.training.loop import Batch, NextTokenLoss, update
from posenc.training.optimizer import Optimization, build_optimizer

VOCABULARY = 256  # bytes
HOW = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 1.0)
OURS = "posenc"
COMPILED = ExitStack()  # of posenc's models, as long as this process lives
Step = Callable[[Tensor, Tensor], Tensor]  # inputs and targets (B, T) -> the loss, scalar


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


@dataclass(frozen=True)
class Maker:
    """A setting of a package: `build(shape, length)` gives a model that maps tokens (B, T) to logits."""

    package: str
    setting: str
    position: str  # its encoding, under posenc's name
    build: Callable[[ModelShape, int], nn.Module]

    @property
    def name(self) -> str:
        return f"{self.package} {self.setting}"


@dataclass
class Contestant:
    """A model that takes part, at one precision."""

    name: str
    package: str
    position: str
    precision: str
    parameters: int
    step: Step


def contestant(
    maker: Maker, shape: ModelShape, length: int, precision: str, device: torch.device, compiled: bool
) -> Contestant:
    """Build it. Its step is loss, backward, clipping to norm 1 and fused AdamW."""
    torch.manual_seed(0)
    model = maker.build(shape, length).to(device).train()
    step = (_our_step if isinstance(model, Decoder) else _peer_step)(model, precision, length, compiled)
    parameters = sum(one.numel() for one in model.parameters())
    name = f"{maker.name} {precision}"
    return Contestant(name, maker.package, maker.position, precision, parameters, step)


def _our_step(model: Decoder, precision: str, length: int, compiled: bool) -> Step:
    loss_of, optimizer = NextTokenLoss(model), build_optimizer(model, HOW)
    COMPILED.enter_context(compiled_blocks(model, compiled))

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        pos = model.positions(length, generator_for(0, "positions", 0))
        loss, _ = Batch(loss_of, inputs, targets, pos, precision, HOW.grad_clip).gradients()
        update(optimizer, HOW.lr)
        return loss

    return step


def _peer_step(model: nn.Module, precision: str, length: int, compiled: bool) -> Step:
    """What nanoGPT's loop does: parameters with two dimensions decay, one optimizer, fused."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": HOW.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=HOW.lr, betas=HOW.betas, eps=HOW.eps, fused=True)
    forward = torch.compile(model) if compiled else model

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(precision, inputs.device):
            logits = forward(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, HOW.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def makers(names: list[str]) -> Iterator[Maker]:
    """Every contestant that can take part here; posenc with these encodings first."""
    for name in names:
        yield Maker(OURS, name, name, _ours(name))
    if _installed("x_transformers"):
        for attention in ("einsum", "flash"):
            for position in ("learned", "rope", "alibi", "t5"):
                if (attention, position) != ("flash", "t5"):  # it refuses this pair
                    setting = f"{position} {attention}"
                    yield Maker("x-transformers", setting, position, x_transformers(position, attention))
    if _installed("transformers"):
        for attention in ("eager", "sdpa"):
            yield Maker("transformers", f"GPT-2 {attention}", "learned", gpt2(attention))
            yield Maker("transformers", f"Llama {attention}", "rope", llama(attention))


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _ours(name: str) -> Callable[[ModelShape, int], nn.Module]:
    def build(shape: ModelShape, length: int) -> nn.Module:
        encoding = build_encoding(
            name,
            d_model=shape.d_model,
            n_heads=shape.n_heads,
            head_dim=shape.head_dim,
            n_layers=shape.n_layers,
            train_length=length,
        )
        model = Decoder(shape, VOCABULARY, encoding)
        initialize(model, 0)
        return model

    return build
