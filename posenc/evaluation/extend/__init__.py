"""Test-time extensions: what is done to a trained model at windows beyond its training length, `extend=NAME`.

One a file, found by its module's name; helpers begin with an underscore. Nothing is trained, and the trained
model is never changed: an extension gives what the attention sees in its place.
"""

from __future__ import annotations

from posenc.evaluation.extend._base import Extension, NotForThisEncodingError
from posenc.evaluation.extend._registry import (
    build_extension,
    default_knobs,
    extension_class,
    list_extensions,
    resolve_extend,
)

__all__ = [
    "Extension",
    "NotForThisEncodingError",
    "build_extension",
    "default_knobs",
    "extension_class",
    "list_extensions",
    "resolve_extend",
]
