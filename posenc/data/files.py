"""`source: files`: the user's own text: files, folders and globs of plain text, gzip and JSON lines."""

from __future__ import annotations

import glob
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError, nearest, visible
from posenc.data.documents import Document, Notes
from posenc.data.sections import sections

FOLDER_SUFFIXES = (".txt", ".gz", ".jsonl")  # what a folder is searched for; other files are named or globbed
LARGEST = 2**32  # bytes of a file, which is read whole
BOM = b"\xef\xbb\xbf"


def read(
    notes: Notes, /, *, paths: str | list[str], text_field: str, separator: str | None = None
) -> list[Document]:
    """Return one document a file, or a line of a `.jsonl`; ids are paths below what all `paths` share.

    So a corpus keeps its ids, and with them its fingerprint and splits, when its folder moves. A single file
    is cut into documents; with `separator` every file is. What a folder holds and is no text is noted. Raises
    UserError when something is missing, or named and empty, not UTF-8, or not what its suffix says.
    """
    try:
        found = [_expand(path, notes) for path in ([paths] if isinstance(paths, str) else paths)]
        base = Path(os.path.commonpath([root for root, _, _ in found]))
        named = {file for _, files, _ in found for file in files}
        every = sorted(named.union(*(files for _, _, files in found)))
        read = [(file, _content(file, file in named, notes)) for file in every]
    except OSError as error:
        raise UserError("data.paths", error.filename, f"cannot be read ({error.strerror})") from error
    notes.not_read["empty"] += sum(text is not None and not text.strip() for _, text in read)
    texts = {file: text for file, text in read if text and text.strip()}
    if not texts:
        raise _no_text(paths, notes)
    mark = None if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t").encode()
    documents: list[Document] = []
    for file, text in texts.items():
        name = file.relative_to(base).as_posix()
        if _is_jsonl(file):
            documents += _rows(file, name, text, text_field)
        elif mark and mark in text:
            documents += _parts(name, text.split(mark))
        elif mark is None and len(texts) == 1:
            pieces, how = sections(name, text.decode())
            notes.lines.append(f"{visible(name)} is {len(pieces):,} documents, {how}")
            documents += _parts(name, [piece.encode() for piece in pieces])
        else:
            documents.append(Document(name, text, None))
    if mark is not None:
        if not any(mark in text for text in texts.values()):
            raise UserError("data.separator", separator, "does not occur in the text")
        notes.lines.append(f"cut at data.separator: {len(documents):,} documents")
    return documents


def check(settings: dict[str, Any]) -> None:
    """Raise UserError for a path that is empty, such as a variable of the shell that is not set."""
    paths = settings["paths"]
    if not paths or not all(path.strip() for path in ([paths] if isinstance(paths, str) else paths)):
        raise UserError("data.paths", None, "is empty", hint="data.paths=FILE, a folder or a glob")
    if settings.get("separator") == "":
        raise UserError("data.separator", "", "is empty", hint="data.separator=null sets none")


def _no_text(given: object, notes: Notes) -> UserError:
    hint = f"in folders {', '.join(FOLDER_SUFFIXES)} are read, others by a glob: data.paths=FOLDER/**/*.md"
    return UserError("data.paths", given, "no text was found there", hint="\n".join([*notes.text(), hint]))


def _expand(given: str, notes: Notes) -> tuple[Path, list[Path], list[Path]]:
    """Return the folder that ids of this path are relative to, files that it names, and files of folders."""
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
        hint = f"did you mean: {path.parent / close}" if close else None
        raise UserError("data.paths", given, "there is no such file or folder", hint=hint)
    named = [hit for hit in hits if hit.is_file()]
    searched = [file for hit in hits if not hit.is_file() for file in _in_folder(hit, notes)]
    if not any(file.stat().st_size for file in (*named, *searched)):
        raise _no_text(given, notes)
    return root, named, searched


def _in_folder(folder: Path, notes: Notes) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    files = []
    for here, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for file in (Path(here, name) for name in names if not name.startswith(".")):
            ending = file.suffix.lower()
            if ending not in FOLDER_SUFFIXES:
                known = ending[1:].isalnum() and len(ending) < 10
                notes.not_read[ending if known else "without ending"] += 1
            elif file.is_file():
                files.append(file)
    return files


def _is_jsonl(file: Path) -> bool:
    return file.name.lower().removesuffix(".gz").endswith(".jsonl")


def _parts(name: str, pieces: list[bytes]) -> list[Document]:
    whole = [piece for piece in pieces if piece.strip()]
    return [Document(f"{name}/{number:08d}", piece, None) for number, piece in enumerate(whole, start=1)]


def _rows(file: Path, name: str, content: bytes, text_field: str) -> list[Document]:
    documents = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            text = _text_of(line, f"{file}:{number}", text_field)
            documents.append(Document(f"{name}:{number:08d}", text, None))
    return documents


def _content(file: Path, is_named: bool, notes: Notes) -> bytes | None:
    """Return a file's text without compression and byte-order mark; None where one of a folder is none."""
    hint, content = None, b""
    large = file.stat().st_size > LARGEST
    if not large:
        try:
            with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as opened:
                content = opened.read(LARGEST + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError("data.paths", file, f"is not a whole gzip file ({error})") from error
    if large or len(content) > LARGEST:
        kind, problem = "too large", f"has more than {LARGEST:,} bytes"
    elif b"\0" in content:
        kind, problem = "binary", "is no text: it holds zero bytes"
    else:
        try:
            content.decode("utf-8")
            return content.removeprefix(BOM)
        except UnicodeDecodeError as error:
            kind = "not UTF-8"
            problem = f"is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}"
            hint = "convert it first, for example: iconv -f LATIN1 -t UTF-8 FILE > NEW"
    if is_named:
        raise UserError("data.paths", file, problem, hint=hint)
    notes.not_read[kind] += 1
    return None


def _text_of(line: bytes, where: str, text_field: str) -> bytes:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError("data.paths", where, f"this line is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise UserError("data.paths", where, "this line is not a JSON object")
    if not isinstance(row.get(text_field), str):
        raise UserError("data.text_field", text_field, f"there is no such text at {where}", allowed=row)
    return str(row[text_field]).encode("utf-8", "replace")
