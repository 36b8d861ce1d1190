"""Read the rotation of a model of transformers, and turn it by other frequencies.

In most models all layers share one rotation. In others there is one for each kind of layer: Gemma 3 has local
layers, which see a window, and global ones, which turn by other frequencies. Extensions act on the shared
rotation, or on that of the global layers, since a window has no new distances beyond T.

The frequencies are those that the model has, scaled or not: an extension of a checkpoint with `llama3`
divides what `llama3` has divided already.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.models.configurations import (
    DYNAMIC,
    GLOBAL_LAYERS,
    LONGROPE,
    SCALED_TYPES,
    ScaledLengths,
    scaled_lengths,
)

BEYOND_EVERY_LENGTH = 10**8  # a position so far out that longrope takes its long table


class KnownRotary(Rotary):
    """Rotate by the frequencies of a checkpoint's configuration, and multiply cos and sin by its factor."""

    def __init__(self, shape: Shape, name: str, rotation: ModelRotation) -> None:
        super().__init__(shape, base=rotation.base, layout="half", width=2 * len(rotation.theta))
        # For errors and tables: a reader knows `llama` and not the class that stands for its rotation.
        self.name = name  # type: ignore[misc]
        # Not made from the base, since scaled checkpoints have frequencies of no single formula.
        self.theta = rotation.theta
        self.gain = rotation.gain
        self.is_scaled = rotation.rope_type in SCALED_TYPES

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        return self.theta if device is None else self.theta.to(device)

    def pair_with_turns(self, turns: float, length: int) -> float:
        """Return the index of the pair that turns so often within `length`; between two, with a fraction.

        Scaled frequencies follow no formula, so it is interpolated in the logarithms of two neighbours.
        """
        if not self.is_scaled:
            return super().pair_with_turns(turns, length)
        log_wanted = math.log(2 * math.pi * turns / length)
        logs = self.theta[self.theta > 0].log().tolist()  # descending
        log_step = 2 * math.log(self.base) / self.width  # from pair to pair in an unscaled rotation
        pair = sum(log > log_wanted for log in logs) - 1  # the last pair that is faster; -1: none
        # Beyond the first and the last pair the step of an unscaled rotation goes on.
        above = logs[pair] if pair >= 0 else logs[0] + log_step
        below = logs[pair + 1] if pair + 1 < len(logs) else above - log_step
        return pair + (above - log_wanted) / (above - below)


@dataclass(frozen=True)
class Obstacle:
    """Why an extension cannot act in a model, and what can be done instead."""

    reason: str
    hint: str | None = None  # None: the error says to which encodings the extension applies


