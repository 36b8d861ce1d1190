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
Every encoding has its formula, its settings, its paper, and what this code does differently. Every
test-time extension has a row in [a table](#test-time-extensions). [Common errors](traps.md) lists
what implementations get wrong.

| to | type |
|---|---|
| read the same in a terminal | `posenc encodings NAME` |
| see what it does | `posenc show encoding=NAME` |
| hold it to the laws | `posenc check encoding=NAME` |

| symbol | meaning |
|---|---|
| i, j | positions of the query and of the key |
| r | i - j, the distance; 0 or more |
| H, h | number of heads; h = 1..H |
| d | width of the model |
| D | width of a head |
| L | number of layers |
| T | training length; where positions are drawn, the limit below which they are drawn |

Scores are divided by sqrt(D) everywhere. In `mla`, D is the width of its own heads.

This page is made from the classes by `python scripts/docs/encodings_page.py`. To change what it says
of an encoding, edit `posenc/encodings/NAME.py`."""

OPTIONS = """## Options of any encoding
An option that makes no sense with an encoding is refused by name, before any data is read.

| setting | what it does |
|---|---|
{options}
| `attention=mla` | latent attention with decoupled rotary parts (arXiv 2405.04434); with {decoupled} |
| `encoding=sum encoding.parts=[...]` | several encodings at once |
| `encoding.per_layer`, `encoding.combine` | absolute encodings: before every block; added or concatenated |

In full:
{documents}"""

EXTENSIONS = """## Test-time extensions
An extension changes how a trained model sees a longer text. `posenc eval run=DIR extend=NAME` measures
it. `posenc show run=DIR extend=NAME` draws it; of rotations it draws the trained one, too. An extension
that does not apply to a model's encoding is refused.

W is the window in tokens, s = W/T.
"""

WRONG_CODE = """## Wrong code that circulates, and the law that catches it
`tests/laws/broken.py` keeps each of these errors. Each must fail the law beside it. What no law can see
is caught by a test that computes the formula another way.
"""


def cell(text: object) -> str:
    """Return text for a cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def overview(entries: list[dict[str, Any]]) -> list[str]:
    lines = ["| encoding | acts on | learned parameters | past T | paper |", "|---|---|---|---|---|"]
    for entry in entries:
        count = entry["learned_parameters"]
        learned = {None: "as its parts", "0": "0"}.get(count, f"`{count}`")
        link = f"[{entry['name']}](#{entry['name']})"
        row = (link, entry["acts_on"], learned, entry["past_training"], entry["paper"])
        lines.append("| " + " | ".join(cell(part) for part in row) + " |")
    return lines


def section(entry: dict[str, Any]) -> list[str]:
    """Return the section of one encoding."""
    name = entry["name"]
    lines = [f"### {name}", "```text", entry["description"], "```"]
    if entry["parameters"]:
        settings = [f"`encoding.{key}={value_text(value)}`" for key, value in entry["parameters"].items()]
        lines.append(f"Settings: {', '.join(settings)}.\n")
    lines.append(f"Past T: {entry['past_training']}.")
    lines += [f"\nRefused with it: `{option}`: {why}." for option, why in entry["refuses"].items()]
    for picture in sorted(PICTURES.glob(f"{name}.*")):
        lines.append(f"\n![{name}](pictures/{picture.name})")
    return [*lines, ""]


def extension_lines() -> list[str]:
    """Return the section on what can be done to a trained model."""
    lines = [
        EXTENSIONS,
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
    """Return rows of a table: drawn positions and options of the attention."""
    lines = [f"| `positions={name}` | {first_line(cls)} |" for name, cls in drawn_positions().items()]
    value_of_type = {bool: "true", int: "W"}
    for cls in attention_options():
        value = cls.choice if isinstance(cls.choice, str) else value_of_type[cls.choice]
        lines.append(f"| `attention.{cls.key}={value}` | {first_line(cls)} |")
    return lines


def documented() -> list[ModuleType | type]:
    """Return the modules and classes whose docstrings follow the table."""
    classes = [*drawn_positions().values(), *attention_options()]
    return [*(sys.modules[cls.__module__] for cls in classes), LatentAttention]


def wrong_snippets() -> list[str]:
    sys.path[:0] = [str(ROOT / "tests" / "laws")]
    broken = importlib.import_module("broken").BROKEN
    lines = [
        WRONG_CODE,
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
    places = [place for place in ACTS_ON if any(entry["acts_on"] == place for entry in entries)]
    ordered = sorted(entries, key=lambda entry: places.index(entry["acts_on"]))
    texts = {
        "options": "\n".join(option_lines()),
        "documents": "".join(document(source) for source in documented()),
        "decoupled": ", ".join(f"`{entry['name']}`" for entry in entries if entry["decouples"]),
    }
    lines = [INTRO, "", *overview(ordered), "", OPTIONS.format(**texts), ""]
    for place in places:
        lines += [f"## Acts on {ACTS_ON[place]}", ""]
        for entry in ordered:
            if entry["acts_on"] == place:
                lines += section(entry)
    return "\n".join([*lines, *extension_lines(), *wrong_snippets()]) + "\n"


def document(source: ModuleType | type) -> str:
    """Return the docstring of a module or class without its legend of shapes."""
    text = (inspect.getdoc(source) or "").partition("\n\nB batch")[0]
    return f"\n```text\n{text}\n```\n"


def first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
