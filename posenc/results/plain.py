"""Result types as plain data for JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

NOT_IN_JSON = {"json": False}  # metadata of a dataclass field that JSON leaves out


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries and tuples as lists, at any depth; perplexities may be infinite."""
    if is_dataclass(value):
        in_json = [field for field in fields(value) if field.metadata.get("json", True)]
        return {field.name: plain(getattr(value, field.name)) for field in in_json}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
