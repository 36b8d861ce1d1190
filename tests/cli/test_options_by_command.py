"""Options of any encoding on the command line: what is refused says so, and what is taken is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.results.load import load_runs

Posenc = Callable[..., tiny.Result]

# overrides, what stderr must say
REFUSED: list[tuple[list[str], list[str]]] = [
    (
        ["positions=randomized", "positions.max=60"],
        ["positions.max", "64 positions cannot be drawn below positions.max=60", "eval.lengths"],
    ),
    (["positions=randomized", "positions.max=15"], ["positions.max=15", "context_length=16"]),
    (["positions=randomized", "positions.max=0"], ["positions.max=0"]),
    (["positions=offset", "positions.max=15"], ["positions.max=15", "context_length=16"]),
    (["positions=random"], ["positions=random", "randomized"]),
    (["encoding=nope", "positions=randomized"], ["positions=randomized", "encoding=nope", "no position"]),
    (["encoding=fox", "positions=offset"], ["positions=offset", "encoding=fox", "no position"]),
    (["encoding=cope", "positions=randomized"], ["positions=randomized", "encoding=cope"]),
    (["encoding=stick_breaking", "attention.scale=logn"], ["attention.scale=logn", "stick_breaking"]),
    (["encoding=scale_invariant", "attention.scale=ssmax"], ["attention.scale=ssmax", "scale_invariant"]),
    (["encoding=rnope_swa", "attention.window=8"], ["attention.window=8", "rnope_swa", "encoding.window"]),
    (["attention.window=0"], ["window=0", "at least 1"]),
    (["attention.scale=log"], ["attention.scale=log", "logn"]),
    (["encoding=sum", "encoding.parts=[rope,xpos]"], ["rope and xpos cannot act together", "rotate"]),
    (
        ["encoding=sum", "encoding.parts=[rnope_swa,alibi]", "attention.window=8"],
        ["attention.window=8", "encoding=sum", "encoding.window"],
    ),
]


@pytest.mark.parametrize(("overrides", "says"), REFUSED, ids=[" ".join(one[0])[:60] for one in REFUSED])
def test_refused_before_anything_is_written(
    posenc: Posenc, place: Path, corpus: Path, overrides: list[str], says: list[str]
) -> None:
    result = posenc("train", *tiny.TINY, f"data.paths={corpus}", *overrides)
    assert result.code == 2 and result.out == "", result
    for text in says:
        assert text in result.err, result.err
    assert "Traceback" not in result.err and len(result.err.splitlines()) <= 24
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    "overrides",
    [
        ["positions=randomized", "positions.max=64"],  # as many as the longest window has
        ["positions=randomized", "positions.max=20", "positions.dense=true"],  # measured at 0..n-1
        ["positions=offset", "positions.max=20", "attention.window=8", "attention.scale=ssmax"],
    ],
    ids=" ".join,
)
def test_taken_and_measured(posenc: Posenc, place: Path, corpus: Path, overrides: list[str]) -> None:
    result = posenc("train", *tiny.TINY, f"data.paths={corpus}", *overrides)
    assert result.code == 0, result.err
    [run] = load_runs([place / "runs"])
    assert run.problem is None and run.records
    assert {record["window"] for record in run.records} == {16, 32, 64}
    assert all(record["nats"] is not None for record in run.records)
