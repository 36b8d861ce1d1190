"""A pattern of layers: each layer has one of several encodings, with a window and a temperature of its own.

Formula: layer l = 0, 1, ... has part `period[l mod len(period)]`; a key is seen at i - j < `windows` of that
part (null: all of the past), and scores are multiplied by its `scales`: none; logn, log n_i / log T
over the n_i keys that are seen; floor, 1 + a log(1 + floor((i + 1)/s)).
From configuration alone (w a window):
  SWAN, 2504.08719       parts=[rope,nope] period=[0,0,0,1] windows=[w,null] scales=[none,logn]
  iRoPE, Llama 4         parts=[rope,nope] period=[0,0,0,1] windows=[w,null] scales=[none,floor]
  Gemma 3, 2503.19786    parts=[rope,{name:rope,base:1e6}] period=[0,0,0,0,0,1] windows=[w,null]
  SmolLM3                parts=[rope,nope] period=[0,0,0,1]
Departures: Llama 4 cuts its text into chunks where this has a window; SWAN trains its NoPE layers plainly
and scales them in evaluation alone.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, at_least
from posenc.encodings.options import LogN, Window
from posenc.encodings.sum import Composed, declare_as

Scales = list[Literal["none", "logn", "floor"]]


class FloorTemperature(Encoding):
    """Scores times 1 + a log(1 + floor((i + 1)/s)), i the query's position (Llama 4's released code)."""

    name = "floor"
    acts_on = "scores"

    def __init__(self, shape: Shape, *, scale: int, weight: float) -> None:
        super().__init__(shape)
        at_least(1, floor_scale=scale)
        at_least(0, floor_weight=weight)
        self.scale, self.weight = scale, weight

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        factor = 1 + self.weight * torch.log1p(torch.floor((q_pos.float() + 1) / self.scale))  # (T,)
        return s * factor[:, None]  # (B, H, T, S)


def by_layer(hook: str) -> Any:
    """Make a hook that is answered by what acts in the layer, its last argument."""

    def answer(self: "Pattern", *given: Any) -> Any:
        return getattr(self.of(given[-1]), hook)(*given)

    return answer


class Pattern(Encoding):
    name = "pattern"
    paper = "none: layer patterns of SWAN (arXiv 2504.08719), Gemma 3 (2503.19786), Llama 4, SmolLM3"
    formula = "layer l has part period[l mod len(period)], with a window and a temperature of its own"
    acts_on = "several"
    past_training = "as its parts do, each in its layers"
    refuses: Mapping[str, str] = {
        "attention.window": "its parts have one each: encoding.windows",
        "attention.scale": "its parts have one each: encoding.scales",
    }

    embed, rotate, visible = by_layer("embed"), by_layer("rotate"), by_layer("visible")
    distance_bias, bias = by_layer("distance_bias"), by_layer("bias")
    prepare, scores = by_layer("prepare"), by_layer("scores")
    weights, values = by_layer("weights"), by_layer("values")

    def __init__(
        self,
        shape: Shape,
        *,
        parts: list[Encoding],
        period: list[int],
        windows: list[int | None],
        scales: Scales,
        floor_scale: int | None,
        floor_weight: float,
    ) -> None:
        super().__init__(shape)
        if not parts or not period or not all(0 <= one < len(parts) for one in period):
            raise ValueError(f"period={period}: numbers of parts, from 0 to {len(parts) - 1}")
        if floor_scale is None:  # the paper's 8192 goes with its window; here a training window has 8 steps
            floor_scale = self.derived["floor_scale"] = max(1, shape.train_length // 8)
        for key, given in (("windows", windows), ("scales", scales)):
            if given and len(given) != len(parts):
                raise ValueError(f"{key}={given}: one for each of {len(parts)} parts")
        self.parts, self.members, self.period = tuple(parts), nn.ModuleList(parts), tuple(period)
        self.kinds = []
        for part, window, scale in zip(
            parts, windows or [None] * len(parts), scales or ["none"] * len(parts), strict=True
        ):
            if "positions" in part.hooks:
                raise ValueError(f"{part.name} draws positions, which all layers share")
            beside: list[Encoding] = [] if window is None else [Window(shape, window=window)]
            if scale == "logn":
                beside.append(LogN(shape, counted=[part, *beside]))
            if scale == "floor":
                beside.append(FloorTemperature(shape, scale=floor_scale, weight=floor_weight))
            self.kinds.append(Composed(shape, [part, *beside]))
        declare_as(self, self.kinds)
        costs = [self.kinds[self.period[layer % len(period)]].cost for layer in range(shape.n_layers)]
        self.cost = math.fsum(c[0] for c in costs) / len(costs), math.fsum(c[1] for c in costs) / len(costs)

    def of(self, layer: int) -> Composed:
        """Return what acts in a layer."""
        return self.kinds[self.period[layer % len(self.period)]]

    @cached_property
    def hooks(self) -> frozenset[str]:
        return frozenset().union(*(one.hooks for one in self.kinds))

    def warnings(self) -> list[str]:
        return [text for one in self.kinds for text in one.warnings()]
