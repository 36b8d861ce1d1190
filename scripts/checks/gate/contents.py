"""Bring what posenc prints and writes into a form in which two trees can be compared.

A JSON value becomes its leaves: `{"rows[0].label": "rope", ...}`. A text becomes its numbers and the text
around them, so that a reworded sentence and a changed figure are two different findings. Hashes of runs,
times, rates, memory and paths become tags such as `<hash>`: they may differ between two good runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

Leaf = str | int | float | bool | None
Leaves = dict[str, Leaf]

# Keys whose values belong to one process, moment or machine. `code` is the hash of an encoding's file.
VOLATILE_KEYS = frozenset(
    {
        "seconds",
        "wall_seconds",
        "tokens_per_second",
        "mfu",
        "peak_memory_bytes",
        "started",
        "updated",
        "pid",
        "host",
    }
    | {"git_commit", "versions", "settings_hash", "code", "hash", "written", "age", "age_seconds", "memory"}
)
PROSE_KEYS = (".description", ".hint", ".message", ".reason")  # values that may be reworded
LONG_ARRAY = 16  # longer arrays of numbers are stored as their digest
NUMBER = re.compile(r"[-+−]?\d+(?:,\d{3})+(?:\.\d+)?|[-+−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
REPLACEMENTS = (
    (re.compile(r"\b[0-9a-f]{40,64}\b"), "<digest>"),
    (re.compile(r"(-s\d+-)[0-9a-f]{8}\b"), r"\1<hash>"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8}\b"), "<hash>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([+-]\d\d:\d\d)?"), "<time>"),
    (re.compile(r"\b\d+:\d\d(:\d\d)?\b"), "<duration>"),
    (re.compile(r"[\d.,]+k?( tokens/s| tok/s|/s)\b"), r"<rate>\1"),
    (re.compile(r"\b[\d.,]+(-[\d.,]+)? ?(ms|s|min|h|seconds|minutes)\b"), "<duration>"),
    (re.compile(r"\b[\d.,]+ ?(kB|MB|GB|MiB|GiB)\b"), "<memory>"),
    (re.compile(r"\b\d+\.\d+\.\d+(\.\w+)?(\+\w+)?"), "<version>"),
    (re.compile(r"\bpid \d+"), "pid <pid>"),
)
# Progress, load, and what machine this is.
CHANCE_LINE = re.compile(
    r"^.*(\bleft *|other processes keep .*|threads: \d+ on \d+ cores.*|\bPython: \d.*)$\n?", re.MULTILINE
)
DIGEST = re.compile(r"[0-9a-f]{64}")  # as a whole value: of a corpus, which must stay
FILE_HASH = re.compile(r"-[0-9a-f]{8}(?=[./]|$)")


@dataclass(frozen=True)
class Content:
    """A text or a file: its kind, and either its leaves or, once compacted, their digests."""

    kind: str  # json, text, tensors, empty, or unread
    leaves: Leaves = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def compacted(self, most_characters: int) -> Content:
        """Return it with digests instead of leaves, if the leaves take more than so many characters."""
        if not self.leaves or len(json.dumps(self.leaves)) <= most_characters:
            return self
        return Content(self.kind, digests=self.all_digests())

    def all_digests(self) -> dict[str, str]:
        """Return the digests of its parts: what a comparison calls the kind of a difference."""
        if self.digests:
            return self.digests
        if not self.leaves:
            return {}
        if self.kind == "text":
            return {part: digest(self.leaves[part]) for part in ("numbers", "wording")}
        if self.kind == "tensors":
            return {"weights": digest(self.leaves)}
        numbers = {key: value for key, value in self.leaves.items() if is_number(value)}
        prose = {key: value for key, value in self.leaves.items() if key.endswith(PROSE_KEYS)}
        values = {key: self.leaves[key] for key in self.leaves.keys() - numbers.keys() - prose.keys()}
        return {
            "keys": digest(sorted(self.leaves)),
            "numbers": digest(numbers),
            "values": digest(values),
            "wording": digest(prose),
        }

    def stored(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value}


UNREAD = Content("unread")  # a picture, or what depends on the moment: only that it is there


def digest(value: object) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a value's JSON (floats keep every bit)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def is_number(leaf: Leaf) -> bool:
    """Tell whether a leaf is a number, or the digest that stands for an array of numbers."""
    if isinstance(leaf, str):
        return leaf.startswith("<numbers ")
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)


def normalised(text: str, folders: dict[str, str]) -> str:
    """Return the text with tags for hashes, times and the given folders (path -> tag)."""
    for path, tag in folders.items():
        text = text.replace(path, tag)
    text = CHANCE_LINE.sub("", text.replace("\r", "\n"))
    for pattern, tag in REPLACEMENTS:
        text = pattern.sub(tag, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def numbers_in(text: str) -> list[str]:
    """Return the numbers of a text in their order."""
    return [number.replace("−", "-").replace(",", "") for number in NUMBER.findall(text)]


def text_content(text: str, folders: dict[str, str]) -> Content:
    """Return the numbers of a text, and the text with a sign where each of them stood."""
    plain = normalised(text, folders)
    if not plain.strip():
        return Content("empty")
    words = NUMBER.sub("#", plain)
    return Content("text", {"numbers": " ".join(numbers_in(plain)), "wording": words})


def flatten(value: Any, folders: dict[str, str], path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield (path, leaf) for every scalar below a JSON value; volatile keys are left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in VOLATILE_KEYS:
                yield from flatten(item, folders, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and len(value) > LONG_ARRAY and all(map(_is_plain_number, value)):
        yield path, f"<numbers {len(value)} {digest(value)}>"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from flatten(item, folders, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value if DIGEST.fullmatch(value) else normalised(value, folders)
    else:
        yield path, value


def _is_plain_number(value: object) -> bool:
    return value is None or is_number(value)


def json_content(value: Any, folders: dict[str, str]) -> Content:
    return Content("json", dict(flatten(value, folders)))


def stream_content(text: str, folders: dict[str, str]) -> Content:
    """Return stdout or stderr: as JSON where it is one JSON document, else as text."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return json_content(json.loads(text), folders)
        except ValueError:
            pass
    return text_content(text, folders)


