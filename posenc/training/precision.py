"""Device and precision: what `auto` means on this machine, decided once and stored with the run."""

from __future__ import annotations

import torch

from posenc.core.errors import UserError

PRECISIONS = ("auto", "fp32", "bf16")


def resolve_device(name: str) -> torch.device:
    """Resolve `auto` to the first CUDA device, MPS or the CPU. Raises UserError if it is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    here = ["auto", "cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.cuda.is_available():
        here.append("cuda")
    if torch.backends.mps.is_available():
        here.append("mps")
    if name not in here:
        raise UserError("device", name, "there is no such device on this machine", allowed=here)
    return torch.device(name)


def has_hardware_bf16(device: torch.device) -> bool:
    """Whether bf16 products run in hardware there: emulated bf16 is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        able: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("amx") or able.get("bf16"))
    return False


def resolve_precision(name: str, device: torch.device) -> str:
    """Resolve `auto` to bf16 where the hardware has it, else fp32. Raises UserError."""
    if name not in PRECISIONS:
        raise UserError("train.precision", name, "there is no such precision", allowed=PRECISIONS)
    if name == "auto":
        return "bf16" if has_hardware_bf16(device) else "fp32"
    return name


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Run products in bf16 for `bf16`; parameters, norms, scores and losses stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
