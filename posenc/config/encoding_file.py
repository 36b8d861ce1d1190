"""Read `encoding=./mine.py:Class`, an encoding in a file of the user's, as settings and a plug-in."""

from __future__ import annotations

import json
from collections.abc import Sequence

import yaml

from posenc.config.keys import key_of
from posenc.config.overrides import unquoted
from posenc.core.errors import UserError, first_line
from posenc.encodings.registry import FILE, file_encoding


def expand_encoding_file(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides with the file of an encoding replaced by its settings, and the files to import.

    Raises UserError for a file that holds no such encoding.
    """
    choices = [override.partition("=")[2] for override in overrides if override.startswith("encoding=")]
    if not choices:
        return list(overrides), []
    # A path was quoted for Hydra (`quote_paths`), and here it is a path again.
    chosen = unquoted(choices[-1])
    match = FILE.fullmatch(chosen)
    if match is None:
        return list(overrides), []
    file, class_name = match.groups()
    try:
        # This imports the file. It is the only way to learn what a class declares.
        settings = file_encoding(file, class_name)
    except UserError as error:
        raise error.about("encoding", chosen) from None
    except (yaml.YAMLError, OSError, TypeError, ValueError) as error:
        raise UserError("encoding", chosen, f"its YAML cannot be read: {first_line(error)}") from error
    other_overrides: list[str] = []
    for override in overrides:
        key = key_of(override)
        if key.startswith("encoding."):
            # `++`: a parameter whose default is in the class alone is no key of the configuration
            other_overrides.append(f"++{override.lstrip('+')}")
        elif key != "encoding":
            other_overrides.append(override)
    # No YAML describes this encoding, so the group leaves the defaults and its settings are added one by one.
    # JSON is YAML, and Hydra's grammar reads its numbers, texts and lists.
    encoding = [f"++encoding.{key}={json.dumps(value)}" for key, value in settings.items()]
    return ["~encoding", *encoding, *other_overrides], [file]
