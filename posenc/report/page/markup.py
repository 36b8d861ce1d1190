"""HTML elements. Whatever is not markup already is escaped; there is no way around it but `Html`."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

from posenc.core.errors import visible

VOID = {"meta", "input", "img", "br", "hr", "col"}


class Html(str):
    """Text that is markup."""


def text(value: object) -> Html:
    """A value as text: one line, control characters visible, `< > & " '` escaped."""
    return value if isinstance(value, Html) else Html(html.escape(visible(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other, those that are no markup escaped."""
    return Html(between.join(text(part) for part in parts))


def el(tag: str, *children: object, **attributes: object) -> Html:
    """An element. `class_` is `class`, `data_v` `data-v`; True is a bare attribute, None and False none."""
    shown = ""
    for name, value in attributes.items():
        if value is not None and value is not False:
            key = name.rstrip("_").replace("_", "-")
            shown += f" {key}" if value is True else f' {key}="{html.escape(visible(value))}"'
    if tag in VOID:
        return Html(f"<{tag}{shown}>")
    return Html(f"<{tag}{shown}>{join(children)}</{tag}>")


def lines(texts: Iterable[str]) -> Html:
    """Lines of text for a `pre`."""
    return join(texts, "\n")


def json_text(value: Any) -> Html:
    """JSON that cannot end the script element it stands in: `<`, `>` and `&` are escapes."""
    shown = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        shown = shown.replace(character, f"\\u{ord(character):04x}")
    return Html(shown)
