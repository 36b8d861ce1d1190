"""`--where`: which runs fulfil conditions, and what is said of a condition that none can fulfil."""

import pytest
from fake_runs import write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.where import matching_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Five runs: two of rope, one of alibi that failed, one of t5 with another model, a damaged one."""
    root = tmp_path_factory.mktemp("where")
    write_run(root, "rope", seed=0)
    write_run(root, "rope", seed=1, config={"train": {"tokens": 5, "lr": 0.001}})
    write_run(root, "alibi", seed=0, status="failed", results=False)
    write_run(root, "t5", seed=12, config={"model": {"name": "tiny"}}, results=False)
    (root / "broken").mkdir()
    (root / "broken" / "results.json").write_text("{")
    return load_runs([root])


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        pytest.param([], 5, id="no condition"),
        pytest.param(["encoding=rope"], 2, id="a name"),
        pytest.param(["encoding=*o*"], 2, id="a glob"),
        pytest.param(["encoding!=rope"], 3, id="a damaged run is not rope"),
        pytest.param(["seed=1"], 1, id="seed 12 is not seed 1"),
        pytest.param(["seed=0", "encoding=rope"], 1, id="both conditions"),
        pytest.param(["train.lr=1e-3"], 1, id="a number written otherwise"),
        pytest.param(["model.name=tiny"], 1, id="a setting of a group"),
        pytest.param(["status=failed"], 1, id="status"),
        pytest.param(["T=64"], 4, id="context length"),
        pytest.param(["name=rope-*"], 2, id="name of the directory"),
    ],
)
def test_runs_that_fulfil_all_conditions(runs, conditions, count):
    assert len(matching_runs(runs, conditions)) == count


@pytest.mark.parametrize(
    ("conditions", "texts"),
    [
        pytest.param(["encoding"], ["not a condition", "key=value"], id="no condition"),
        pytest.param(
            ["encodng=rope"],
            ["--where=encodng", "no run has this key", "did you mean: encoding"],
            id="unknown key",
        ),
        pytest.param(
            ["encoding=ropee"],
            ["no run fulfils it", "alibi, rope, t5", "did you mean: rope"],
            id="unknown value",
        ),
        pytest.param(
            ["encoding=rope", "seed=\x1b[31m7"],
            ["no run fulfils it", "\\x1b", "allowed: 0, 1"],
            id="value that no run of the first condition has",
        ),
    ],
)
def test_a_condition_that_no_run_can_fulfil_names_what_there_is(runs, conditions, texts):
    with pytest.raises(UserError) as caught:
        matching_runs(runs, conditions)
    message = caught.value.text()
    for text in texts:
        assert text in message
    assert "\x1b" not in message
