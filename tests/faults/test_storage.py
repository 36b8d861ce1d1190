"""The order of fsync and rename, full disks; streams, limits and folders that are out of the ordinary."""

import json
import logging
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny
from battery import SAVES, SHORT, called, command, weights

from posenc.core.errors import RunError
from posenc.running.run_directory import append_metrics, drop_after, log_file

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

# --- Every file is on disk before it gets its name
TRACED_CALL = re.compile(
    r"^\d+ +(?P<sync>fsync|fdatasync)\(\d+<(?P<path>.+?)>\) += 0"
    r"|^\d+ +rename\w*\((?P<arguments>.*)\) += 0",
    re.M,
)


@dataclass(frozen=True)
class Sync:
    path: Path


@dataclass(frozen=True)
class Rename:
    old: Path
    new: Path


def parse_trace(text):
    """Return the calls of fsync and rename in the output of strace."""
    calls = []
    for match in TRACED_CALL.finditer(text):
        if match["sync"]:
            calls.append(Sync(Path(match["path"])))
        else:
            old, new = re.findall(r'"([^"]*)"', match["arguments"])
            calls.append(Rename(Path(old), Path(new)))
    return calls


def unsynced(calls, below):
    """Return what lacks an fsync: of files before they are renamed, of their folder after it."""
    problems = []
    synced = set()
    for index, call in enumerate(calls):
        if isinstance(call, Sync):
            synced.add(call.path)
            continue
        if call.old in synced:
            synced.add(call.new)
        will_be_renamed_again = call.new.parent.name.startswith(".")  # with the folder that it is in
        if will_be_renamed_again or not call.new.is_relative_to(below):
            continue
        for path in renamed_paths(call):
            if path not in synced:
                problems.append(f"{path} before the rename")
        synced_afterwards = {later.path for later in calls[index:] if isinstance(later, Sync)}
        if call.new.parent not in synced_afterwards:
            problems.append(f"{call.new.parent} after the rename of {call.new.name}")
    return problems


def renamed_paths(rename):
    """Return the old paths of what gets its name by a rename: a file, or a folder and the files in it."""
    if not rename.new.is_dir():
        return [rename.old]
    return [*(rename.old / path.name for path in rename.new.iterdir()), rename.old]


@pytest.fixture(scope="module")
def traced(tmp_path_factory, corpus):
    """The calls of a training of two steps with a save after each, and the folder of its runs."""
    runs = tmp_path_factory.mktemp("traced").resolve()
    trace = tmp_path_factory.mktemp("trace") / "calls.txt"
    strace = ["strace", "-fyqq", "-s4096", "-etrace=fsync,fdatasync,rename,renameat,renameat2", f"-o{trace}"]
    posenc = [
        sys.executable,
        "-m",
        "posenc",
        *command(corpus, *SAVES, "train.tokens=256", f"runs_dir={runs}"),
    ]
    result = called(*strace, *posenc, cwd=tiny.ROOT, POSENC_CACHE=str(runs / "cache"))
    if "PTRACE" in result.err:
        pytest.skip("strace may not trace here")
    assert result.code == 0, result.err
    return parse_trace(trace.read_text()), runs


@needs_strace
@pytest.mark.parametrize("name", ["step-00000001", "step-00000002", "results.json", "config.yaml"])
def test_a_file_gets_its_name_when_it_is_written(traced, name):
    calls, _ = traced
    assert name in {call.new.name for call in calls if isinstance(call, Rename)}


@needs_strace
def test_tokens_get_their_name_when_they_are_written(traced):
    calls, _ = traced
    assert "tokens" in {call.new.parent.name for call in calls if isinstance(call, Rename)}


@needs_strace
def test_every_file_is_synced_before_its_rename_and_the_folder_after(traced):
    calls, runs = traced
    assert not unsynced(calls, runs)


@needs_strace
def test_each_sync_of_a_checkpoint_would_be_missed(traced):
    """Tests the test: without one of the five, of four files and their folder, something is unsynced."""
    calls, runs = traced
    of_last_checkpoint = [
        index
        for index, call in enumerate(calls)
        if isinstance(call, Sync) and "step-00000002" in str(call.path)
    ]
    assert len(of_last_checkpoint) == 5
    for index in of_last_checkpoint:
        assert unsynced(calls[:index] + calls[index + 1 :], runs)


