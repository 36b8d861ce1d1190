"""The user's own text: files, folders and globs of plain text, and of tables with a text in each row."""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import ClassVar, Literal

from posenc.core.errors import UserError, plural, visible
from posenc.core.machine import free_memory
from posenc.core.paths import is_file, is_folder, missing_path
from posenc.data.documents import Document, Notes, utf8_text
from posenc.data.sections import sections, without_front_matter
from posenc.data.sources.base import Source
from posenc.data.sources.formats import (
    CONVERSIONS,
    RECODINGS,
    conversion_of,
    encoding_problem,
    is_table,
    plain_suffix,
)
from posenc.data.sources.tables import rows_of

# In a folder only these files are read. Others must be named, by themselves or by a glob.
FOLDER_SUFFIXES = (".txt", ".md", ".gz", ".jsonl")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PIECE_BYTES = 2**26  # how many bytes are read at once
COPIES_OF_TEXT = 3  # how often a text is in memory, at least: as read, as documents, as tokens


@dataclass(frozen=True, kw_only=True)
class FilesSource(Source):
    """The user's files. A document is a file, or a row of a table.

    A single file is cut into documents, and with `separator` every file is. An id is a path below the folder
    that all `paths` share. So ids, and with them fingerprint and splits, stay the same if the folder moves.
    """

    is_of_the_user: ClassVar[bool] = True

    paths: str | list[str]
    text_field: str  # the column of a table that holds the text
    separator: str | None  # the text between two documents of a file
    # what happens to the settings at the top of a .md; the default is for older stored runs without this key
    front_matter: Literal["keep", "drop"] = "keep"

    def check(self) -> None:
        paths = [self.paths] if isinstance(self.paths, str) else self.paths
        if not paths or not all(path.strip() for path in paths):  # as from a variable that is not set
            raise UserError("data.paths", None, "is empty", hint="data.paths=FILE, a folder or a glob")
        if self.separator == "":
            raise UserError("data.separator", "", "is empty", hint="data.separator=null sets none")

    def read(self, notes: Notes) -> list[Document]:
        """Return the documents, and note files that are not UTF-8 text.

        Raises UserError if a file is missing or not what its suffix says, or if there is no text at all.
        """
        texts = self._texts(notes)
        if self.separator is None:
            return self._documents_by_file(texts, notes)
        return self._separated(texts, self.separator, notes)

    def _texts(self, notes: Notes) -> dict[str, FileText]:
        """Return the text of each file that is not empty, by its id, in the order of their paths."""
        paths = [self.paths] if isinstance(self.paths, str) else self.paths
        try:
            # All paths before any content, so that a typing error in the last one is found at once.
            expanded_paths = [_expand(path) for path in paths]
            distinct_files: set[Path] = set()  # a file may be found by several paths
            for expanded in expanded_paths:
                distinct_files.update(expanded.files)
            files = sorted(distinct_files)
            _count_left_out(expanded_paths, files, notes)
            contents = {file: _content(file, notes) for file in files}
        except OSError as error:
            raise UserError("data.paths", error.filename, f"cannot be read ({error.strerror})") from error
        # Paths below what all share, so that the same folders at another place have the same ids.
        base = os.path.commonpath([expanded.root for expanded in expanded_paths])
        if self.front_matter == "drop":
            contents = _without_front_matter(contents, notes)
        texts = {}
        for file, content in contents.items():
            if content is None:
                continue
            if content.strip():
                texts[file.relative_to(base).as_posix()] = FileText(file, content)
            else:
                notes.left_out["empty"] += 1
        if not texts:
            raise _no_text(paths, notes)
        return texts

    def _documents_by_file(self, texts: Mapping[str, FileText], notes: Notes) -> list[Document]:
        """Return a document for each file, for each row of a table, or for each section of a single file."""
        documents: list[Document] = []
        for name, text in texts.items():
            if is_table(text.file):
                documents += _row_documents(name, text, self.text_field)
            elif len(texts) == 1:
                # A single document could not be divided into splits.
                pieces, how_cut = sections(text.content.decode(), markdown=text.is_markdown)
                notes.remarks.append(f"{visible(name)} is {plural(len(pieces), 'document')}, {how_cut}")
                documents += _numbered(name, [piece.encode() for piece in pieces])
            else:
                documents.append(Document(name, text.content, None))
        return documents

    def _separated(self, texts: Mapping[str, FileText], separator: str, notes: Notes) -> list[Document]:
        """Return the documents between separators. Raises UserError if the separator is nowhere."""
        mark = _typed_mark(separator)
        # The bytes of a table are not searched: a row is a document, whatever is in it.
        plain_texts = [text for text in texts.values() if not is_table(text.file)]
        if not plain_texts:
            problem = "cuts plain text, and there are only tables, whose rows are the documents"
            raise UserError("data.separator", separator, problem, hint="leave it out: data.separator=null")
        if not any(mark in text.content for text in plain_texts):
            raise _no_separator(separator, mark, plain_texts)
        documents: list[Document] = []
        n_cut = 0  # documents between separators
        for name, text in texts.items():
            if is_table(text.file):
                documents += _row_documents(name, text, self.text_field)
            # A file without the mark is one document, and its id gets no number.
            elif mark in text.content:
                pieces = _numbered(name, text.content.split(mark))
                n_cut += len(pieces)
                documents += pieces
            else:
                documents.append(Document(name, text.content, None))
        notes.remarks.append(f"cut at data.separator: {plural(n_cut, 'document')}")
        return documents


