"""Write docs/schema.md: the fields of results.json, metrics.jsonl and the JSON of `posenc compare`.

    python scripts/docs/schema_page.py
The meaning of a field is the comment behind it in the code, so the page cannot tell something else.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import types
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from posenc.results.records import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "schema.md"
RESULTS = [
    "records.RunFacts",
    "records.Record",
    "records.Extend",
    "statistics.documents.PerDocument",
    "records.Curve",
    "records.Recall",
]
COMPARISON = [
    "comparison.Comparison",
    "headers.Header",
    "headers.Reference",
    "headers.Margins",
    "cells.Column",
    "rows.Row",
    "cells.Cell",
    "statistics.ranking.Versus",
    "cells.CurveSummary",
    "headroom.Recovered",
    "recall.RecallColumns",
    "recall.RowRecall",
    "recall.RecallCell",
    "recall.Horizon",
]
HEADER = """# The JSON that posenc writes

Written by `python scripts/docs/schema_page.py` from the types of the code. `schema_version` is
{version}; it rises when a field goes or changes its meaning, not when one is added. Losses are in nats
per token unless `unit` or `metric` says otherwise, lengths in tokens, intervals `[low, high]`. A number
that does not exist is `null`, never NaN; then `note` says why.
"""
ON_DISK = """## results.json

`{schema_version, run, records}`: `run` is a RunFacts, `records` a list of Record, one for each protocol,
window, extension, checkpoint, precision and set of targets. `posenc.results.load_runs(["runs"])` reads any
number of them.
"""
LOGGED = """## metrics.jsonl

A LoggedStep a line. A value that a step does not have (null below) has no key. Trackers show the same names
below `train/`.
"""
PRINTED = """## posenc compare --format json

A Comparison with `schema_version` and `summary` (the sentence on top of the table). Of several tables (runs
that cannot share a ranking, `--protocol all`) the document is `{schema_version, comparisons}`, a
list of them, and each `header.group` says what tells it from the others.

"""

CSV = """## posenc compare --format csv

A line for each row and length; in Python `cells_table` of `posenc.report.lines`, by seed `seeds_table`.
Numbers are not rounded, empty where there is none, and a column has one unit, which its name ends with:

- `loss_nats`, `change_nats`: per token; `loss_bpb`, `change_bpb`: bits per byte; `loss_ppl`: perplexity;
- `..._sd` is over seeds, `..._low` and `..._high` are the ends of a 95% interval: of `change_bpb` per cell
  over seeds and documents, of a change in another unit and per seed over documents;
- `versus_best`, `change_versus_best`, `versus_baseline`: the word of Versus; `..._nats` the difference,
  `..._p`, `..._method`, `..._needs`;
- `label` is the row's name (`rope base=500000`), `encoding` the encoding's, `extend` the extension's;
- `row` is the label with what tells its table from the others (`rope [tokens trained 500000]`), so an
  average by `row` is one over seeds alone; protocols are in `protocol`;
- what keeps rows out of one ranking has columns that are always there: `trained_on`, `planted`, `tokenizer`,
  `context_length`, `tokens_trained`, `evaluated_on`, `split`, `stride`, `evaluated_in`, `model` and
  `target_set`.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page's text."""
    parts = [HEADER.format(version=SCHEMA_VERSION), ON_DISK]
    parts += [table(name) for name in RESULTS]
    parts += [LOGGED, table("loop.LoggedStep", "posenc.training"), PRINTED]
    parts += [table(name) for name in COMPARISON]
    return "\n".join([*parts, CSV])


def table(name: str, package: str = "posenc.results") -> str:
    """Return a heading, the first line of the docstring, and a row for each field."""
    module, _, type_name = name.rpartition(".")
    cls = getattr(importlib.import_module(f"{package}.{module}"), type_name)
    about = inspect.cleandoc(cls.__doc__ or "").splitlines()[0]
    lines = [f"### {type_name}", "", about, "", "| field | type | meaning |", "|---|---|---|"]
    for field, kind, meaning in fields(cls):
        lines.append(f"| `{field}` | `{escaped(kind)}` | {escaped(meaning)} |")
    return "\n".join([*lines, ""])


def escaped(text: str) -> str:
    """Return text that stays inside a cell of a Markdown table."""
    return text.replace("|", "\\|")


def fields(cls: type) -> list[tuple[str, str, str]]:
    """Return name, type and comment of each field of a dataclass or TypedDict that JSON has, in order."""
    hints = get_type_hints(cls, include_extras=True)
    comments = comments_of(cls)
    hidden: set[str] = set()
    if dataclasses.is_dataclass(cls):
        hidden = {field.name for field in dataclasses.fields(cls) if not field.metadata.get("json", True)}
    names = [name for name in cls.__annotations__ if name not in hidden]
    return [(name, json_type(hints[name]), comments.get(name, "")) for name in names]


def comments_of(cls: type) -> dict[str, str]:
    """Return the comment behind each field in the source of its class."""
    comments = {}
    for line in inspect.getsource(cls).splitlines():
        match = re.fullmatch(r"    (\w+): [^#]+# (.+)", line)
        if match is not None:
            comments[match[1]] = match[2]
    return comments


JSON_NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "Any",
}


def json_type(hint: Any) -> str:
    """Return a Python type in the words of JSON: `list of number | null`."""
    origin = get_origin(hint)
    options = get_args(hint)
    if origin is NotRequired:
        return f"{json_type(options[0])}, may be missing"
    if origin in (Annotated, Required):
        return json_type(options[0])
    if origin is Literal:
        return " or ".join(json.dumps(option) for option in options)
    if origin in (Union, types.UnionType):
        return " | ".join(json_type(option) for option in options)
    if origin in (list, tuple):
        return f"list of {in_brackets(json_type(options[0]))}"
    if origin is dict:
        value = json_type(options[1])
        return "object" if value == "Any" else f"object of {in_brackets(value)}"
    return JSON_NAMES.get(hint) or hint.__name__


def in_brackets(kind: str) -> str:
    """Return `(list of number | null)`; a single type as it is."""
    return f"({kind})" if "|" in kind else kind


if __name__ == "__main__":
    main()
