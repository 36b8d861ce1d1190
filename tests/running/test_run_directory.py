"""A whole run at the tiny size: what is on disk and on stdout, and what the same command does again."""

import re
import shutil

import pytest
import tiny
import yaml
from fake_runs import edit_json, only_run, read_json, stamps

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.core.run_states import DIVERGED
from posenc.running import stored_run as parts_of_runs
from posenc.running.locks import locked
from posenc.running.model_parts import code_of
from posenc.running.run_directory import forget_diverged, put_together
from posenc.running.stored_run import stored_run
from posenc.settings.tree import SCHEMA_VERSION

WINDOWS = [16, 32, 64]
CELLS = {
    *(("fixed-target", window) for window in WINDOWS),
    *(("nonoverlapping", window) for window in WINDOWS),
    ("positions", WINDOWS[-1]),
    ("trigram", 16),
}


@pytest.fixture
def run(trained_once):
    return only_run(trained_once)


@pytest.fixture
def config(run):
    return yaml.safe_load((run / "config.yaml").read_text())


@pytest.fixture
def status(run):
    return read_json(run / "status.json")


@pytest.fixture
def results(run):
    return read_json(run / "results.json")


def record_of(results, protocol, window):
    (record,) = [r for r in results["records"] if (r["protocol"], r["window"]) == (protocol, window)]
    return record


# --- the directory


def test_the_directory_is_named_for_people_and_by_a_hash(run):
    assert re.fullmatch(r"rope-d32L2H2M4-T16-s0-[0-9a-f]{8}", run.name)


def test_the_directory_holds_what_the_contract_says(run):
    names = sorted(path.name for path in run.glob("[!.]*"))
    assert names == [
        "checkpoints",
        "config.yaml",
        "log.txt",
        "metrics.jsonl",
        "positions.json",
        "records",
        "results.json",
        "status.json",
    ]


def test_the_last_checkpoint_stays(run):
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{tiny.STEPS:08d}"]


def test_nothing_is_pickled_or_left_half_written(run):
    assert not [path for path in run.rglob("*") if path.suffix in (".tmp", ".pkl", ".pt")]


def test_names_are_safe_on_every_file_system(run):
    names = [path.name for path in run.parent.rglob("*") if not path.name.startswith(".")]
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]+", name) for name in names)


def test_nothing_is_written_beside_the_runs(run):
    working_folder = run.parent.parent.parent
    assert sorted(path.name for path in working_folder.iterdir()) == ["err.txt", "out.txt", "runs"]


# --- config.yaml


def test_the_settings_are_plain_and_resolved(run):
    text = (run / "config.yaml").read_text()
    assert not re.search(r"\$\{|!!|\?\?\?|hydra", text)


def test_the_settings_have_every_parameter_of_the_encoding(config):
    rope = {"name": "rope", "base": 10000.0, "layout": "interleaved", "fraction": 1.0, "drop_low": 0.0}
    assert config["encoding"] == rope


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [("train", "tokens", tiny.STEPS * 128), ("train", "precision", "fp32"), ("train", "began", None)],
)
def test_the_settings_of_the_training_are_numbers(config, group, key, value):
    assert config[group][key] == value


@pytest.mark.parametrize(
    ("key", "value"), [("schema_version", 2), ("seed", 0), ("context_length", 16), ("device", "cpu")]
)
def test_the_settings_stand_under_their_keys(config, key, value):
    assert config[key] == value


def test_paths_are_absolute(config, corpus):
    assert config["data"]["paths"] == str(corpus)


# --- status.json


def test_the_status_says_how_it_ended(status):
    assert status["status"] == "finished"
    assert status["reason"] is None
    assert status["step"] == tiny.STEPS


def test_the_status_says_who_ran_it_and_when(status):
    assert isinstance(status["pid"], int)
    assert status["host"]
    assert status["started"] <= status["updated"]


def test_the_status_says_what_the_numbers_may_depend_on(status):
    assert {"python", "posenc", "torch", "numpy"} <= set(status["versions"])
    assert status["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", status["git_commit"])


