"""`source: files`: the user's own text: files, folders and globs of plain text, gzip and JSON lines."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from posenc.core.errors import UserError, nearest, visible
from posenc.data.documents import Document, Notes, number_of, sections

# what a folder is searched for; other files are named or globbed
FOLDER_SUFFIXES = (".txt", ".md", ".gz", ".jsonl")
BOM = b"\xef\xbb\xbf"


def read(
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
        hint = (
            f"of folders {', '.join(FOLDER_SUFFIXES)} are read; others by a glob: data.paths='DIR/**/*.rst'"
        )
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
            notes.lines.append(f"{visible(name)} is {number_of(len(pieces), 'document')}, {how}")
            documents += _parts(name, [piece.encode() for piece in pieces])
        else:
            documents.append(Document(name, text, None))
    if mark is not None:
        notes.lines.append(f"cut at data.separator: {number_of(len(documents), 'document')}")
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
