"""Tell what a file of the user is: plain text, a table with a text in each row, or something else."""

from __future__ import annotations

import codecs
from pathlib import Path

TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
# Files that hold text among other things, and how to get it. From their bytes a model would learn markup.
CONVERSIONS = {
    ".json": "lines of JSON are read: rename it to .jsonl; of an array: jq -c '.[]' FILE.json > FILE.jsonl",
    ".ipynb": "jupyter nbconvert --to markdown FILE.ipynb",
    ".arrow": "a data set saved by `datasets`: save it by to_parquet or to_json",
    ".feather": "save it as .parquet",
    ".xlsx": "save it as .csv, and name the column: data.text_field=...",
    ".ods": "save it as .csv, and name the column: data.text_field=...",
    ".pdf": "pdftotext FILE.pdf",
    ".docx": "pandoc FILE.docx -t plain -o FILE.txt",
    ".odt": "pandoc FILE.odt -t plain -o FILE.txt",
    ".epub": "pandoc FILE.epub -t plain -o FILE.txt",
    ".zip": "unpack it",
    ".tar": "unpack it",
    ".tgz": "unpack it",
    ".bz2": "unpack it, or compress it by gzip",
    ".xz": "unpack it, or compress it by gzip",
    ".zst": "unpack it, or compress it by gzip",
}

NOT_UTF8 = "not UTF-8"
WITH_NUL = "with a NUL byte"
# Bytes that are not UTF-8 text, and the command that makes text of them.
RECODINGS = {
    "UTF-16": "iconv -f UTF-16 -t UTF-8 FILE > NEW",
    "UTF-16LE": "iconv -f UTF-16LE -t UTF-8 FILE > NEW",
    "UTF-16BE": "iconv -f UTF-16BE -t UTF-8 FILE > NEW",
    "UTF-32": "iconv -f UTF-32 -t UTF-8 FILE > NEW",
    WITH_NUL: "a binary file? If it is a damaged text: tr -d '\\000' < FILE > NEW",
    NOT_UTF8: "iconv -f LATIN1 -t UTF-8 FILE > NEW",
}
LOOKED_AT = 4096  # the encoding of a file without a mark is guessed by so many of its bytes


def plain_suffix(file: Path) -> str:
    """Return the ending of a file's name in lower case, without `.gz`: `.jsonl` of `A.JSONL.gz`."""
    return Path(file.name.lower().removesuffix(".gz")).suffix


def is_table(file: Path) -> bool:
    """Tell by its name whether a file is a table with a text in each row."""
    return plain_suffix(file) in TABLES


def conversion_of(file: Path) -> str | None:
    """Return how to make text of a file that is not text by its name; None for plain text and for tables."""
    return CONVERSIONS.get(plain_suffix(file))


def encoding_problem(content: bytes) -> str | None:
    """Return why bytes are not UTF-8 text, as a key of RECODINGS; None if they are."""
    # The mark of UTF-32 begins with that of UTF-16.
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    # A NUL is valid UTF-8, but no text has one, while UTF-16 of Latin script is full of them.
    if b"\0" in content:
        return _utf16_without_mark(content) or WITH_NUL
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return NOT_UTF8
    return None


def _utf16_without_mark(content: bytes) -> str | None:
    """Return which UTF-16 bytes with zeros are, by a guess; None if they are not.

    In Latin script, one byte of each pair is a zero.
    """
    first_bytes = content[:LOOKED_AT:2]
    second_bytes = content[1:LOOKED_AT:2]
    if second_bytes.count(0) > len(second_bytes) / 2 and not first_bytes.count(0):
        return "UTF-16LE"
    if first_bytes.count(0) > len(first_bytes) / 2 and not second_bytes.count(0):
        return "UTF-16BE"
    return None
