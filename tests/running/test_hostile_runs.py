"""A run directory from somebody else: it is data, nothing in it is executed."""

import os

import pytest
import yaml

EVIL = "open('executed', 'w').close()"
CHANGES = [
    ({"encoding": {"name": "../../evil"}}, ["encoding=../../evil"]),
    ({"encoding": {"name": "evil"}, "plugins": ["evil"]}, ["encoding=evil"]),
    ({"encoding": {"_target_": "evil.Evil", "name": "rope"}}, ["encoding._target_"]),
    (
        {"model": {"name": "m", "d_model": 2 * 10**9, "n_layers": 1, "n_heads": 1, "mlp_ratio": 1}},
        ["too large"],
    ),
    ({"data": {"name": "files", "source": "../evil"}}, ["data.source=../evil"]),
    ({"tokenizer": {"name": "evil"}}, ["tokenizer"]),
    ({"seed": "evil"}, ["seed=evil"]),
    ({"experiment_name": "../../up"}, ["experiment_name"]),
]


@pytest.fixture
def evil(place, monkeypatch):
    """A module that leaves a mark when it is imported, and could be."""
    (place / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(place))


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize(("change", "says"), CHANGES, ids=[str(c)[:50] for c, _ in CHANGES])
def test_a_hostile_config_is_refused_and_executes_nothing(posenc, run_copy, place, change, says):
    config = yaml.safe_load((run_copy / "config.yaml").read_text())
    (run_copy / "config.yaml").write_text(yaml.safe_dump({**config, **change}))
    before = sorted(p.relative_to(place) for p in place.rglob("*"))
    result = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,8x]")
    assert (result.code, result.out) == (2, ""), result.err
    assert all(text in result.err for text in says), result.err
    assert os.environ["HOME"] not in result.err.replace(str(place), "")
    assert "Traceback" not in result.err and len(result.err.splitlines()) <= 24
    assert sorted(p.relative_to(place) for p in place.rglob("*") if "__pycache__" not in p.parts) == before


def test_the_working_folder_may_be_the_run(trained_once, monkeypatch):
    from posenc.running.eval_job import stored_run

    (config,) = trained_once.rglob("config.yaml")
    monkeypatch.chdir(config.parent)
    assert stored_run(".", []).directory == config.parent
    monkeypatch.chdir(config.parent / "records")
    assert stored_run("..", []).directory.name == config.parent.name
