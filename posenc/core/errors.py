"""The two kinds of failure a user sees: wrong input (exit 2) and a run that failed (exit 1)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LONGEST_VALUE = 200  # characters printed of a value, which may be a stranger's or a slip
LONGEST_LINE = 600  # of any other line; the list of all encodings has 350


def visible(text: object) -> str:
    """Return one line in which unprintable characters (control, direction) are escapes (`\\n`, `\\x1b`)."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def plural(count: int, noun: str) -> str:
    """Return `1 document`, `2,000 documents`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def safe_name(text: str) -> str:
    """Return a part of a file name: `[A-Za-z0-9._+-]` only, no leading dot, 1 to 60 characters."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text).lstrip(".-")[:60] or "_"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most like `word`, ignoring case, or None if nothing is close."""
    folded = {choice.casefold(): choice for choice in choices}
    found = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.5)
    return folded[found[0]] if found else None


class UserError(Exception):
    """The user's input is wrong: found before anything is tokenised or written; exit 2."""

    exit_code = 2

    def __init__(
        self, key: str, value: object, problem: str, *, allowed: Iterable[object] | str = (), hint: str = ""
    ) -> None:
        self.key, self.value, self.problem, self.hint = key, value, problem, hint
        choices = [] if isinstance(allowed, str) else [str(choice) for choice in allowed]
        self.allowed = ", ".join(choices) or str(allowed or "")
        self.nearest = None if value is None else nearest(str(value), choices)
        super().__init__(self.text())

    def within(self, where: str) -> UserError:
        """Return this error with the job of a sweep that it was found in."""
        self.problem = f"{self.problem} ({where})"
        return self

    def __str__(self) -> str:
        return self.text()  # a hint may have been added

    def text(self) -> str:
        """Return one screen: key, value and problem; what is allowed; the nearest valid choice; a hint."""
        value = "" if self.value is None else f"={_clipped(self.value, LONGEST_VALUE)}"
        problem = f"{_clipped(self.key, LONGEST_VALUE)}{value}: {self.problem}"
        allowed = f"allowed: {visible(self.allowed)}" if self.allowed else ""
        close = f"did you mean: {visible(self.nearest)}" if self.nearest is not None else ""
        return _screen(problem, f"{allowed}\n{close}\n{self.hint}")


class RunError(Exception):
    """Something failed while running: a damaged checkpoint, a full disk, no network; exit 1."""

    exit_code = 1

    def __init__(self, problem: str, *, hint: str = "") -> None:
        self.problem, self.hint = problem, hint
        super().__init__(self.text())

    def text(self) -> str:
        """Return the problem and, indented, the hint."""
        return _screen(self.problem, self.hint)


def _clipped(text: object, most: int = LONGEST_LINE) -> str:
    shown = visible(text)
    return shown if len(shown) <= most else f"{shown[: most - 60]} ... {shown[-50:]}"


def _screen(problem: str, hint: str) -> str:
    lines = [f"error: {problem}", *(f"  {line}" for line in hint.split("\n") if line)]
    return "\n".join(map(_clipped, "\n".join(lines).split("\n")))
