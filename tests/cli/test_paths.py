"""Paths are taken as they are written: `~`, spaces, umlauts, brackets; no quotes inside quotes."""

import shutil

import pytest
import yaml
from fake_runs import only_run
from hydra.core.override_parser.overrides_parser import OverridesParser

from posenc.config.compose import compose_jobs
from posenc.config.overrides import NAMES, QUOTED_KEYS, parse, quote, read_settings_line, unquoted
from posenc.core.errors import UserError


def settings_of(*words, command="train"):
    return [job.settings for job in compose_jobs(command, parse(list(words))).jobs]


# --- What Hydra reads of a path
PATHS = ["my runs", "läufe/ö", "~/x", "a (1)", "it's", "a=b", "1e3", "null/x", "[1] {2}", "ends in \\"]


def value_of(override):
    """Return the value that Hydra reads of an override as posenc hands it on."""
    (handed_on,) = parse([override]).overrides
    return OverridesParser.create().parse_override(handed_on).value()


@pytest.mark.parametrize("key", sorted(set(QUOTED_KEYS) - set(NAMES)))
@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_what_was_written(path, key):
    assert value_of(f"{key}={path}") == path


@pytest.mark.parametrize("path", PATHS)
def test_a_path_in_a_list_is_what_was_written(path):
    assert value_of(f"data.paths=[{path},b ü.txt]") == [path, "b ü.txt"]
    assert value_of(f"++data.paths=[{path},b ü.txt]") == [path, "b ü.txt"]


@pytest.mark.parametrize("path", [*PATHS, "plain", r"back\slash", r"it\'s", r"\\", "'", "\"both\" 'kinds'"])
def test_what_was_quoted_for_hydra_can_be_read_again(path):
    assert unquoted(quote(path)) == path


def test_double_quotes_of_the_user_are_no_part_of_a_path():
    assert unquoted('"it\'s.py"') == "it's.py"


@pytest.mark.parametrize("file", ["~/mine.py", "läufe/a b.py:Mine", "./mine.py", "mine.py:Mine"])
def test_the_file_of_an_encoding_is_what_was_written(file):
    assert value_of(f"encoding={file}") == file


@pytest.mark.parametrize("file", ["läufe/a b.py", "m(1).py", "./my dir/mine.py"])
def test_the_bare_name_of_a_file_is_what_was_written(file):
    line = read_settings_line("check", [file], ())
    assert unquoted(line.overrides[0].partition("=")[2]) == file


@pytest.mark.parametrize("separator", [" = ", "\n\n", ",", "a,b", " ", r"\t", "it's"])
def test_a_separator_is_taken_as_it_is_typed(separator):
    assert value_of(f"data.separator={separator}") == separator


@pytest.mark.parametrize("path", PATHS)
def test_a_path_in_quotes_is_what_is_inside(path):
    escaped = path.replace("\\", "\\\\").replace("'", "\\'")
    assert value_of(f"runs_dir='{escaped}'") == path


@pytest.mark.parametrize(
    ("key", "value"), [("name", "null"), ("experiment_name", "2026_11_21"), ("name", "a,b")]
)
def test_a_plain_name_is_read_by_hydra_as_ever(key, value):
    """Another folder would be another run."""
    assert parse([f"{key}={value}"]).overrides == [f"{key}={value}"]


def test_lists_of_paths_are_the_values_of_a_sweep(working_folder):
    jobs = settings_of("-m", "plugins=[],[~/p1],[p2,ü]")
    assert [settings.plugins for settings in jobs] == [[], ["~/p1"], ["p2", "ü"]]


# --- Commas and interpolations
def test_commas_separate_the_values_of_a_sweep(working_folder):
    jobs = settings_of("-m", "runs_dir=a b,~/ö")
    assert [settings.runs_dir for settings in jobs] == ["a b", "~/ö"]


def test_a_comma_in_the_name_of_a_file_that_is_there_separates_nothing(working_folder):
    (working_folder / "a b,~").mkdir()
    jobs = settings_of("-m", "runs_dir=a b,~")
    assert [settings.runs_dir for settings in jobs] == ["a b,~"]


def test_a_path_may_name_another_setting(working_folder):
    (settings,) = settings_of("runs_dir=${experiment_name}/x")
    assert settings.runs_dir == "default/x"


