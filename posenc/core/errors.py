"""The two kinds of failure a user sees: wrong input (exit 2) and a run that failed (exit 1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from posenc.core.names import visible

LONGEST_VALUE = 200  # characters of a value, which may be a stranger's or a slip
LONGEST_LINE = 600  # of anything else; a list of all encodings has 350


def first_line(error: BaseException) -> str:
    """Of what the error says, or its name."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


class UserError(Exception):
    """The user's input is wrong. Found before data is tokenised and before anything is written; exit 2."""

    exit_code = 2

    def __init__(
        self,
        key: str,
        value: object,
        problem: str,
        *,
        allowed: Iterable[object] | str | None = None,
        hint: str | None = None,
    ) -> None:
        self.key = key
        self.value = value
        self.problem = problem
        self.allowed = allowed if isinstance(allowed, str) or allowed is None else [str(a) for a in allowed]
        choices = self.allowed if isinstance(self.allowed, list) and value is not None else []
        self.nearest = nearest(str(value), choices)
        self.hint = hint
        super().__init__(self.text())

    def within(self, where: str) -> UserError:
        """The same error, saying in which job of a sweep it was found."""
        self.problem = f"{self.problem} ({where})"
        self.args = (self.text(),)
        return self

    def text(self) -> str:
        """One screen: key and value, what is wrong, what is allowed, the nearest valid choice, a way out."""
        value = "" if self.value is None else f"={_clipped(self.value, LONGEST_VALUE)}"
        lines = [f"error: {_clipped(self.key, LONGEST_VALUE)}{value}: {_plain(self.problem)}"]
        if self.allowed is not None:
            allowed = self.allowed if isinstance(self.allowed, str) else ", ".join(self.allowed)
            lines.append(f"  allowed: {_clipped(allowed, LONGEST_LINE)}")
        if self.nearest is not None:
            lines.append(f"  did you mean: {visible(self.nearest)}")
        lines.extend(_indented(self.hint))
        return "\n".join(lines)


class RunError(Exception):
    """Something failed while running: the hub out of reach, a damaged checkpoint, a full disk; exit 1."""

    exit_code = 1

    def __init__(self, problem: str, *, hint: str | None = None) -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(self.text())

    def text(self) -> str:
        lines = [f"error: {_plain(self.problem)}", *_indented(self.hint)]
        return "\n".join(lines)


def _clipped(text: object, most: int) -> str:
    """One line without control characters, its middle left out where it is long."""
    shown = visible(text)
    return shown if len(shown) <= most else f"{shown[: most - 60]} ... {shown[-50:]}"


def _plain(text: str) -> str:
    return "\n".join(_clipped(line, LONGEST_LINE) for line in text.split("\n"))


def _indented(hint: str | None) -> list[str]:
    return [f"  {_clipped(line, LONGEST_LINE)}" for line in (hint or "").split("\n") if line]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word` whatever the case (RoPE is rope), or None when nothing is close."""
    folded = {choice.casefold(): choice for choice in choices}
    found = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.5)
    return folded[found[0]] if found else None
