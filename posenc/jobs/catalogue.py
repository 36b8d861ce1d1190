"""The catalogue of encodings in the terminal, from the classes themselves."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posenc.encodings.registry import default_parameters, encoding_class, list_encodings


def entry(name: str) -> dict[str, Any]:
    """What is known of one encoding, plain JSON. Raises UserError for an unknown name."""
    cls = encoding_class(name)
    return {
        "name": name,
        "acts_on": cls.acts_on,
        "formula": cls.formula,
        "parameters": default_parameters(name),
        "past_training": cls.past_training,
        "paper": cls.paper,
        "revision": cls.revision,
        "prefix_stable": cls.prefix_stable,
        "description": (sys.modules[cls.__module__].__doc__ or "").strip(),
    }


def print_catalogue(name: str | None, *, as_json: bool) -> None:
    """All encodings as a table, or one of them in full, on stdout."""
    entries = [entry(one) for one in ([name] if name else list_encodings())]
    if as_json:
        print(json.dumps(entries[0] if name else entries, indent=2, ensure_ascii=False))
        return
    if name:
        print(f"{name} (acts on: {entries[0]['acts_on']})\n\n{entries[0]['description']}")
        print(f"\nPast the training length: {entries[0]['past_training']}.")
        shown = ", ".join(f"encoding.{k}={_yaml(v)}" for k, v in entries[0]["parameters"].items())
        print(f"Parameters and defaults: {shown or 'none'}")
        return
    table = Table("encoding", "acts on", "formula", "past the training length", box=None, pad_edge=False)
    for one in sorted(entries, key=lambda e: (e["acts_on"], e["name"])):
        table.add_row(*(escape(one[key]) for key in ("name", "acts_on", "formula", "past_training")))
    Console().print(table)


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