@dataclass(frozen=True)
class ModelRotation:
    """The rotation of a model that extensions change."""

    kind: str | None  # the kind of layers that turn by it; None: all layers do
    rope_type: str
    base: float
    theta: Tensor  # (pairs,) float64 on the CPU; longrope: those beyond its original length
    gain: float  # factor of cos and sin
    scaled_lengths: ScaledLengths | None  # None: not scaled, or the configuration does not say the lengths

    @classmethod
    def read(cls, module: Any, config: Any) -> ModelRotation:
        """Read the rotation of a module: the one of global layers if it has one for each kind of layer."""
        # Gemma 3 keeps a dictionary here, with a rope type for each kind of layer.
        kind = GLOBAL_LAYERS if isinstance(module.rope_type, dict) else None
        rope_type = module.rope_type if kind is None else module.rope_type[kind]
        settings = config.rope_parameters if kind is None else config.rope_parameters[kind]
        return cls(
            kind=kind,
            rope_type=rope_type,
            base=float(settings["rope_theta"]),
            theta=_frequencies(module, config, kind, rope_type).double().cpu(),
            gain=float(getattr(module, _of_kind(kind, "attention_scaling"), 1.0)),
            scaled_lengths=scaled_lengths(settings, config),
        )

    def write(self, module: Any, rotary: Rotary | None) -> None:
        """Write the rotation of an extension into a copy of the model's module. None stands for no rotation.

        Every table of frequencies that the module has is changed, since longrope chooses one by the window.
        """
        # longrope and dynamic types copy `original_inv_freq` over `inv_freq` within a pass.
        names = [_of_kind(self.kind, name) for name in ("inv_freq", "original_inv_freq")]
        tables = {name: getattr(module, name) for name in names if hasattr(module, name)}
        if self.rope_type == LONGROPE:
            # transformers makes this table within its first pass, unless it is there.
            tables[_of_kind(self.kind, "long_inv_freq")] = self.theta.to(tables[names[0]])
        for name, table in tables.items():
            if rotary is None:
                # With frequencies of 0 each angle is 0, at every position.
                setattr(module, name, torch.zeros_like(table))
            elif rotary.frequency_change is not None:
                # Changed in float64 and cast at the end, so that the result is rounded once.
                setattr(module, name, rotary.frequency_change(table.double().cpu()).to(table))
        if rotary is not None:
            setattr(module, _of_kind(self.kind, "attention_scaling"), rotary.gain)

    def stop(self, module: Any) -> None:
        """Make a copy of the model's module turn nothing, so that cos is 1 and sin is 0."""
        self.write(module, None)
        # A scaled rotation multiplies cos and sin by it. What posenc rotates itself has that factor already.
        setattr(module, _of_kind(self.kind, "attention_scaling"), 1.0)

    def follows_tables(self, module: Any) -> bool:
        """Tell whether a module turns by its tables of frequencies. PhiMoE makes others in each pass."""
        stopped = copy.deepcopy(module)
        self.stop(stopped)
        options = {} if self.kind is None else {"layer_type": self.kind}
        x = torch.zeros(1, 1, 1)
        # At position 0 nothing turns, whatever the frequencies are, so that alone it would prove nothing.
        positions = torch.tensor([[0, 1, BEYOND_EVERY_LENGTH]])
        try:
            output = stopped(x, positions, **options)
        except (IndexError, RuntimeError, TypeError):  # it takes other positions, as models of images do
            return False
        factors = [output] if isinstance(output, Tensor) else output  # cos and sin, or one complex number
        # cos 0 is 1 and sin 0 is 0. Any other number comes from frequencies that were not in the tables.
        return all(bool(((factor == 0) | (factor == 1)).all()) for factor in factors)

    def acts_in(self, layer: int, config: Any) -> bool:
        """Tell whether a layer turns by this rotation."""
        return self.kind is None or config.layer_types[layer] == self.kind


def rotations_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model that make cos and sin, by their names in the model."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "rope_type")}


def why_rotation_is_fixed(modules: Mapping[str, Any]) -> Obstacle | None:
    """Return why no extension can change the rotation in these modules of a model; None if one can."""
    if len(modules) > 1:
        return Obstacle("its layers have rotations of their own")
    (module,) = modules.values()
    rope_type = module.rope_type
    if isinstance(rope_type, dict):
        if GLOBAL_LAYERS not in rope_type:
            kinds = ", ".join(rope_type)
            return Obstacle(f"its layers have rotations of their own ({kinds}), none for {GLOBAL_LAYERS}")
        rope_type = rope_type[GLOBAL_LAYERS]
    elif not hasattr(module, "inv_freq"):
        return Obstacle("its rotation has no table of frequencies")
    if rope_type == DYNAMIC:
        reason = "its rotation is scaled already (dynamic), for each window by its length"
        return Obstacle(reason, "subject.rope_scaling=false measures it without")
    return None


def _frequencies(module: Any, config: Any, kind: str | None, rope_type: str) -> Tensor:
    """Return the frequencies of a module, (pairs,); for longrope those beyond its original length."""
    if rope_type != LONGROPE:
        table: Tensor = getattr(module, _of_kind(kind, "inv_freq"))
        return table
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = config.rope_parameters if kind is None else config.rope_parameters[kind]
    # The function of transformers chooses between its two tables by a length.
    beyond = settings["original_max_position_embeddings"] + 1
    long_table, _ = ROPE_INIT_FUNCTIONS[LONGROPE](config, torch.device("cpu"), beyond, layer_type=kind)
    return long_table


def _of_kind(kind: str | None, name: str) -> str:
    """Return the name that an attribute has for a kind of layer, such as `full_attention_inv_freq`."""
    return name if kind is None else f"{kind}_{name}"
