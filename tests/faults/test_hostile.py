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
CALL = {"_target_": "os.system", "_args_": ["touch executed"]}


class Payload:
    def __reduce__(self):
        return os.system, ("touch executed",)


def change_settings(run, change):
    """Set keys of config.yaml; a dot reaches into a group."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in change.items():
        group, dot, last = key.rpartition(".")
        (config[group] if dot else config)[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def replace_sealed(run, name, content):
    """Replace a file of the checkpoint, with a manifest that fits: whoever changes one changes both."""
    checkpoint = next((run / "checkpoints").glob("step-*"))
    (checkpoint / name).write_bytes(content)
    edit_json(checkpoint / "manifest.json", **{name: hashlib.sha256(content).hexdigest()})


CHANGES = [
    ({"encoding": {"name": "../../evil"}}, ["encoding=../../evil"]),
    ({"encoding": {"name": "evil"}, "plugins": ["evil"]}, ["encoding=evil"]),
    ({"encoding": {"_target_": "evil.Evil", "name": "rope"}}, ["encoding._target_"]),
    ({"model.d_model": 2 * 10**9}, ["config.yaml: model.d_model"]),
    ({"data": {"name": "files", "source": "../evil"}}, ["data.source=../evil"]),
    ({"tokenizer": {"name": "evil"}}, ["tokenizer"]),
    ({"seed": "evil"}, ["config.yaml: seed"]),
    ({"experiment_name": "../../up"}, ["experiment_name"]),
]


@pytest.mark.parametrize(("change", "says"), CHANGES, ids=[str(c)[:50] for c, _ in CHANGES])
def test_a_hostile_config_is_refused_and_executes_nothing(posenc, run_copy, place, monkeypatch, change, says):
    (place / "evil.py").write_text("open('executed', 'w').close()")  # it could be imported
    monkeypatch.syspath_prepend(str(place))
    change_settings(run_copy, change)
    before = sorted(p.relative_to(place) for p in place.rglob("*"))
    result = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,8x]")
    assert (result.code, result.out) == (2, ""), result.err
    assert all(text in result.err for text in says), result.err
    assert os.environ["HOME"] not in result.err.replace(str(place), "")
    assert "Traceback" not in result.err and len(result.err.splitlines()) <= 24
    assert sorted(p.relative_to(place) for p in place.rglob("*") if "__pycache__" not in p.parts) == before


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pickle.dumps(Payload()), id="a pickle"),
        pytest.param((10**15).to_bytes(8, "little") + b"{}", id="a header of 1 PB", marks=faults),
        pytest.param(b"\xff" * 64, id="noise", marks=faults),
    ],
)
def test_weights_that_are_no_weights(run_copy, place, posenc, content):
    replace_sealed(run_copy, "model.safetensors", content)
    for words in (["show", f"run={run_copy}"], ["eval", f"run={run_copy}", "eval.lengths=[1x,8x]"]):
        result = posenc(*words)
        assert result.code in (1, 2) and result.out == "", result
        assert "Traceback" not in result.err and "fault of posenc" not in result.err, result.err
    assert not (place / "executed").exists()


@faults
@pytest.mark.parametrize("name", ["config.yaml", "status.json", "results.json"])
def test_a_file_beyond_the_size_cap_is_not_read(run_copy, posenc, name):
    with (run_copy / name).open("wb") as file:
        file.truncate(10**12)  # bytes that are only declared
    for words in (["runs"], ["compare"]):
        result = posenc(*words)
        assert result.code == 0 and "Traceback" not in result.err, result
    assert "too large" in result.err


@faults
def test_foreign_text_is_printed_as_text(run_copy, posenc):
    edit_json(run_copy / "status.json", status="\u202efinished\x1b[2J")
    for words in (["compare"], ["runs"]):
        result = posenc(*words)
        assert (result.out + result.err).replace("\n", "").isprintable(), result
    said = UserError("a\x1b[2J", "b\x1b[31m\nerror: none", "c\x07", allowed="d\x9b", hint="e\x1b\nf").text()
    assert said.replace("\n", "").isprintable()
    assert said.splitlines()[0] == r"error: a\x1b[2J=b\x1b[31m\nerror: none: c\x07"
    assert RunError("x\x1b", hint="y\r").text() == "error: x\\x1b\n  y\\r"
    assert len(UserError("encoding", "x" * 10**5, "y" * 10**5, allowed=["z" * 5000] * 50).text()) < 2000


SETTINGS = [
    CALL,
    {"hydra": {"run": {"dir": "../../../up"}, "launcher": CALL, "searchpath": ["pkg://evil"]}},
    {"data": {"name": "x", "source": "package", "package": "evil.inner", "exclude": []}},
    {"tokenizer": {"name": "hf", "path": "evil"}},
    {"data.paths": ["${oc.env:MADE_UP}"]},
    {"model.name": "${oc.create:{_target_:evil.Evil}}"},
]
YAMLS = [
    "a: !!python/object/apply:subprocess.check_output [['touch', 'executed']]",
    "encoding: !include ../../../secret.txt",
    "\x00\x01",
]


def write_pickles(run):
    """Put pickles and modules beside the files, where careless code would look."""
    for name in ("model.pt", "config.pkl", "checkpoints/latest.pt", "records/a.json", "positions.json"):
        (run / name).write_bytes(pickle.dumps(Payload()))
    for name in ("sitecustomize", "posenc", "torch", "rope", "__init__"):
        (run / f"{name}.py").write_text("open('executed', 'w')\n")
    for name in ("optimizer.safetensors", "state.json", "tokenizer.json"):
        replace_sealed(run, name, pickle.dumps(Payload()))


ATTACKS = {
    **{str(c)[:60]: functools.partial(change_settings, change=c) for c in SETTINGS},
    **{t[:60]: lambda run, t=t: (run / "config.yaml").write_text(t) for t in YAMLS},
    "pickles": write_pickles,
}


@faults
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_is_executed_written_outside_or_told(trained_once, place, corpus, attack):
    """Every command that reads a run directory, in a process that could import the evil module."""
    (place / "outside").mkdir()
    (place / "outside" / "evil.py").write_text(f"open({str(place / 'executed')!r}, 'w')\nclass Evil: ...\n")
    (place / "secret.txt").write_text(SECRET)
    work = place / "work"
    name = next((trained_once / "default").iterdir()).name
    for words in (
        ("eval", f"run=runs/default/{name}", "eval.lengths=[1x,4x]"),
        command(corpus, "encoding=rope"),
        command(corpus, "encoding=rope", *SHORT, "tracking=tensorboard"),
        ("compare", "--html", "page.html"),
        ("show", f"run=runs/default/{name}"),
        ("runs", "--format", "json"),
    ):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(trained_once, work / "runs")
        ATTACKS[attack](work / "runs" / "default" / name)
        env = {"PYTHONPATH": f"{tiny.ROOT}{os.pathsep}{place / 'outside'}", "MADE_UP": SECRET}
        result = tiny.spawn(*words, cwd=work, **env)
        assert result.code in (0, 1, 2) and "Traceback" not in result.err, result
        assert "fault of posenc" not in result.err, result.err
        assert not list(place.rglob("executed")) and SECRET not in result.out + result.err, result
        assert {p.name for p in place.iterdir() if p.name != "cache"} == {"outside", "secret.txt", "work"}
        assert {p.name for p in work.iterdir()} <= {"runs", "page.html"}
        written = [p for p in work.rglob("*") if p.is_file() and p.stat().st_size < 10**8]
        assert not [p for p in written if SECRET.encode() in p.read_bytes()]