# --- results.json


def test_results_have_the_schema(results):
    assert set(results) == {"schema_version", "run", "records"}
    assert results["schema_version"] == SCHEMA_VERSION


def test_results_name_the_run(run, results):
    assert results["run"]["name"] == run.name
    assert results["run"]["settings_hash"] == run.name[-8:]
    assert results["run"]["encoding"]["name"] == "rope"
    assert results["run"]["corpus"]["name"] == "files"


def test_results_count_what_was_trained(results):
    facts = results["run"]
    assert facts["tokens"] == tiny.STEPS * 128
    assert facts["steps"] == tiny.STEPS
    assert facts["parameters"] == {"total": 32_928, "embedding": 256 * 32, "encoding": 0, "options": 0}


@pytest.mark.parametrize("fact", ["peak_memory_bytes", "wall_seconds", "tokens_per_second"])
def test_results_say_what_the_training_took(results, fact):
    assert results["run"][fact] > 0


def test_results_have_a_record_for_every_cell(results):
    assert {(record["protocol"], record["window"]) for record in results["records"]} == CELLS


def test_results_are_the_records(run, results):
    files = [read_json(path) for path in (run / "records").iterdir()]
    assert len(files) == len(results["records"])
    assert all(record in files for record in results["records"])


@pytest.mark.parametrize("key", ["document", "targets", "bytes"])
def test_the_reference_is_scored_on_the_fixed_targets(results, key):
    reference, at_t = record_of(results, "trigram", 16), record_of(results, "fixed-target", 16)
    assert reference["targets_hash"] == at_t["targets_hash"]
    assert reference["per_document"][key] == at_t["per_document"][key]


def test_the_reference_is_a_loss(results):
    assert 0 < record_of(results, "trigram", 16)["nats"] < 5


# --- what is printed


@pytest.fixture
def printed(run):
    """What the command printed on stdout and on stderr."""
    working_folder = run.parent.parent.parent
    return tuple((working_folder / name).read_text() for name in ("out.txt", "err.txt"))


def test_the_table_is_on_stdout(printed, results):
    out, _ = printed
    assert f"{results['records'][0]['nats']:.3f}" in out


@pytest.mark.parametrize("text", ["training 40/40", "evaluating", "32,928 parameters"])
def test_what_goes_on_is_on_stderr_alone(printed, text):
    out, err = printed
    assert text in err
    assert text not in out


def test_a_file_gets_no_colours(printed):
    assert not re.search(r"\x1b\[", "".join(printed))


# --- the same command again


@pytest.fixture
def at_other_lengths(train, run_copy):
    """Ask for one more length; return the stamps of all files before."""
    before = {name: stamps(run_copy / name) for name in ("records", "checkpoints")}
    result = train("encoding=rope", "eval.lengths=[0.5x,1x,4x]")
    assert result.code == 0, result.err
    assert re.search(r"^context +8 +16 = T +64$", result.out, re.M), result.out
    return before


def test_other_lengths_measure_what_is_missing(at_other_lengths, run_copy):
    results = read_json(run_copy / "results.json")
    assert {record["window"] for record in results["records"]} == {8, *WINDOWS}


def test_other_lengths_leave_what_is_there(at_other_lengths, run_copy):
    assert at_other_lengths["records"].items() < stamps(run_copy / "records").items()
    assert at_other_lengths["checkpoints"] == stamps(run_copy / "checkpoints")


def test_other_lengths_leave_the_run_finished(at_other_lengths, run_copy):
    assert read_json(run_copy / "status.json")["status"] == "finished"


def test_other_lengths_keep_the_facts_of_the_training(train, run_copy):
    facts = read_json(run_copy / "results.json")["run"] | {"peak_memory_bytes": 123456789}
    edit_json(run_copy / "results.json", run=facts)
    assert train("encoding=rope", "eval.lengths=[0.5x,1x,4x]").code == 0
    assert read_json(run_copy / "results.json")["run"] == facts


