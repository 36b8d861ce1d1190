"""Positional encodings, one a file, and how they are found by name."""

from posenc.encodings.registry import build_encoding, list_encodings

__all__ = ["build_encoding", "list_encodings"]
