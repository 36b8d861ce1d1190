"""Sort what differs between two observations by kind, and hold it against the list of what is allowed."""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from contents import PROSE_KEYS, Content, is_number

ALLOWED_FILE = Path(__file__).with_name("allowed_differences.yaml")
WORDING = "wording"  # listed, and never a failure: messages may be reworded
SHOWN_OF_A_KIND = 60


@dataclass(frozen=True)
class Difference:
    """One difference: of which command or run, of what kind, where in it, and both values."""

    subject: str
    kind: str  # exit code, numbers, values, keys, files, weights or wording
    where: str
    old: object
    new: object

    def line(self) -> str:
        return f"{self.subject} | {self.where}: {_short(self.old)} -> {_short(self.new)}"


@dataclass(frozen=True)
class Allowed:
    """A rule that lets differences pass: three patterns as of a shell, and the reason."""

    reason: str
    subject: str = "*"
    kind: str = "*"
    where: str = "*"

    def matches(self, difference: Difference) -> bool:
        pairs = (
            (difference.subject, self.subject),
            (difference.kind, self.kind),
            (difference.where, self.where),
        )
        return all(fnmatch.fnmatchcase(text, _escaped(pattern)) for text, pattern in pairs)


def _escaped(pattern: str) -> str:
    """Return a pattern in which only `*` and `?` are special: settings are full of brackets."""
    return pattern.replace("[", "[[]")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:120]} ... {text[-30:]}"


def compare_contents(subject: str, where: str, old: Content, new: Content) -> Iterator[Difference]:
    """Yield what differs between two texts or files, leaf by leaf, or by digest if one is compacted."""
    if old.kind != new.kind:
        yield Difference(subject, "keys", where, old.kind, new.kind)
    elif old.digests or new.digests:
        # A side that is not compacted still has its leaves, and gets its digests here.
        new_digests = new.all_digests()
        for part, old_digest in old.all_digests().items():
            new_digest = new_digests.get(part)
            if old_digest != new_digest:
                yield Difference(subject, part, where, f"digest {old_digest}", f"digest {new_digest}")
    else:
        yield from _compare_leaves(subject, where, old, new)


def _compare_leaves(subject: str, where: str, old: Content, new: Content) -> Iterator[Difference]:
    for key in sorted(old.leaves.keys() | new.leaves.keys()):
        path = f"{where}:{key}" if old.kind != "text" else where
        if key not in new.leaves:
            yield Difference(subject, "keys", path, old.leaves[key], "(absent)")
        elif key not in old.leaves:
            yield Difference(subject, "keys", path, "(absent)", new.leaves[key])
        elif old.leaves[key] != new.leaves[key]:
            kind = _kind_of_leaf(old, key)
            old_leaf = old.leaves[key]
            new_leaf = new.leaves[key]
            # Of a long text only the lines that differ are of interest.
            if kind in (WORDING, "numbers") and isinstance(old_leaf, str) and isinstance(new_leaf, str):
                old_leaf, new_leaf = changed_lines(old_leaf, new_leaf)
            yield Difference(subject, kind, path, old_leaf, new_leaf)


def _kind_of_leaf(content: Content, key: str) -> str:
    if content.kind == "tensors":
        return "weights"
    if content.kind == "text":
        return WORDING if key == "wording" else "numbers"
    if key.endswith(PROSE_KEYS):
        return WORDING
    return "numbers" if is_number(content.leaves[key]) else "values"


def changed_lines(old: str, new: str) -> tuple[str, str]:
    """Return the lines of both texts that the other one does not have; all of it for one line."""
    old_lines, new_lines = Counter(old.splitlines()), Counter(new.splitlines())
    return "\n".join(old_lines - new_lines), "\n".join(new_lines - old_lines)


def read_allowed() -> list[Allowed]:
    """Return the rules of allowed_differences.yaml; an empty file has none."""
    return [Allowed(**rule) for rule in yaml.safe_load(ALLOWED_FILE.read_text()) or []]


def report(differences: Iterable[Difference], allowed: list[Allowed]) -> int:
    """Print the differences by kind; return 1 if some are neither wording nor allowed, else 0."""
    by_reason: dict[str, list[Difference]] = defaultdict(list)
    by_kind: dict[str, list[Difference]] = defaultdict(list)
    for difference in differences:
        rule = next((rule for rule in allowed if rule.matches(difference)), None)
        if rule is None:
            by_kind[difference.kind].append(difference)
        else:
            by_reason[rule.reason].append(difference)
    for reason, group in by_reason.items():
        print(f"\nallowed, {len(group)}: {reason}")
    wording = by_kind.pop(WORDING, [])
    if wording:
        _print_wording(wording)
    for kind, group in sorted(by_kind.items()):
        print(f"\nDIFFERS, {kind}: {len(group)}")
        for difference in group[:SHOWN_OF_A_KIND]:
            print(f"  {difference.line()}")
        if len(group) > SHOWN_OF_A_KIND:
            print(f"  ... and {len(group) - SHOWN_OF_A_KIND} more")
    failures = sum(map(len, by_kind.values()))
    print(f"\n{failures} differences that are not allowed, {len(wording)} of wording")
    return int(failures > 0)


def _print_wording(differences: list[Difference]) -> None:
    """Print every changed wording once, with the number of commands that print it."""
    commands: dict[tuple[object, object], list[str]] = defaultdict(list)
    for difference in differences:
        commands[difference.old, difference.new].append(f"{difference.subject} | {difference.where}")
    print(f"\nreworded: {len(commands)} texts (to be read by a person)")
    for (old, new), subjects in commands.items():
        print(f"  {subjects[0]}" + (f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""))
        for sign, text in (("-", old), ("+", new)):
            for line in str(text).splitlines():
                print(f"    {sign} {line}")
