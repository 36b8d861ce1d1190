"""The corpora that can be chosen, what is said of each, and what is cached of it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from posenc.core.errors import RunError, UserError
from posenc.core.paths import choice_files
from posenc.data.entry import cached_tokens
from posenc.data.facts import known_figures
from posenc.data.registry import needs_network, pinned_identity

# the first line of a corpus's YAML: what it is (licence; size)
ABOUT = re.compile(r"#\s*(?P<description>.+?)\s*\((?P<licence>[^()]*);(?P<size>[^();]*)\)\s*")


def list_corpora() -> list[dict[str, Any]]:
    """Every choice of `data`, by name: what it is, whether it needs a network, what is cached."""
    rows = []
    for name, path in choice_files("data").items():
        text = path.read_text(encoding="utf-8")
        first = text.split("\n", 1)[0]
        about = ABOUT.fullmatch(first)
        settings = yaml.safe_load(text)
        rows.append(
            {
                "name": name,
                "description": about["description"] if about else first.removeprefix("#").strip(),
                "licence": about["licence"].strip() if about else "",
                "size": about["size"].strip() if about else "",
                "source": str(settings["source"]),
                "network": needs_network(settings),
                "cached": cached_of(settings),
            }
        )
    return rows


def cached_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """What the cache of tokens holds of a corpus; of one that is pinned, at this revision and limit only."""
    try:
        pinned = pinned_identity(data)
    except (UserError, RunError):  # incomplete (data.paths), or a branch that nobody can resolve now
        pinned = None
    figures = known_figures(pinned)
    if pinned is not None and figures is None:
        return []
    rows = cached_tokens()
    if figures is not None:  # whoever tokenised the text, and under whatever name
        return [row for row in rows if row["fingerprint"] == figures["fingerprint"]]
    return [row for row in rows if row["corpus"] == data["name"]]
