"""Run directories from somebody else: nothing in them is executed, nothing outside is written or told."""

import functools
import hashlib
import os
import pickle
import shutil

import pytest
import tiny
import yaml
from battery import SHORT, command
from fake_runs import edit_json

from posenc.core.errors import RunError, UserError

faults = pytest.mark.faults
SECRET = "m4deUp5ecret"
PROMPT = {"show": (), "eval": (), "sample": ("prompt=the tale",)}
CALL = {"_target_": "os.system", "_args_": ["touch executed"]}


class Payload:
    """A pickle that writes a file when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch executed",)


def change_settings(run, changes):
    """Set keys of config.yaml; a dot reaches into a group."""
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        group, dot, name = key.rpartition(".")
        target = config[group] if dot else config
        target[name] = value
    path.write_text(yaml.safe_dump(config))


def replace_sealed(run, name, content):
    """Replace a file of the checkpoint, with a manifest that fits: whoever changes one changes both."""
    checkpoint = next((run / "checkpoints").glob("step-*"))
    (checkpoint / name).write_bytes(content)
    edit_json(checkpoint / "manifest.json", **{name: hashlib.sha256(content).hexdigest()})


def files_below(folder):
    """Return every path below a folder but what Python writes when it imports a module."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return sorted(paths)


# --- Settings
HOSTILE_CONFIGS = [
    pytest.param({"encoding": {"name": "../../evil"}}, "encoding=../../evil", id="path as a name"),
    pytest.param(
        {"encoding": {"name": "evil"}, "plugins": ["evil"]}, "encoding=evil", id="module as a plug-in"
    ),
    pytest.param(
        {"encoding": {"_target_": "evil.Evil", "name": "rope"}}, "encoding._target_", id="class to be called"
    ),
    pytest.param({"model.d_model": 2 * 10**9}, "config.yaml: model.d_model", id="huge model"),
    pytest.param({"data": {"name": "files", "source": "../evil"}}, "data.source=../evil", id="source"),
    pytest.param({"seed": "evil"}, "config.yaml: seed", id="seed"),
    pytest.param({"experiment_name": "../../up"}, "experiment_name", id="folder outside"),
]


@pytest.fixture
def importable_evil(working_folder, monkeypatch):
    """A module that writes a file where it is imported, and that could be imported."""
    (working_folder / "evil.py").write_text("open('executed', 'w').close()")
    monkeypatch.syspath_prepend(str(working_folder))


@pytest.mark.usefixtures("importable_evil")
@pytest.mark.parametrize(("changes", "named"), HOSTILE_CONFIGS)
def test_a_hostile_config_is_refused_and_executes_nothing(posenc, run_copy, working_folder, changes, named):
    change_settings(run_copy, changes)
    files_before = files_below(working_folder)
    result = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,8x]")
    assert result.code == 2, result.err
    assert result.out == ""
    assert named in result.err
    assert files_below(working_folder) == files_before
    assert_is_a_short_message(result.err, working_folder)


def assert_is_a_short_message(text, working_folder):
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 24
    assert os.environ["HOME"] not in text.replace(str(working_folder), "")


# --- Weights
@pytest.mark.parametrize("action", ["show", "eval"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pickle.dumps(Payload()), id="a pickle"),
        pytest.param((10**15).to_bytes(8, "little") + b"{}", id="a header of 1 PB", marks=faults),
        pytest.param(b"\xff" * 64, id="noise", marks=faults),
    ],
)
def test_weights_that_are_no_weights(run_copy, working_folder, posenc, content, action):
    replace_sealed(run_copy, "model.safetensors", content)
    lengths = ["eval.lengths=[1x,8x]"] if action == "eval" else []
    result = posenc(action, f"run={run_copy}", *lengths)
    assert result.code in (1, 2), result
    assert result.out == ""
    assert "Traceback" not in result.err
    assert "fault of posenc" not in result.err
    assert not (working_folder / "executed").exists()


