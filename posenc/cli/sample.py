"""Run `posenc sample`: continue a prompt from its last T tokens and from all of it, side by side."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from posenc.api.loaded_run import LoadedRun, load
from posenc.api.loaded_subject import LoadedSubject
from posenc.config.compose import compose_jobs
from posenc.config.keys import group_of, key_of
from posenc.config.keys_of_commands import GROUPS_OF_SAMPLED_SUBJECT, KEYS_OF_SAMPLE, KEYS_OF_WRITING
from posenc.config.overrides import parse
from posenc.core.console import write
from posenc.core.errors import UserError, suggestion, visible
from posenc.data import prepare

WIDTH = 80  # columns
GAP = " | "
TEXT_KEYS = ("run", "prompt")
# The longest of the default lengths of an evaluation.
LONGEST_PROMPT = 8  # multiples of T, for a prompt taken from a test document
PROMPT_TOKENS = 256  # of such a prompt for a model of transformers, whose T is thousands
TOKENS_OF_SUBJECT = 64  # that it writes
PROMPT_LINES = 3  # lines that are shown of the prompt's end

LoadedModel = LoadedRun | LoadedSubject


def run_sample(arguments: Sequence[str]) -> None:
    """Print both continuations of KEY=VALUE arguments. Raises UserError; RunError for damaged weights."""
    if any(group_of(key_of(argument)) == "subject" for argument in arguments):
        lines = _sample_of_subject(arguments)
    else:
        lines = _sample_of_run(arguments)
    write("\n".join([*lines, ""]), sys.stdout)


def _sample_of_run(arguments: Sequence[str]) -> list[str]:
    settings = read_settings(arguments, KEYS_OF_SAMPLE)
    if "run" not in settings:
        hint = "run=DIR, or a run's name; posenc runs lists them; or subject=hf"
        raise UserError("run", None, "is needed", hint=hint)
    run = load(settings.pop("run"), plugins=settings.pop("plugins", ()))
    prompt = settings.pop("prompt", None) or prompt_of(run)
    # After T tokens the model sees nothing but its own text on the left side.
    settings.setdefault("tokens", 4 * run.train_length)
    cropped = run.generate(prompt, run.train_length, **settings)
    # Both are drawn with the same seed, so that they differ by what the model sees alone.
    whole_text = run.generate(prompt, None, **settings)
    cropped_tokens = min(run.train_length, _count_tokens(run, prompt))
    return page_lines(run, prompt, cropped_tokens, cropped, whole_text)


def _sample_of_subject(arguments: Sequence[str]) -> list[str]:
    """Return the lines of a model of transformers: two columns where the text is longer than T."""
    overrides = [
        argument for argument in arguments if group_of(key_of(argument)) in GROUPS_OF_SAMPLED_SUBJECT
    ]
    rest = [argument for argument in arguments if argument not in overrides]
    settings = {"tokens": TOKENS_OF_SUBJECT, **read_settings(rest, KEYS_OF_WRITING)}
    (composed,) = compose_jobs("eval", parse(overrides, "eval")).jobs
    subject = LoadedSubject(composed.eval_settings)
    prompt = settings.pop("prompt", None) or subject.test_text(PROMPT_TOKENS)
    length = subject.train_length
    whole_text = subject.generate(prompt, None, **settings)
    remaining = length - int(settings["tokens"])  # tokens of the prompt that T tokens can hold
    # The whole text fits into T, so that nothing would be cropped: both columns would be the same.
    if _count_tokens(subject, prompt) <= remaining:
        return [*_prompt_lines(subject, prompt), "", *_wrapped(whole_text, WIDTH)]
    cropped = subject.generate(prompt, length, **settings)
    return page_lines(subject, prompt, max(1, remaining), cropped, whole_text)


def read_settings(arguments: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """Return the values by their keys. Raises UserError."""
    settings: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals and key not in keys:
            raise UserError(argument, None, "is no KEY=VALUE", hint=suggestion(f"run={argument}"))
        if key not in keys:
            raise UserError("KEY", key, "there is no such setting", allowed=keys)
        if not value:
            problem = "is empty" if equals else "has no value"
            raise UserError(key, None, problem, hint=f"{key}=...")
        # Hydra is not asked here: a prompt holds brackets, commas and
        # quotes that its grammar would take apart.
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
    if store.task is not None:
        raise UserError("prompt", None, "is needed: a task has no documents", hint="prompt='bdac>'")
    sizes = store.sizes["test"]
    longest = max(range(len(sizes)), key=lambda document: sizes[document])
    tokens = store.document("test", longest)[: LONGEST_PROMPT * run.train_length]
    return run.tokenizer.decode(int(token) for token in tokens)


def page_lines(
    model: LoadedModel, prompt: str, cropped_tokens: int, cropped: str, whole_text: str
) -> list[str]:
    """Return the end of the prompt, and below it the two continuations side by side.

    `cropped` is what follows the last `cropped_tokens` of the prompt.
    """
    column = (WIDTH - len(GAP)) // 2
    left_head = f"the last {cropped_tokens} tokens (T = {model.train_length})"
    left = [left_head, "-" * column, *_wrapped(cropped, column)]
    right_head = f"all {_count_tokens(model, prompt)} tokens, and what follows"
    right = [right_head, "-" * column, *_wrapped(whole_text, column)]
    pairs = itertools.zip_longest(left, right, fillvalue="")
    return [
        *_prompt_lines(model, prompt),
        "",
        *(f"{left_line:<{column}}{GAP}{right_line}".rstrip() for left_line, right_line in pairs),
    ]


def _count_tokens(model: LoadedModel, text: str) -> int:
    return len(model.tokenizer.encode(text))


def _prompt_lines(model: LoadedModel, prompt: str) -> list[str]:
    """Return the title and the end of the prompt."""
    title = f"{visible(model.name)}, given the end of a text of {_count_tokens(model, prompt)} tokens:"
    # The end is what both continuations follow.
    prompt_end = _wrapped(prompt, WIDTH - 2)[-PROMPT_LINES:]
    return [*textwrap.wrap(title, WIDTH), *(f"  {line}" for line in prompt_end)]


def _wrapped(text: str, width: int) -> list[str]:
    """Return lines of a text; its own line ends stay, other control characters are escapes."""
    lines = []
    for paragraph in text.split("\n"):
        # What a model writes may hold control characters, which a terminal would obey.
        line = visible(paragraph.expandtabs(4))
        starts = range(0, max(1, len(line)), width)
        # textwrap would join lines and drop spaces, and code is read by both.
        lines += [line[start : start + width] for start in starts]
    return lines
