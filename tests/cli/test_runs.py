"""`posenc runs` and `posenc export`: what is on disk, why it stopped, what continues it."""

import io
import json
import shlex
import shutil
import socket
from pathlib import Path

import pytest
import tiny
from fake_runs import edit_json, only_run, write_run
from in_process import called_in

from posenc.results.records import HEADLINE
from posenc.results.runs import load_run
from posenc.running.locks import locked

# What each run directory is called says what happened to it.
STATUSES = {
    "failed": "failed",
    "interrupted": "interrupted",
    "damaged": "damaged",
    "elsewhere": "running",
    "killed": "dead",
}


def set_status(run, **changes):
    edit_json(run / "status.json", **changes)


def rows_of(result):
    """Return the rows of `posenc runs --format json` by the names of their directories."""
    assert result.code == 0, result
    assert result.err == ""
    return {Path(row["path"]).name: row for row in json.loads(result.out)["runs"]}


def copy_without_results(run, name):
    """Copy a run as if it had stopped after its second line of the log, while it wrote the third."""
    copy = run.parent / name
    shutil.copytree(run, copy)
    (copy / "results.json").unlink()
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text("\n".join(lines[:2]) + '\n{"step": 3')
    return copy


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory, trained_once):
    """A working folder with a finished run, and copies that ended otherwise; never changed."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(trained_once, folder / "runs")
    run = only_run(folder / "runs")
    failed = copy_without_results(run, "failed")
    set_status(failed, status="failed", reason="OSError: [red]disk\x1b[31m full")
    elsewhere = copy_without_results(run, "elsewhere")
    set_status(elsewhere, status="running", host="another.machine", pid=1)
    killed = copy_without_results(run, "killed")
    set_status(killed, status="running", host=socket.gethostname(), pid=2**22 + 5)
    interrupted = copy_without_results(run, "interrupted")
    set_status(interrupted, status="interrupted", reason="SIGTERM")
    shutil.copytree(run, run.parent / "damaged")
    (run.parent / "damaged" / "results.json").write_text('{"schema_version": 1, "run": {')
    return folder


@pytest.fixture(scope="module")
def finished_name(trained_once):
    """The name of the run that finished."""
    return only_run(trained_once).name


@pytest.fixture
def runs(stored_runs, working_folder):
    """The folder of those run directories, which a test may change."""
    shutil.copytree(stored_runs / "runs", working_folder / "runs")
    return working_folder / "runs" / "default"


# --- The rows
@pytest.fixture(scope="module")
def rows(stored_runs, shared_cache):
    return rows_of(called_in(stored_runs, shared_cache, "runs", "--format", "json"))


def test_every_run_has_its_status(rows, finished_name):
    assert {name: row["status"] for name, row in rows.items()} == STATUSES | {finished_name: "finished"}


def test_rows_are_in_the_order_of_their_names(rows):
    assert list(rows) == sorted(rows)


def test_a_row_says_what_was_run(rows, finished_name):
    row = rows[finished_name]
    assert row["encoding"] == "rope"
    assert row["seed"] == 0
    assert row["context_length"] == 16


def test_a_finished_run_has_its_losses_at_t_and_at_its_longest_window(rows, finished_name, trained_once):
    records = load_run(only_run(trained_once)).records
    losses = {record["multiple"]: record["nats"] for record in records if record["protocol"] == HEADLINE}
    row = rows[finished_name]
    assert row["nats_at_train_length"] == losses[1]
    assert row["nats_at_longest"] == losses[4]
    assert row["longest_multiple"] == 4


def test_a_finished_run_has_all_tokens_and_its_speed(rows, finished_name, trained_once):
    row = rows[finished_name]
    facts = load_run(only_run(trained_once)).facts
    assert row["tokens"] == tiny.STEPS * 128
    assert row["tokens_asked"] == tiny.STEPS * 128
    assert row["tokens_per_second"] == facts["tokens_per_second"]


def test_a_stopped_run_has_the_progress_of_its_log(rows):
    row = rows["interrupted"]
    assert row["tokens"] == 20 * 128
    assert row["tokens_asked"] == tiny.STEPS * 128
    assert row["tokens_per_second"] > 0
    assert row["nats_at_train_length"] is None


# --- The table
@pytest.fixture(scope="module")
def table(stored_runs, shared_cache):
    """The table of those runs in a terminal of 80 columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        result = called_in(stored_runs, shared_cache, "runs")
    assert result.code == 0
    assert result.err == ""
    return result.out


