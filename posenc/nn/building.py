"""Build an encoding with its initial values, for a model of somebody else's."""

from __future__ import annotations

import warnings
from typing import Any

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.initial_values import initialize_encoding
from posenc.nn.checks import check_whole, head_width


def make_encoding(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    train_length: int,
    n_layers: int = 1,
    head_dim: int | None = None,
    seed: int = 0,
    **parameters: Any,
) -> Encoding:
    """Build an encoding with its initial values. All layers of a model can share it.

    `train_length` is T, the length that the model is trained at. Parameters that are left out have the values
    of `conf/encoding/NAME.yaml`. Warns of what the encoding itself warns of, such as layers in which it does
    nothing. Raises UserError.
    """
    encoding = initial_encoding(
        name,
        seed=seed,
        d_model=d_model,
        n_heads=n_heads,
        head_dim=head_dim,
        n_layers=n_layers,
        train_length=train_length,
        **parameters,
    )
    for text in encoding.warnings():
        warnings.warn(f"{name}: {text}", stacklevel=2)
    return encoding


def initial_encoding(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    train_length: int,
    n_layers: int,
    head_dim: int | None = None,
    seed: int = 0,
    **parameters: Any,
) -> Encoding:
    """Build an encoding as `make_encoding` does, without warnings. Raises UserError."""
    if head_dim is None:
        head_dim = head_width(d_model, n_heads)
    sizes = {
        "d_model": d_model,
        "n_heads": n_heads,
        "head_dim": head_dim,
        "n_layers": n_layers,
        "train_length": train_length,
    }
    for key, size in sizes.items():
        check_whole(key, size, least=1)
    encoding = build_encoding(name, **sizes, **parameters)
    initialize_encoding(encoding, "encoding", seed)
    return encoding
