"""A model in float64 throughout, to compare float32 with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROW = {torch.float32, torch.float16, torch.bfloat16}
CASTS: set[Any] = {Tensor.float, Tensor.half, Tensor.bfloat16}
# Random draws differ between float32 and float64: drawn in float32 and widened, they are the same numbers.
DRAWS: set[Any] = {torch.rand, torch.randn}


class Float64(TorchFunctionMode):
    """Inside, torch uses float64 for float32 or less; make the model inside, with its constants."""

    def __enter__(self) -> None:
        self._dtype_before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self._dtype_before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in DRAWS:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in kwargs.items()})


def _widened(value: Any) -> Any:
    # the type first: `in` would compare a tensor
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value
