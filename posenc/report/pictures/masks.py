"""Who may see whom."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.report.pictures.panels import Map, Panel
from posenc.report.pictures.sampling import MOST_ROWS, array, steps


def mask_panels(encoding: Encoding) -> list[Panel]:
    """Who sees whom, one matrix for each group of layers that agree."""
    length = encoding.shape.train_length
    pos = steps(length - 1, MOST_ROWS)
    causal = pos[:, None] >= pos[None, :]
    groups: list[tuple[Tensor, list[int]]] = []
    for layer in range(encoding.shape.n_layers):
        seen = encoding.visible(pos, pos, layer) & causal
        for other, layers in groups:
            if torch.equal(seen, other):
                layers.append(layer + 1)
                break
        else:
            groups.append((seen, [layer + 1]))
    panels: list[Panel] = []
    for seen, layers in groups[:3]:
        z = array(seen.double().masked_fill(~causal, torch.nan))
        who = f"Layers {_listed(layers)}" if len(layers) > 1 else f"Layer {layers[0]}"
        who = f"Keys seen in {who[0].lower()}{who[1:]}" if len(groups) > 1 else "Keys seen in every layer"
        at = array(pos)
        panels.append(
            Map(
                who,
                "key position in tokens",
                "query position",
                "",
                z,
                at,
                at,
                matrix=True,
                binary=True,
                brief=layers[0] == 1,
            )
        )
    return panels


def _listed(layers: list[int]) -> str:
    return ", ".join(map(str, layers[:6])) + (", ..." if len(layers) > 6 else "")
