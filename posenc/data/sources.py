"""From the settings of the `data` group to documents: installed code, never imported, and own files."""

from __future__ import annotations

import glob
import gzip
import importlib.util
import json
import os
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError, nearest, plural, visible
from posenc.core.paths import expanded, is_folder
from posenc.core.signature import check_arguments
from posenc.data import hub
from posenc.data.documents import Document, Notes, sections, split_of

OWN_KEYS = {"name", "source", "split", "plant"}
# what a folder is searched for; other files are named or globbed
FOLDER_SUFFIXES = (".txt", ".md", ".gz", ".jsonl")
BOM = b"\xef\xbb\xbf"


def read_package(notes: Notes, /, *, package: str, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of an installed package; ids are paths inside it. Raises UserError."""
    # the parents of a dotted name would be imported by the search itself
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        hint = "the name as in `import NAME`, without dots; install it with: python -m pip install NAME"
        raise UserError("data.package", package, "is not an installed Python package", hint=hint)
    return _read_tree(Path(spec.submodule_search_locations[0]), exclude, notes)


def read_stdlib(notes: Notes, /, *, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of the running Python's own library; ids are paths inside it."""
    return _read_tree(Path(sysconfig.get_paths()["stdlib"]), exclude, notes)


def read_python_packages(notes: Notes, /, *, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of `site-packages`; equal texts are kept once, under the id that sorts first."""
    found = _read_tree(Path(sysconfig.get_paths()["purelib"]), exclude, notes)
    # by id backwards: of equal texts the last one put in stays
    return list({d.text: d for d in sorted(found, key=lambda one: one.id, reverse=True)}.values())


def _read_tree(root: Path, exclude: list[str], notes: Notes) -> list[Document]:
    """Return the non-empty UTF-8 `.py` files below `root`; a `*` in `exclude` crosses slashes."""

    def wanted(path: Path, end: str = "") -> bool:
        name = f"/{path.relative_to(root).as_posix()}{end}"
        return not any(fnmatchcase(name, pattern) for pattern in exclude)

    found = []
    for here, folders, names in os.walk(root):
        folders[:] = [name for name in folders if wanted(Path(here, name), "/")]
        for path in (Path(here, name) for name in names if name.endswith(".py")):
            if not wanted(path):
                continue
            try:
                text = path.read_bytes()
                text.decode("utf-8")
            except (OSError, UnicodeDecodeError) as error:  # Latin-1 does occur
                notes.not_read["not UTF-8" if isinstance(error, UnicodeDecodeError) else "unreadable"] += 1
                continue
            if text:
                found.append(Document(path.relative_to(root).as_posix(), text, None))
    return found


# --- `source: files`: folders and globs of plain text, gzip and JSON lines


def read_files(
    notes: Notes, /, *, paths: str | list[str], text_field: str, separator: str | None = None
) -> list[Document]:
    """Return one document a file, or a line of a `.jsonl`; ids are paths below what all `paths` share.

    So a corpus keeps its ids, and with them its fingerprint and splits, when its folder moves. A single file
    is cut into documents; with `separator` every file is. What is no UTF-8 text is noted. Raises UserError
    when something is missing or not what its suffix says, or where there is no text at all.
    """
    given = [paths] if isinstance(paths, str) else paths
    if not given or not all(path.strip() for path in given):  # a variable of the shell that is not set
        raise UserError("data.paths", None, "is empty", hint="data.paths=FILE, a folder or a glob")
    if separator == "":
        raise UserError("data.separator", "", "is empty", hint="data.separator=null sets none")
    try:
        found = [_expand(path, notes) for path in given]
        base = Path(os.path.commonpath([root for root, _ in found]))
        contents = {file: _content(file, notes) for file in sorted({f for _, files in found for f in files})}
    except OSError as error:
        raise UserError("data.paths", error.filename, f"cannot be read ({error.strerror})") from error
    notes.not_read["empty"] += sum(text is not None and not text.strip() for text in contents.values())
    texts = {file: text for file, text in contents.items() if text and text.strip()}
    if not texts:
        read = f"of folders {', '.join(FOLDER_SUFFIXES)} are read"
        hint = f"{read}; others by a glob: data.paths='DIR/**/*.rst'"
        convert = "convert what is not UTF-8: iconv -f LATIN1 -t UTF-8 FILE > NEW"
        hint = "\n".join([*notes.text(), *([convert] if notes.not_read["not UTF-8"] else []), hint])
        shown = [re.sub(r"\[(.)\]", r"\1", path) for path in given]  # as they were before glob.escape
        raise UserError("data.paths", ", ".join(shown), "no text was found there", hint=hint)
    mark = None if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t").encode()
    if mark and not any(mark in text for text in texts.values()):
        raise UserError("data.separator", separator, "does not occur in the text")
    documents: list[Document] = []
    for file, text in texts.items():
        name = file.relative_to(base).as_posix()
        if file.name.lower().removesuffix(".gz").endswith(".jsonl"):
            documents += _rows(file, name, text, text_field)
        elif mark and mark in text:
            documents += _parts(name, text.split(mark))
        elif mark is None and len(texts) == 1:
            is_markdown = file.name.lower().removesuffix(".gz").endswith(".md")
            pieces, how = sections(text.decode(), markdown=is_markdown)
            notes.lines.append(f"{visible(name)} is {plural(len(pieces), 'document')}, {how}")
            documents += _parts(name, [piece.encode() for piece in pieces])
        else:
            documents.append(Document(name, text, None))
    if mark is not None:
        notes.lines.append(f"cut at data.separator: {plural(len(documents), 'document')}")
    return documents


def _expand(given: str, notes: Notes) -> tuple[Path, list[Path]]:
    """Return the folder that ids of this path are relative to, and its files."""
    path = Path(os.path.abspath(os.path.expanduser(given)))  # noqa: PTH100, PTH111 (resolve() follows links)
    root, hits = path, [path]
    if path.is_file():
        root = path.parent
    elif not path.is_dir() and glob.has_magic(given):
        # the part that exists stays outside the pattern: folders may hold brackets of their own
        rest: list[str] = []
        while not os.path.lexists(root):
            root, rest = root.parent, [root.name, *rest]
        hits = [root / hit for hit in glob.glob(os.path.join(*rest), root_dir=root, recursive=True)]  # noqa: PTH118, PTH207
    elif not path.is_dir():
        close = nearest(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        hint = f"did you mean: {path.parent / close}" if close else ""
        raise UserError("data.paths", given, "there is no such file or folder", hint=hint)
    return root, [file for hit in hits for file in ([hit] if hit.is_file() else _in_folder(hit, notes))]


def _in_folder(folder: Path, notes: Notes) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for here, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for file in (Path(here, name) for name in names if not name.startswith(".")):
            if file.suffix.lower() not in FOLDER_SUFFIXES:
                notes.not_read[visible(file.suffix.lower()) or "without ending"] += 1
            elif file.is_file():
                yield file


def _parts(name: str, pieces: list[bytes]) -> list[Document]:
    whole = [piece for piece in pieces if piece.strip()]
    return [Document(f"{name}/{number:08d}", piece, None) for number, piece in enumerate(whole, start=1)]


def _rows(file: Path, name: str, content: bytes, text_field: str) -> list[Document]:
    documents = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError("data.paths", where, f"this line is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise UserError("data.paths", where, "this line is not a JSON object")
        if not isinstance(row.get(text_field), str):
            raise UserError("data.text_field", text_field, f"there is no such text at {where}", allowed=row)
        documents.append(Document(f"{name}:{number:08d}", row[text_field].encode("utf-8", "replace"), None))
    return documents


def _content(file: Path, notes: Notes) -> bytes | None:
    """Return a file's text without compression and byte-order mark; None where it is no text."""
    try:
        with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as opened:
            content: bytes = opened.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError("data.paths", file, f"is not a whole gzip file ({error})") from error
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        content = b"\0"
    if b"\0" in content:  # UTF-16 may be valid UTF-8, with zeros
        notes.not_read["not UTF-8"] += 1
        return None
    return content.removeprefix(BOM)


# --- Which source, and its documents with their splits


# What reads a corpus, from notes to fill in and the settings, keyword-only and typed
SOURCES: dict[str, Callable[..., Iterable[Document]]] = {
    "files": read_files,
    "hub": hub.read,
    "package": read_package,
    "python_packages": read_python_packages,
    "stdlib": read_stdlib,
    "stream": hub.stream,
}


def check_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the source, checked without reading anything. Raises UserError."""
    source = data.get("source")
    if source not in SOURCES:
        raise UserError("data.source", source, "there is no such source", allowed=list(SOURCES))
    given = {key: value for key, value in data.items() if key not in OWN_KEYS}
    for key in (key for key, value in given.items() if value == "???"):
        raise UserError(f"data.{key}", None, "must be given", hint=f"data.{key}=...")
    arguments = check_arguments(SOURCES[source], given, "data")
    shares = data.get("split")
    if is_streamed(data):
        if shares is not None:
            raise UserError("data.split", shares, "this corpus comes with splits of its own")
        hub.check(arguments)
    elif not (
        isinstance(shares, Mapping)
        and set(shares) == {"validation", "test"}
        and all(type(share) is float and share > 0 for share in shares.values())
        and sum(shares.values()) < 1
    ):
        allowed = "{validation: SHARE, test: SHARE}, both above 0, with a sum below 1"
        raise UserError("data.split", shares, "cannot be used", allowed=allowed)
    return arguments


def is_streamed(data: Mapping[str, Any]) -> bool:
    """Return whether the documents come over the network where they are not cached."""
    return data.get("source") in ("hub", "stream")


def pinned_identity(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what identifies the text without reading it; None where only its fingerprint can."""
    arguments = check_data(data)
    return hub.pinned_identity(arguments) if is_streamed(data) else None


def absolute_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with local paths made absolute, so that they mean the same from another folder."""
    paths, repository = data.get("paths"), data.get("repository")
    if isinstance(paths, str):
        return {**data, "paths": str(expanded(paths).absolute())}
    if isinstance(paths, list):
        return {**data, "paths": [str(expanded(path).absolute()) for path in paths]}
    if isinstance(repository, str) and is_folder(repository):
        return {**data, "repository": str(expanded(repository).absolute())}
    return dict(data)


def read_documents(data: Mapping[str, Any], notes: Notes) -> list[Document]:
    """Return all documents of a corpus that hold more than white space, each with its split, by id."""
    arguments = check_data(data)
    every = sorted(SOURCES[data["source"]](notes, **arguments), key=lambda document: document.id)
    documents = [d for d in every if d.text and not d.text.decode().isspace()]
    notes.not_read["empty"] += len(every) - len(documents)
    return documents if is_streamed(data) else _split(documents, data["split"], notes)


def _split(documents: list[Document], shares: Mapping[str, float], notes: Notes) -> list[Document]:
    """Return the documents, each with the split of the first one that has its text."""
    own, first = [split_of(d.id, shares) for d in documents], dict[bytes, str]()
    splits = [first.setdefault(d.text, split) for d, split in zip(documents, own, strict=True)]
    if moved := sum(a != b for a, b in zip(own, splits, strict=True)):
        what = plural(moved, "document")
        notes.lines.append(f"copies across splits: {what} moved to the split of the first copy")
    return [replace(d, split=split) for d, split in zip(documents, splits, strict=True)]
