"""Run directories from disk: where they are found, and what is said of damaged and hostile ones."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from datetime import datetime

import pytest
from fake_runs import edit_json, read_json, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.runs import is_dead
from posenc.results.summary import summarize


# --- Which runs are found
@pytest.fixture
def two_runs(tmp_path):
    """The paths of two runs, between folders that are none."""
    first = write_run(tmp_path / "runs" / "default", "rope")
    second = write_run(tmp_path / "runs" / "other" / "deep", "alibi")
    write_run(tmp_path / "runs" / ".sweeps", "t5")
    write_run(first / "inside", "nope")  # within a run, so that it is not a run itself
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    return [first, second]


def test_runs_are_found_at_any_depth(tmp_path, two_runs):
    assert [run.path for run in load_runs([tmp_path / "runs"])] == two_runs


def test_a_run_that_is_named_several_times_is_loaded_once(tmp_path, two_runs):
    first = two_runs[0]
    runs = load_runs([tmp_path / "runs", str(first), first / "results.json"])
    assert [run.path for run in runs] == two_runs


def test_a_loaded_run_has_its_state_records_and_settings(two_runs):
    (run,) = load_runs([two_runs[0]])
    assert run.state == "finished"
    assert run.problem is None
    assert [record["window"] for record in run.records] == [32, 64, 128, 256, 512]
    assert run.config["encoding"] == {"name": "rope"}
    assert run.config["seed"] == 0
    assert run.seed == 0


@pytest.mark.parametrize(
    ("path", "named"),
    [
        pytest.param("nowhere", "nowhere", id="nothing there"),
        pytest.param("note.txt", "note.txt", id="a file"),
        pytest.param("encoding=rope", "--where", id="a condition"),
    ],
)
def test_a_path_without_runs_is_refused(tmp_path, path, named):
    (tmp_path / "note.txt").write_text("no run")
    with pytest.raises(UserError, match=named):
        load_runs([tmp_path / path])


@pytest.mark.parametrize("written", ["~/runs", "'runs'", '"~/runs"', "'~/ru*'"])
def test_a_path_is_what_its_writer_means(tmp_path, monkeypatch, written):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs")
    assert len(load_runs([written])) == 1


def test_quotes_that_are_in_a_name_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "'runs'")
    write_run(tmp_path / "runs", "alibi")
    assert [run.encoding for run in load_runs(["'runs'"])] == ["rope"]


def test_runs_are_read_from_one_path_as_from_a_list(tmp_path):
    write_run(tmp_path)
    for paths in (tmp_path, str(tmp_path), [tmp_path], [[str(tmp_path)]]):
        assert len(load_runs(paths)) == 1


def test_what_is_no_path_is_refused():
    with pytest.raises(UserError, match="is no path"):
        load_runs([3])


@pytest.mark.parametrize(("name", "more_than"), [("study", 80), ("study-recall", 60), ("study-room", 15)])
def test_the_reference_studies_are_there_from_anywhere(tmp_path, monkeypatch, name, more_than):
    monkeypatch.chdir(tmp_path)
    assert len(load_runs([name])) > more_than


def test_a_folder_with_the_name_of_a_study_is_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "study")
    assert len(load_runs(["study"])) == 1


# --- Damaged results
def cut_short(path):
    path.write_text(path.read_text()[:200])


def nest_deeply(path):
    path.write_text("[" * 200_000)


def raise_version(path):
    edit_json(path, schema_version=99)


def drop_facts(path):
    edit_json(path, run=None)


def name_no_text(path):
    edit_json(path, run=read_json(path)["run"] | {"corpus": {"name": "sympy"}})


def count_parameters_in_words(path):
    edit_json(path, run=read_json(path)["run"] | {"parameters": {"total": "many"}})


def add_foreign_record(path):
    edit_json(path, records=[{"protocol": "x"}])


def make_a_loss_nan(path):
    path.write_text(path.read_text().replace('"nats": 1.3', '"nats": NaN'))


def make_t_less_than_a_token(path):
    edit_first_record(path, multiple=1e50)


def make_t_endless(path):
    edit_first_record(path, multiple=1e-310)


def edit_first_record(path, **changes):
    first, *others = read_json(path)["records"]
    edit_json(path, records=[first | changes, *others])


DAMAGES = [
    cut_short,
    nest_deeply,
    raise_version,
    drop_facts,
    name_no_text,
    count_parameters_in_words,
    add_foreign_record,
    make_a_loss_nan,
    make_t_less_than_a_token,
    make_t_endless,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_results_are_a_problem_of_the_run(tmp_path, damage):
    damage(write_run(tmp_path, losses={1: 1.3}) / "results.json")
    (run,) = load_runs([tmp_path])
    assert run.problem
    assert run.state == "damaged"
    assert run.records == []
    assert run.facts is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_summary_of_damaged_results_says_damaged(tmp_path, damage):
    damage(write_run(tmp_path, losses={1: 1.3}) / "results.json")
    (run,) = load_runs([tmp_path])
    assert summarize(run).status == "damaged"


@pytest.mark.parametrize(("version", "reader"), [(1, "the posenc that wrote it"), (3, "a newer posenc")])
def test_results_of_another_schema_name_their_reader(tmp_path, version, reader):
    edit_json(write_run(tmp_path) / "results.json", schema_version=version)
    (run,) = load_runs([tmp_path])
    assert run.problem.startswith(f"results.json: schema {version}, which {reader}")


# --- Damaged or hostile settings
NOT_PLAIN_DATA = [
    "!!python/object/apply:os.getcwd []",
    "[",
    "!!int ''",
    "!!bool maybe",
    "2001-01-01",
    "!!set {a}",
    "!!binary aGk=",
    "{3: x}",
    "\x00",
]


@pytest.mark.parametrize("value", NOT_PLAIN_DATA)
def test_settings_that_are_no_plain_data_are_refused(tmp_path, value):
    config = write_run(tmp_path) / "config.yaml"
    config.write_text(config.read_text().replace("name: rope", f"name: rope\n  odd: {value}"))
    (run,) = load_runs([tmp_path])
    assert run.state == "damaged"
    assert run.settings is None
    assert run.problem.startswith("config.yaml: ")


def test_interpolations_in_settings_are_plain_text(tmp_path):
    write_run(tmp_path, params={"home": "${oc.env:HOME}"})
    (run,) = load_runs([tmp_path])
    assert run.settings.encoding.parameters == {"home": "${oc.env:HOME}"}


def test_settings_of_another_schema_name_their_reader(tmp_path):
    config = write_run(tmp_path) / "config.yaml"
    config.write_text(config.read_text().replace("schema_version: 2", "schema_version: 1"))
    (run,) = load_runs([tmp_path])
    assert "which the posenc that wrote it" in run.problem


# --- Whether the process of a run is dead
LONG_AGO = "2020-01-01T00:00:00+00:00"


@pytest.fixture
def process():
    """A process that waits."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def status(process):
    """What status.json says of a run in that process."""
    now = datetime.now().astimezone().isoformat()
    return {"pid": process.pid, "host": socket.gethostname(), "updated": now}


