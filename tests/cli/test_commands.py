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
from in_process import called_in

from posenc import __version__
from posenc.cli import app
from posenc.cli.commands import COMMANDS
from posenc.cli.encodings import print_encodings
from posenc.config import refusals
from posenc.config.completion import candidates
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.config.yaml_files import default_choices, first_sentence
from posenc.core.errors import UserError
from posenc.core.paths import choice_file, choice_files
from posenc.encodings import building, list_encodings
from posenc.encodings.catalogue import ACTS_ON
from posenc.encodings.registry import encoding_class

RUN = "runs/default/mine-T16-s0-12345678"


def command_paths(command, path=()):
    """Yield the path of words to a command and to all below it."""
    yield path
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from command_paths(subcommand, (*path, name))


@pytest.mark.parametrize("command", list(command_paths(typer.main.get_command(app))), ids=" ".join)
def test_every_command_knows_both_words_for_help(posenc, command):
    by_long_word = posenc(*command, "--help")
    by_short_word = posenc(*command, "-h")
    assert by_short_word.code == 0, by_short_word
    assert by_short_word.out == by_long_word.out
    assert len(by_long_word.out) > 100


LIGHT_MAIN = """
import sys
from posenc.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = {'torch', 'hydra', 'omegaconf', 'numpy', 'pandas', 'wandb', 'datasets'} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("command", [[], ["train"], ["show"]], ids=" ".join)
def test_help_imports_nothing_heavy(working_folder, command):
    result = tiny.python("-c", LIGHT_MAIN, *command, "--help", cwd=working_folder)
    assert result.code == 0, result
    assert "posenc" in result.out


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("posenc train encoding = ali", "alibi\n"),  # bash breaks words at =
        ("posenc compare --against kerple", "kerple-table3\n"),
    ],
)
def test_completion_imports_nothing_heavy(working_folder, line, completed):
    word = str(len(line.split()) - 1)
    variables = {"COMP_WORDS": line, "COMP_CWORD": word, "_POSENC_COMPLETE": "complete_bash"}
    result = tiny.python("-c", LIGHT_MAIN, cwd=working_folder, **variables)
    assert result.code == 0, result
    assert result.out == completed


def help_in(folder, cache, *arguments):
    """Return what is printed in a terminal of 80 columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        result = called_in(folder, cache, *arguments)
    assert result.code == 0, result
    return result.out


def add_encoding(name, config_dir):
    """Write the YAML of an encoding into a folder of the user's."""
    folder = config_dir / "encoding"
    folder.mkdir(parents=True)
    (folder / f"{name}.yaml").write_text(f"# An encoding.\nname: {name}\nstrength: 1.0  # of it\n")


# --- The first screen
@pytest.fixture(scope="module", params=["posenc", "train", "eval"])
def first_screen(request, tmp_path_factory, shared_cache):
    """The lines of a help in a terminal of 80 columns."""
    command = [] if request.param == "posenc" else [request.param]
    return help_in(tmp_path_factory.mktemp("help"), shared_cache, *command, "--help").splitlines()


def test_the_first_screen_of_help_is_one_screen(first_screen):
    assert len(first_screen) <= 25
    assert max(len(line) for line in first_screen) <= 80


def test_the_first_screen_begins_with_what_the_command_does_and_examples(first_screen):
    assert first_screen[0].endswith(".")
    assert first_screen[2] == "Examples"
    assert first_screen[3].startswith("  posenc ")


def test_the_first_screen_says_how_to_see_the_rest(first_screen):
    assert "--help all" in "\n".join(first_screen[-2:])


def test_the_help_of_posenc_has_a_whole_line_for_each_command(posenc):
    text = posenc("--help").out
    for name in COMMANDS:
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        assert not line.endswith(("…", "...", ":"))


def test_all_of_the_help_of_posenc_has_its_options(posenc):
    assert "--install-completion" in posenc("--help", "all").out
    assert "--install-completion" not in posenc("--help").out


def test_posenc_alone_prints_the_first_screen_and_is_wrong_input(posenc):
    result = posenc()
    assert result.code == 2
    assert "Examples" in result.out + result.err


def test_the_first_screen_of_a_choice_has_its_settings(posenc):
    text = posenc("train", "encoding=alibi", "--help").out
    assert "Settings of encoding=alibi" in text
    assert "encoding.learned_slopes=false" in text


def test_a_group_that_is_chosen_twice_has_its_settings_once(posenc):
    text = posenc("train", "encoding=rope", "encoding=alibi", "--help").out
    assert text.count("Settings of encoding=alibi") == 1