# --- Full disks and calls that fail
@pytest.fixture
def full_disk(tmp_path):
    """A run directory whose logs are on a full disk."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "metrics.jsonl").symlink_to(full)
    (tmp_path / "log.txt").symlink_to(full)
    return tmp_path


@pytest.mark.faults
def test_metrics_on_a_full_disk_name_the_file_and_the_space(full_disk):
    with pytest.raises(RunError) as caught:
        append_metrics(full_disk, {"step": 1})
    message = caught.value.text()
    for text in (str(full_disk / "metrics.jsonl"), "No space left", "needed: ", "free: ", "continues"):
        assert text in message


@pytest.mark.faults
def test_a_log_on_a_full_disk_does_not_hide_the_first_error(full_disk, capfd):
    with pytest.raises(KeyError, match="the first reason"), log_file(full_disk):
        logging.getLogger("posenc").warning("to be lost")
        raise KeyError("the first reason")
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus, shared_cache):
    """The weights of a training that saves after each step."""
    folder = tmp_path_factory.mktemp("undisturbed")
    result = tiny.spawn(*command(corpus, *SAVES), cwd=folder, POSENC_CACHE=str(shared_cache))
    assert result.code == 0, result.err
    return weights(folder / "runs")


@pytest.mark.faults
@needs_strace
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_after_a_call_that_fails_the_same_command_ends_with_the_same_weights(
    train, working_folder, corpus, undisturbed, call, error
):
    failure = f"inject={call}:error={error}:when=12+"
    strace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", failure)
    posenc = (sys.executable, "-m", "posenc", *command(corpus, *SAVES))
    struck = called(*strace, *posenc, cwd=working_folder)
    assert struck.code == 1, struck.err
    assert "Traceback" not in struck.err
    if error == "ENOSPC":
        assert "No space left" in struck.err
        assert "free: " in struck.err

    again = train(*SAVES)

    assert again.code == 0, again.err
    assert "damaged" not in again.err
    assert weights(working_folder / "runs") == undisturbed


def test_a_line_that_was_cut_is_dropped_where_the_run_goes_on(tmp_path):
    append_metrics(tmp_path, {"step": 1})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "lo\n{"step": 1, "x": "\xff"}\n')
    drop_after(tmp_path, 1)
    append_metrics(tmp_path, {"step": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


# --- Streams, limits and folders; {posenc} and {train} in a script are commands
def run_script(script, folder, corpus, **env):
    posenc = f"{shlex.quote(sys.executable)} -m posenc"
    train = f"{posenc} {shlex.join(command(corpus, *SHORT, 'encoding=rope'))}"
    return called("bash", "-c", script.format(posenc=posenc, train=train), cwd=folder, **env)


def assert_no_fault(result):
    assert not re.search("Traceback|Exception ignored|fault of posenc", result.err), result.err


@pytest.mark.faults
@pytest.mark.usefixtures("run_copy")
@pytest.mark.parametrize(
    ("script", "codes", "message"),
    [
        pytest.param(
            "set -o pipefail; {posenc} compare | head -1", [0, 1, 141], "^$", id="reader that leaves"
        ),
        pytest.param("{posenc} compare --format json > /dev/full", [1], "No space left", id="full disk"),
        pytest.param("{posenc} runs <&- >&- 2>&-", [0, 1], "^$", id="closed streams"),
        pytest.param("mkdir gone; cd gone; rmdir ../gone; {posenc} runs", [0, 1, 2], "", id="folder gone"),
        pytest.param("ulimit -n 64; {train} runs_dir=few", [0], "", id="few handles"),
        pytest.param("ulimit -f 100; {train} runs_dir=short", [1], "File too large", id="small files"),
    ],
)
def test_a_command_works_or_says_why(working_folder, corpus, script, codes, message):
    result = run_script(script, working_folder, corpus)
    assert result.code in codes, result
    assert re.search(message, result.err), result.err
    assert_no_fault(result)


@pytest.mark.faults
@pytest.mark.usefixtures("run_copy")
def test_where_only_ascii_is_printed_the_table_is_ascii(working_folder, corpus):
    ascii_alone = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    result = run_script("{posenc} compare", working_folder, corpus, **ascii_alone)
    assert result.code == 0, result
    assert result.out.isascii()
    assert_no_fault(result)
