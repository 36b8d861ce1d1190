"""Give an encoding's parameters the values that its class sets. Random ones follow from the run's seed.

An encoding is built before the seed is known, and its `__init__` does not know the names of its parameters.
So it is constructed again here, with the arguments that it noted (`Encoding.construction`):

1. Memory that `__init__` leaves unset (`torch.empty`) is filled with nan here, so that it can be told from
   values that are set. `Encoding.initialize` then fills it.
2. Every random draw restarts torch's generator from a seed of its own, so that no draw depends on how many
   came before. A draw belongs to the parameter that changes when the draw does (of several, the first by
   name). The last construction seeds each draw by (seed, parameter name), so that two classes that construct
   the same `nn.Linear` under the same name start from the same weights, whatever else they construct.

A class that draws nothing, like all classes of posenc, is constructed again once. A class that draws n times
is constructed again n + 2 times: once to count the draws, once for each draw to find its parameter, and once
with the final seeds. That takes a fraction of a second, and needs no list of torch's random functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.core.seeds import generator_for, seed_for
from posenc.encodings.base import Encoding, owner_of

SeedOfDraw = Callable[[int], int]  # from the number of a draw to its seed
# Seeds the one draw that is changed to see which parameter changes. No other draw has it: the others are
# seeded by their numbers. It is the largest seed, since torch's CPU generator reads 32 bits.
SEED_OF_CHANGED_DRAW = 2**32 - 1
# The functions of torch that return unset memory.
UNSET: set[Any] = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty}


@torch.no_grad()
def initialize_encoding(encoding: Encoding, path: str, seed: int) -> None:
    """Give every parameter and drawn buffer of an encoding its initial value.

    `path` is the encoding's name in the model. Names of its parameters begin with it, and draws are seeded by
    these names.
    """
    values = values_of_construction(encoding, path, seed)
    for name, parameter in encoding.named_parameters():
        value = values[name].float()  # float32 on the CPU, so that any dtype and device gets the same values
        owner, name_in_owner = owner_of(encoding, name)
        owner.initialize(name_in_owner, value, generator_for(seed, f"{path}.{name}"))
        parameter.copy_(value)
    # A buffer that is set and not drawn has its value already, and is not among the values.
    for name, buffer in encoding.named_buffers():
        if name in values:
            buffer.copy_(values[name])
    for module in encoding.modules():
        if isinstance(module, Encoding):
            # What is drawn without being trained (rows past T, Fourier series) is drawn from it later.
            module.seed = seed


def values_of_construction(encoding: Encoding, path: str, seed: int) -> dict[str, Tensor]:
    """Return what `__init__` gives every parameter and drawn buffer by name, nan where it leaves it unset."""
    again, n_draws = construct_again(encoding, lambda draw: draw)
    values = parameters_of(again)
    if n_draws > 0:
        values = _drawn_values(encoding, again, n_draws, path, seed)
    for part_path, part in parts_of_construction(encoding, again).items():
        values_of_part = values_of_construction(part, f"{path}.{part_path}", seed)
        for name, value in values_of_part.items():
            values[f"{part_path}.{name}"] = value
    return values


def _drawn_values(
    encoding: Encoding, again: Encoding, n_draws: int, path: str, seed: int
) -> dict[str, Tensor]:
    """Construct an encoding once more, each draw seeded by (seed, name of its parameter); return its values.

    `again` is a construction whose draws were seeded by their numbers.
    """
    # Buffers as well, since a class may draw numbers that are never trained.
    values_before = parameters_of(again, buffers=True)
    owners = [_owner_of_draw(encoding, values_before, draw) for draw in range(n_draws)]
    seeds: list[int] = []
    for draw, name in enumerate(owners):
        earlier_draws = _how_many_before(owners, draw)
        seeds.append(seed_for(seed, f"{path}.{name}", *earlier_draws))
    # `SeededDraws` also asks for the seed of the draw after the last one, which is never made.
    seeds.append(n_draws)
    drawn, _ = construct_again(encoding, lambda draw: seeds[draw])
    values = parameters_of(drawn)
    for name, buffer in drawn.named_buffers():
        if name in owners:
            values[name] = buffer
    return values


def construct_again(encoding: Encoding, seed_of_draw: SeedOfDraw) -> tuple[Encoding, int]:
    """Construct an encoding again on the CPU; return it and how many random draws that took.

    Encodings among its arguments (the parts of a sum) are the same objects, not constructed again.
    """
    construction = encoding.construction
    # The caller's generator is left alone. All values are made on the CPU, since the model may be on the meta
    # device, which has none; so no state of a GPU's generator needs to be kept.
    with torch.random.fork_rng(devices=()), torch.device("cpu"), SeededDraws(seed_of_draw) as draws:
        again = type(encoding)(*construction.arguments, **construction.keywords)
    return again, draws.count


class SeededDraws(TorchFunctionMode):
    """Seed each random draw that is made inside by its number, and fill unset memory with nan.

    torch calls `__torch_function__` in place of each of its functions.
    """

    def __init__(self, seed_of_draw: SeedOfDraw) -> None:
        super().__init__()
        self.seed_of_draw = seed_of_draw
        self.count = 0  # draws so far

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Any function may draw, so the generator is seeded before each one. A function that changed the
        # generator's state was a draw.
        generator = torch.default_generator
        generator.manual_seed(self.seed_of_draw(self.count))
        state_before = generator.get_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(generator.get_state(), state_before):
            self.count += 1
        if func in UNSET and result.is_floating_point():
            result.fill_(torch.nan)
        return result


def parameters_of(encoding: Encoding, *, buffers: bool = False) -> dict[str, Tensor]:
    """Return the values of parameters (and buffers) by name."""
    values = {name: parameter.detach() for name, parameter in encoding.named_parameters()}
    return values | dict(encoding.named_buffers()) if buffers else values


def parts_of_construction(encoding: Encoding, again: Encoding) -> dict[str, Encoding]:
    """Return the outermost encodings that were among the arguments, by the path of their module.

    They are those that the second construction, `again`, shares with the first.
    """
    parts: dict[str, Encoding] = {}
    for path, module in again.named_modules():
        # A part initialises its own parts, so only the outermost ones are returned.
        is_inside = any(path.startswith(f"{outer}.") for outer in parts)
        if not isinstance(module, Encoding) or is_inside:
            continue
        if module is not again and module is encoding.get_submodule(path):
            parts[path] = module
    return parts


def same_values(a: Tensor, b: Tensor) -> Tensor:
    """Return where two tensors of one shape have the same value; nan is the same as nan."""
    # nan marks what was left unset, and two constructions leave the same numbers unset.
    return (a == b) | (a.isnan() & b.isnan())


def _owner_of_draw(encoding: Encoding, values: Mapping[str, Tensor], draw: int) -> str:
    """Return the name of the parameter or buffer that changes with the seed of one draw; "" if none does.

    `values` are those of a construction whose draws were seeded by their numbers. If several change, it is
    the first by name.
    """
    # One draw with another seed: whatever differs afterwards was made of this draw.
    changed, _ = construct_again(encoding, lambda n: SEED_OF_CHANGED_DRAW if n == draw else n)
    for name, value in sorted(parameters_of(changed, buffers=True).items()):
        if not same_values(value, values[name]).all():
            return name
    return ""


def _how_many_before(owners: list[str], draw: int) -> list[int]:
    """Return [n] if n earlier draws belong to the same parameter, [] for its first draw.

    It is hashed with the parameter's name. So the first draw has the seed of the name alone, which is also
    that of the generator of `initialize`.
    """
    earlier = owners[:draw].count(owners[draw])
    return [earlier] if earlier else []
