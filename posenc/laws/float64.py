"""The same code with every number in float64: what float32 and bf16 inside an encoding cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROW = {torch.float32, torch.float16, torch.bfloat16}
CASTS: set[Any] = {Tensor.float, Tensor.half, Tensor.bfloat16}
# Draws differ between float32 and float64: made in float32 and widened, they stay the same numbers.
DRAWS: set[Any] = {torch.rand, torch.randn}
DRAWS_IN_PLACE: set[Any] = {Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.log_normal_}


class Float64(TorchFunctionMode):
    """Inside, whatever asks for float32 or less gets float64, and so does what asks for nothing.

    Make a model inside it and run it there: its buffers and constants are made anew. Numbers
    that numpy rounds stay rounded: it sees what goes through torch.
    """

    def __enter__(self) -> Float64:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        entered: Float64 = super().__enter__()
        return entered

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self._before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in DRAWS:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        if func in DRAWS_IN_PLACE:
            drawn = torch.empty(args[0].shape, dtype=torch.float32)
            return args[0].copy_(func(drawn, *args[1:], **kwargs))
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in kwargs.items()})


def _widened(value: Any) -> Any:
    # a tensor is asked nothing: `in` would compare it
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value
