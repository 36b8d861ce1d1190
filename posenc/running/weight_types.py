"""Name the types of weights that posenc did not train."""

from __future__ import annotations

import torch

WEIGHT_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def weight_type_name(dtype: object) -> str:
    """Return fp32, bf16 or fp16; fp32 for any other type, and for what a configuration may have instead."""
    names = [name for name, weight_type in WEIGHT_TYPES.items() if weight_type == dtype]
    return names[0] if names else "fp32"
