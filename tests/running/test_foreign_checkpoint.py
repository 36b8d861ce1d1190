"""Whoever reads weights compares the run that wrote them: those of another seed have the same shapes."""

import shutil

import pytest
import tiny
from fake_runs import edit_json, read_json
from tiny_model import sha256

import posenc as px
from posenc.core.errors import RunError

STEP = f"step-{tiny.STEPS:08d}"


def say_in_state(checkpoint, **run):
    """Let a checkpoint say another run, with a manifest that fits."""
    state = read_json(checkpoint / "state.json")
    edit_json(checkpoint / "state.json", run=state["run"] | run)
    edit_json(checkpoint / "manifest.json", **{"state.json": sha256(checkpoint / "state.json")})


@pytest.fixture
def foreign(run_copy):
    """A run whose weights were written by a run of seed 1."""
    say_in_state(run_copy / "checkpoints" / STEP, seed=1, settings_hash="0a1b2c3d")
    return run_copy


COMMANDS = {
    "eval": ["eval", "run={run}", "eval.lengths=[1x,3x]"],
    "sample": ["sample", "run={run}", "prompt=etao", "tokens=4"],
    "export": ["export", "run={run}", "--hf", "exported"],
    "show": ["show", "run={run}"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_refuses_the_weights_of_another_run(command, foreign, posenc):
    done = posenc(*(argument.format(run=foreign) for argument in command))
    assert done.code == 1
    assert f"{STEP} was written by another run: settings_hash=0a1b2c3d, seed=1; this run has" in done.err


def test_a_training_refuses_to_begin_with_the_weights_of_another_run(foreign, train):
    done = train("encoding=nope", f"train.init={foreign}")
    assert done.code == 1
    assert "was written by another run" in done.err


def test_a_training_refuses_to_begin_with_an_earlier_checkpoint_of_another_run(run_copy, train):
    earlier = run_copy / "checkpoints" / "step-00000007"
    shutil.copytree(run_copy / "checkpoints" / STEP, earlier)
    say_in_state(earlier, seed=1)
    done = train("encoding=nope", f"train.init={earlier}")
    assert done.code == 1
    assert "step-00000007 was written by another run: seed=1; this run has seed=0" in done.err


def test_a_training_refuses_to_continue_from_another_run(foreign, train):
    edit_json(foreign / "status.json", status="interrupted")
    done = train("encoding=rope")
    assert done.code == 1
    assert "was written by another run" in done.err


def test_a_loaded_run_refuses_the_weights_of_another_run(foreign):
    with pytest.raises(RunError, match="was written by another run"):
        px.load(foreign).nll("etaoin")


def test_the_measured_records_stay_as_they_were(foreign, posenc):
    before = (foreign / "results.json").read_bytes()
    posenc("eval", f"run={foreign}", "eval.lengths=[1x,3x]")
    assert (foreign / "results.json").read_bytes() == before


@pytest.mark.parametrize("change", [{"seed": 1}, {"train.lr": 0.001}], ids=["seed", "rate"])
def test_copied_checkpoints_are_refused(change, run_copy, corpus):
    other = px.train(**tiny.keywords(corpus), encoding="rope", **change)
    shutil.rmtree(run_copy / "checkpoints")
    shutil.copytree(other.path / "checkpoints", run_copy / "checkpoints")
    with pytest.raises(RunError, match="was written by another run"):
        px.evaluate(str(run_copy), **{"eval.lengths": ["1x", "3x"]})


def test_a_run_of_the_same_settings_on_another_text_is_another_run(run_copy, posenc):
    """The settings name the folder of texts alone; the hash covers the text."""
    say_in_state(run_copy / "checkpoints" / STEP, settings_hash="0a1b2c3d")
    done = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,3x]")
    assert done.code == 1
    assert f"settings_hash=0a1b2c3d; this run has settings_hash={run_copy.name[-8:]}" in done.err


def test_a_renamed_run_is_the_same_run(run_copy, posenc):
    renamed = run_copy.rename(run_copy.with_name("baseline"))
    assert posenc("eval", f"run={renamed}", "eval.lengths=[1x,3x]").code == 0


def test_settings_that_the_checkpoint_was_not_written_with_are_refused(run_copy, posenc):
    config = run_copy / "config.yaml"
    config.write_text(config.read_text().replace("name: bytes", "name: evil"))
    done = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,3x]")
    assert done.code == 1
    assert "tokenizer.name=bytes; this run has tokenizer.name=evil" in done.err
