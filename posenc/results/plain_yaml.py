"""YAML from a stranger as plain data: no objects, no dates, no aliases, no nesting without end."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from posenc.results.check import DEEPEST, is_plain


@functools.lru_cache(maxsize=256)
def plain_yaml(text: bytes) -> dict[str, Any] | None:
    """The mapping that config.yaml holds, None where it is something else. Raises ValueError."""
    import yaml

    # libyaml where PyYAML has it, ten times as fast; a SafeLoader: no tag makes an object of Python
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_shape(yaml.parse(text, Loader=loader))
        data = yaml.load(text, Loader=loader)
    except Exception as error:  # a loader's own, and whatever its constructors trip over: `!!int ''`
        raise ValueError(f"config.yaml: damaged ({(str(error) or 'no YAML').splitlines()[0]})") from error
    if not is_plain(data):
        raise ValueError("config.yaml: holds more than text, numbers, lists and mappings")
    return data if isinstance(data, dict) else None


def _check_shape(events: Iterable[Any]) -> None:
    """Raises ValueError for what takes a loader down.

    100,000 open brackets end in a segmentation fault of libyaml's composer, and a few lines of aliases stand
    for billions of nodes.
    """
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not used in a resolved configuration")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError("nested too deep")