def test_the_table_fits_the_terminal(table):
    for line in table.splitlines():
        is_below_a_run = line.startswith((" ", "runs/"))  # a path or a command, which is not broken
        assert is_below_a_run or len(line) <= 80


def test_the_table_counts_statuses(table):
    counts = "6 runs: 1 finished, 1 running, 1 interrupted, 1 failed, 1 dead, 1 damaged"
    assert counts in " ".join(table.split())


def test_the_table_escapes_what_others_wrote(table):
    assert "OSError: [red]disk\\x1b[31m full" in table.replace("\n", "")
    assert "\x1b" not in table


@pytest.mark.parametrize("text", ["process 1 on another.machine", "failed/log.txt"])
def test_the_table_says_where_to_look(table, text):
    assert text in " ".join(table.split())


def test_commands_that_continue_runs_stand_on_one_line(table, rows):
    """Half a command is another command."""
    commands = [line.partition("resume: ")[2] for line in table.splitlines() if "resume: " in line]
    of_rows = [row["continue"] for row in rows.values() if row["continue"]]
    assert len(commands) == 3
    assert sorted(commands) == sorted(of_rows)


def test_the_command_that_continues_a_run_has_the_folder_of_the_users_yaml(train, posenc, working_folder):
    (working_folder / "my yaml/experiment").mkdir(parents=True)
    (working_folder / "my yaml/experiment/own.yaml").write_text("# @package _global_\nseed: 7\n")
    result = train("--config-dir", "my yaml", "experiment=own", "eval.lengths=[1x]")
    assert result.code == 0, result.err
    run = only_run(working_folder / "runs")
    set_status(run, status="interrupted")
    (run / "results.json").unlink()
    command = rows_of(posenc("runs", "--format", "json"))[run.name]["continue"]
    assert command.startswith("posenc train --config-dir 'my yaml' ")
    assert "experiment=own" in command


def test_the_command_that_is_said_to_continue_a_run_does(posenc, train, working_folder):
    result = train("encoding.base=500", "eval.lengths=[1x]", "runs_dir=a b", "seed=3")
    assert result.code == 0, result.err
    run = only_run(working_folder / "a b")
    set_status(run, status="interrupted")
    (run / "results.json").unlink()
    command = shlex.split(rows_of(posenc("runs", "a b", "--format", "json"))[run.name]["continue"])
    assert command[:2] == ["posenc", "train"]
    assert "seed=3" in command

    again = posenc(*command[1:])

    assert again.code == 0, again.err
    assert "continuing at step" in again.err
    assert rows_of(posenc("runs", "a b", "--format", "json"))[run.name]["status"] == "finished"


# --- Filters and orders
@pytest.fixture
def with_another_seed(runs):
    """Those run directories, of which `killed` has seed 7."""
    config = runs / "killed" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 7"))


@pytest.mark.usefixtures("with_another_seed")
def test_a_condition_chooses_runs(posenc):
    assert set(rows_of(posenc("runs", "--where", "seed=7", "--format", "json"))) == {"killed"}


@pytest.mark.usefixtures("with_another_seed")
def test_several_conditions_must_all_hold(posenc):
    conditions = ("--where", "seed=0", "--where", "encoding=rope")
    assert "killed" not in rows_of(posenc("runs", *conditions, "--format", "json"))


@pytest.mark.usefixtures("runs")
def test_rows_are_sorted_by_loss_on_request(posenc, finished_name):
    rows = rows_of(posenc("runs", "--sort", "loss", "--format", "json"))
    assert next(iter(rows)) == finished_name


