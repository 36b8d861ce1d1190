"""Result types as plain data for JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

NOT_IN_JSON = {"json": False}  # metadata of a dataclass field that JSON leaves out
TEXT_IN_JSON = {"text": True}  # metadata of a dataclass field whose value JSON has as its str()
FIELDS_IN_JSON = {"fields": True}  # metadata of a dataclass field whose keys are fields of the whole in JSON


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries and tuples as lists, at any depth; perplexities may be infinite."""
    if is_dataclass(value):
        data: dict[str, Any] = {}
        for field in fields(value):
            field_value = getattr(value, field.name)
            if field.metadata.get("fields", False):
                data |= plain(field_value)
            elif field.metadata.get("text", False):
                data[field.name] = None if field_value is None else str(field_value)
            elif field.metadata.get("json", True):
                data[field.name] = plain(field_value)
        return data
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    # `isascii` only reads a flag of the text, so that a common text is not encoded for nothing.
    if isinstance(value, str) and not value.isascii():
        return encodable(value)
    return value


def encodable(text: str) -> str:
    """Return a text that UTF-8 can hold: names of files may have bytes that are none."""
    return text.encode("utf-8", "backslashreplace").decode()
