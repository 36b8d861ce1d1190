"""Run `posenc sample`: continue a prompt from its last T tokens and from all of it, side by side."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.api.loaded_run import LoadedRun, load
from posenc.api.loaded_subject import LoadedSubject
from posenc.config.compose import compose_jobs
from posenc.config.foreign_flags import hint_at_flags
from posenc.config.keys import group_of, key_of
from posenc.config.keys_of_commands import GROUPS_OF_SAMPLED_SUBJECT, KEYS_OF_SAMPLE, KEYS_OF_WRITING
from posenc.config.overrides import parse
from posenc.core.console import write
from posenc.core.errors import UserError, nearest, suggestion, visible
from posenc.data import prepare
from posenc.settings.numbers import check_between, check_whole

WIDTH = 80  # columns
GAP = " | "
NUMBER_KEYS = ("tokens", "temperature", "seed")
# The longest of the default lengths of an evaluation.
LONGEST_PROMPT = 8  # multiples of T, for a prompt taken from a test document
PROMPT_TOKENS = 256  # of such a prompt for a model of transformers, whose T is thousands
TOKENS_OF_SUBJECT = 64  # that it writes
PROMPT_LINES = 3  # lines that are shown of the prompt's end

LoadedModel = LoadedRun | LoadedSubject


@dataclass(frozen=True)
class SampleRequest:
    """Hold what is to be continued, and how."""

    run: str | None = None  # its directory or name
    prompt: str | None = None  # None: the beginning of a test document
    tokens: int | None = None  # to write; None: as many as suit the model
    temperature: float = 0.8
    seed: int = 0
    plugins: tuple[str, ...] = ()


def run_sample(arguments: Sequence[str]) -> None:
    """Print both continuations of KEY=VALUE arguments. Raises UserError; RunError for damaged weights."""
    refuse_flags(arguments)
    if any(group_of(key_of(argument)) == "subject" for argument in arguments):
        lines = _sample_of_subject(arguments)
    else:
        lines = _sample_of_run(arguments)
    write("\n".join([*lines, ""]), sys.stdout)


def _sample_of_run(arguments: Sequence[str]) -> list[str]:
    request = read_request(arguments, KEYS_OF_SAMPLE)
    if request.run is None:
        hint = "run=DIR, or a run's name; posenc runs lists them; or subject=hf"
        raise UserError("run", None, "is needed", hint=hint)
    run = load(request.run, plugins=request.plugins)
    prompt = request.prompt or prompt_of(run)
    # After T tokens the model sees nothing but its own text on the left side.
    tokens = request.tokens or 4 * run.train_length
    cropped = _continued(run, prompt, run.train_length, tokens, request)
    # Both are drawn with the same seed, so that they differ by what the model sees alone.
    whole_text = _continued(run, prompt, None, tokens, request)
    cropped_tokens = min(run.train_length, _count_tokens(run, prompt))
    return page_lines(run, prompt, cropped_tokens, cropped, whole_text)


def _sample_of_subject(arguments: Sequence[str]) -> list[str]:
    """Return the lines of a model of transformers: two columns where the text is longer than T."""
    overrides = [
        argument for argument in arguments if group_of(key_of(argument)) in GROUPS_OF_SAMPLED_SUBJECT
    ]
    rest = [argument for argument in arguments if argument not in overrides]
    request = read_request(rest, KEYS_OF_WRITING)
    tokens = request.tokens or TOKENS_OF_SUBJECT
    (composed,) = compose_jobs("eval", parse(overrides, "eval")).jobs
    subject = LoadedSubject(composed.eval_settings)
    prompt = request.prompt or subject.test_text(PROMPT_TOKENS)
    length = subject.train_length
    whole_text = _continued(subject, prompt, None, tokens, request)
    remaining = length - tokens  # tokens of the prompt that T tokens can hold
    # The whole text fits into T, so that nothing would be cropped: both columns would be the same.
    if _count_tokens(subject, prompt) <= remaining:
        return [*_prompt_lines(subject, prompt), "", *_wrapped(whole_text, WIDTH)]
    cropped = _continued(subject, prompt, length, tokens, request)
    return page_lines(subject, prompt, max(1, remaining), cropped, whole_text)


def _continued(
    model: LoadedModel, prompt: str, context: int | None, tokens: int, request: SampleRequest
) -> str:
    """Return what the model writes after the last `context` tokens of a prompt; None: after all of it."""
    return model.generate(prompt, context, tokens=tokens, temperature=request.temperature, seed=request.seed)


# --- the settings


def refuse_flags(arguments: Sequence[str]) -> None:
    """Raise UserError for a flag: this command takes settings alone."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    if flags:
        flag = flags[0].partition("=")[0]
        hint = hint_at_flags("sample", arguments, flags)
        raise UserError(flag, None, "there is no such option", allowed="--debug, --help", hint=hint)


def read_request(arguments: Sequence[str], keys: Sequence[str]) -> SampleRequest:
    """Return what KEY=VALUE arguments ask for. Raises UserError for other keys than these."""
    values: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals and key not in keys:
            raise UserError(argument, None, "is no KEY=VALUE", hint=suggestion(f"run={argument}"))
        if key not in keys:
            raise _no_such_setting(key, value, keys)
        if not value:
            problem = "is empty" if equals else "has no value"
            raise UserError(key, None, problem, hint=f"{key}=...")
        earlier = values.setdefault(key, value)
        if earlier != value:
            problem = f"stands beside {key}={earlier}, and only one can be chosen"
            raise UserError(key, value, problem, hint="leave out one")
    # Hydra is not asked here: a prompt holds brackets, commas and
    # quotes that its grammar would take apart.
    numbers = {key: _parsed(value) for key, value in values.items() if key in NUMBER_KEYS}
    default = SampleRequest()
    return SampleRequest(
        run=values.get("run"),
        prompt=values.get("prompt"),
        # The number has another default for each kind of model.
        tokens=check_whole("tokens", numbers["tokens"], least=1) if "tokens" in numbers else None,
        temperature=check_between("temperature", numbers.get("temperature", default.temperature), 0, 100),
        seed=check_whole("seed", numbers.get("seed", default.seed), least=0),
        plugins=_plugins_in(values.get("plugins", "")),
    )


def _no_such_setting(key: str, value: str, keys: Sequence[str]) -> UserError:
    """Return the error for a key that is none of these, with the nearest, or with the model that has it."""
    close = nearest(key, keys)
    hint = "" if close is None else suggestion(shlex.quote(f"{close}={value}"))
    if group_of(key) in GROUPS_OF_SAMPLED_SUBJECT:
        hint = "it is for a model of transformers: subject=hf subject.path=..."
    return UserError(key, value, "there is no such setting", allowed=", ".join(keys), hint=hint)


def _parsed(text: str) -> object:
    """Return the number that a text writes, or the text itself if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plugins_in(text: str) -> tuple[str, ...]:
    """Return the plug-ins of `a,b` or `[a,b]`."""
    names = [name.strip() for name in text.strip("[]").split(",")]
    return tuple(name for name in names if name)


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