# --- Columns
@pytest.fixture
def alike(working_folder, monkeypatch):
    """Four runs that differ in tokens, precision and corpus, in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    root = working_folder / "runs" / "default"
    write_run(root, "rope")
    write_run(root, "rope", name="in-bf16", facts={"precision": "bf16"})
    write_run(root, "rope", name="short", facts={"tokens": 1_000_000})
    write_run(root, "rope", name="other-text", facts={"corpus": {"name": "files", "fingerprint": "ab" * 32}})
    return root


def columns_of(result):
    """Return the words of each line of the table by its last word, the name of the run."""
    assert result.code == 0, result
    lines = result.out.partition("\n\n")[0].splitlines()
    return {line.split()[-1]: line.split() for line in lines}


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize(
    ("name", "words"),
    [("in-bf16", ["3.28M", "bf16", "sympy"]), ("short", ["1M", "fp32", "sympy"]), ("other-text", ["files"])],
)
def test_the_table_tells_runs_apart_by_tokens_precision_and_corpus(posenc, name, words):
    assert set(words) <= set(columns_of(posenc("runs"))[name])


def test_runs_of_one_precision_and_corpus_have_no_columns_for_them(posenc, alike):
    shutil.rmtree(alike / "in-bf16")
    shutil.rmtree(alike / "other-text")
    heads = posenc("runs").out.splitlines()[0].split()
    assert "tokens" in heads
    assert not {"precision", "corpus"} & set(heads)


def test_two_texts_of_one_name_are_told_apart_in_the_table(posenc, alike):
    write_run(alike, "rope", name="third", facts={"corpus": {"name": "files", "fingerprint": "cd" * 32}})
    rows = columns_of(posenc("runs"))
    assert "ababab" in rows["other-text"]
    assert "cdcdcd" in rows["third"]


@pytest.mark.usefixtures("alike")
def test_columns_that_the_terminal_has_no_room_for_are_counted(posenc):
    assert "more columns: a wider terminal, or --columns" in posenc("runs").out


@pytest.mark.usefixtures("alike")
def test_columns_are_chosen_by_name_and_by_setting(posenc):
    result = posenc("runs", "--columns", "run,T", "--columns", "train.lr")
    assert result.out.splitlines()[0].split() == ["run", "T", "train.lr"]
    assert result.out.splitlines()[1].split() == ["in-bf16", "64", "0.003"]


@pytest.mark.usefixtures("alike")
def test_a_column_that_there_is_not_is_refused_with_the_nearest(posenc):
    result = posenc("runs", "--columns", "tokns")
    assert result.code == 2
    assert "did you mean: tokens" in result.err


@pytest.mark.usefixtures("alike")
def test_columns_are_for_the_table_alone(posenc):
    result = posenc("runs", "--columns", "run", "--format", "json")
    assert result.code == 2


# --- Deletion
@pytest.fixture
def answer(monkeypatch):
    """Return a function that puts an answer on stdin."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_run_is_deleted_after_a_yes(posenc, alike, answer):
    answer("y\n")
    result = posenc("runs", "--delete", "short")
    assert result.code == 0, result.err
    assert not (alike / "short").exists()
    assert (alike / "in-bf16").exists()
    assert "Delete 1 run, 0.0 MB? Nothing brings them back. [y/N]" in result.err


def test_a_deletion_leaves_nothing_behind(posenc, alike, answer):
    answer("yes\n")
    before = {path.name for path in alike.iterdir()}
    posenc("runs", "--delete", "short")
    assert {path.name for path in alike.iterdir()} == before - {"short"}


@pytest.mark.parametrize("text", ["n\n", "\n", "", "please\n"])
def test_without_a_yes_nothing_is_deleted(posenc, alike, answer, text):
    answer(text)
    result = posenc("runs", "--delete", "short")
    assert result.code == 1
    assert "nothing was deleted" in result.err
    assert (alike / "short").exists()


def test_yes_is_an_option_for_scripts(posenc, alike):
    result = posenc("runs", "--delete", "short", "--yes")
    assert result.code == 0
    assert not (alike / "short").exists()


@pytest.mark.parametrize("name", ["sh*", "runs/default/short", "short,in-bf16"])
def test_a_run_is_named_by_a_glob_a_path_or_in_a_list(posenc, alike, name):
    assert posenc("runs", "--delete", name, "--yes").code == 0
    assert not (alike / "short").exists()
    assert (alike / "other-text").exists()


@pytest.mark.usefixtures("alike")
def test_a_run_that_there_is_not_is_refused_with_the_nearest(posenc):
    result = posenc("runs", "--delete", "shortt", "--yes")
    assert result.code == 2
    assert "did you mean: short" in result.err


def test_a_name_in_two_folders_needs_its_path(posenc, alike):
    write_run(alike.parent / "second", "rope", name="short")
    result = posenc("runs", "--delete", "short", "--yes")
    assert result.code == 2
    assert "name its path: runs/default/short" in result.err
    assert (alike / "short").exists()


def test_a_name_may_end_with_the_slash_of_a_completion(posenc, alike):
    assert posenc("runs", "--delete", "short/", "--yes").code == 0
    assert not (alike / "short").exists()


