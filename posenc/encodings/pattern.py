"""A pattern of layers: each layer has one of several encodings, with a window and a temperature of its own.

Formula: layer l = 0, 1, ... has the encoding parts[period[l mod len(period)]]. Its keys are those with
i - j < window, and its scores are multiplied by a temperature.
Settings:
  parts    encodings, as in `sum`
  period   which part each layer has, counted from 0; after its end it begins again
  windows  the window of each part, in positions; null: all of the past
  scales   the temperature of each part
           none   1
           logn   log(n_i) / log(T), where n_i is the number of keys that query i sees
           floor  1 + a log(1 + floor((i + 1)/s)), where a is `floor_weight` and s is `floor_scale`
Published patterns that these settings give (w is a window):
  SWAN, 2504.08719       parts=[rope,nope] period=[0,0,0,1] windows=[w,null] scales=[none,logn]
  iRoPE, Llama 4         parts=[rope,nope] period=[0,0,0,1] windows=[w,null] scales=[none,floor]
  Gemma 3, 2503.19786    parts=[rope,{name:rope,base:1e6}] period=[0,0,0,0,0,1] windows=[w,null]
  SmolLM3                parts=[rope,nope] period=[0,0,0,1]
Departures: Llama 4 cuts its text into chunks where this has a window. SWAN trains its NoPE layers plainly and
scales them in evaluation alone.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.attention_options.window import Window
from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.shared.absolute import Absolute
from posenc.encodings.shared.composed import Composed, declare_as, refusals_of, sum_of_learned

Scale = Literal["none", "logn", "floor"]


class FloorTemperature(Encoding):
    """Multiply scores by 1 + a log(1 + floor((i + 1)/s)) at position i, as Llama 4's released code does."""

    name = "floor"
    acts_on = "scores"

    def __init__(self, shape: Shape, *, scale: int, weight: float) -> None:
        super().__init__(shape)
        check_at_least(1, floor_scale=scale)
        check_at_least(0, floor_weight=weight)
        self.scale = scale
        self.weight = weight

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        factor = 1 + self.weight * torch.log1p(torch.floor((q_pos.float() + 1) / self.scale))  # (T,)
        return s * factor[:, None]  # (B, H, T, S)


def by_layer(hook: str) -> Any:
    """Make a hook that calls the encoding of a layer; the layer is the last argument of every hook."""

    def call_in_layer(self: "Pattern", *arguments: Any) -> Any:
        layer = arguments[-1]
        return getattr(self.acting_in(layer), hook)(*arguments)

    return call_in_layer


def value_of_each_part(key: str, values: list[Any], n_parts: int, default: Any) -> list[Any]:
    """Return the value of a setting for each part; [] stands for the default. Raises ValueError."""
    if values and len(values) != n_parts:
        raise ValueError(f"{key}={values}: must have one value for each of the {n_parts} parts")
    return values or [default] * n_parts


def _check_parts(acting: Sequence[Encoding], first: Encoding) -> None:
    """Raise ValueError for a part that cannot act in its layers; `first` is that of layer 0."""
    for part in acting:
        if "positions" in part.hooks:
            raise ValueError(f"{part.name} draws positions, which all layers share")
        is_at_input = isinstance(part, Absolute) and not part.per_layer
        # Its hook `embed` is called in every layer, but acts in layer 0 alone, which has another part.
        if is_at_input and part is not first:
            raise ValueError(
                f"{part.name} acts at the input alone, and layer 0 has {first.name}: see period, or per_layer"
            )


def _check_window_and_scale(part: Encoding, window: int | None, scale: Scale) -> None:
    """Raise ValueError for a window or a temperature that the part refuses where it is chosen alone."""
    for option, is_chosen in (("attention.window", window is not None), ("attention.scale", scale != "none")):
        if is_chosen and option in part.refuses:
            raise ValueError(f"{part.name} takes no {option.partition('.')[2]}: {part.refuses[option]}")


