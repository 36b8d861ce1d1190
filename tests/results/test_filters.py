"""--where: which runs a condition keeps, and what a wrong one says."""

from pathlib import Path

import pytest
from fake_runs import write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.filters import where
from posenc.results.load import Run


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    write_run(tmp_path, "rope", seed=0)
    write_run(tmp_path, "rope", seed=1, config={"train": {"tokens": 5, "lr": 0.001}})
    write_run(tmp_path, "alibi", seed=0, status="failed", results=False)
    write_run(tmp_path, "t5", seed=12, config={"model": {"name": "tiny"}}, results=False)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.json").write_text("{")
    return load_runs([tmp_path])


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        ([], 5),
        (["encoding=rope"], 2),
        (["encoding=rope,t5"], 3),
        (["encoding=*o*"], 2),
        (["encoding!=rope"], 3),  # the damaged one has no encoding: it is not rope
        (["encoding!=rope", "encoding=*"], 2),
        (["seed=0"], 2),
        (["seed=1"], 1),  # not 12
        (["seed=0", "encoding=rope"], 1),
        (["train.lr=1e-3"], 1),
        (["train.lr=0.0010"], 1),
        (["model=tiny"], 1),
        (["model.name=tiny"], 1),
        (["status=failed"], 1),
        (["status=damaged"], 1),
        (["T=64"], 4),
        (["context_length!=64"], 1),
        (["name=rope-*"], 2),
    ],
)
def test_conditions_keep_what_fulfils_all(runs: list[Run], conditions: list[str], count: int) -> None:
    assert len(where(runs, conditions)) == count


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("encoding", ["not a condition", "key=value"]),
        ("=rope", ["not a condition"]),
        ("encoding=", ["not a condition"]),
        ("encodng=rope", ["--where=encodng", "no run has this key", "did you mean: encoding"]),
        ("train.lrr=1", ["did you mean: train.lr"]),
        ("encoding=ropee", ["no run fulfils it", "alibi, rope, t5", "did you mean: rope"]),
        ("seed=\x1b[31m7", ["no run fulfils it", "\\x1b"]),
    ],
)
def test_wrong_conditions_name_what_there_is(runs: list[Run], condition: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        where(runs, [condition])
    text = caught.value.text()
    assert all(word in text for word in words), text
    assert "\x1b" not in text


def test_conditions_that_no_run_fulfils_together(runs: list[Run]) -> None:
    with pytest.raises(UserError, match="seed=12"):
        where(runs, ["encoding=rope", "seed=12"])