# --- Sizes and texts
@faults
@pytest.mark.parametrize("action", ["runs", "compare"])
@pytest.mark.parametrize("name", ["config.yaml", "status.json", "results.json"])
def test_a_file_beyond_the_size_cap_is_not_read(run_copy, posenc, name, action):
    with (run_copy / name).open("wb") as file:
        file.truncate(10**12)  # bytes that are only declared
    result = posenc(action)
    assert result.code == {"runs": 0, "compare": 2}[action], result.err
    assert "Traceback" not in result.err


@faults
@pytest.mark.parametrize("name", ["config.yaml", "status.json", "results.json"])
def test_the_comparison_says_which_file_is_too_large(run_copy, posenc, name):
    with (run_copy / name).open("wb") as file:
        file.truncate(10**12)
    assert "too large" in posenc("compare").err


ALIAS_BOMB = "\n".join(["a0: &a0 [x,x,x,x]", *(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]" for i in range(1, 12))])


@pytest.fixture
def with_bomb(run_copy):
    """A finished run, and beside it one whose config.yaml is an alias bomb."""
    damaged = run_copy.parent / "rope-damaged-00000000"
    shutil.copytree(run_copy, damaged)
    (damaged / "config.yaml").write_text(ALIAS_BOMB)
    return run_copy


@pytest.mark.parametrize(
    "words",
    [
        ("compare",),
        ("runs",),
        pytest.param(("eval", "-m", "run=runs", *SHORT), marks=faults),
    ],
    ids=" ".join,
)
def test_a_hostile_config_is_named_and_the_other_runs_are_shown(with_bomb, posenc, words):
    result = posenc(*words)
    assert result.code == 0, result.err
    assert "rope-damaged-00000000" in result.out + result.err
    assert "rope" in result.out.replace("rope-damaged", "")


@pytest.mark.parametrize("command", ["show", "eval", "sample"])
def test_a_hostile_config_is_refused_by_what_reads_one_run(with_bomb, posenc, command):
    result = posenc(command, f"run={with_bomb.parent}/rope-damaged-00000000", *PROMPT[command])
    assert result.code == 2
    assert "config.yaml: holds aliases" in result.err


def test_nothing_but_damaged_runs_is_no_comparison(run_copy, posenc):
    (run_copy / "config.yaml").write_text("[")
    result = posenc("compare")
    assert (result.code, result.out) == (2, "")
    assert "no run there can be read" in result.err
    assert run_copy.name in result.err


@faults
@pytest.mark.parametrize("action", ["compare", "runs"])
def test_control_characters_of_a_run_are_not_printed(run_copy, posenc, action):
    edit_json(run_copy / "status.json", status="\u202efinished\x1b[2J")
    result = posenc(action)
    assert (result.out + result.err).replace("\n", "").isprintable(), result


@faults
def test_control_characters_in_a_message_are_escaped():
    error = UserError("a\x1b[2J", "b\x1b[31m\nerror: none", "c\x07", allowed="d\x9b", hint="e\x1b\nf")
    message = error.text()
    assert message.replace("\n", "").isprintable()
    assert message.splitlines()[0] == r"error: a\x1b[2J=b\x1b[31m\nerror: none: c\x07"
    assert RunError("x\x1b", hint="y\r").text() == "error: x\\x1b\n  y\\r"


@faults
def test_a_message_with_long_values_is_cut():
    error = UserError("encoding", "x" * 10**5, "y" * 10**5, allowed=["z" * 5000] * 50)
    assert len(error.text()) < 2000


# --- Everything at once, in processes that could import the evil module
HOSTILE_SETTINGS = {
    "a call": CALL,
    "settings of Hydra": {
        "hydra": {"run": {"dir": "../../../up"}, "launcher": CALL, "searchpath": ["pkg://evil"]}
    },
    "a package as data": {"data": {"name": "x", "source": "package", "package": "evil.inner", "exclude": []}},
    "a tokenizer": {"tokenizer": {"name": "hf", "path": "evil"}},
    "a variable of the environment": {"data.paths": ["${oc.env:MADE_UP}"]},
    "a resolver": {"model.name": "${oc.create:{_target_:evil.Evil}}"},
}
HOSTILE_TEXTS = {
    "a YAML tag": "a: !!python/object/apply:subprocess.check_output [['touch', 'executed']]",
    "an include": "encoding: !include ../../../secret.txt",
    "noise": "\x00\x01",
}


def write_config(run, text):
    (run / "config.yaml").write_text(text)


def write_pickles(run):
    """Put pickles and modules beside the files, where careless code would look."""
    for name in ("model.pt", "config.pkl", "checkpoints/latest.pt", "records/a.json", "positions.json"):
        (run / name).write_bytes(pickle.dumps(Payload()))
    for name in ("sitecustomize", "posenc", "torch", "rope", "__init__"):
        (run / f"{name}.py").write_text("open('executed', 'w')\n")
    for name in ("optimizer.safetensors", "state.json", "tokenizer.json"):
        replace_sealed(run, name, pickle.dumps(Payload()))


ATTACKS = {
    **{
        name: functools.partial(change_settings, changes=changes)
        for name, changes in HOSTILE_SETTINGS.items()
    },
    **{name: functools.partial(write_config, text=text) for name, text in HOSTILE_TEXTS.items()},
    "pickles": write_pickles,
}


@pytest.fixture
def surroundings(working_folder):
    """A secret file, and a folder of modules that write a file where they are imported."""
    outside = working_folder / "outside"
    outside.mkdir()
    executed = working_folder / "executed"
    (outside / "evil.py").write_text(f"open({str(executed)!r}, 'w')\nclass Evil: ...\n")
    (working_folder / "secret.txt").write_text(SECRET)
    return {"PYTHONPATH": f"{tiny.ROOT}{os.pathsep}{outside}", "MADE_UP": SECRET}


@pytest.fixture
def commands(trained_once, corpus):
    """The arguments of every command that reads a run directory, by name."""
    name = next((trained_once / "default").iterdir()).name
    return {
        "eval": ("eval", f"run=runs/default/{name}", "eval.lengths=[1x,4x]"),
        "train": command(corpus, "encoding=rope"),
        "tracked": command(corpus, "encoding=rope", *SHORT, "tracking=tensorboard"),
        "compare": ("compare", "--html", "page.html"),
        "show": ("show", f"run=runs/default/{name}"),
        "runs": ("runs", "--format", "json"),
    }


@faults
@pytest.mark.parametrize("action", ["eval", "train", "tracked", "compare", "show", "runs"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_is_executed_written_outside_or_told(
    trained_once, working_folder, surroundings, commands, attack, action
):
    inside = working_folder / "inside"
    shutil.copytree(trained_once, inside / "runs")
    ATTACKS[attack](next((inside / "runs" / "default").iterdir()))
    result = tiny.spawn(*commands[action], cwd=inside, **surroundings)
    assert result.code in (0, 1, 2), result
    assert "Traceback" not in result.err
    assert "fault of posenc" not in result.err
    assert not list(working_folder.rglob("executed"))
    assert_nothing_is_written_outside(working_folder, inside)
    assert_secret_is_not_told(result, inside)


def assert_nothing_is_written_outside(working_folder, inside):
    names = {path.name for path in working_folder.iterdir()} - {"cache"}
    assert names == {"outside", "secret.txt", "inside"}
    assert {path.name for path in inside.iterdir()} <= {"runs", "page.html"}


def assert_secret_is_not_told(result, inside):
    assert SECRET not in result.out + result.err
    for path in inside.rglob("*"):
        if path.is_file() and path.stat().st_size < 10**8:
            assert SECRET.encode() not in path.read_bytes(), path
