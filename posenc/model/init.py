"""Initial values, all in one place, each from (seed, parameter name): no encoding shifts another's."""

from __future__ import annotations

import torch
from torch import nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.model.decoder import Decoder


@torch.no_grad()
def initialize(model: Decoder, seed: int) -> None:
    """Fill every parameter.

    Token embeddings start with standard deviation d^-1/2, which sinusoidal positions suppose and which gives
    tied logits of unit variance. Linear maps: normal, fan_in^-1/2; the two that write into the residual
    stream are smaller by (2 n_layers)^-1/2 (GPT-2). Norms: one. The encoding and its options fill their own.
    """
    width = model.shape.d_model
    for name, parameter in model.named_parameters():
        generator = generator_for(seed, name)
        # Drawn on the CPU, so that every device starts from the same values.
        value = torch.empty(parameter.shape, dtype=torch.float32)
        if name.startswith("encoding."):
            model.encoding.initialize(name.removeprefix("encoding."), value, generator)
        elif name.startswith("options."):
            _, number, own = name.split(".", 2)
            model.get_submodule(f"options.{number}").initialize(own, value, generator)  # type: ignore[operator]
        elif name == "embedding.weight":
            nn.init.normal_(value, std=width**-0.5, generator=generator)
        elif value.ndim == 1:
            nn.init.ones_(value)
        else:
            std = value.shape[1] ** -0.5
            if name.endswith(("attention.out.weight", "mlp.down.weight")):
                std *= (2 * model.shape.n_layers) ** -0.5
            nn.init.normal_(value, std=std, generator=generator)
        parameter.copy_(value)
    for module in model.modules():
        if isinstance(module, Encoding):
            module.seed = seed
