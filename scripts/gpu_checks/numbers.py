"""Logits and gradients by the chosen kernels and by blocks, each against the blocks in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_checks.common import OPTIONS, blocks_alone, decoder_of, flex_calls, tell, tokens_of
from posenc.core.seeds import generator_for
from posenc.model.decoder import Decoder, ModelShape
from posenc.training.loop import NextTokenLoss, gradients
from posenc.training.precision import autocast

CHECKED = ModelShape("checked", d_model=256, n_layers=2, n_heads=4, mlp_ratio=4)
LENGTHS = (64, 192, 1000, 2048)
WANTED = 48  # of the last tokens
WORSE = 2.5  # times as far off as the blocks in the same precision
ROUNDING = {"fp32": 2e-5, "bf16": 1e-2}  # relative to the norm of a tensor; less is no mismatch


def check(names: Sequence[str], device: torch.device, lengths: Sequence[int]) -> None:
    """Every encoding, option, length and precision that go together."""
    for name in names:
        for option in OPTIONS:
            for length in lengths:
                decoder = decoder_of(name, CHECKED, length, device, option)
                if decoder is not None:
                    case = {"encoding": name, "option": option, "T": length}
                    _check(decoder, tokens_of(2, length, device), case)


def _check(decoder: Decoder, tokens: Tensor, case: dict[str, object]) -> None:
    with blocks_alone():
        exact = _outcome(decoder, tokens, "fp32")
    for precision, rounding in ROUNDING.items():
        with blocks_alone():
            blocks = _off(_outcome(decoder, tokens, precision), exact)
        try:
            with flex_calls() as layers:
                off = _off(_outcome(decoder, tokens, precision), exact)
        except Exception as failure:  # one kernel that does not compile must not hide the others
            tell("numbers", True, **case, precision=precision, failure=repr(failure)[:500])
            continue
        over = {part: off[part] / max(WORSE * blocks[part], rounding) for part in off}
        worst = max(over, key=lambda part: over[part] if over[part] == over[part] else float("inf"))
        bad = not over[worst] <= 1  # nan is bad as well
        facts = {"worst": worst, "off": off[worst], "blocks": blocks[worst], "flex_calls": len(layers)}
        tell("numbers", bad, **case, precision=precision, **facts)


def _outcome(decoder: Decoder, tokens: Tensor, precision: str) -> dict[str, Tensor]:
    """Logits, logits of the last tokens, and the gradient of every parameter, named "d ..."."""
    length = tokens.shape[1]
    pos = decoder.train().positions(length, generator_for(0, "check"))
    decoder.zero_grad(set_to_none=True)
    gradients(NextTokenLoss(decoder), tokens, tokens, pos, precision=precision, grad_clip=1e9)
    made = {f"d {name}": p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}
    pos = decoder.eval().positions(length, generator_for(0, "check"))
    with torch.no_grad(), autocast(precision, tokens.device):
        made["logits"] = decoder(tokens, pos).float()
        made["last logits"] = decoder(tokens, pos, WANTED).float()
    return made


def _off(made: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Distance of each tensor relative to its norm; a gradient below 1/1000 of all counts as that much."""
    least = 1e-3 * sum(float(t.norm()) ** 2 for name, t in exact.items() if name.startswith("d ")) ** 0.5
    return {
        name: float((made[name] - t).norm()) / max(float(t.norm()), least if name.startswith("d ") else 0.0)
        for name, t in exact.items()
    }
