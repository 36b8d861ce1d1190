"""Write docs/encodings.md from the classes: table, formulas, settings, snippets that laws catch.

From the root of a clone: python scripts/docs/encodings_page.py
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.config.overrides import value_text
from posenc.encodings import list_encodings
from posenc.encodings.attention_options import attention_options
from posenc.encodings.catalogue import ACTS_ON, describe_encoding
from posenc.encodings.positions import drawn_positions
from posenc.evaluation.extensions import default_knobs, extensions
from posenc.laws import statement
from posenc.model.attention import LatentAttention

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "encodings.md"
PICTURES = ROOT / "docs" / "pictures"

INTRO = """# The catalogue of encodings and extensions

This page is made from the classes by `python scripts/docs/encodings_page.py`; what it says of an encoding
stands in `posenc/encodings/<name>.py`. `posenc encodings NAME` prints the same, `posenc show encoding=NAME`
draws it, `posenc check encoding=NAME` holds it to the laws. [Common errors](traps.md) lists what
implementations get wrong.

i is the query's position, j the key's, r = i - j >= 0; H heads, h = 1..H, d the model's width, D a head's, L
layers, T the training length (the limit that positions are drawn below, where they are drawn). Scores are
divided by sqrt(D) everywhere (in `mla` D is the width of its own heads)."""

OPTIONS = """## Options of any encoding

| setting | what it does |
|---|---|
{options}
| `attention=mla` | latent attention with decoupled rotary parts (arXiv 2405.04434); with {decoupled} |
| `encoding=sum encoding.parts=[...]` | several encodings at once |
| `encoding.per_layer`, `encoding.combine` | absolute encodings: before every block; added or concatenated |

An option that makes no sense with an encoding is refused by name, before any data is read.
{documents}"""


def cell(text: object) -> str:
    """Text inside a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def overview(entries: list[dict[str, Any]]) -> list[str]:
    lines = ["| encoding | acts on | learned parameters | past T | paper |", "|---|---|---|---|---|"]
    for one in entries:
        count = one["learned_parameters"]
        learned = {None: "as its parts", "0": "0"}.get(count, f"`{count}`")
        link = f"[{one['name']}](#{one['name']})"
        row = (link, one["acts_on"], learned, one["past_training"], one["paper"])
        lines.append("| " + " | ".join(cell(part) for part in row) + " |")
    return lines


def section(one: dict[str, Any]) -> list[str]:
    lines = [f"### {one['name']}", "```text", one["description"], "```"]
    if one["parameters"]:
        shown = ", ".join(f"`encoding.{k}={value_text(v)}`" for k, v in one["parameters"].items())
        lines.append(f"Settings: {shown}.\n")
    lines.append(f"Past T: {one['past_training']}.")
    lines += [f"\nRefused with it: `{option}`: {why}." for option, why in one["refuses"].items()]
    for picture in sorted(PICTURES.glob(f"{one['name']}.*")):
        lines.append(f"\n![{one['name']}](pictures/{picture.name})")
    return [*lines, ""]


def extension_lines() -> list[str]:
    """What can be done to a trained model: `posenc eval run=... extend=NAME`."""
    lines = [
        "## Test-time extensions",
        "What `posenc eval run=DIR extend=NAME` does to a trained model; `posenc show run=DIR extend=NAME` "
        "draws it, of rotations the trained one beside it. One that does not apply to a model's encoding is "
        "refused; s is W/T, the window in training lengths.",
        "",
        "| extension | what it does | applies to | settings | paper |",
        "|---|---|---|---|---|",
    ]
    for name in extensions():
        cls = extensions()[name]
        knobs = ", ".join(f"`extend.{k}={value_text(v)}`" for k, v in default_knobs(name).items())
        row = (f"`{name}`", cls.formula, cls.applies, knobs or "none", cls.paper)
        lines.append("| " + " | ".join(cell(part) for part in row) + " |")
    return [*lines, ""]


def option_lines() -> list[str]:
    """Rows of a table: drawn positions and options of the attention."""
    lines = [f"| `positions={name}` | {first_line(cls)} |" for name, cls in drawn_positions().items()]
    for cls in attention_options():
        words = {bool: "true", int: "W"}
        value = cls.choice if isinstance(cls.choice, str) else words[cls.choice]
        lines.append(f"| `attention.{cls.key}={value}` | {first_line(cls)} |")
    return lines


def documented() -> list[ModuleType | type]:
    """The modules and classes whose docstrings follow the table."""
    classes = [*drawn_positions().values(), *attention_options()]
    return [*(sys.modules[cls.__module__] for cls in classes), LatentAttention]


def wrong_snippets() -> list[str]:
    sys.path[:0] = [str(ROOT / "tests" / "laws")]
    broken = importlib.import_module("broken").BROKEN
    lines = [
        "## Wrong code that circulates, and the law that catches it",
        "Each of these is kept in `tests/laws/broken.py` and must fail the law beside it. What no law can "
        "see is caught by the formula that its test rebuilds another way.",
        "",
        "| what is wrong | caught by | which says |",
        "|---|---|---|",
    ]
    for cls in broken:
        what = " ".join((inspect.getdoc(cls) or "").split())
        if what.startswith("Healthy"):
            continue
        if not cls.law:
            lines.append(f"| {cell(what)} | no law | it is consistent in itself |")
        else:
            lines.append(f"| {cell(what)} | `{cls.law}` | {cell(statement(cls.law))} |")
    return lines


def page() -> str:
    entries = [asdict(describe_encoding(name)) for name in list_encodings()]
    places = [place for place in ACTS_ON if any(one["acts_on"] == place for one in entries)]
    ordered = [one for place in places for one in entries if one["acts_on"] == place]
    words = {
        "options": "\n".join(option_lines()),
        "documents": "".join(document(source) for source in documented()),
        "decoupled": ", ".join(f"`{one['name']}`" for one in entries if one["decouples"]),
    }
    lines = [INTRO, "", *overview(ordered), "", OPTIONS.format(**words), ""]
    for place in places:
        lines += [f"## Acts on {ACTS_ON[place]}", ""]
        for one in ordered:
            if one["acts_on"] == place:
                lines += section(one)
    return "\n".join([*lines, *extension_lines(), *wrong_snippets()]) + "\n"


def document(one: ModuleType | type) -> str:
    """The docstring of a module or class without its legend of shapes."""
    text = (inspect.getdoc(one) or "").partition("\n\nB batch")[0]
    return f"\n```text\n{text}\n```\n"


def first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
