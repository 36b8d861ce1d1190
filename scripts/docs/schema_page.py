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

from posenc.results.beside import record_types
from posenc.results.beside.base import NumbersBeside, all_numbers_beside
from posenc.results.plain import FIELDS_IN_JSON, TEXT_IN_JSON
from posenc.results.records import Record
from posenc.results.rows import Row
from posenc.settings.tree import SCHEMA_VERSION

BESIDE = "beside"  # the field of a row and of a comparison whose keys are fields of the JSON
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "schema.md"
RESULTS = [
    "records.RunFacts",
    "records.ModelFacts",
    "records.ParameterFacts",
    "records.TrainingText",
    "records.PlantFacts",
    "records.TokenizerFacts",
    "records.Record",
    "records.Extend",
    "statistics.documents.PerDocument",
    "records.Curve",
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
| `verdict` | on the change; also of a row with `undertrained`, where tables leave it out |
| `versus_best`, `change_versus_best`, `versus_baseline` | the word of Versus |
| `..._nats`, `..._p`, `..._method`, `..._needs` of these | the difference, and the other fields of Versus |
| `memory` | how far distributions move when text farther back than `memory_farther_than` tokens comes in |
| `right_token_gains`, `right_token_loses` | the probability that the right token gains and loses by that |

- An average by `row` is one over seeds alone.
- The interval of a change is over seeds and documents, as in `--full`. With one seed, and per seed, it is
  over documents. Of the perplexities of several seeds there is none.
- These columns are always there. They hold what keeps rows out of one ranking: `trained_on`, `planted`,
  `tokenizer`, `context_length`, `tokens_trained`, `evaluated_on`, `split`, `stride`, `evaluated_in`,
  `model` and `target_set`.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def frozen_fields() -> dict[str, dict[str, str]]:
    """Return name and type of each field of results.json, by the type that it belongs to."""
    frozen = {}
    for cls in types_on_disk():
        frozen[type_name(cls)] = {field: kind for field, kind, _ in fields(cls)}
    return frozen


def types_on_disk() -> list[type]:
    """Return the types of results.json; the last ones are what protocols measure beside the loss."""
    return [*map(type_of, RESULTS), *(record_type(numbers) for numbers in all_numbers_beside())]


def record_type(numbers: NumbersBeside) -> type:
    """Return the type of a protocol's numbers in a record, without its check."""
    kind = record_types()[numbers.key]
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def types_printed() -> list[type]:
    """Return the types of a comparison; the last ones are what protocols measure beside the loss."""
    printed = [type_of(name) for name in COMPARISON]
    for numbers in all_numbers_beside():
        for hint in (columns_type(numbers), row_type(numbers)):
            printed += [cls for cls in dataclasses_in(hint) if cls not in printed]
    return printed


def row_type(numbers: NumbersBeside) -> Any:
    """Return the type of a protocol's numbers in a row, or null: the result is `list[RowMemory | None]`."""
    return get_args(get_type_hints(numbers.rows_of)["return"])[0]


def columns_type(numbers: NumbersBeside) -> Any:
    """Return the type of what a table says of a protocol's numbers; None if it says nothing."""
    return None if numbers.whole_of is None else get_type_hints(numbers.whole_of)["return"]


def dataclasses_in(hint: Any) -> list[type]:
    """Return the dataclasses in a type, each before those of its fields."""
    classes = []
    if dataclasses.is_dataclass(hint):
        classes.append(hint)
        joined = with_metadata(hint, FIELDS_IN_JSON)
        parts = [part for name, part in get_type_hints(hint).items() if name not in joined]
    else:
        parts = [part for part in get_args(hint) if part is not Ellipsis]
    for part in parts:
        classes += [cls for cls in dataclasses_in(part) if cls not in classes]
    return classes


def page() -> str:
    """Return the page's text."""
    parts = [HEADER.format(version=SCHEMA_VERSION), ON_DISK]
    parts += [table(cls) for cls in types_on_disk()]
    parts += [LOGGED, table(type_of("tally.LoggedStep", "posenc.training")), PRINTED]
    parts += [table(cls) for cls in types_printed()]
    return "\n".join([*parts, CSV])


def type_of(name: str, package: str = "posenc.results") -> type:
    """Return the type with a name below a package: `records.Record`."""
    module, _, type_name = name.rpartition(".")
    cls = getattr(importlib.import_module(f"{package}.{module}"), type_name)
    assert isinstance(cls, type)
    return cls


def type_name(cls: type) -> str:
    """Return what the page calls a type: `Recall` for the numbers that a record has by the key `recall`.

    The frozen fields are listed by these names, so they stay whatever the code calls its types.
    """
    for numbers in all_numbers_beside():
        if record_type(numbers) is cls:
            return numbers.key.capitalize()
    return cls.__name__


def table(cls: type) -> str:
    """Return a heading, the first line of the docstring, and a row for each field."""
    about = inspect.cleandoc(cls.__doc__ or "").splitlines()[0]
    lines = [f"### {type_name(cls)}", "", about, "", "| field | type | meaning |", "|---|---|---|"]
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
    texts = with_metadata(cls, TEXT_IN_JSON)
    joined = with_metadata(cls, FIELDS_IN_JSON)
    described = []
    for name in cls.__annotations__:
        if name == BESIDE:
            described += fields_beside(cls)
        elif name in joined:
            described += fields(hints[name])
        elif name in texts:
            described.append((name, json_type(str | None), comments.get(name, "")))
        elif name not in hidden:
            described.append((name, json_type(hints[name]), comments.get(name, "")))
    if cls is Record:
        described += fields_beside(cls)
    return described


def with_metadata(cls: type, metadata: dict[str, bool]) -> list[str]:
    """Return the fields of a dataclass that JSON writes in this way (posenc.results.plain)."""
    if not dataclasses.is_dataclass(cls):
        return []
    return [field.name for field in dataclasses.fields(cls) if field.metadata == metadata]


def fields_beside(cls: type) -> list[tuple[str, str, str]]:
    """Return the fields that a record, a row or a comparison has of each protocol beside the loss."""
    described = []
    for numbers in all_numbers_beside():
        meaning = f"of the protocol `{numbers.protocol}`"
        if cls is Record:
            described.append((numbers.key, json_type(NotRequired[record_type(numbers)]), meaning))
        elif cls is Row:
            described.append((numbers.key, json_type(row_type(numbers)), meaning))
        elif numbers.whole_of is not None:
            meaning = f"{meaning}; null where no row has it"
            described.append((numbers.key, json_type(columns_type(numbers)), meaning))
    return described


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
    return JSON_NAMES.get(hint) or type_name(hint)


def in_brackets(kind: str) -> str:
    """Return `(list of number | null)`; a single type as it is."""
    return f"({kind})" if "|" in kind else kind


if __name__ == "__main__":
    main()
