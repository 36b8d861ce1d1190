"""A model in float64 throughout, to compare float32 with, and the same random draws in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class RecordedDraws(TorchFunctionMode):
    """Record what torch draws while a model is built; `replayed` gives the same numbers to another build.

    A seed gives other numbers in float64 than in float32. To copy the buffers of one model into the other
    would hide tables that are computed from drawn numbers in float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Tensor] = []

    def replayed(self) -> ReplayedDraws:
        """Return a mode in which the same draws, in the same order, give the numbers that were recorded."""
        return ReplayedDraws(self.draws)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, is_draw = _called(func, args, kwargs or {})
        if is_draw:
            self.draws.append(result.detach().clone())
        return result


class ReplayedDraws(TorchFunctionMode):
    """Replace each random draw by a recorded one, which is widened to the dtype of the draw."""

    def __init__(self, draws: Sequence[Tensor]) -> None:
        super().__init__()
        self.draws = iter(draws)

    @torch.no_grad()
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, is_draw = _called(func, args, kwargs or {})
        if is_draw:
            # The result of a draw in place is the tensor itself, so that this fills it as well.
            result.copy_(next(self.draws))
        return result


def _called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return what a function of torch returns, and whether it is a tensor that the function drew."""
    # Any function may draw. One that changes the state of a generator did.
    generator = kwargs.get("generator") or torch.default_generator
    state_before = generator.get_state()
    result = func(*args, **kwargs)
    is_draw = isinstance(result, Tensor) and not torch.equal(generator.get_state(), state_before)
    return result, is_draw


def _widened(value: Any) -> Any:
    """Return float64 instead of a narrower dtype, and anything else as it is."""
    # the type is asked first, since `in` would compare a tensor with each dtype
    is_narrow = isinstance(value, torch.dtype) and value in NARROW
    return torch.float64 if is_narrow else value
