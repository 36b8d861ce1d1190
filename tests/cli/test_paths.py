"""Paths are taken as they are written: `~`, spaces, umlauts, brackets; no quotes inside quotes."""

import shutil

import pytest
import yaml
from fake_runs import only_run
from hydra.core.override_parser.overrides_parser import OverridesParser

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError

NAMES = ("a+rope-s0", "b [odd], it's", "c=d e")


def settings_of(*words, command="train"):
    return [job.settings for job in compose_jobs(command, parse(list(words))).jobs]


@pytest.mark.parametrize(
    "path", ["my runs", "läufe/ö", "~/x", "a (1)", "it's", "a=b", "1e3", "null/x", "[1] {2}", "ends in \\"]
)
def test_a_path_is_what_was_written(path):
    quoted = path.replace("\\", "\\\\").replace("'", "\\'")
    words = {f"{key}={path}": path for key in ("runs_dir", "run", "data.paths")}
    words |= {f"data.paths=[{path},b ü.txt]": [path, "b ü.txt"], f"runs_dir='{quoted}'": path}
    for written, want in words.items():
        (override,) = parse([written]).overrides
        assert OverridesParser.create().parse_override(override).value() == want


def test_commas_separate_the_values_of_a_sweep_unless_there_is_such_a_file(working_folder):
    assert [one.runs_dir for one in settings_of("-m", "runs_dir=a b,~/ö")] == ["a b", "~/ö"]
    (working_folder / "a b,~").mkdir()
    assert [one.runs_dir for one in settings_of("-m", "runs_dir=a b,~")] == ["a b,~"]
    assert settings_of("runs_dir=${experiment_name}/x")[0].runs_dir == "default/x"


def test_runs_lie_where_the_path_says(train, posenc, working_folder, corpus, monkeypatch):
    monkeypatch.setenv("HOME", str(working_folder))
    shutil.copytree(corpus, working_folder / "ein Text (ü)")
    result = train("data.paths=~/ein Text (ü)", "runs_dir=~/mehrere Läufe", "eval.lengths=[1x]")
    assert result.code == 0, result.err
    run = only_run(working_folder / "mehrere Läufe")
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["paths"] == str(
        working_folder / "ein Text (ü)"
    )
    assert posenc("eval", f"run=~/mehrere Läufe/default/{run.name}", "eval.lengths=[1x,2x]").code == 0
    (working_folder / "mein conf").mkdir()
    assert posenc("train", "--config-dir=~/mein conf", "--cfg", "job").code == 0


@pytest.fixture
def runs(run_copy, working_folder):
    """A folder with three copies of a run under unusual names, one of them deeper."""
    folder = working_folder / "several"
    for name, where in zip(NAMES, (folder, folder / "deeper", folder), strict=True):
        shutil.copytree(run_copy, where / name)
    return folder


def runs_of(*words):
    return [settings.run for settings in settings_of("-m", *words, command="eval")]


def test_a_folder_stands_for_every_run_below_it_and_a_glob_for_what_it_matches(runs, monkeypatch):
    every = [str(runs / NAMES[0]), str(runs / NAMES[2]), str(runs / "deeper" / NAMES[1])]
    assert runs_of(f"run={runs}") == every
    assert runs_of(f"run={runs}/deeper,{runs / NAMES[0]},{runs}") == [every[2], every[0], every[1]]
    assert len(runs_of(f"run={runs}", "extend=pi,ntk")) == 6
    monkeypatch.chdir(runs)
    assert runs_of("run=a*") == [NAMES[0]]
    assert runs_of("run='[abc][+=]*'") == [NAMES[0], NAMES[2]]


def test_what_has_nothing_to_measure_is_named(runs, capsys):
    shutil.rmtree(runs / NAMES[0] / "checkpoints")
    (runs / NAMES[2] / "status.json").write_text('{"status": "interrupted"}')
    assert runs_of(f"run={runs}") == [str(runs / "deeper" / NAMES[1])]
    told = capsys.readouterr().err
    assert f"{runs / NAMES[2]}: left out: interrupted" in told
    assert f"{runs / NAMES[0]}: left out: no checkpoint" in told
    with pytest.raises(UserError, match="no trained run below it"):
        runs_of(f"run={runs / NAMES[0]}/records,{runs}")
    with pytest.raises(UserError, match="nothing is there"):
        runs_of(f"run={runs}/z*")
