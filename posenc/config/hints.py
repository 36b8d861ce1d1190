"""Guess what a user meant by an argument without a value, or by a choice that does not exist."""

from __future__ import annotations

import difflib
import glob
import re
import shlex
from collections.abc import Sequence

from posenc.config.overrides import NAME_OF_RUN, is_group
from posenc.core.errors import nearest, suggestion
from posenc.core.paths import choice_files, conf_dir, exists, expanded, is_file
from posenc.encodings.other_names import hint_at_family, named_elsewhere

# By group: the choice that takes a file, a folder or a name of the hub, and the setting for the path.
CHOICE_AND_PATH = {
    "data": ("files", "data.paths"),
    "tokenizer": ("hf", "tokenizer.path"),
    "subject": ("hf", "subject.path"),
}
# Of difflib's ratio. A bare word may mean anything, and at the 0.7 of other hints `train` was answered with
# `extend=string`, `compare` with `encoding=cope` and `all` with `model=small`.
SLIP = 0.8
RANGE = re.compile(r"(?P<first>\d{1,9})(-|:|\.\.\.?)(?P<last>\d{1,9})")  # `0-2`, `0..2`
MOST_LISTED = 10  # values of a range that are written out
HOW_TO_QUOTE = "no spaces around '='; quote what holds spaces or brackets:\n'eval.lengths=[1x,2x]'"


def hint_at_word(word: str) -> str:
    """Return a hint at what an argument means that cannot be read as KEY=VALUE."""
    key, equals, value = word.partition("=")
    if equals and value and key in CHOICE_AND_PATH:
        return hint_at_choice(key, value)
    if value.startswith("="):  # `encoding==rope`, as a condition is written
        return suggestion(f"{key}={value.lstrip('=')}")
    if equals:
        return HOW_TO_QUOTE
    if is_group(word):
        return f"its value stands behind '=', without spaces: {word}=..."
    meant = _setting_of(word)
    return suggestion(meant) if meant else HOW_TO_QUOTE


def _setting_of(word: str) -> str | None:
    """Return the override that a bare word stands for: a run, a choice, a file or folder."""
    # A run that is gone still has the form of one: its name ends in eight hex digits.
    last_part = word.rpartition("/")[2]
    if is_file(expanded(word) / "config.yaml") or NAME_OF_RUN.fullmatch(last_part):
        return f"run={word}"
    folders = [path.name for path in conf_dir().iterdir() if path.is_dir()]
    groups = sorted(name for name in folders if name != "hydra")
    # Encodings are what is mostly meant, and come first.
    for group in ("encoding", *groups):
        if word in choice_files(group):
            return f"{group}={word}"
    if word.endswith(".py"):
        return f"encoding={word}"
    # A folder that is nothing else is most likely a corpus.
    if exists(word):
        return _by_path("data", word)
    return _similar_choice(word, groups)


def _similar_choice(word: str, groups: Sequence[str]) -> str | None:
    """Return the choice whose name is most like a bare word: `encoding=rope` for `roppe` and for `rotary`."""
    other_name = _encoding_meant(word)
    if other_name is not None:
        return other_name
    for group in ("encoding", *groups):
        similar = difflib.get_close_matches(word.casefold(), choice_files(group), n=1, cutoff=SLIP)
        if similar:
            return f"{group}={similar[0]}"
    return None


def hint_at_several(key: str, value: object, allowed: str) -> str:
    """Return how to write several values, for `0-2` or `[0,1]`, or one value, where a list is needed."""
    if isinstance(value, list) and value and "a list" not in allowed:
        return f"for a sweep: -m {key}={','.join(map(str, value))}"
    if not isinstance(value, str):
        return ""
    if allowed.startswith("a list"):
        return suggestion(f"'{key}=[{value}]'")
    bounds = RANGE.fullmatch(value)
    if bounds is None or not allowed.startswith("a whole number"):
        return ""
    first = int(bounds["first"])
    last = int(bounds["last"])
    if not first < last:
        return ""
    if last - first < MOST_LISTED:
        values = ",".join(map(str, range(first, last + 1)))
        return f"for a sweep: -m {key}={values}"
    return f"for a sweep: -m '{key}=range({first},{last + 1})'"


def hint_at_choice(group: str, value: str) -> str:
    """Return a hint at what was meant by a choice that a group does not have, or how to add a choice."""
    has_similar = nearest(value, choice_files(group)) is not None  # the error itself suggests the similar one
    # A value of `data` can only mean a path: names of data sets on the hub are another setting.
    may_be_hub_name = group != "data" and not has_similar
    if group in CHOICE_AND_PATH and (_looks_like_a_path(value) or may_be_hub_name):
        return suggestion(_by_path(group, value))
    if glob.has_magic(value):
        return f"several of them: -m '{group}=glob({value})'"
    if group == "data":
        return "text of your own: data=files data.paths=FILE_OR_FOLDER"
    if group == "encoding":
        family = hint_at_family(value)
        if family is not None:
            return family
        meant = _encoding_meant(value)
        if meant is None and exists(f"{value}.py"):
            meant = f"encoding={value}.py"
        if meant is not None:
            return suggestion(meant)
        if value in choice_files("extend"):
            return f"it extends a model that is trained: posenc eval run=RUN extend={value}"
    own_yaml = f"--config-dir DIR with its YAML in DIR/{group}/"
    if group == "encoding":
        return f"one of your own: encoding=./FILE.py, or {own_yaml}"
    return f"one of your own needs {own_yaml}"


def _encoding_meant(value: str) -> str | None:
    """Return the choice that another name, or a sum such as `alibi+rope`, stands for."""
    parts = value.split("+")
    if len(parts) > 1 and set(parts) <= set(choice_files("encoding")):
        return f"encoding=sum 'encoding.parts=[{','.join(parts)}]'"
    name = named_elsewhere(value)
    return None if name is None else f"encoding={name}"


def _by_path(group: str, value: str) -> str:
    """Return the overrides that choose a path for a group."""
    choice, key = CHOICE_AND_PATH[group]
    return f"{group}={choice} {shlex.quote(f'{key}={value}')}"


def _looks_like_a_path(value: str) -> bool:
    return "/" in value or value.startswith("~") or exists(value)
