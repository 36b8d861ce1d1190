"""Paths that lead to nothing: each question answers, and the reason has words."""

import os

import pytest

from posenc.core.errors import UserError
from posenc.core.paths import exists, is_file, is_folder, looks_local, missing_path, output_file, why_missing

LONG = "x" * 300


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a file, and with a link that leads back to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("text")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


IMPOSSIBLE = [LONG, f"folder/{LONG}", "y/" * 2500, "a\0b", "loop", "loop/below", "file.txt/below", "\ud800"]


@pytest.mark.parametrize("question", [exists, is_file, is_folder])
@pytest.mark.parametrize("path", IMPOSSIBLE)
def test_a_path_that_leads_to_nothing_is_nothing(folder, question, path):
    assert not question(path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (LONG, "is too long for the name of a file"),
        (f"missing/{LONG}", "is too long for the name of a file"),
        ("y/" * 2500, "is too long for the name of a file"),
        ("a\0b", "holds a NUL byte"),
        ("loop", "leads back to itself"),
        ("missing", "there is no such folder"),
        ("file.txt", "is not a folder"),
    ],
    ids=["name", "name below nothing", "path", "NUL", "loop", "missing", "file"],
)
def test_the_reason_is_said(folder, path, reason):
    assert reason in why_missing(path, "folder")


@pytest.mark.parametrize(
    ("path", "kind", "nearest"),
    [
        ("flie.txt", "file", "file.txt"),
        ("courpus", "folder", "corpus"),
        ("./courpus", "folder", "./corpus"),
        ("corpus/chaptr.txt", "file", "corpus/chapter.txt"),
        ("flie.txt", "folder", None),
        ("elsewhere", "folder", None),
        ("nothing/corpus", "folder", None),
        ("file.txt", "folder", None),
        ("a\0b", "folder", None),
    ],
)
def test_the_nearest_name_in_the_folder_is_suggested(folder, path, kind, nearest):
    (folder / "corpus").mkdir()
    (folder / "corpus" / "chapter.txt").write_text("text")
    error = missing_path("data.paths", path, kind, hint="a hint")
    assert error.key == "data.paths"
    assert error.hint.split("\n") == [*([f"did you mean: {nearest}"] if nearest else []), "a hint"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_a_folder_that_may_not_be_entered_is_said(folder):
    closed = folder / "closed"
    closed.mkdir(mode=0o000)
    assert not exists(closed / "inside")
    assert "may not be entered" in why_missing(closed / "inside")


@pytest.mark.parametrize("path", [LONG, "a\0b"], ids=["long", "NUL"])
def test_an_impossible_name_for_a_file_to_write_is_refused(folder, path):
    with pytest.raises(UserError, match="--out"):
        output_file("--out", path)


@pytest.mark.parametrize("name", ["./x", "/x", "~/x", "a/b/c", LONG])
def test_a_name_that_can_only_be_a_path(name):
    assert looks_local(name)


@pytest.mark.parametrize("name", ["gpt2", "owner/name"])
def test_a_name_on_the_hub_is_no_path(name):
    assert not looks_local(name)
