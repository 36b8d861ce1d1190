"""Commands: help, completion, doors, configuration, catalogue."""

import json
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import tiny
import typer
import yaml

from posenc import __version__
from posenc.cli import app
from posenc.cli.encodings import print_encodings
from posenc.config.completion import candidates
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.config.yaml_files import groups
from posenc.core.paths import choice_files
from posenc.encodings import list_encodings
from posenc.encodings.catalogue import ACTS_ON
from posenc.encodings.registry import encoding_class

RUN = "runs/default/mine-T16-s0-12345678"


def names(command, path=()):
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from names(below, (*path, name))


@pytest.mark.parametrize("command", list(names(typer.main.get_command(app))), ids=" ".join)
def test_every_command_knows_both_words_for_help(posenc, command):
    long, short = posenc(*command, "--help"), posenc(*command, "-h")
    assert (short.code, short.out) == (0, long.out) and len(long.out) > 100, short


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((f"posenc {words}--help", "posenc") for words in ("", "train ", "show ")),
        ("posenc train encoding = ali", "alibi\n"),  # completed: bash breaks words at =
        ("posenc compare --against kerple", "kerple-table3\n"),
    ],
)
def test_help_and_completion_import_nothing_heavy(place, line, said):
    code = """import sys\nfrom posenc.cli import main
try: main()
except SystemExit as end: assert not end.code
heavy = {'torch', 'hydra', 'omegaconf', 'numpy', 'pandas', 'wandb', 'datasets'} & set(sys.modules)
assert not heavy, heavy"""
    words, env = line.split()[1:], {}
    if "--help" not in words:
        env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_POSENC_COMPLETE": "complete_bash"}
    done = tiny.python("-c", code, *([] if env else words), cwd=place, **env)
    assert done.code == 0 and (done.out == said if env else said in done.out), done


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_has_examples_then_choices_then_settings(posenc, place, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    out = posenc(command, "--help").out
    assert out.index("Examples") < out.index("Choices") < out.index("Settings") < out.index("Options")
    assert out.index(f"posenc {command} ") < 200
    assert not [one for one in out.splitlines() if len(one) > 80 and not one.lstrip().startswith("posenc ")]
    flat = " ".join(out.split())
    assert all(name in flat for group in groups(command) for name in choice_files(group))
    assert command == "eval" or "learned_slopes=false" in posenc(command, "encoding=alibi", "--help").out


def test_what_fits_at_a_tab(place):
    (place / "mine" / "encoding").mkdir(parents=True)
    (place / "mine" / "encoding" / "odd.yaml").write_text("name: odd\nstrength: 1.0  # of it\n")
    (place / RUN).mkdir(parents=True)
    (place / RUN / "status.json").write_text("{}")
    for line, found in (
        ("train encoding=rope,ali", ["encoding=rope,alibi"]),
        ("train context", ["context_length="]),
        ("train encoding=", [f"encoding={name}" for name in choice_files("encoding")]),
        ("train eval.protocols=[sliding,fix", ["eval.protocols=[sliding,fixed-target"]),
        ("train encoding=alibi encoding.le", ["encoding.learned_slopes="]),
        ("train --config-dir mine encoding=od", ["encoding=odd"]),
        ("train --config-dir mine encoding=odd encoding.", ["encoding.strength="]),
        ("eval run=", [f"run={RUN}"]),
    ):
        command, *words = line.split(" ")
        assert candidates(command, words[:-1], words[-1]) == found


@pytest.mark.slow
def test_the_doors_of_the_clone_are_the_command(trained_once, place, corpus):
    shutil.copytree(trained_once, place / "runs")
    arguments = [*tiny.TINY, f"data.paths={corpus}", "encoding=rope"]
    train = tiny.spawn(*arguments, script="train.py", cwd=place)
    assert train.code == 0 and "already finished" in train.err
    assert train.out == (trained_once.parent / "out.txt").read_text()
    compared = tiny.spawn("compare", "--format", "json", script="cli.py", cwd=place)
    assert compared.code == 0 and json.loads(compared.out)["rows"][0]["label"] == "rope"
    wrong = tiny.spawn("run=nowhere", script="eval.py", cwd=place)
    assert wrong.code == 2 and "no such folder" in wrong.err and wrong.out == ""
    script = Path(sysconfig.get_path("scripts")) / "posenc"
    if script.exists():
        done = subprocess.run([script, "--version"], cwd=place, capture_output=True, text=True)
        assert done.stdout == f"posenc {__version__}\n"


def test_cfg_prints_the_configuration_and_does_nothing(posenc, place):
    result = posenc("train", "encoding=alibi", "experiment=smoke", "seed=3", "--cfg", "job")
    assert (result.code, result.err) == (0, "")
    config = yaml.safe_load(result.out)
    assert config["encoding"] == {"name": "alibi", "learned_slopes": False}
    assert config["seed"] == 3 and "hydra" not in config
    assert config["experiment_name"] == "smoke" and config["train"]["tokens"] <= 100_000
    assert "defaults" in posenc("train", "--info", "defaults").out.lower()
    assert "Hydra" in posenc("eval", "--hydra-help").out
    assert not list(place.iterdir())


def test_the_experiment_of_the_tutorial(place):
    page = (tiny.ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(# @package _global_\n.*?)^```", page, re.S | re.M)
    file = place / "mine" / "experiment" / "longer.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    jobs = compose_jobs("train", parse(["--config-dir", "mine", "experiment=longer", "seed=0"]))
    found = [job.settings for job in jobs.jobs]
    assert jobs.sweep  # without -m
    assert sorted(settings.encoding.name for settings in found) == ["alibi", "cable", "fox", "stick_breaking"]
    assert {(settings.context_length, settings.experiment_name) for settings in found} == {(128, "longer")}


def test_the_catalogue_groups_by_where_encodings_act(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_encodings(None, as_json=False)
    heading, found = "", {}
    for line in capsys.readouterr().out.splitlines():
        assert len(line) <= 80
        heading = line if line in ACTS_ON.values() else heading
        if re.match(r"  \S", line):
            found[line.split()[0]] = heading
    wanted = {name: ACTS_ON[encoding_class(name).acts_on] for name in list_encodings()}
    assert wanted.items() <= found.items()
    print_encodings(None, as_json=True)
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert sorted(entries) == list_encodings()
    assert entries["rope"]["parameters"]["base"] == 10000.0 and "2104.09864" in entries["rope"]["paper"]
    assert entries["kerple_log"]["learned_parameters"] == "2*H"
    for name in list_encodings():
        print_encodings(name, as_json=False)
        out, cls = capsys.readouterr().out, encoding_class(name)
        assert out.startswith(f"{name}  (acts on: {cls.acts_on})") and max(map(len, out.splitlines())) <= 80
        words = " ".join(out.split())
        assert all(" ".join(text.split()) in words for text in cls.refuses.values())
