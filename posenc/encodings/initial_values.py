"""Initial values of an encoding's parameters: those that its class sets, drawn by the seed and the name.

An encoding is built before the seed is known, and its `__init__` does not know the names of its parameters.
So it is constructed again here, with the arguments that it notes (`Encoding.construction`):

1. Memory that `__init__` leaves unset (`torch.empty`) holds nan, which tells it from values that are set.
   `Encoding.initialize` fills it.
2. Every random draw restarts torch's generator from a seed of its own, so that no draw depends on how many
   came before. A draw belongs to the parameter that changes when the draw does (of several, the first by
   name). The last construction seeds each draw by (seed, parameter name), so that two classes that construct
   the same `nn.Linear` under the same name start from the same weights, whatever else they construct.

A class that draws nothing, like all classes of posenc, is constructed once. A class that draws n times is
constructed n + 2 times: once to count the draws, once for each draw to find its parameter, and once with the
final seeds. That takes a fraction of a second, and needs no list of torch's random functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.core.seeds import generator_for, seed_for
from posenc.encodings.base import Encoding, owner_of

Seeds = Callable[[int], int]  # the number of a draw -> its seed
CHANGED = 2**32 - 1  # a seed that no number of a draw has; torch's CPU generator reads 32 bits of it
UNSET: set[Any] = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty}


@torch.no_grad()
def initialize_encoding(encoding: Encoding, path: str, seed: int) -> None:
    """Give every parameter and drawn buffer of an encoding its initial value.

    `path` is where the model has it: names of parameters, and so their draws, begin with it.
    """
    values = values_of_construction(encoding, path, seed)
    for name, parameter in encoding.named_parameters():
        value = values[name].float()  # drawn and filled in float32 on the CPU, whatever the model is in
        owner, name_in_owner = owner_of(encoding, name)
        owner.initialize(name_in_owner, value, generator_for(seed, f"{path}.{name}"))
        parameter.copy_(value)
    for name, buffer in encoding.named_buffers():
        if name in values:
            buffer.copy_(values[name])
    for module in encoding.modules():
        if isinstance(module, Encoding):
            module.seed = seed


def values_of_construction(encoding: Encoding, path: str, seed: int) -> dict[str, Tensor]:
    """Return what `__init__` gives every parameter and drawn buffer by name, nan where it leaves it unset."""
    first, draws = construct_again(encoding, lambda draw: draw)
    values = parameters_of(first)
    if draws:
        owners = [_owner_of_draw(encoding, parameters_of(first, buffers=True), draw) for draw in range(draws)]
        seeds = [
            seed_for(seed, f"{path}.{name}", *_how_many_before(owners, draw))
            for draw, name in enumerate(owners)
        ]
        drawn, _ = construct_again(encoding, lambda draw: seeds[draw] if draw < draws else draw)
        values = parameters_of(drawn)
        values |= {
            name: value for name, value in parameters_of(drawn, buffers=True).items() if name in owners
        }
    for part_path, part in parts_of_construction(encoding, first).items():
        values_of_part = values_of_construction(part, f"{path}.{part_path}", seed)
        values |= {f"{part_path}.{name}": value for name, value in values_of_part.items()}
    return values


def construct_again(encoding: Encoding, seeds: Seeds) -> tuple[Encoding, int]:
    """Construct an encoding again on the CPU; return it and how many random draws that took.

    Encodings among its arguments (the parts of a sum) are the same objects, not constructed again.
    """
    construction = encoding.construction
    with torch.random.fork_rng(devices=()), torch.device("cpu"), SeededDraws(seeds) as draws:
        again = type(encoding)(*construction.arguments, **construction.keywords)
    return again, draws.count


class SeededDraws(TorchFunctionMode):
    """Inside, each random draw is seeded by its number, and memory that is left unset holds nan."""

    def __init__(self, seeds: Seeds) -> None:
        super().__init__()
        self.seeds = seeds
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        generator = torch.default_generator
        generator.manual_seed(self.seeds(self.count))
        before = generator.get_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(generator.get_state(), before):
            self.count += 1
        if func in UNSET and result.is_floating_point():
            result.fill_(torch.nan)
        return result


def parameters_of(encoding: Encoding, *, buffers: bool = False) -> dict[str, Tensor]:
    """Return the values of parameters (and buffers) by name."""
    values = {name: parameter.detach() for name, parameter in encoding.named_parameters()}
    return values | dict(encoding.named_buffers()) if buffers else values


def parts_of_construction(encoding: Encoding, again: Encoding) -> dict[str, Encoding]:
    """Return the outermost encodings that were among the arguments, by their place in the encoding.

    They are the ones that a second construction did not make anew.
    """
    parts: dict[str, Encoding] = {}
    for path, module in again.named_modules():
        is_inside = any(path.startswith(f"{outer}.") for outer in parts)
        if not isinstance(module, Encoding) or is_inside:
            continue
        if module is not again and module is encoding.get_submodule(path):
            parts[path] = module
    return parts


def same_values(a: Tensor, b: Tensor) -> Tensor:
    """Return where two tensors of one shape have the same value; nan is the same as nan."""
    return (a == b) | (a.isnan() & b.isnan())


def _owner_of_draw(encoding: Encoding, values: Mapping[str, Tensor], draw: int) -> str:
    """Return the first parameter or buffer by name that another seed of one draw changes; "" for none."""
    changed, _ = construct_again(encoding, lambda number: CHANGED if number == draw else number)
    for name, value in sorted(parameters_of(changed, buffers=True).items()):
        if not same_values(value, values[name]).all():
            return name
    return ""


def _how_many_before(owners: list[str], draw: int) -> list[int]:
    """Return [n] for the n-th further draw of the same parameter, [] for its first.

    So the only draw of a parameter comes from the generator that `initialize` would get.
    """
    earlier = owners[:draw].count(owners[draw])
    return [earlier] if earlier else []