@dataclass(frozen=True)
class FileText:
    """The text of a file, without compression and byte-order mark."""

    file: Path
    content: bytes

    @property
    def is_markdown(self) -> bool:
        """Tell by the name whether a `#` begins a heading."""
        return plain_suffix(self.file) == ".md"


def _typed_mark(separator: str) -> bytes:
    """Return a separator as bytes. Line ends and tabs can be typed in a shell: `\\n`, `\\r\\n`, `\\t`."""
    # A `\r` alone ends no line today, and begins commands of LaTeX, such as `\rule`.
    mark = separator.replace("\\r\\n", "\r\n").replace("\\n", "\n").replace("\\t", "\t")
    return mark.encode()


def _no_separator(separator: str, mark: bytes, texts: Sequence[FileText]) -> UserError:
    """Return the error for a separator that is nowhere. It may be there with line ends of Windows."""
    mark_of_windows = re.sub(rb"(?<!\r)\n", b"\r\n", mark)
    hint = ""
    for text in texts:
        if mark_of_windows in text.content:
            typed = mark_of_windows.decode().replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")
            hint = f"{visible(text.file.name)} has lines that end in \\r\\n: data.separator='{typed}'"
            break
    return UserError("data.separator", separator, "does not occur in the text", hint=hint)


# --- Finding files


@dataclass(frozen=True)
class _Expanded:
    """What a path of the user's stands for: files, and the folder that their ids are relative to."""

    root: Path
    files: list[Path]
    left_out: dict[Path, str] = field(default_factory=dict)  # what is not read: its suffix, or what it is


def _count_left_out(expanded_paths: Sequence[_Expanded], files: Sequence[Path], notes: Notes) -> None:
    """Note how many files are not read, by suffix. A file may be found by several paths."""
    left_out: dict[Path, str] = {}
    for expanded in expanded_paths:
        left_out |= expanded.left_out
    for file in left_out.keys() - set(files):
        notes.left_out[left_out[file]] += 1


def _expand(path: str) -> _Expanded:
    """Return the files of a file, a folder or a glob. Raises UserError if there is nothing."""
    absolute = Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111 (resolve() follows links)
    # A name that exists is taken as it is, since names of files may hold the brackets of a glob.
    if is_file(absolute):
        _refuse_other_format(absolute)
        return _Expanded(absolute.parent, [absolute])
    if is_folder(absolute):
        return _in_folder(absolute)
    if glob.has_magic(path):
        return _expand_glob(absolute)
    raise missing_path("data.paths", path)


def _expand_glob(pattern: Path) -> _Expanded:
    """Return the files that fit a glob, and those in folders that fit it."""
    # The part that exists is no part of the pattern, since names of folders may have brackets.
    root = pattern
    magic_parts: list[str] = []
    # `lexists`, since a link that leads nowhere is a name as well.
    while not os.path.lexists(root):
        magic_parts.insert(0, root.name)
        root = root.parent
    # a link that leads nowhere, whose name has brackets
    if not magic_parts:
        raise missing_path("data.paths", pattern)
    expansion = _Expanded(root, [])
    for match in glob.glob(os.path.join(*magic_parts), root_dir=root, recursive=True):  # noqa: PTH118, PTH207
        path = root / match
        if not is_file(path):
            in_folder = _in_folder(path)
            expansion.files.extend(in_folder.files)
            expansion.left_out.update(in_folder.left_out)
        elif conversion_of(path) is None:
            expansion.files.append(path)
        else:
            expansion.left_out[path] = plain_suffix(path)
    return expansion


def _refuse_other_format(file: Path) -> None:
    """Raise UserError for a file that holds text among other things, and say what makes text of it."""
    conversion = conversion_of(file)
    if conversion is not None:
        raise UserError("data.paths", file, f"{plain_suffix(file)} is not read as text", hint=conversion)


