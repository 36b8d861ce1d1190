"""Define the two failures that a user sees: wrong input (exit 2), and a run that failed (exit 1)."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable

from posenc.core.foreign_names import instead_of_value

SUGGESTS = "did you mean"  # how a hint begins that says what may have been meant
LONGEST_VALUE = 200  # characters printed of a value, which may come from somebody else's file
LONGEST_LINE = 600  # characters of any other line; the list of all encodings has 350
END_OF_LINE = 50  # characters that stay at the end of a line that is cut
LONGEST_PART = 60  # characters of a part of a file name
# of difflib's ratio, for a suggestion. At 0.5 `epochs` was answered with `eps` (0.67), `--encoding` with
# `--config-dir`, and the name of any folder with some corpus; swapped letters (`yran`) give 0.75.
CLOSE_ENOUGH = 0.7
SHORTEST_PART = 3  # letters of a part of a name, for a suggestion
# Parts of torch's messages when memory runs out, which differ by device.
OUT_OF_MEMORY_MESSAGES = ("out of memory", "allocate memory", "not enough memory", "alloc_failed")
PART = re.compile(r"[\W_]+")  # what stands between the parts of a name


def visible(text: object) -> str:
    """Return one line in which unprintable characters (control, direction) are escapes (`\\n`, `\\x1b`)."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(map(_visible_character, line))


def _visible_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def suggestion(meant: object) -> str:
    """Return a hint that names what may have been meant: `did you mean: rope`."""
    return f"{SUGGESTS}: {meant}"


def plural(count: int, noun: str) -> str:
    """Return `1 document`, `2,000 documents`."""
    suffix = "" if count == 1 else "s"
    return f"{count:,} {noun}{suffix}"


def safe_name(text: str, longest: int = LONGEST_PART) -> str:
    """Return a part of a file name: `[A-Za-z0-9._+-]` only, no leading dot, 1 to `longest` characters."""
    allowed = re.sub(r"[^A-Za-z0-9._+-]+", "_", text)
    # A leading dot would hide the file, and a leading dash would be an option to a shell's commands.
    name = allowed.lstrip(".-")[:longest]
    return name or "_"


def says_out_of_memory(error: BaseException) -> bool:
    """Tell by its class or its message whether memory ran out. torch has no exception for it on a CPU."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(text in message for text in OUT_OF_MEMORY_MESSAGES)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def first_few(texts: Iterable[str], most: int) -> str:
    """Return up to `most` texts, and how many more there are: `a, b, and 3 more`."""
    all_texts = list(texts)
    n_hidden = len(all_texts) - most
    named = all_texts[:most]
    if n_hidden > 0:
        named.append(f"and {n_hidden} more")
    return ", ".join(named)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that `word` stands for, ignoring case, or None if nothing is close.

    It is what other tools call so, or a slip of the fingers, or the choice and the word share a whole part:
    `fixed` and `fixed-target`, `bf16-mixed` and `bf16`.
    """
    by_folded = {choice.casefold(): choice for choice in choices}
    # Other tools' names come first: they are known to mean the choice, while letters that are close only may.
    meant = instead_of_value(word, by_folded)
    if meant is not None:
        return by_folded[meant]
    closest = difflib.get_close_matches(word.casefold(), list(by_folded), n=1, cutoff=CLOSE_ENOUGH)
    if closest:
        return by_folded[closest[0]]
    for folded, choice in by_folded.items():
        if _share_a_part(word.casefold(), folded):
            return choice
    return None


def _share_a_part(word: str, choice: str) -> bool:
    """Tell whether one of two names is a whole part of the other: `fixed` of `fixed-target`."""
    if min(len(word), len(choice)) < SHORTEST_PART:
        return False
    return word in PART.split(choice) or choice in PART.split(word)


class UserError(Exception):
    """Report wrong input, before anything is tokenised or written. The exit code is 2."""

    exit_code = 2

    def __init__(
        self, key: str, value: object, problem: str, *, allowed: Iterable[object] | str = (), hint: str = ""
    ) -> None:
        """Keep what was wrong. `allowed` is a text, or the choices, of which the nearest is suggested."""
        super().__init__(key, value, problem)
        self.key = key
        self.value = value
        self.problem = problem
        self.hint = hint
        self.nearest: str | None = None
        if isinstance(allowed, str):
            self.allowed = allowed
        else:
            choices = [str(choice) for choice in allowed]
            self.allowed = ", ".join(choices)
            if value is not None:
                self.nearest = nearest(str(value), choices)

    def within(self, where: str) -> UserError:
        """Add where the error was found, such as a job of a sweep, and return the error itself."""
        self.problem = f"{self.problem} ({where})"
        return self

    def about(self, key: str, value: object) -> UserError:
        """Name the key and the value that the user typed instead, and return the error itself."""
        self.key = key
        self.value = value
        return self

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return the lines to print: key, value and problem, then what is allowed, and hints."""
        subject = _clipped(self.key, LONGEST_VALUE)
        if self.value is not None:
            # as it is written on the command line
            value = str(self.value).lower() if isinstance(self.value, bool) else self.value
            subject += f"={_clipped(value, LONGEST_VALUE)}"
        hints = []
        # Suggestions come first, since what is allowed may take several lines of a terminal.
        if self.nearest is not None:
            hints.append(suggestion(visible(self.nearest)))
        if self.hint.startswith(SUGGESTS):
            hints.append(self.hint)
        if self.allowed:
            hints.append(f"allowed: {visible(self.allowed)}")
        if not self.hint.startswith(SUGGESTS):
            hints.append(self.hint)
        return _screen(f"{subject}: {self.problem}", "\n".join(hints))


class RunError(Exception):
    """Report a failure while running: a damaged checkpoint, a full disk, no network. The exit code is 1."""

    exit_code = 1

    def __init__(self, problem: str, *, hint: str = "") -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(self.text())

    def text(self) -> str:
        """Return the problem and, indented, the hint."""
        return _screen(self.problem, self.hint)


def _clipped(text: object, longest: int = LONGEST_LINE) -> str:
    """Return a visible line; if it is too long, its beginning and its end."""
    line = visible(text)
    if len(line) <= longest:
        return line
    gap = " ... "
    # The end of a path or a list often is what tells it from another one, so that the middle goes.
    return line[: longest - END_OF_LINE - len(gap)] + gap + line[-END_OF_LINE:]


def _screen(problem: str, hint: str) -> str:
    """Return `error: problem`, and below it the lines of the hint, indented."""
    lines = f"error: {problem}".split("\n")
    lines += [f"  {line}" for line in hint.split("\n") if line]
    return "\n".join(map(_clipped, lines))
