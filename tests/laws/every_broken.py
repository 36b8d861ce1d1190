"""All encodings with faults."""

from __future__ import annotations

from typing import Any

import broken_batch
import broken_bias
import broken_others
import broken_rotary

# A fault says who catches it; what it is made of does not.
BROKEN: list[Any] = [
    cls
    for module in (broken_rotary, broken_bias, broken_others, broken_batch)
    for cls in vars(module).values()
    if isinstance(cls, type) and "caught_by" in vars(cls) and cls.__module__ == module.__name__
]