def test_a_name_with_the_signs_of_a_glob_is_that_of_one_run(posenc, alike):
    (alike / "short").rename(alike / "r[12]")
    (alike / "in-bf16").rename(alike / "r1")
    assert posenc("runs", "--delete", "r[12]", "--yes").code == 0
    assert not (alike / "r[12]").exists()
    assert (alike / "r1").exists()


def test_a_running_run_is_not_deleted(posenc, alike):
    set_status(alike / "short", status="running", host="another.machine", pid=1)
    result = posenc("runs", "--delete", "short", "--yes")
    assert result.code == 2
    assert "is running (process 1 on another.machine)" in result.err
    assert (alike / "short").exists()


def test_a_run_that_is_being_measured_is_not_deleted(posenc, alike):
    with locked(alike / "short", "evaluation"):
        result = posenc("runs", "--delete", "short", "--yes")
    assert result.code == 1
    assert "is being written by another process" in result.err
    assert (alike / "short").exists()


def test_what_a_link_leads_to_is_not_deleted(posenc, alike):
    elsewhere = alike.parent.parent / "elsewhere"
    (alike / "short").rename(elsewhere)
    (alike / "short").symlink_to(elsewhere)
    result = posenc("runs", "runs/default/short", "--delete", "short", "--yes")
    assert result.code == 2
    assert elsewhere.exists()


@pytest.mark.parametrize("option", [("--format", "json"), ("--sort", "age"), ("--columns", "run")])
def test_options_of_the_list_are_refused_beside_a_deletion(posenc, alike, option):
    assert posenc("runs", "--delete", "short", "--yes", *option).code == 2
    assert (alike / "short").exists()


@pytest.mark.usefixtures("alike")
def test_yes_without_anything_to_delete_is_refused(posenc):
    assert posenc("runs", "--yes").code == 2


def test_an_empty_folder_has_no_runs(posenc, working_folder):
    (working_folder / "empty").mkdir()
    assert posenc("runs", "empty").out == "0 runs\n"


# --- Export
BUNDLE = "runs/all.runs.jsonl.gz"


@pytest.fixture
def exported(posenc, runs):
    """The result of an export of those runs, of which one diverged."""
    set_status(runs / "failed", status="diverged")
    return posenc("export", "--out", BUNDLE)


def test_an_export_has_the_runs_that_ended(exported):
    assert exported.code == 0
    assert "2 runs (1 diverged)" in exported.err


def test_an_export_names_the_runs_that_it_leaves_out(exported):
    assert "left out: damaged (damaged), elsewhere (running), interrupted (interrupted), and 1 more" in (
        exported.err
    )


@pytest.mark.usefixtures("exported")
def test_an_export_is_compared(posenc):
    comparison = json.loads(posenc("compare", BUNDLE, "--format", "json").out)
    assert {row["label"] for row in comparison["rows"]} == {"rope"}


@pytest.mark.usefixtures("exported")
def test_an_export_is_no_run_directory(posenc):
    result = posenc("runs", BUNDLE)
    assert result.code == 0
    assert result.out == "0 runs\n"
    assert "posenc compare reads it" in result.err


@pytest.mark.usefixtures("exported")
def test_an_encoding_beside_a_bundle_alone_has_no_run_directories(posenc):
    shutil.rmtree("runs/default")
    result = posenc("runs", "rope")
    assert result.code == 0
    assert result.out == "0 runs\n"
    assert "posenc compare reads it" in result.err


def test_an_encoding_in_an_empty_folder_has_no_runs(posenc, working_folder):
    (working_folder / "runs").mkdir()
    result = posenc("runs", "rope")
    assert (result.code, result.out) == (0, "0 runs\n")


def test_runs_that_all_diverged_are_exported(posenc, runs):
    set_status(runs / "failed", status="diverged")
    result = posenc("export", str(runs / "failed"), "--out", BUNDLE)
    assert result.code == 0
    assert "1 run (1 diverged)" in result.err


@pytest.mark.parametrize("option", [("--out", BUNDLE), ("--where", "seed=0")])
def test_options_of_a_bundle_are_refused_beside_the_weights_of_a_run(posenc, option):
    result = posenc("export", "run=any", "--hf", "folder", *option)
    assert result.code == 2
    assert option[0] in result.err


@pytest.mark.usefixtures("exported")
def test_a_run_of_two_folders_is_not_exported(posenc, runs, finished_name):
    result = posenc("export", str(runs / finished_name), BUNDLE, "--out", "b.runs.jsonl.gz")
    assert result.code == 2
    assert "several folders" in result.err
    assert not Path("b.runs.jsonl.gz").exists()
