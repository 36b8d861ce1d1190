"""Streams, encodings, limits and folders that are not as usual: it works, or says why in a line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

POSENC = f"{shlex.quote(sys.executable)} -m posenc"


def shell(script: str, cwd: Path, **env: str) -> tiny.Result:
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=cwd,
        env=tiny.environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    return tiny.Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("words", ["encodings", "compare", "train --help"])
def test_a_reader_that_leaves_early(run_copy: Path, place: Path, words: str) -> None:
    result = shell(f"set -o pipefail; {POSENC} {words} | head -1", place)
    assert result.code in (0, 1, 141) and result.err == "", result


@pytest.mark.parametrize("words", ["encodings", "runs", "compare --format json"])
def test_a_full_device_is_said_in_a_line(run_copy: Path, place: Path, words: str) -> None:
    result = shell(f"{POSENC} {words} > /dev/full", place)
    assert result.code == 1 and "No space left" in result.err, result
    assert "Traceback" not in result.err and "Exception ignored" not in result.err


def test_the_exit_code_survives_a_terminal_that_is_gone(place: Path) -> None:
    """A message that nobody takes is not what the command ended for."""
    result = shell(f"{{ {POSENC} train encoding=nosuch; echo $? > code; }} 2>&1 | true", place)
    assert (place / "code").read_text() == "2\n", result


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(run_copy: Path, place: Path, closed: str) -> None:
    result = shell(f"{POSENC} runs {closed}", place)
    assert result.code in (0, 1) and "Traceback" not in result.err, result


@pytest.mark.parametrize(
    "env",
    [{"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}],
    ids=["POSIX", "ascii"],
)
@pytest.mark.parametrize("words", ["compare", "runs", "encodings rope", "data list"])
def test_a_terminal_without_unicode(run_copy: Path, place: Path, env: dict[str, str], words: str) -> None:
    result = shell(f"{POSENC} {words}", place, **env)
    assert result.code == 0 and result.out.isascii(), result


def test_sixty_four_open_files(run_copy: Path, place: Path) -> None:
    result = shell(f"ulimit -n 64; {POSENC} compare", place)
    assert result.code == 0, result


def test_the_working_folder_is_gone(place: Path) -> None:
    result = shell(f"mkdir gone; cd gone; rmdir ../gone; {POSENC} runs", place)
    assert result.code in (0, 1, 2) and "Traceback" not in result.err, result
    assert "fault of posenc" not in result.err
