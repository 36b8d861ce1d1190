"""Files and folders that are whole or not there, and what a killed process leaves of them."""

import errno
import os
import subprocess
import sys

import pytest

from posenc.core import atomic_files
from posenc.core.atomic_files import (
    folder_written_whole,
    renamed_when_whole,
    temporary_beside,
    write_text_atomic,
)
from posenc.core.errors import RunError


@pytest.fixture
def dead_pid():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leftover_of(pid, path, monkeypatch):
    """Write what a process leaves that is killed before it renames its file."""
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files.os, "getpid", lambda: pid)
        leftover = temporary_beside(path)
    leftover.write_text("half")
    return leftover


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", [".run.holder", "status.json", "odd[1]*.json"])
def test_what_a_killed_process_left_goes_when_the_file_is_written_again(
    name, tmp_path, dead_pid, monkeypatch
):
    leftover_of(dead_pid, tmp_path / name, monkeypatch)
    write_text_atomic(tmp_path / name, "whole")
    assert names_in(tmp_path) == [name]


def test_what_a_running_process_writes_stays(tmp_path, monkeypatch):
    leftover = leftover_of(os.getppid(), tmp_path / "status.json", monkeypatch)
    write_text_atomic(tmp_path / "status.json", "whole")
    assert leftover.exists()


def test_what_was_left_of_another_file_stays(tmp_path, dead_pid, monkeypatch):
    leftover = leftover_of(dead_pid, tmp_path / "status.json", monkeypatch)
    write_text_atomic(tmp_path / "config.yaml", "whole")
    assert leftover.exists()


# --- Folders


def test_a_folder_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(
        atomic_files, "sync", lambda path: order.append((path.name, (tmp_path / "out").exists()))
    )
    with renamed_when_whole(tmp_path / ".out", tmp_path / "out"):
        (tmp_path / ".out" / "a").write_text("whole")
    assert order[1:] == [("a", False), (".out", False), (tmp_path.name, True)]


def test_what_a_killed_process_left_under_the_name_goes(tmp_path):
    (tmp_path / ".out").mkdir()
    (tmp_path / ".out" / "half").write_text("")
    with renamed_when_whole(tmp_path / ".out", tmp_path / "out"):
        (tmp_path / ".out" / "a").write_text("whole")
    assert names_in(tmp_path / "out") == ["a"]


def write_folder(path, error=None):
    with folder_written_whole(path, needed=5) as folder:
        (folder / "a").write_text("whole")
        if error is not None:
            raise error


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "empty"])
def test_a_folder_gets_its_name_with_all_files(is_there, tmp_path):
    if is_there:
        (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out")
    assert names_in(tmp_path) == ["out"]
    assert names_in(tmp_path / "out") == ["a"]


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(RunError, match=r"cannot write .*out: No space left(.|\n)*needed: 5 bytes"):
        write_folder(tmp_path / "out", OSError(errno.ENOSPC, "No space left on device"))
    assert names_in(tmp_path) == []


def test_a_folder_that_holds_files_is_not_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        write_folder(tmp_path / "out")
    assert names_in(tmp_path / "out") == ["mine"]


def test_what_a_killed_process_left_of_a_folder_goes(tmp_path, dead_pid, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files.os, "getpid", lambda: dead_pid)
        temporary_beside(tmp_path / "out").mkdir()
    write_folder(tmp_path / "out")
    assert names_in(tmp_path) == ["out"]


def test_a_name_of_many_wide_characters_is_written(tmp_path):
    file = tmp_path / ("図" * 80)  # 240 bytes
    write_text_atomic(file, "text")
    assert file.read_text() == "text"
