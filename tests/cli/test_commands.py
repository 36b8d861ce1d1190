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
def test_help_and_completion_import_nothing_heavy(working_folder, line, said):
    code = """import sys\nfrom posenc.cli import main
try: main()
except SystemExit as end: assert not end.code
heavy = {'torch', 'hydra', 'omegaconf', 'numpy', 'pandas', 'wandb', 'datasets'} & set(sys.modules)
assert not heavy, heavy"""
    words, env = line.split()[1:], {}
    if "--help" not in words:
        env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words)), "_POSENC_COMPLETE": "complete_bash"}
    done = tiny.python("-c", code, *([] if env else words), cwd=working_folder, **env)
    assert done.code == 0 and (done.out == said if env else said in done.out), done


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_has_examples_then_choices_then_settings(posenc, working_folder, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    out = posenc(command, "--help").out
    assert out.index("Examples") < out.index("Choices") < out.index("Settings") < out.index("Options")
    assert out.index(f"posenc {command} ") < 200
    assert not [one for one in out.splitlines() if len(one) > 80 and not one.lstrip().startswith("posenc ")]
    flat = " ".join(out.split())
    assert all(name in flat for group in groups(command) for name in choice_files(group))
    assert command == "eval" or "learned_slopes=false" in posenc(command, "encoding=alibi", "--help").out


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("train encoding=rope,ali", ["encoding=rope,alibi"]),
        ("train context", ["context_length="]),
        ("train encoding=", [f"encoding={name}" for name in choice_files("encoding")]),
        ("train eval.protocols=[sliding,fix", ["eval.protocols=[sliding,fixed-target"]),
        ("train encoding=alibi encoding.le", ["encoding.learned_slopes="]),
        ("train --config-dir mine encoding=od", ["encoding=odd"]),
        ("train --config-dir mine encoding=odd encoding.", ["encoding.strength="]),
        ("eval run=", [f"run={RUN}"]),
    ],
)
def test_what_fits_at_a_tab(working_folder, line, completed):
    (working_folder / "mine" / "encoding").mkdir(parents=True)
    (working_folder / "mine" / "encoding" / "odd.yaml").write_text("name: odd\nstrength: 1.0  # of it\n")
    (working_folder / RUN).mkdir(parents=True)
    (working_folder / RUN / "status.json").write_text("{}")
    command, *before, incomplete = line.split(" ")
    assert candidates(command, before, incomplete) == completed


@pytest.fixture
def trained_here(trained_once, working_folder):
    """The trained run below `working_folder`, and what was printed when it was trained."""
    shutil.copytree(trained_once, working_folder / "runs")
    return (trained_once.parent / "out.txt").read_text()


@pytest.mark.slow
def test_train_py_of_the_clone_is_posenc_train(trained_here, working_folder, corpus):
    arguments = [*tiny.TINY, f"data.paths={corpus}", "encoding=rope"]
    result = tiny.spawn(*arguments, script="train.py", cwd=working_folder)
    assert (result.code, result.out) == (0, trained_here)
    assert "already finished" in result.err


@pytest.mark.slow
def test_cli_py_of_the_clone_is_posenc(trained_here, working_folder):
    result = tiny.spawn("compare", "--format", "json", script="cli.py", cwd=working_folder)
    assert result.code == 0
    assert json.loads(result.out)["rows"][0]["label"] == "rope"


@pytest.mark.slow
def test_eval_py_of_the_clone_is_posenc_eval(working_folder):
    result = tiny.spawn("run=nowhere", script="eval.py", cwd=working_folder)
    assert (result.code, result.out) == (2, "")
    assert "no such folder" in result.err


@pytest.mark.slow
def test_the_installed_script_is_posenc(working_folder):
    script = Path(sysconfig.get_path("scripts")) / "posenc"
    if not script.exists():
        pytest.skip("not installed")
    result = subprocess.run([script, "--version"], cwd=working_folder, capture_output=True, text=True)
    assert result.stdout == f"posenc {__version__}\n"


def test_cfg_prints_the_configuration_and_does_nothing(posenc, working_folder):
    result = posenc("train", "encoding=alibi", "experiment=smoke", "seed=3", "--cfg", "job")
    assert (result.code, result.err) == (0, "")
    config = yaml.safe_load(result.out)
    assert config["encoding"] == {"name": "alibi", "learned_slopes": False}
    assert config["seed"] == 3
    assert "hydra" not in config
    assert config["experiment_name"] == "smoke"
    assert config["train"]["tokens"] <= 100_000
    assert not list(working_folder.iterdir())


@pytest.mark.parametrize(
    ("words", "printed"), [("train --info defaults", "defaults"), ("eval --hydra-help", "hydra")]
)
def test_hydras_own_questions_are_answered(posenc, working_folder, words, printed):
    assert printed in posenc(*words.split()).out.lower()
    assert not list(working_folder.iterdir())


def test_the_experiment_of_the_tutorial(working_folder):
    page = (tiny.ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(# @package _global_\n.*?)^```", page, re.S | re.M)
    file = working_folder / "mine" / "experiment" / "longer.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    jobs = compose_jobs("train", parse(["--config-dir", "mine", "experiment=longer", "seed=0"]))
    found = [job.settings for job in jobs.jobs]
    assert jobs.is_sweep  # without -m
    assert sorted(settings.encoding.name for settings in found) == ["alibi", "cable", "fox", "stick_breaking"]
    assert {(settings.context_length, settings.experiment_name) for settings in found} == {(128, "longer")}


# --- posenc encodings


def printed_encodings(capsys, name, *, as_json=False):
    print_encodings(name, as_json=as_json)
    return capsys.readouterr().out


def test_the_catalogue_groups_by_where_encodings_act(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    heading = ""
    heading_of = {}
    for line in printed_encodings(capsys, None).splitlines():
        assert len(line) <= 80
        if line in ACTS_ON.values():
            heading = line
        if re.match(r"  \S", line):
            heading_of[line.split()[0]] = heading
    assert all(heading_of[name] == ACTS_ON[encoding_class(name).acts_on] for name in list_encodings())


def test_the_catalogue_as_json_has_every_encoding(capsys):
    entries = {entry["name"]: entry for entry in json.loads(printed_encodings(capsys, None, as_json=True))}
    assert sorted(entries) == list_encodings()
    assert entries["rope"]["parameters"]["base"] == 10000.0
    assert "2104.09864" in entries["rope"]["paper"]
    assert entries["kerple_log"]["learned_parameters"] == "2*H"


@pytest.mark.parametrize("name", list_encodings())
def test_an_encoding_in_full_says_what_it_refuses(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    out = printed_encodings(capsys, name)
    cls = encoding_class(name)
    assert out.startswith(f"{name}  (acts on: {cls.acts_on})")
    assert max(map(len, out.splitlines())) <= 80
    one_line = " ".join(out.split())
    assert all(" ".join(reason.split()) in one_line for reason in cls.refuses.values())
