"""Positional encodings, one a file, and how they are found by name."""

from posenc.encodings.registry import (
    build_encoding,
    encoding_class,
    list_encodings,
    origins_of,
    resolve_encoding,
    sources_of,
)

__all__ = [
    "build_encoding",
    "encoding_class",
    "list_encodings",
    "origins_of",
    "resolve_encoding",
    "sources_of",
]
