"""Measure an encoding through its hooks: which panels there are follows from `encoding.hooks`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from posenc.encodings.base import Encoding
from posenc.encodings.sum import Composed
from posenc.report.pictures.panels import Panel
from posenc.report.pictures.positions import drawn_panels, embed_panels, rotation_panels
from posenc.report.pictures.sampling import MOST_LINES, MOST_ROWS, chance, steps
from posenc.report.pictures.scores import attention, bias_panels, length_panel, mask_panels, weight_panels

FEW_LINES = 2  # of random values, which make a tangle
SILENT = "it starts at zero, where it changes nothing: drawn with random values in place of the zeros"
INPUTS = "attention in layer 1; its queries, keys and inputs are random, of unit variance"
ATTENDING = {"scores", "weights", "values"}  # hooks that meet the inputs: measured inside the attention
BIASES = {"bias", "distance_bias"}


@torch.no_grad()
def measure(encoding: Encoding, before: Encoding | None = None) -> tuple[list[Panel], list[str]]:
    """Return the panels of an encoding (with its options, as the attention sees it), and notes on them.

    `before` is the one that was trained, where this one is a test-time extension of it: frequencies and
    scores of rotations are drawn beside those of it.
    """
    if _is_silent(encoding):
        with _random_for_zeros(encoding):
            panels, notes = _panels(encoding, FEW_LINES, before), [SILENT]
    else:
        panels, notes = _panels(encoding, MOST_LINES, before), []
    if encoding.hooks & ATTENDING or not panels:
        notes.append(INPUTS)
    return panels or [length_panel(encoding, "No encoding: about 1/n to every key")], notes


def _panels(encoding: Encoding, heads: int, before: Encoding | None) -> list[Panel]:
    hooks = encoding.hooks
    panels: list[Panel] = []
    if "positions" in hooks:
        panels += drawn_panels(encoding)
    if "embed" in hooks:
        panels += embed_panels(encoding)
    if "rotate" in hooks:
        panels += rotation_panels(encoding, before)
    if hooks & BIASES:
        panels += bias_panels(encoding, heads)
    if "visible" in hooks:
        panels += mask_panels(encoding)
    if hooks & ATTENDING:
        panels += weight_panels(encoding)
    return panels


def _is_silent(encoding: Encoding) -> bool:
    """Tell whether parameters that are all zero keep it from changing any score."""
    hooks = encoding.hooks
    if not _zeros(encoding) or not hooks <= {*BIASES, "scores", "prepare"}:
        return False
    few = steps(encoding.shape.train_length - 1, MOST_ROWS)
    biased = hooks & BIASES and bool(encoding.bias(few, few, 0).any())
    changed = attention(encoding, encoding.shape, len(few), 1, 0)[1]
    return not biased and (changed is None or not bool(changed.any()))


def _zeros(encoding: Encoding) -> list[nn.Parameter]:
    if isinstance(encoding, Composed):  # the parts of options are not registered in it
        return [parameter for part in encoding.parts for parameter in _zeros(part)]
    return [parameter for parameter in encoding.parameters() if not parameter.any()]


@contextmanager
def _random_for_zeros(encoding: Encoding) -> Iterator[None]:
    """Put random values in the parameters that are all zero; zeros again afterwards."""
    zeros = _zeros(encoding)
    for index, parameter in enumerate(zeros):
        std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
        nn.init.normal_(parameter, std=std, generator=chance("zeros", index))
    try:
        yield
    finally:
        for parameter in zeros:
            nn.init.zeros_(parameter)
