"""Print what a visit found: short tables, what is off, what failed, what was left out."""

from __future__ import annotations

from typing import Any

from docs.gpu_tables import TABLES, TextTable

Json = dict[str, Any]


def report(content: Json) -> str:
    """Return the text about the JSON of a visit."""
    items = content["items"]
    parts: list[str] = []
    for make_table in TABLES.values():
        table = make_table(items)
        if table.rows:
            parts.append(_aligned(table))
    for title, lines in (
        ("off", mismatches(items)),
        ("failed", failures(items)),
        ("not available here", _reasons(items, "unavailable")),
        ("left out: no time", content["left_out"]),
    ):
        if lines:
            parts.append("\n".join([f"{title}:", *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


def mismatches(items: Json) -> list[str]:
    """Return a line for each check of numbers that is off."""
    lines = []
    for key, item in items.items():
        for check in item.get("checks", ()):
            if check["is_bad"]:
                case = f"{key} {check['option']} T={check['length']} {check['precision']}"
                what = (
                    check["failure"] or f"{check['worst']}: {check['off']}, blocks {check['off_of_blocks']}"
                )
                lines.append(f"{case}: {what}")
    return lines


def failures(items: Json) -> list[str]:
    """Return a line for each item that failed. A warm-up that fails costs seconds, and nothing is lost."""
    return [line for line in _reasons(items, "failure") if not line.startswith("warm-up/")]


def _reasons(items: Json, name: str) -> list[str]:
    lines = []
    for key, item in items.items():
        for subkey, result in {"": item, **item}.items():
            if isinstance(result, dict) and name in result:
                lines.append(f"{key} {subkey}".strip() + f": {result[name]}")
    return lines


def _aligned(table: TextTable) -> str:
    """Return a table with columns of equal width, numbers to the right."""
    rows = [table.heads, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.heads))]
    lines = []
    for row in rows:
        first, *others = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)
