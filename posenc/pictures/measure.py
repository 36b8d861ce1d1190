"""Numbers of an encoding, taken through its hooks: which panels there are follows from `encoding.hooks`."""

from __future__ import annotations

import torch

from posenc.encodings.base import Encoding
from posenc.pictures.absolute import embed_panels, positions_panels
from posenc.pictures.attention import uniform_panels, weight_panels
from posenc.pictures.bias import bias_panels
from posenc.pictures.masks import mask_panels
from posenc.pictures.panels import Panel
from posenc.pictures.rotation import rotation_panels


@torch.no_grad()
def measure(encoding: Encoding) -> list[Panel]:
    """The panels of an encoding (with its options, as the attention sees it) in evaluation mode."""
    encoding.eval()
    hooks = encoding.hooks
    panels: list[Panel] = []
    if "positions" in hooks:
        panels += positions_panels(encoding)
    if "embed" in hooks:
        panels += embed_panels(encoding)
    if "rotate" in hooks:
        panels += rotation_panels(encoding)
    if hooks & {"bias", "distance_bias"}:
        panels += bias_panels(encoding)
    if "visible" in hooks:
        panels += mask_panels(encoding)
    if hooks & {"scores", "weights", "values"}:
        panels += weight_panels(encoding)
    return panels or uniform_panels(encoding)