# --- Commands
@pytest.fixture
def home(working_folder, monkeypatch):
    """The working folder, which is `~` too."""
    monkeypatch.setenv("HOME", str(working_folder))
    return working_folder


def test_runs_and_texts_lie_where_the_path_says(train, posenc, home, corpus):
    shutil.copytree(corpus, home / "ein Text (ü)")
    result = train("data.paths=~/ein Text (ü)", "runs_dir=~/mehrere Läufe", "eval.lengths=[1x]")
    assert result.code == 0, result.err
    run = only_run(home / "mehrere Läufe")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["paths"] == str(home / "ein Text (ü)")
    assert posenc("eval", f"run=~/mehrere Läufe/default/{run.name}", "eval.lengths=[1x,2x]").code == 0


def test_a_folder_of_yaml_lies_where_the_path_says(posenc, home):
    (home / "mein conf").mkdir()
    assert posenc("train", "--config-dir=~/mein conf", "--cfg", "job").code == 0


# --- Runs of a folder
PLUS = "a+rope-s0"
BRACKETS = "b [odd], it's"
EQUALS = "c=d e"


@pytest.fixture
def runs(run_copy, working_folder):
    """A folder with three copies of a run under unusual names, one of them deeper."""
    folder = working_folder / "several"
    shutil.copytree(run_copy, folder / PLUS)
    shutil.copytree(run_copy, folder / "deeper" / BRACKETS)
    shutil.copytree(run_copy, folder / EQUALS)
    return folder


@pytest.mark.parametrize("written", ["~/several", "'several'"])
@pytest.mark.parametrize("command", [("compare",), ("runs",), ("export", "--out", "all.runs.jsonl.gz")])
@pytest.mark.usefixtures("runs", "home")
def test_directories_may_be_quoted_or_below_home(posenc, command, written):
    result = posenc(*command, written, "--where", "name=a*")
    assert result.code == 0, result.err


def test_a_run_whose_weights_are_exported_may_be_quoted(runs, posenc):
    result = posenc("export", f"run='{runs / PLUS}'", "--hf", "checkpoint")
    assert result.code == 0, result.err


def runs_of(*words):
    """Return the run of each job of an evaluation."""
    return [settings.run for settings in settings_of("-m", *words, command="eval")]


def test_a_folder_stands_for_every_run_below_it(runs):
    paths = [str(runs / PLUS), str(runs / EQUALS), str(runs / "deeper" / BRACKETS)]
    assert runs_of(f"run={runs}") == paths


def test_a_run_that_is_named_several_times_is_measured_once(runs):
    paths = [str(runs / "deeper" / BRACKETS), str(runs / PLUS), str(runs / EQUALS)]
    assert runs_of(f"run={runs}/deeper,{runs / PLUS},{runs}") == paths


def test_every_run_of_a_folder_is_combined_with_other_values(runs):
    assert len(runs_of(f"run={runs}", "extend=pi,ntk")) == 6


def test_a_glob_stands_for_what_it_matches(runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert runs_of("run=a*") == [PLUS]
    assert runs_of("run='[abc][+=]*'") == [PLUS, EQUALS]


@pytest.fixture
def unfinished(runs):
    """That folder, in which one run has no checkpoint and another was interrupted."""
    shutil.rmtree(runs / PLUS / "checkpoints")
    (runs / EQUALS / "status.json").write_text('{"status": "interrupted"}')
    return runs


def test_a_run_that_has_nothing_to_measure_is_left_out(unfinished):
    assert runs_of(f"run={unfinished}") == [str(unfinished / "deeper" / BRACKETS)]


def test_a_run_that_is_left_out_is_named_with_its_reason(unfinished, capsys):
    runs_of(f"run={unfinished}")
    message = capsys.readouterr().err
    assert f"{unfinished / EQUALS}: left out: interrupted" in message
    assert f"{unfinished / PLUS}: left out: no checkpoint" in message


def test_a_folder_without_runs_is_refused(runs):
    with pytest.raises(UserError, match="no trained run below it"):
        runs_of(f"run={runs / PLUS}/records,{runs}")


def test_a_glob_that_matches_nothing_is_refused(runs):
    with pytest.raises(UserError, match="nothing is there"):
        runs_of(f"run={runs}/z*")