# --- A topic
def test_experiments_are_listed_with_a_line_each(tmp_path_factory, shared_cache):
    text = help_in(tmp_path_factory.mktemp("help"), shared_cache, "train", "--help", "experiment")
    lines = text.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(choice_files("experiment"))
    assert all(len(line.split()) > 3 for line in lines)
    assert max(len(line) for line in lines) <= 80


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("encoding", ["alibi", "encoding.base=10000.0"]),
        ("train", ["train.tokens=4e6", "train.lr=2e-3"]),
        ("train.lr", ["peak learning rate"]),
    ],
)
def test_a_topic_has_its_choices_and_settings(posenc, topic, words):
    text = posenc("train", "--help", topic).out
    assert all(word in text for word in words)
    assert "context_length" not in text


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("encodin", "did you mean: posenc train --help encoding"),
        ("alibi", "did you mean: posenc train encoding=alibi --help"),
    ],
)
def test_a_topic_that_there_is_not_is_refused_with_what_was_meant(posenc, topic, hint):
    result = posenc("train", "--help", topic)
    assert result.code == 2
    assert hint in result.err
    assert result.err.count("did you mean") == 1


def test_a_topic_has_the_choices_of_a_folder_below_the_home(posenc, working_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(working_folder))
    add_encoding("odd", working_folder / "mine")
    assert "  odd " in posenc("train", "--config-dir=~/mine", "--help", "encoding").out


@pytest.mark.parametrize("group", ["encoding", "extend", "data", "model", "optim", "experiment", "tracking"])
def test_every_choice_says_what_it_is(group):
    assert [name for name in choice_files(group) if not first_sentence(choice_file(group, name))] == []


# --- Everything
@pytest.fixture(scope="module", params=["train", "eval"])
def command_help(request, tmp_path_factory, shared_cache):
    """A command, and all of its help in a terminal of 80 columns."""
    folder = tmp_path_factory.mktemp("help")
    return request.param, help_in(folder, shared_cache, request.param, "--help", "all")


def test_help_has_examples_then_choices_then_settings(command_help):
    _, text = command_help
    places = [text.index(heading) for heading in ("Examples", "Choices", "Settings", "Options")]
    assert places == sorted(places)


def test_help_begins_with_the_command(command_help):
    command, text = command_help
    assert text.index(f"posenc {command} ") < 200


def test_help_fits_the_terminal_but_for_commands(command_help):
    _, text = command_help
    for line in text.splitlines():
        assert len(line) <= 80 or line.lstrip().startswith("posenc ")


def test_help_names_every_choice(command_help):
    command, text = command_help
    one_line = " ".join(text.split())
    for group in default_choices(command):
        for name in choice_files(group):
            assert name in one_line


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
        ("train --config-dir=~/mine encoding=od", ["encoding=odd"]),
        ("eval run=", [f"run={RUN}"]),
        ("sample ru", [f"run={RUN}"]),
        ("sample pro", ["prompt="]),
        ("sample train.l", []),
        ("check train.l", []),
        ("check context", ["context_length="]),
        ("info context", ["context_length="]),
        ("prepare model", []),
        ("show runs", []),
        ("show encoding=rope ru", [f"run={RUN}"]),
        (f"show run={RUN} extend.tu", ["extend.tune="]),
        (f"show run={RUN} mod", []),
        ("bench runs", []),
        ("bench exten", []),
        ("bench eval.batch", ["eval.batch_tokens="]),
        ("bench eval.pro", []),
    ],
)
def test_what_fits_at_a_tab(working_folder, monkeypatch, line, completed):
    monkeypatch.setenv("HOME", str(working_folder))
    add_encoding("odd", working_folder / "mine")
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
    assert result.code == 0
    assert result.out == trained_here
    assert "already finished" in result.err


@pytest.mark.slow
def test_cli_py_of_the_clone_is_posenc(trained_here, working_folder):
    result = tiny.spawn("compare", "--format", "json", script="cli.py", cwd=working_folder)
    assert result.code == 0
    assert json.loads(result.out)["rows"][0]["label"] == "rope"


@pytest.mark.slow
def test_eval_py_of_the_clone_is_posenc_eval(working_folder):
    result = tiny.spawn("run=nowhere", script="eval.py", cwd=working_folder)
    assert result.code == 2
    assert result.out == ""
    assert "no such folder" in result.err


