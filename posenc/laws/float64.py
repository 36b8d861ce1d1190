"""A model in float64 throughout, to compare float32 with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROW = {torch.float32, torch.float16, torch.bfloat16}
CASTS: set[Any] = {Tensor.float, Tensor.half, Tensor.bfloat16}
# A generator gives other numbers in float64 than in float32, so these are drawn in float32 and then widened.
DRAWS: set[Any] = {torch.rand, torch.randn}


class Float64(TorchFunctionMode):
    """Make torch use float64 for float32 or less. A model made inside has float64 constants, too."""

    def __enter__(self) -> None:
        self._dtype_before = torch.get_default_dtype()
        # For tensors that are made without a dtype. Explicit ones are widened below.
        torch.set_default_dtype(torch.float64)
        super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self._dtype_before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Methods such as `.float()` have no argument of a dtype that could be widened.
        if func in CASTS:
            return args[0].double()
        if func in DRAWS:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in kwargs.items()})


def _widened(value: Any) -> Any:
    """Return float64 instead of a narrower dtype, and anything else as it is."""
    # the type is asked first, since `in` would compare a tensor with each dtype
    is_narrow = isinstance(value, torch.dtype) and value in NARROW
    return torch.float64 if is_narrow else value
