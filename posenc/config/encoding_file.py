"""`encoding=./mine.py:Class`: an encoding in a file of the user's, as settings and a plug-in."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import yaml

from posenc.config.overrides import key_of, quoted
from posenc.core.errors import UserError, first_line
from posenc.encodings.registry import file_encoding

FILE = re.compile(r"(.+\.py)(?::(\w+))?")


def with_encoding_file(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the file of an encoding replaced by settings and a plug-in. UserError."""
    choices = [text.partition("=")[2] for text in overrides if text.startswith("encoding=")]
    chosen = choices[-1].replace("\\", "").strip("'\"") if choices else ""
    match = FILE.fullmatch(chosen)
    if match is None:
        return list(overrides)
    file, class_name = match.groups()
    try:
        settings = file_encoding(file, class_name)
    except (yaml.YAMLError, OSError, TypeError, ValueError) as error:
        raise UserError("encoding", chosen, f"its YAML cannot be read: {first_line(error)}") from error
    rest = [text for text in overrides if key_of(text) not in ("encoding", "plugins")]
    return [
        "~encoding",
        *(f"++encoding.{key}={json.dumps(value)}" for key, value in settings.items()),
        *(_adding(text) for text in rest),
        _plugins_with(file, overrides),
    ]


def _adding(override: str) -> str:
    """Return an override of an encoding's parameter so that it adds the parameter where there is none."""
    if key_of(override).startswith("encoding."):
        return f"++{override.lstrip('+')}"
    return override


def _plugins_with(file: str, overrides: Sequence[str]) -> str:
    """Return the override of `plugins` that names the file too."""
    plugins = [text.partition("=")[2].strip("[]") for text in overrides if key_of(text) == "plugins"]
    named = [names for names in plugins[-1:] if names]
    return f"plugins=[{','.join([*named, quoted(file)])}]"
