"""`source: files`: the user's own text: files, folders and globs of plain text, gzip and JSON lines."""

from __future__ import annotations

import glob
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError, nearest
from posenc.data.documents import Document

FOLDER_SUFFIXES = (".txt", ".gz", ".jsonl")  # what a folder is searched for; other files are named or globbed
BOM = b"\xef\xbb\xbf"


def read(*, paths: str | list[str], text_field: str) -> list[Document]:
    """Return one document a file, or a line of a `.jsonl`; ids are paths below what all `paths` share.

    So a corpus keeps its ids, and with them its fingerprint and splits, when its folder moves. Raises
    UserError when something is missing, empty, not UTF-8, or not what its suffix says.
    """
    try:
        found = [_expand(path) for path in ([paths] if isinstance(paths, str) else paths)]
        base = Path(os.path.commonpath([root for root, _ in found]))
        files = sorted({file for _, some in found for file in some})
        documents = [d for file in files for d in _read(file, file.relative_to(base).as_posix(), text_field)]
    except OSError as error:
        raise UserError("data.paths", error.filename, f"cannot be read ({error.strerror})") from error
    if not documents:
        raise _no_text(paths)
    return documents


def check(settings: dict[str, Any]) -> None:
    """Raise UserError for a path that is empty, such as a variable of the shell that is not set."""
    paths = settings["paths"]
    if not paths or not all(path.strip() for path in ([paths] if isinstance(paths, str) else paths)):
        raise UserError("data.paths", None, "is empty", hint="data.paths=FILE, a folder or a glob")


def _no_text(given: object) -> UserError:
    hint = f"folders are searched for {', '.join(FOLDER_SUFFIXES)}; other files by name or glob"
    return UserError("data.paths", given, "no text was found there", hint=hint)


def _expand(given: str) -> tuple[Path, list[Path]]:
    """Return the folder that ids of this path are relative to, and its files."""
    path = Path(os.path.abspath(os.path.expanduser(given)))  # noqa: PTH100, PTH111 (resolve() follows links)
    root = path
    if path.is_file():
        root, files = path.parent, [path]
    elif path.is_dir():
        files = _in_folder(path)
    elif glob.has_magic(given):
        # the part that exists stays outside the pattern: folders may hold brackets of their own
        rest: list[str] = []
        while not os.path.lexists(root):
            root, rest = root.parent, [root.name, *rest]
        hits = [root / hit for hit in glob.glob(os.path.join(*rest), root_dir=root, recursive=True)]  # noqa: PTH118, PTH207
        files = [file for hit in hits for file in ([hit] if hit.is_file() else _in_folder(hit))]
    else:
        close = nearest(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        hint = f"did you mean: {path.parent / close}" if close else None
        raise UserError("data.paths", given, "there is no such file or folder", hint=hint)
    if not any(file.stat().st_size for file in files):
        raise _no_text(given)
    return root, files


def _in_folder(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    files = []
    for here, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        wanted = [n for n in names if n.lower().endswith(FOLDER_SUFFIXES) and not n.startswith(".")]
        files += [Path(here, name) for name in wanted if Path(here, name).is_file()]
    return files


def _read(file: Path, name: str, text_field: str) -> list[Document]:
    content = _content(file)
    if not file.name.lower().removesuffix(".gz").endswith(".jsonl"):
        return [Document(name, content, None)] if content else []
    documents = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            text = _text_of(line, f"{file}:{number}", text_field)
            if text:
                documents.append(Document(f"{name}:{number:08d}", text, None))
    return documents


def _content(file: Path) -> bytes:
    """Return the bytes of a file without compression and byte-order mark, checked to be UTF-8."""
    content = file.read_bytes()
    try:
        if file.name.lower().endswith(".gz"):
            content = gzip.decompress(content)
        content.decode("utf-8")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError("data.paths", file, f"is not a whole gzip file ({error})") from error
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}"
        hint = "convert it first, for example: iconv -f LATIN1 -t UTF-8 FILE > NEW"
        raise UserError("data.paths", file, problem, hint=hint) from error
    return content.removeprefix(BOM)


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