class Pattern(Encoding):
    """Let each layer act by one of several encodings; the text of this file has the formula."""

    name = "pattern"
    paper = "none: layer patterns of SWAN (arXiv 2504.08719), Gemma 3 (2503.19786), Llama 4, SmolLM3"
    formula = "layer l has part period[l mod len(period)], with a window and a temperature of its own"
    acts_on = "several"
    past_training = "as its parts do, each in its layers"
    refuses: Mapping[str, str] = {
        "attention.window": "its parts have one each: encoding.windows",
        "attention.scale": "its parts have one each: encoding.scales",
    }
    inert: Mapping[str, str] = {
        "floor_scale": "used by parts whose scale is floor",
        "floor_weight": "used by parts whose scale is floor",
    }

    embed = by_layer("embed")
    shift = by_layer("shift")
    adjust = by_layer("adjust")
    rotate = by_layer("rotate")
    unrotated_numbers = by_layer("unrotated_numbers")
    distance_bias = by_layer("distance_bias")
    bias = by_layer("bias")
    visible = by_layer("visible")
    prepare = by_layer("prepare")
    scores = by_layer("scores")
    weights = by_layer("weights")
    values = by_layer("values")
    output = by_layer("output")

    def __init__(
        self,
        shape: Shape,
        *,
        parts: list[Encoding],
        period: list[int],
        windows: list[int | None],
        scales: list[Scale],
        floor_scale: int | None,
        floor_weight: float,
    ) -> None:
        super().__init__(shape)
        if not parts:
            raise ValueError("parts=[]: at least one encoding")
        is_in_range = all(0 <= index < len(parts) for index in period)
        if not period or not is_in_range:
            raise ValueError(f"period={period}: must hold indices of parts, from 0 to {len(parts) - 1}")
        self.parts = tuple(parts)
        self.period = tuple(period)
        acting = sorted({self._part_of(layer) for layer in range(shape.n_layers)})  # indices of parts
        self.acting_parts = tuple(parts[index] for index in acting)
        _check_parts(self.acting_parts, first=parts[self._part_of(0)])
        if floor_scale is None:
            # Llama 4's 8192 goes with its long windows. Here the factor changes 8 times within T.
            floor_scale = max(1, shape.train_length // 8)
            self.derived["floor_scale"] = floor_scale
        self.members = nn.ModuleList(parts)  # only registers their parameters: nothing reads it
        self.kinds: list[Encoding] = []  # kinds of layers: each part with its window and its scale
        windows = value_of_each_part("windows", windows, len(parts), None)
        scales = value_of_each_part("scales", scales, len(parts), "none")
        for part, window, scale in zip(parts, windows, scales, strict=True):
            _check_window_and_scale(part, window, scale)
            together = [part]
            if window is not None:
                together.append(Window(shape, window=window))
            if scale == "logn":
                # After the window, whose keys it counts.
                together.append(LogN(shape, counted=tuple(together)))
            if scale == "floor":
                together.append(FloorTemperature(shape, scale=floor_scale, weight=floor_weight))
            self.kinds.append(Composed(shape, together))
        self.acting_kinds = [self.kinds[index] for index in acting]
        # A part that no layer has changes no number, so it has no say in what the whole declares.
        declare_as(self, self.acting_kinds)
        self.refuses = {**refusals_of(self.acting_parts), **type(self).refuses}
        costs = [self.acting_in(layer).cost for layer in range(shape.n_layers)]
        # The layers follow one another, so their times add up, and parts that act more often weigh more.
        mean_at_64 = math.fsum(cost.at_64 for cost in costs) / len(costs)
        mean_at_512 = math.fsum(cost.at_512 for cost in costs) / len(costs)
        self.cost = StepCost(mean_at_64, mean_at_512)

    def acting_in(self, layer: int) -> Encoding:
        """Return the encoding that acts in a layer."""
        return self.kinds[self._part_of(layer)]

    def _part_of(self, layer: int) -> int:
        """Return the index of the part that a layer has."""
        return self.period[layer % len(self.period)]

    def learned_parameters(self) -> int | None:
        return sum_of_learned(self.parts)

    def for_one_pass(self) -> Self:
        kinds = [kind.for_one_pass() for kind in self.kinds]
        if all(kind is again for kind, again in zip(self.kinds, kinds, strict=True)):
            return self
        copied = copy.copy(self)
        # `acting_kinds` stays: it is read for hooks and declarations alone, which no pass changes.
        copied.kinds = kinds
        return copied

    @cached_property
    def hooks(self) -> frozenset[str]:
        # The class itself has nearly all hooks. With those of its acting parts a faster kernel may serve.
        of_all_layers: frozenset[str] = frozenset().union(*(kind.hooks for kind in self.acting_kinds))
        # A kernel that adds a sink by itself does so in every layer and calls no `weights`. A layer may have
        # no sink, or weights of another kind, so all layers are asked for their weights, which hold the sink.
        return of_all_layers - {"sink"}

    def warnings(self) -> list[str]:
        warnings: list[str] = []
        for kind in self.acting_kinds:
            warnings += kind.warnings()
        for index, part in enumerate(self.parts):
            if self.kinds[index] not in self.acting_kinds:
                layers = f"{self.shape.n_layers} layers"
                warnings.append(f"parts[{index}] ({part.name}) acts in none of the {layers}: see period")
        return warnings