@pytest.mark.slow
def test_the_installed_script_is_posenc(working_folder):
    script = Path(sysconfig.get_path("scripts")) / "posenc"
    if not script.exists():
        pytest.skip("not installed")
    result = subprocess.run([script, "--version"], cwd=working_folder, capture_output=True, text=True)
    assert result.stdout == f"posenc {__version__}\n"


@pytest.mark.parametrize("option", [["--cfg", "job"], ["--dry-run"], ["-m"], []], ids=" ".join)
def test_a_result_is_on_stdout_where_a_bar_is_drawn_on_stderr(train, run_copy, monkeypatch, option):
    monkeypatch.setattr("posenc.core.progress._can_draw", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    result = train("encoding=rope", *option)
    assert "starting" in result.err
    assert "rope" in result.out


def test_cfg_prints_the_configuration_and_does_nothing(posenc, working_folder):
    result = posenc("train", "encoding=alibi", "experiment=smoke", "seed=3", "--cfg", "job")
    assert result.code == 0
    assert result.err == ""
    config = yaml.safe_load(result.out)
    assert config["encoding"] == {"name": "alibi", "learned_slopes": False}
    assert config["seed"] == 3
    assert "hydra" not in config
    assert config["experiment_name"] == "smoke"
    assert config["train"]["tokens"] <= 100_000
    assert not list(working_folder.iterdir())


@pytest.mark.parametrize("arguments", [["train", "experiment=null"], ["eval", "data=null", "subject=null"]])
def test_null_is_taken_where_it_is_the_default(posenc, arguments):
    with_null = posenc(*arguments, "--cfg", "job")
    assert with_null.code == 0, with_null
    assert with_null.out == posenc(arguments[0], "--cfg", "job").out


def test_null_may_be_among_the_values_of_a_sweep():
    composed = compose_jobs("train", parse(["-m", "experiment=null", "seed=0,1"]))
    assert [job.run_settings.seed for job in composed.jobs] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["train", "--info", "defaults"], "defaults"), (["eval", "--hydra-help"], "hydra")],
)
def test_options_of_hydra_are_answered(posenc, working_folder, arguments, text):
    assert text in posenc(*arguments).out.lower()
    assert not list(working_folder.iterdir())


def test_the_experiment_of_the_tutorial(working_folder):
    page = (tiny.ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(# @package _global_\n.*?)^```", page, re.S | re.M)
    file = working_folder / "mine" / "experiment" / "longer.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    composed = compose_jobs("train", parse(["--config-dir", "mine", "experiment=longer", "seed=0"]))
    settings = [job.settings for job in composed.jobs]
    assert composed.is_sweep  # without -m
    assert sorted(job.encoding.name for job in settings) == ["alibi", "cable", "fox", "stick_breaking"]
    assert {job.context_length for job in settings} == {128}
    assert {job.experiment_name for job in settings} == {"longer"}


# --- posenc encodings


def printed_encodings(capsys, name, *, as_json=False):
    print_encodings(name, as_json=as_json)
    return capsys.readouterr().out


@pytest.mark.parametrize("text", ["- a list", "base: [", "\udcff"], ids=["list", "no yaml", "no text"])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_broken_yaml_of_a_package_hides_no_other_encoding(capsys, monkeypatch, tmp_path, text, as_json):
    broken = tmp_path / "alibi.yaml"
    broken.write_text(text, errors="surrogateescape")

    def with_a_broken_file(group, name):
        return broken if name == "alibi" else choice_file(group, name)

    monkeypatch.setattr(building, "choice_file", with_a_broken_file)
    print_encodings(None, as_json=as_json)
    printed = capsys.readouterr()
    assert "rope" in printed.out
    assert "left out: error: encoding=alibi: " in printed.err
    assert "alibi.yaml" in printed.err
    with pytest.raises(UserError, match=r"alibi\.yaml"):
        print_encodings("alibi", as_json=as_json)


def test_a_broken_yaml_of_a_package_spoils_no_hint(monkeypatch, tmp_path):
    broken = tmp_path / "odd.yaml"
    broken.write_text("- a list")
    monkeypatch.setattr(refusals, "choice_files", lambda group: {"odd": broken, **choice_files(group)})
    with pytest.raises(UserError, match=r"encoding\.tau is a setting of encoding=scale_invariant"):
        compose_jobs("train", parse(["encoding=rope", "encoding.tau=3"]))


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
    for name in list_encodings():
        assert heading_of[name] == ACTS_ON[encoding_class(name).acts_on]


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
    for reason in cls.refuses.values():
        assert " ".join(reason.split()) in one_line
