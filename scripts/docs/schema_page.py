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
    "records.Exact",
    "records.Needle",
    "records.Ruler",
    "records.Dispersion",
    "records.Memory",
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
    "recall.Learning",
    "recall.Horizon",
    "exact.ExactColumns",
    "exact.RowExact",
    "exact.ExactCell",
    "exact.Spread",
    "dispersion.RowDispersion",
    "dispersion.DispersionCell",
    "memory.RowMemory",
    "memory.MemoryCell",
    "memory.ShorterWindow",
]
HEADER = """# The JSON that posenc writes
Every run has two files for programs, `results.json` and `metrics.jsonl`. `posenc compare` writes the
same numbers with `--format json`.

- Losses are in nats per token, unless `unit` or `metric` says otherwise.
- Lengths are in tokens. Intervals are `[low, high]`.
- A number that does not exist is `null`, never NaN. Then `note` says why.

## What stays
`schema_version` is {version}. **Since release 0.2.0, `results.json` of schema {version} is frozen**:

- Its fields keep their names, types and meanings as long as `schema_version` is {version}.
- Fields may be added. A program that reads these files must ignore fields that it does not know.
- `schema_version` rises when a field goes, or changes its type or meaning. The
  [changelog](../CHANGELOG.md) then says which.
- posenc reads the files of its own schema. It refuses a run of another one, and names the version
  that reads it.

`tests/results/frozen_schema.json` lists the frozen fields, and a test compares them with the code.
The JSON of `posenc compare` has the same `schema_version`, but is not frozen: a field that changes is in
the changelog.

This page is made from the types of the code by `python scripts/docs/schema_page.py`.
"""
ON_DISK = """## results.json
The file is `{schema_version, run, records}`. `run` is a RunFacts. `records` is a list of Record: one for
each protocol, window, extension, checkpoint, precision and set of targets. In Python,
`posenc.load_runs("runs")` reads any number of them.
"""
LOGGED = """## metrics.jsonl
Each line is a LoggedStep. A value that a step does not have has no key; its type has `null` below.
Trackers show the same names below `train/`.
"""
PRINTED = """## posenc compare --format json
The document is a Comparison with `schema_version` and `summary`, the sentence on top of the table. With
several tables it is `{schema_version, comparisons}`, a list of them; each `header.group` says what tells
it from the others. There are several tables for runs that cannot share a ranking, and with
`--protocol all`.
"""

CSV = """## posenc compare --format csv
There is a line for each row and length. In Python it is `cells_table` of `posenc.report.lines`, and by
seed `seeds_table`. Numbers are not rounded, and empty where there is none. A column has one unit, and its
name ends with it.

| column | holds |
|---|---|
| `row` | the label, with what tells its table from the others: `rope [tokens trained 500000]` |
| `label` | the row's name: `rope base=500000` |
| `encoding`, `extend`, `protocol` | the names of the encoding, of the extension and of the protocol |
| `loss_nats`, `change_nats` | nats per token |
| `loss_bpb`, `change_bpb` | bits per byte |
| `loss_ppl` | perplexity |
| `..._sd` | standard deviation over seeds |
| `..._low`, `..._high` | the ends of a 95% interval |
| `versus_best`, `change_versus_best`, `versus_baseline` | the word of Versus |
| `..._nats`, `..._p`, `..._method`, `..._needs` of these | the difference, and the other fields of Versus |
| `memory` | how far distributions move when text farther back than `memory_farther_than` tokens comes in |
| `right_token_gains`, `right_token_loses` | the probability that the right token gains and loses by that |

- An average by `row` is one over seeds alone.
- The interval of `change_bpb` per cell is over seeds and documents. The interval of a change in another
  unit, and per seed, is over documents.
- These columns are always there. They hold what keeps rows out of one ranking: `trained_on`, `planted`,
  `tokenizer`, `context_length`, `tokens_trained`, `evaluated_on`, `split`, `stride`, `evaluated_in`,
  `model` and `target_set`.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def frozen_fields() -> dict[str, dict[str, str]]:
    """Return name and type of each field of results.json, by the type that it belongs to."""
    frozen = {}
    for name in RESULTS:
        frozen[name.rpartition(".")[2]] = {field: kind for field, kind, _ in fields(type_of(name))}
    return frozen


def page() -> str:
    """Return the page's text."""
    parts = [HEADER.format(version=SCHEMA_VERSION), ON_DISK]
    parts += [table(name) for name in RESULTS]
    parts += [LOGGED, table("tally.LoggedStep", "posenc.training"), PRINTED]
    parts += [table(name) for name in COMPARISON]
    return "\n".join([*parts, CSV])


def type_of(name: str, package: str = "posenc.results") -> type:
    """Return the type with a name below a package: `records.Record`."""
    module, _, type_name = name.rpartition(".")
    cls = getattr(importlib.import_module(f"{package}.{module}"), type_name)
    assert isinstance(cls, type)
    return cls


def table(name: str, package: str = "posenc.results") -> str:
    """Return a heading, the first line of the docstring, and a row for each field."""
    cls = type_of(name, package)
    about = inspect.cleandoc(cls.__doc__ or "").splitlines()[0]
    lines = [f"### {cls.__name__}", "", about, "", "| field | type | meaning |", "|---|---|---|"]
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
