"""Run `posenc sample`: continue a prompt from its last T tokens and from all of it, side by side."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from posenc.api.loaded_run import LoadedRun, load
from posenc.core.errors import UserError, visible
from posenc.data import prepare
from posenc.report.terminal import write

WIDTH = 80  # columns
GAP = " | "
KEYS = ("run", "prompt", "tokens", "temperature", "seed", "plugins")
TEXT_KEYS = ("run", "prompt")
LONGEST_PROMPT = 8  # multiples of T, for a prompt taken from a test document
PROMPT_LINES = 3  # lines that are shown of the prompt's end


def run_sample(arguments: Sequence[str]) -> None:
    """Print both continuations of KEY=VALUE arguments. Raises UserError; RunError for damaged weights."""
    settings = read_settings(arguments)
    if "run" not in settings:
        raise UserError("run", None, "is needed", hint="run=DIR, or a run's name; posenc runs lists them")
    run = load(settings.pop("run"), plugins=settings.pop("plugins", ()))
    prompt = settings.pop("prompt", None) or prompt_of(run)
    settings.setdefault("tokens", 4 * run.train_length)
    cropped = run.generate(prompt, run.train_length, **settings)
    whole_text = run.generate(prompt, None, **settings)
    write("\n".join([*page_lines(run, prompt, cropped, whole_text), ""]), sys.stdout)


def read_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values by their keys. Raises UserError."""
    settings: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals and key not in KEYS:
            raise UserError(argument, None, "is no KEY=VALUE", hint=f"did you mean: run={argument}")
        if key not in KEYS:
            raise UserError("KEY", key, "there is no such setting", allowed=KEYS)
        if not value:
            raise UserError(key, None, "is empty" if equals else "has no value", hint=f"{key}=...")
        settings[key] = value if key in TEXT_KEYS else _parse(key, value)
    return settings


def _parse(key: str, text: str) -> Any:
    """Return the list of plug-ins, or the number. Raises UserError."""
    if key == "plugins":
        names = text.strip("[]").split(",")
        return [name.strip() for name in names if name.strip()]
    try:
        number = json.loads(text)
    except ValueError:
        number = None
    if type(number) not in (int, float):  # a bool is an int, too
        raise UserError(key, text, "is not a number")
    return number


def prompt_of(run: LoadedRun) -> str:
    """Return the beginning of the longest test document, 8T tokens of it."""
    settings = run.run.settings
    assert settings is not None  # a run that cannot be read was refused
    store = prepare(settings.data, settings.tokenizer)
    sizes = store.sizes["test"]
    longest = max(range(len(sizes)), key=lambda document: sizes[document])
    tokens = store.document("test", longest)[: LONGEST_PROMPT * run.train_length]
    return run.tokenizer.decode(int(token) for token in tokens)


def page_lines(run: LoadedRun, prompt: str, cropped: str, whole_text: str) -> list[str]:
    """Return the end of the prompt, and below it the two continuations side by side."""
    length = run.train_length
    tokens = len(run.tokenizer.encode(prompt))
    title = f"{visible(run.name)}, given the end of a text of {tokens} tokens:"
    prompt_end = _wrapped(prompt, WIDTH - 2)[-PROMPT_LINES:]
    column = (WIDTH - len(GAP)) // 2
    left = [f"the last {min(length, tokens)} tokens (T = {length})", "-" * column]
    right = [f"all {tokens} tokens, and what follows", "-" * column]
    left += _wrapped(cropped, column)
    right += _wrapped(whole_text, column)
    pairs = itertools.zip_longest(left, right, fillvalue="")
    return [
        *textwrap.wrap(title, WIDTH),
        *(f"  {line}" for line in prompt_end),
        "",
        *(f"{left_line:<{column}}{GAP}{right_line}".rstrip() for left_line, right_line in pairs),
    ]


def _wrapped(text: str, width: int) -> list[str]:
    """Return lines of a text; its own line ends stay, other control characters are escapes."""
    lines = []
    for paragraph in text.split("\n"):
        line = visible(paragraph.expandtabs(4))
        starts = range(0, max(1, len(line)), width)
        lines += [line[start : start + width] for start in starts]
    return lines
