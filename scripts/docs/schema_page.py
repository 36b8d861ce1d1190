"""Write docs/schema.md: the fields of results.json and of `posenc compare --format json`, from their types.

    python scripts/docs/schema_page.py
The meaning of a field is the comment behind it in the code, so the page cannot tell something else.
"""

from __future__ import annotations

import importlib
import inspect
import io
import re
import tokenize
from pathlib import Path
from typing import get_args

from posenc.results.statistics import Method

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "schema.md"
RESULTS = ["RunFacts", "Record", "PerDocument", "Curve", "Recall"]
COMPARISON = ["comparison.Comparison", "rows.Column", "rows.Row", "rows.Cell"]
COMPARISON += ["statistics.Versus", "rows.CurveSummary", "recall_headroom.Recovered"]
COMPARISON += [
    "recall_headroom.RecallColumns",
    "recall_headroom.RowRecall",
    "recall_headroom.RecallCell",
    "recall_headroom.Horizon",
]
HEADER = """# The JSON that posenc writes

Written by `python scripts/docs/schema_page.py` from the types in `posenc/results/`. `schema_version` is
{version}; it rises when a field goes or changes its meaning, not when one is added. Losses are in nats
per token unless `unit` or `metric` says otherwise, lengths in tokens, intervals `[low, high]`. A number
that does not exist is `null`, never NaN; then `note` says why.
"""
ON_DISK = """## results.json

`{schema_version, run, records}`: `run` is a RunFacts, `records` a list of Record, one for each protocol,
window, extension, checkpoint and set of targets. `posenc.results.load_runs(["runs"])` reads any number of
them.
"""
PRINTED = """## posenc compare --format json

A Comparison with `schema_version` and `summary` (the sentence on top of the table). Of several tables (runs
that cannot share a ranking, `--protocol all`) the document is `{schema_version, comparisons}`, a
list of them, and each `header.group` says what tells it from the others.

`header` says what the numbers have in common: `protocol`, `group`, `metric`, `unit`, `corpus`, `fingerprint`,
`split`, `stride`, `tokenizer`, `context_length`, `model`, `parameters` (fewest, most), `tokens` (trained
on), `seeds`, `documents` and `targets` (fewest, most), `mixed` (what the rows differ in and should
not; with `--allow-mixed`), `also_differs`, `reference` (the trigram), `margins` (of the
words), `left_out` (records of other targets, checkpoints or tuned knobs), `baseline`. A value is null where
the runs differ in it.
"""

CSV = """## posenc compare --format csv

A line for each row and length; in Python `cells_table` of `posenc.results.frame`, by seed `seeds_table`.
Numbers are not rounded, empty where there is none, and a column has one unit, which its name ends with:

- `loss_nats`, `change_nats`: per token; `loss_bpb`, `change_bpb`: bits per byte; `loss_ppl`: perplexity;
- `..._sd` is over seeds, `..._low` and `..._high` are the ends of a 95% interval: of `change_bpb` per cell
  over seeds and documents, of a change in another unit and per seed over documents;
- `versus_best`, `versus_baseline`: the word of Versus; `..._nats` the difference, `..._p`, `..._method`;
- `label` is the row's name (`rope base=500000`), `encoding` the encoding's, `extend` the extension's;
- what tells several tables apart has the key's name (`context length`), protocols are in `protocol`.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page's text."""
    from posenc.results.schema import SCHEMA_VERSION

    parts = [
        HEADER.format(version=SCHEMA_VERSION),
        ON_DISK,
        *(table(f"results.schema.{one}") for one in RESULTS),
    ]
    return "\n".join([*parts, PRINTED, *(table(f"results.{one}") for one in COMPARISON), CSV])


def table(name: str) -> str:
    """A heading, the first line of the docstring, and a row for each field."""
    module, _, type_name = name.rpartition(".")
    cls = getattr(importlib.import_module(f"posenc.{module}"), type_name)
    rows = [f"| `{field}` | {kind} | {meaning} |" for field, kind, meaning in fields(cls)]
    about = inspect.cleandoc(cls.__doc__ or "").splitlines()[0]
    return "\n".join(
        [f"### {type_name}", "", about, "", "| field | type | meaning |", "|---|---|---|", *rows, ""]
    )


def fields(cls: type) -> list[tuple[str, str, str]]:
    """Name, type and comment of each field of a dataclass or TypedDict, in order."""
    lines = inspect.getsource(cls).splitlines()
    found = []
    for line in lines:
        if line == "    # not in JSON:":
            break
        match = re.fullmatch(r"    (\w+): (.+)", line)
        if match is None:
            continue
        text, comment = _split(match[2])
        kind = re.sub(r" = .*", "", text).strip()
        found.append((match[1], f"`{_json(kind)}`".replace("|", "\\|"), comment.replace("|", "\\|")))
    return found


def _split(text: str) -> tuple[str, str]:
    """The code of a line and the comment behind it."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comment = next((token for token in tokens if token.type == tokenize.COMMENT), None)
    return (text, "") if comment is None else (text[: comment.start[1]], comment.string.lstrip("# "))


def _json(kind: str) -> str:
    """A type of Python as one says it of JSON."""
    kind = re.sub(r"NotRequired\[(.+)\]$", r"\1, may be missing", kind)
    kind = kind.replace("Annotated[Number, Gt(0)]", "Number")
    for python, json in (
        ("Count", "whole number"),
        ("Positive", "whole number"),
        ("Number", "number"),
        ("Interval", "list of number"),
        ("dict[str, Any]", "object"),
        ("str", "text"),
        ("int", "whole number"),
        ("None", "null"),
    ):
        kind = re.sub(rf"(?<!\w){re.escape(python)}(?!\w)", json, kind)
    kind = re.sub(r"(?<!\w)float(?!\w)", "number", re.sub(r"(?<!\w)bool(?!\w)", "true or false", kind))
    kind = kind.replace("Method", " or ".join(f'"{one}"' for one in get_args(Method)))
    kind = re.sub(r"Literal\[([^\]]+)\]", lambda match: match[1].replace(", ", " or "), kind)
    while match := re.search(r"(list|dict)\[(?:text, )?([^\[\]]+)\]", kind):
        inner = f"({match[2]})" if "|" in match[2] else match[2]
        kind = kind.replace(match[0], f"{'list' if match[1] == 'list' else 'object'} of {inner}")
    return kind


if __name__ == "__main__":
    main()
