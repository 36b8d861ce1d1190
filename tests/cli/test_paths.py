"""Paths are taken as they are written: `~`, spaces, umlauts, brackets; no quotes inside quotes."""

import shutil

import pytest
import yaml

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse


def settings_of(*words, command="train"):
    return [job.settings for job in compose_jobs(command, parse(list(words))).jobs]


@pytest.mark.parametrize(
    "path", ["my runs", "läufe/ö", "~/x", "a (1)", "it's", "a=b", "1e3", "null/x", "[1] {2}", "ends in \\"]
)
def test_a_path_is_what_was_written(place, path):
    assert settings_of(f"runs_dir={path}")[0]["runs_dir"] == path
    assert settings_of(f"run={path}", command="eval")[0]["run"] == path
    both = settings_of("data=files", f"data.paths=[{path},b ü.txt]")[0]["data"]
    assert both["paths"] == [path, "b ü.txt"]
    assert settings_of("data=files", f"data.paths={path}")[0]["data"]["paths"] == path
    quoted = path.replace("\\", "\\\\").replace("'", "\\'")
    assert settings_of(f"runs_dir='{quoted}'")[0]["runs_dir"] == path  # as before


def test_commas_separate_the_values_of_a_sweep_unless_there_is_such_a_file(place):
    assert [one["runs_dir"] for one in settings_of("-m", "runs_dir=a b,~/ö")] == ["a b", "~/ö"]
    (place / "a b,~").mkdir()
    assert [one["runs_dir"] for one in settings_of("-m", "runs_dir=a b,~")] == ["a b,~"]
    assert settings_of("runs_dir=${experiment_name}/x")[0]["runs_dir"] == "default/x"


def test_runs_lie_where_the_path_says(train, posenc, place, corpus, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    shutil.copytree(corpus, place / "ein Text (ü)")
    result = train("data.paths=~/ein Text (ü)", "runs_dir=~/mehrere Läufe", "eval.lengths=[1x]")
    assert result.code == 0, result.err
    (run,) = (place / "mehrere Läufe" / "default").iterdir()
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["paths"] == str(place / "ein Text (ü)")
    assert posenc("eval", f"run=~/mehrere Läufe/default/{run.name}", "eval.lengths=[1x,2x]").code == 0
    (place / "mein conf").mkdir()
    assert posenc("train", "--config-dir=~/mein conf", "--cfg", "job").code == 0