def file_content(path: Path, folders: dict[str, str]) -> Content:
    """Return what a file holds, by its suffix; of pictures and locks only that they are there."""
    suffix = path.suffix
    if path.name.endswith((".holder", ".lock")):
        return Content("empty")
    if suffix == ".safetensors":
        return Content("tensors", dict(tensor_digests(path)))
    if suffix in (".png", ".pdf", ".bin"):
        return UNREAD
    if path.name == "manifest.json":  # digests of files that hold times
        return json_content(dict.fromkeys(json.loads(path.read_text())), folders)
    text = gzip.decompress(path.read_bytes()).decode() if suffix == ".gz" else path.read_text()
    if suffix in (".jsonl", ".gz"):
        return json_content([json.loads(line) for line in text.splitlines()], folders)
    if suffix == ".json":
        return json_content(json.loads(text), folders)
    if suffix == ".yaml":
        return json_content(yaml.safe_load(text), folders)
    return text_content(text, folders)


def file_label(path: Path) -> str:
    """Return a path with `-<hash>` where the names of folders and files end in eight hexadecimal digits."""
    return FILE_HASH.sub("-<hash>", path.as_posix())


def tensor_digests(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, dtype, shape and SHA-256 of the bytes) of every tensor of a .safetensors file.

    The format: 8 bytes with the length of a JSON header, the header, then the tensors' bytes.
    """
    stored = path.read_bytes()
    (header_length,) = struct.unpack("<Q", stored[:8])
    header = json.loads(stored[8 : 8 + header_length])
    start = 8 + header_length
    for name, about in sorted(header.items()):
        if name == "__metadata__":
            continue
        first, end = about["data_offsets"]
        content = hashlib.sha256(stored[start + first : start + end]).hexdigest()[:32]
        yield name, f"{about['dtype']} {about['shape']} {content}"
