"""`posenc sample`: one prompt continued with the text cropped to T and with all of it, side by side."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from posenc.api.jobs import LoadedRun, load
from posenc.core.errors import UserError, visible
from posenc.data import prepare
from posenc.report.terminal import write

WIDTH = 80  # columns
GAP = " | "
KEYS = ("run", "prompt", "tokens", "temperature", "seed", "plugins")
LONGEST = 8  # of a prompt that is taken from a test document, in multiples of T
SHOWN = 3  # lines of the prompt's end


def run_sample(words: Sequence[str]) -> None:
    """Print both continuations of KEY=VALUE words. Raises UserError; RunError for damaged weights."""
    given: dict[str, Any] = {}
    for word in words:
        key, has_value, value = word.partition("=")
        if key not in KEYS:
            raise UserError("KEY", key, "there is no such setting", allowed=KEYS)
        if not value:
            raise UserError(key, None, "is empty" if has_value else "has no value", hint=f"{key}=...")
        given[key] = value if key in ("run", "prompt") else _value(key, value)
    if "run" not in given:
        raise UserError("run", None, "is needed", hint="run=DIR, or a run's name; posenc runs lists them")
    run = load(given.pop("run"), plugins=given.pop("plugins", ()))
    length = run.train_length
    prompt = given.pop("prompt", None) or _prompt_of(run)
    tokens = len(run.tokenizer.encode(prompt))
    given = {"tokens": 4 * length, **given}
    sides = [run.generate(prompt, context, **given) for context in (length, None)]
    write("\n".join([*_page(run, prompt, tokens, sides), ""]), sys.stdout)


def _value(key: str, text: str) -> Any:
    if key == "plugins":
        return [part.strip() for part in text.strip("[]").split(",") if part.strip()]
    with suppress(ValueError):
        if type(found := json.loads(text)) in (int, float):
            return found
    raise UserError(key, text, "is not a number")


def _prompt_of(run: LoadedRun) -> str:
    """Return the beginning of the longest test document, 8T tokens of it."""
    store = prepare(run.config["data"], run.config["tokenizer"])
    sizes = store.sizes["test"]
    longest = max(range(len(sizes)), key=lambda i: sizes[i])
    ids = store.document("test", longest)[: LONGEST * run.train_length]
    return run.tokenizer.decode(int(one) for one in ids)


def _page(run: LoadedRun, prompt: str, tokens: int, sides: Sequence[str]) -> list[str]:
    column = (WIDTH - len(GAP)) // 2
    length = run.train_length
    heads = [
        f"the last {min(length, tokens)} tokens (T = {length})",
        f"all {tokens} tokens, and what follows",
    ]
    columns = [[head, "-" * column, *_wrapped(side, column)] for head, side in zip(heads, sides, strict=True)]
    rows = itertools.zip_longest(*columns, fillvalue="")
    ending = _wrapped(prompt, WIDTH - 2)[-SHOWN:]
    told = textwrap.wrap(f"{visible(run.name)}, given the end of a text of {tokens} tokens:", WIDTH)
    beside = [f"{left:<{column}}{GAP}{right}".rstrip() for left, right in rows]
    return [*told, *(f"  {line}" for line in ending), "", *beside]


def _wrapped(text: str, width: int) -> list[str]:
    """Return lines of a text; its own line ends stay, other control characters are escapes."""
    lines = [visible(line.expandtabs(4)) for line in text.split("\n")]
    return [line[i : i + width] for line in lines for i in range(0, max(1, len(line)), width)]
