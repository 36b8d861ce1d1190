"""Protocols: how the loss of a trained model at longer windows is measured, one protocol a file."""

from __future__ import annotations

from posenc.evaluation.lengths import resolve_length, resolve_lengths

# Protocol -> its module in this package: what it offers stands in `plans.ProtocolModule`.
PROTOCOLS = {
    "fixed-target": "fixed_target",
    "sliding": "sliding",
    "nonoverlapping": "nonoverlapping",
    "positions": "positions",
    "induction": "induction",
    "far-copy": "far_copy",
}

__all__ = ["PROTOCOLS", "resolve_length", "resolve_lengths"]
