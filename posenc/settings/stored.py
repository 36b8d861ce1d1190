"""Read the settings of a stored run from the text of its config.yaml."""

from __future__ import annotations

import json

import yaml
from pydantic import ValidationError

from posenc.settings.tree import SCHEMA_VERSION, RunSettings, SubjectSettings

# A config.yaml may come from somebody else, so only plain data is read. The C loader is 8 times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OLD_READER = "the posenc that wrote it (0.1.0 before schema 2)"

# Limits that posenc's own files stay far below: they have 8 levels, some 150 values, and no text longer than
# a path. A text of digits and colons is a number of base 60 in YAML; one of 1 MB takes minutes to compute.
DEEPEST = 50  # levels of lists and mappings
MOST_VALUES = 20_000  # keys among them
LONGEST_TEXT = 20_000  # characters


class StoredSettingsError(ValueError):
    """Report a config.yaml that is damaged, foreign, or of another schema."""


def read_settings(text: bytes | str) -> RunSettings | SubjectSettings:
    """Return the settings that a config.yaml holds. Raises StoredSettingsError."""
    return checked_settings(plain_yaml(text))


def plain_yaml(text: bytes | str) -> object:
    """Return what YAML holds: text, numbers, lists and mappings. Raises StoredSettingsError."""
    try:
        _refuse_costly(text)
        data = yaml.load(text, Loader=LOADER)
        # YAML also has dates, sets and bytes, which do not come back equal from JSON
        is_plain = json.loads(json.dumps(data, default=str)) == data
    except StoredSettingsError:
        raise
    except Exception as error:  # the loader raises IndexError on `!!int ''`, KeyError on `!!bool maybe`
        raise StoredSettingsError("config.yaml: cannot be read as YAML") from error
    if not is_plain:
        raise StoredSettingsError("config.yaml: holds more than text, numbers, lists and mappings")
    return data


def _refuse_costly(text: bytes | str) -> None:
    """Raise StoredSettingsError for YAML that would take long or much memory to load; also yaml.YAMLError."""
    # Aliases let 500 bytes stand for 10^9 values, and deep nesting overflows the stack of the recursive
    # loader. The stream of events that is read here is not recursive.
    depth = 0
    values = 0
    for event in yaml.parse(text, Loader=LOADER):
        values += isinstance(event, yaml.NodeEvent)  # other events end a list, or begin the text
        if isinstance(event, yaml.AliasEvent):
            raise StoredSettingsError("config.yaml: holds aliases, which posenc never writes")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST_TEXT:
            raise StoredSettingsError(f"config.yaml: a value of more than {LONGEST_TEXT} characters")
        if depth > DEEPEST:
            raise StoredSettingsError(f"config.yaml: nested deeper than {DEEPEST} levels")
        if values > MOST_VALUES:
            raise StoredSettingsError(f"config.yaml: more than {MOST_VALUES} keys and values")


def checked_settings(data: object) -> RunSettings | SubjectSettings:
    """Return the settings that plain data holds, checked. Raises StoredSettingsError."""
    if not isinstance(data, dict):
        raise StoredSettingsError("config.yaml: holds no settings")
    version = data.get("schema_version", 1)
    if version != SCHEMA_VERSION:
        raise StoredSettingsError(f"config.yaml: {other_schema(version)}")
    # The file describes the model of a run that posenc trained. A model that it was given has no such group.
    settings_type = RunSettings if "model" in data else SubjectSettings
    try:
        return settings_type.model_validate(data)
    except (ValidationError, RecursionError) as error:
        raise StoredSettingsError(f"config.yaml: {_first_problem(error)}") from error


def other_schema(version: object) -> str:
    """Return which posenc reads a file of another schema version."""
    if version == 1:
        return f"schema 1, which {OLD_READER} reads"
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return f"schema {version}, which a newer posenc reads"
    if not isinstance(version, int | float | str):
        return "no schema version, so no file of posenc"
    return f"schema {version!r}, which no posenc writes"


def _first_problem(error: ValidationError | RecursionError) -> str:
    """Return key and message of the first value that was refused."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    return f"{key}: {first['msg']}"
