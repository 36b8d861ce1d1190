from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posenc.core.errors import UserError
from posenc.data import read_documents, read_facts

SPLIT = {"validation": 0.2, "test": 0.2}


def read(paths: Any) -> dict[str, bytes]:
    given = [str(p) for p in paths] if isinstance(paths, list) else str(paths)
    data = {"name": "files", "source": "files", "paths": given, "text_field": "text", "split": SPLIT}
    return {d.id: d.text for d in read_documents(data)}


def refusal(paths: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        read(paths)
    return caught.value


def test_a_folder_with_every_kind(tmp_path: Path) -> None:
    root = tmp_path / "all"
    (root / "deep" / "er").mkdir(parents=True)
    (root / ".hidden").mkdir()
    (root / ".hidden" / "h.txt").write_text("no")
    (root / "a.txt").write_bytes(b"\xef\xbb\xbfwith mark\r\n")
    (root / "empty.txt").write_bytes(b"")
    (root / "picture.png").write_bytes(b"\x89PNG")
    (root / "deep" / "er" / "b.txt.gz").write_bytes(gzip.compress("zwö".encode()))
    rows = [{"text": "first"}, {"text": ""}, {"text": "🙂", "id": 4}]
    lines = "\r\n\r\n".join(json.dumps(row) for row in rows)
    (root / "c.jsonl").write_text(lines)
    (root / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "packed"}\n'))
    assert read(root) == {
        "a.txt": b"with mark\r\n",
        "c.jsonl:00000001": b"first",
        "c.jsonl:00000005": "🙂".encode(),
        "d.jsonl.gz:00000001": b"packed",
        "deep/er/b.txt.gz": "zwö".encode(),
    }


def test_files_globs_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x/one.md", "x/y/two.md", "z/one.md", "z/three.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert set(read(tmp_path / "x" / "one.md")) == {"one.md"}
    assert set(read(tmp_path / "x" / "**" / "*.md")) == {"one.md", "y/two.md"}
    both = [tmp_path / "x" / "one.md", tmp_path / "z"]
    assert set(read(both)) == {"x/one.md", "z/three.txt"}
    assert set(read([*both, tmp_path / "z" / "three.txt"])) == {"x/one.md", "z/three.txt"}  # once each
    monkeypatch.setenv("HOME", str(tmp_path))
    assert set(read("~/x/*.md")) == {"one.md"}
    odd = tmp_path / "[odd]"
    odd.mkdir()
    (odd / "in.txt").write_text("in")
    monkeypatch.chdir(odd)
    assert set(read("*.txt")) == set(read("in.txt")) == {"in.txt"}


def test_moving_a_folder_keeps_its_fingerprint(
    tmp_path: Path, files_data: Callable[..., dict[str, Any]]
) -> None:
    data = files_data(8)
    before = read_facts(data)
    (tmp_path / "else").mkdir()
    shutil.move(tmp_path / "texts", tmp_path / "else" / "renamed")
    after = read_facts({**data, "paths": str(tmp_path / "else" / "renamed")})
    assert after.fingerprint == before.fingerprint and after.documents == before.documents


def test_missing_paths(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("text")
    error = refusal(tmp_path / "bok.txt")
    assert error.key == "data.paths" and "book.txt" in str(error)
    assert "missing" in str(refusal([]))
    assert refusal("???").key == "data.paths"
    assert refusal(tmp_path / "*.nothing").problem == "no text was found there"
    assert refusal([tmp_path / "book.txt", tmp_path / "*.nothing"]).value.endswith("*.nothing")
    assert refusal(tmp_path / "no" / "such" / "folder").problem == "there is no such file or folder"


def test_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "empty.txt").problem == "is empty"
    assert "no text" in refusal(tmp_path / "folder").problem
    (tmp_path / "book.txt").write_text("text")
    assert "no text" in refusal([tmp_path / "book.txt", tmp_path / "folder"]).problem


def test_undecodable_text_says_file_and_offset(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 noir")
    error = refusal(tmp_path)
    assert "latin.txt" in str(error) and "offset 3" in str(error) and "0xe9" in str(error)


@pytest.mark.parametrize(
    "content", [b"plain text", gzip.compress(b"cut off" * 50)[:-12]], ids=["plain", "cut"]
)
def test_broken_gzip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt.gz").write_bytes(content)
    assert "gzip" in refusal(tmp_path).problem


@pytest.mark.parametrize(
    ("line", "key", "says"),
    [
        ("{not json", "data.paths", "rows.jsonl:2"),
        ("[1, 2]", "data.paths", "not a JSON object"),
        ('{"txt": "a"}', "data.text_field", "did you mean: txt"),
        ('{"text": 5}', "data.text_field", "rows.jsonl:2"),
        ('{"text": "\\ud800"}', "data.paths", "surrogate"),
        ("[" * 100_000, "data.paths", "rows.jsonl:2"),
    ],
)
def test_bad_lines_say_where(tmp_path: Path, line: str, key: str, says: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    error = refusal(tmp_path / "rows.jsonl")
    assert error.key == key and says in str(error)


def test_names_in_errors_have_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb.txt").write_bytes(b"\xff")
    assert "\x1b" not in str(refusal(tmp_path))


def test_a_glob_means_the_same_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run stores it; the folders above may have brackets in their names."""
    place = tmp_path / "proj[1]"
    for name in ("texts/a.txt", "texts/b.txt", "other/c.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    monkeypatch.chdir(place)
    relative = read("texts/*.txt")
    assert set(relative) == {"a.txt", "b.txt"} == set(read(place / "texts" / "*.txt"))
    assert set(read("../proj[1]/texts/*.txt")) == {"a.txt", "b.txt"}
    monkeypatch.chdir(place / "other")
    assert set(read(["../texts/*.txt", "../texts"])) == {"a.txt", "b.txt"}  # each once


@pytest.mark.parametrize("paths", ["", " ", ["", "here"]])
def test_an_empty_path_is_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: str | list[str]
) -> None:
    """`data.paths=$TEXTS`, and the variable is not set."""
    (tmp_path / "here").write_text("text")
    monkeypatch.chdir(tmp_path)
    assert "is empty" in refusal(paths).problem


def test_a_subfolder_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "locked").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("locked"):  # root may read everything
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    refused = refusal(tmp_path)
    assert str(refused.value).endswith("locked") and "Permission denied" in refused.problem


def test_the_way_out_fits_the_mark(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_bytes("text".encode("utf-16"))
    assert "iconv -f UTF-16" in str(refusal(tmp_path).hint)
