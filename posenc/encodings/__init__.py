"""Positional encodings, one a file, and how they are found by name."""

from posenc.encodings.building import build_encoding
from posenc.encodings.registry import list_encodings

__all__ = ["build_encoding", "list_encodings"]
