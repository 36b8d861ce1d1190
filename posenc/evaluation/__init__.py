"""Protocols: how the loss of a trained model at longer windows is measured, one protocol a file."""

from __future__ import annotations

from posenc.evaluation.lengths import resolve_lengths

# Protocol -> its module in this package; a module has NAME, plan() and measure().
PROTOCOLS = {"fixed-target": "fixed_target", "nonoverlapping": "nonoverlapping"}

__all__ = ["PROTOCOLS", "resolve_lengths"]