def _in_folder(folder: Path) -> _Expanded:
    """Return the files of a folder whose suffix is one of text, except for hidden ones."""
    expansion = _Expanded(folder, [])

    # os.walk by itself leaves out a folder that it cannot read, and a part of the text would be missing.
    def refuse(error: OSError) -> None:
        raise error

    for parent, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        # Links are not followed, since one may lead back to a folder above it.
        for name in subfolders:
            if Path(parent, name).is_symlink():
                expansion.left_out[Path(parent, name)] = "linked folder"
        for name in names:
            if name.startswith("."):
                continue
            file = Path(parent, name)
            suffix = file.suffix.lower()
            # a .gz counts by the suffix of what is in it, so that a .csv.gz must be named like a .csv
            is_other = is_table(file) and plain_suffix(file) not in FOLDER_SUFFIXES
            if suffix not in FOLDER_SUFFIXES or is_other or conversion_of(file) is not None:
                expansion.left_out[file] = visible(suffix) or "without ending"
            elif is_file(file):
                expansion.files.append(file)
            else:
                expansion.left_out[file] = "not a file"
    return expansion


def _no_text(paths: Sequence[str], notes: Notes) -> UserError:
    """Return the error for paths without text, with ways to make text of the files that are there."""
    hints = notes.lines()
    commands = {**RECODINGS, **CONVERSIONS}
    advice = [f"{kind}: {command}" for kind, command in commands.items() if notes.left_out[kind]]
    if not advice:
        suffixes = ", ".join(FOLDER_SUFFIXES)
        advice = [f"of folders {suffixes} are read; others by a glob: data.paths='DIR/**/*.rst'"]
    hints += advice
    unescaped_paths = [re.sub(r"\[(.)\]", r"\1", path) for path in paths]  # undoes glob.escape
    shown_paths = ", ".join(unescaped_paths)
    return UserError("data.paths", shown_paths, "no text was found there", hint="\n".join(hints))


# --- Reading files


def _content(file: Path, notes: Notes) -> bytes | None:
    """Return a file's bytes without compression and byte-order mark; None if they are not text."""
    try:
        # The suffix alone decides. A gzip file of another name is left out below, since its bytes are no
        # text.
        with gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb") as opened:
            content = _read_all(opened)
    except MemoryError as error:
        size = file.stat().st_size
        too_large = f"memory has no room for the text of its {size:,} bytes"
        hint = "a part of it; or several files, which are documents of their own"
        raise UserError("data.paths", file, too_large, hint=hint) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError("data.paths", file, f"is not a whole gzip file ({error})") from error
    if plain_suffix(file) == ".parquet":  # its reader says what is wrong with it
        return content
    problem = encoding_problem(content)
    if problem is not None:
        notes.left_out[problem] += 1
        notes.examples.setdefault(problem, file.name)
        return None
    return content.removeprefix(BYTE_ORDER_MARK)


def _read_all(opened: BufferedIOBase) -> bytes:
    """Return all bytes of an opened file. Raises MemoryError before the machine runs out of memory.

    A gzip file of 10 MB may hold 10 GB, and the kernel kills a process that takes more memory than there is.
    """
    content = bytearray()
    while piece := opened.read(PIECE_BYTES):
        content += piece
        # asked only for large files, since it takes time
        if len(content) > PIECE_BYTES and COPIES_OF_TEXT * len(content) > free_memory() + len(content):
            raise MemoryError
    return bytes(content)


def _without_front_matter(contents: Mapping[Path, bytes | None], notes: Notes) -> dict[Path, bytes | None]:
    """Return the files without the settings at the top of each .md, and note how many had settings."""
    bodies = dict(contents)
    for file, content in contents.items():
        if content is not None and plain_suffix(file) == ".md":
            bodies[file] = without_front_matter(content)
    count = sum(bodies[file] != content for file, content in contents.items())
    if count:
        notes.remarks.append(f"front matter left out of {plural(count, 'file')}")
    return bodies


def _numbered(name: str, pieces: Sequence[bytes]) -> list[Document]:
    """Return the pieces of a file that hold text as documents, numbered from 1."""
    texts = [piece for piece in pieces if piece.strip()]
    # Zeros in front of the number, since documents are sorted by their ids as text.
    return [Document(f"{name}/{number:08d}", text, None) for number, text in enumerate(texts, start=1)]


def _row_documents(name: str, table: FileText, text_field: str) -> list[Document]:
    """Return a document for each row of a table. Raises UserError that names the file and the row."""
    documents = []
    for number, text in rows_of(table.file, table.content, text_field):
        content = utf8_text(text, "data.paths", f"{table.file}:{number}")
        documents.append(Document(f"{name}:{number:08d}", content, None))
    return documents