def test_numbers_of_weights_that_are_gone_are_measured_anew(train, run_copy):
    (path,) = (run_copy / "records").glob("fixed-target-W32-*")
    nats = read_json(path)["nats"]
    edit_json(path, nats=9.0)
    shutil.rmtree(run_copy / "checkpoints")
    assert train("encoding=rope", "eval.lengths=[0.5x,1x,2x,4x]").code == 0
    assert read_json(path)["nats"] == pytest.approx(nats, abs=1e-4)
    assert len(list((run_copy / "checkpoints").iterdir())) == 1


def test_a_training_that_diverged_leaves_no_results_to_the_next(run_copy):
    edit_json(run_copy / "status.json", status=DIVERGED)
    forget_diverged(run_copy)
    assert not (run_copy / "results.json").exists()


def test_facts_of_a_later_step_stay(run_copy):
    facts = read_json(run_copy / "results.json")["run"]
    put_together(run_copy, facts | {"steps": facts["steps"] - 1}, replaces_same_step=True)
    assert read_json(run_copy / "results.json")["run"] == facts


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"options": ["ssmax 9"]}, "its attention's ssmax"), ({"revision": -1}, "its encoding rope")],
)
def test_code_that_has_changed_is_named(run_copy, monkeypatch, changed, named):
    monkeypatch.setattr(parts_of_runs, "code_of", lambda *run: code_of(*run) | changed)
    with pytest.raises(UserError, match=f"was trained by other code of {named}"):
        stored_run(str(run_copy), [])


# --- YAML files of the user's own


@pytest.fixture
def my_folder(working_folder):
    """A folder of YAML files; it holds rope's, with another base."""
    shipped = (conf_dir() / "encoding" / "rope.yaml").read_text()
    folder = working_folder / "conf" / "encoding"
    folder.mkdir(parents=True)
    (folder / "rope.yaml").write_text(shipped.replace("10000", "77"))
    return folder


def test_a_name_of_posencs_is_refused(train, my_folder):
    """Hydra would take posenc's file and say nothing."""
    refused = train("--config-dir", "conf", "encoding=rope")
    assert refused.code == 2
    assert "encoding/rope.yaml has the name" in refused.err, refused.err


def test_a_name_of_ones_own_is_taken(train, my_folder, working_folder):
    (my_folder / "rope.yaml").rename(my_folder / "my_rope.yaml")
    assert train("--config-dir", "conf", "encoding=my_rope").code == 0
    assert "base: 77" in (only_run(working_folder / "runs") / "config.yaml").read_text()


def test_an_equal_copy_of_posencs_file_does_no_harm(train, my_folder):
    (my_folder / "rope.yaml").write_bytes((conf_dir() / "encoding" / "rope.yaml").read_bytes())
    assert train("--config-dir", "conf", "encoding=rope").code == 0


# --- the working folder may be the run


def test_a_run_is_the_working_folder(run, monkeypatch):
    monkeypatch.chdir(run)
    assert stored_run(".", []).directory == run


def test_a_run_is_the_folder_above(run, monkeypatch):
    monkeypatch.chdir(run / "records")
    assert stored_run("..", []).directory.name == run.name


# --- What a disk did not let go of


@pytest.mark.parametrize("sweep", [[], ["-m"]], ids=["run", "sweep"])
def test_the_same_command_removes_what_the_disk_did_not(run_copy, train, sweep):
    dropped = run_copy / "checkpoints" / ".tmp-step-00000030-dropped"
    shutil.copytree(run_copy / "checkpoints" / f"step-{tiny.STEPS:08d}", dropped)
    again = train("encoding=rope", *sweep)
    assert "already finished" in again.err
    assert not dropped.exists()


def test_what_another_process_may_be_writing_stays(run_copy, train):
    unfinished = run_copy / "checkpoints" / ".tmp-step-00000030"
    unfinished.mkdir()
    with locked(run_copy):
        train("encoding=rope")
    assert unfinished.exists()


def test_a_warning_of_an_encoding_has_its_name_once(train):
    result = train("encoding=t5")
    assert "t5: 16 of 32 buckets" in result.err
    assert "t5: t5:" not in result.err