def test_a_process_that_runs_is_not_dead(status):
    assert not is_dead(status)


def test_a_number_that_another_process_has_now_is_of_a_dead_one(status):
    status["updated"] = LONG_AGO  # the process with this number began later
    assert is_dead(status)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "elsewhere"},
        {"pid": -1},
        {"pid": 0},
        {"pid": None},
        {"pid": "7"},
        {"pid": 2**70},
        {"pid": True},
    ],
    ids=str,
)
def test_a_process_that_cannot_be_looked_up_is_not_called_dead(status, change):
    status["updated"] = LONG_AGO
    assert not is_dead(status | change)


def test_a_killed_process_is_dead_although_its_parent_has_not_asked_for_it(process, status):
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert is_dead(status)


def test_a_process_that_is_gone_is_dead(process, status):
    process.kill()
    process.communicate()
    assert is_dead(status)


@pytest.fixture
def deep_folder(tmp_path):
    """A folder with 1,200 folders inside each other, the deepest of which has a run."""
    folders = [tmp_path / "runs"]
    for _ in range(1200):
        folders.append(folders[-1] / "a")
    for folder in folders:
        folder.mkdir()
    write_run(folders[-1])
    yield folders[0]
    shutil.rmtree(folders.pop())
    for folder in reversed(folders):  # one by one: pytest and rmtree call themselves for each folder
        folder.rmdir()


def test_a_run_is_found_below_more_folders_than_python_has_calls(deep_folder):
    (run,) = load_runs(deep_folder)
    assert run.problem is None
