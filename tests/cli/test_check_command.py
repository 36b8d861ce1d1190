"""`posenc check` as people call it: tables, a matrix, JSON, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.laws import LAWS

Posenc = Callable[..., tiny.Result]

PLUGIN = '''
"""A penalty of one's own, with the sign it was given."""
import torch
from posenc.encodings.base import Encoding, Shape


class Mine(Encoding):
    """By the logarithm of the distance."""

    name = "mine"
    paper = formula = past_training = "none"
    acts_on = "bias"
    learned = "0"
    relative = penalty = True

    def __init__(self, shape: Shape, *, strength: float) -> None:
        super().__init__(shape)
        self.strength = strength

    def distance_bias(self, r, layer):
        return -self.strength * torch.log1p(r.float()).expand(self.shape.n_heads, -1)
'''


@pytest.fixture
def mine(place: Path) -> list[str]:
    """Arguments that make the plug-in known."""
    (place / "my_penalty.py").write_text(PLUGIN)
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "mine.yaml").write_text("name: mine\nstrength: 1.0\n")
    return ["plugins=[my_penalty]", "--config-dir", "conf", "encoding=mine"]


def fits(text: str, columns: int = 80) -> bool:
    return all(len(line.rstrip()) <= columns for line in text.splitlines())


def test_a_good_one(place: Path) -> None:
    result = tiny.spawn("check", "encoding=rope", "encoding.base=500.0", cwd=place, COLUMNS="80")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert lines[0].startswith(f"rope: {len(LAWS)} laws at d_model 32, 2 layers, 4 heads, T = 32")
    assert [line.split()[0] for line in lines[2:-1]] == list(LAWS)
    assert lines[-1] == f"{len(LAWS) - 1} hold, 1 do not apply, 0 fail"
    assert fits(result.out) and "…" not in result.out
    assert {path.name for path in place.iterdir()} == set()


def test_a_broken_plugin_is_named_with_its_law(place: Path, mine: list[str]) -> None:
    broken = tiny.spawn("check", *mine, "encoding.strength=-1.0", "--json", cwd=place)
    assert broken.code == 1, broken
    document = json.loads(broken.out)
    failed = {one["law"]: one for one in document["verdicts"] if one["verdict"] == "fail"}
    assert list(failed) == ["penalty"]
    assert failed["penalty"]["reason"] == "its bias rises with the distance"
    assert failed["penalty"]["statement"] == LAWS["penalty"].statement
    assert document["encoding"] == {"name": "mine", "strength": -1.0} and document["passed"] is False
    assert document["model"]["d_model"] == 32 and document["context_length"] == 32


@pytest.mark.slow
def test_several_are_a_matrix_of_80_columns(place: Path, mine: list[str]) -> None:
    result = tiny.spawn("check", "-m", *mine[:-1], "encoding=rope,mine", "context_length=8,16", cwd=place)
    assert result.code == 0, result
    assert fits(result.out) and "sizes that the rows say" in result.out
    head = [line for line in result.out.splitlines() if line.split()[-1:] and line.split()[-1] in LAWS]
    assert [line.split()[-1] for line in head] == list(LAWS)
    for label in ("rope context_length=8", "mine context_length=16"):
        (row,) = [line for line in result.out.splitlines() if line.startswith(label)]
        marks = row.removeprefix(label).split()
        assert len(marks) == len(LAWS) and "F" not in marks
        # every mark stands below the first letter of its law
        assert [row[line.index(law)] for line, law in zip(head, LAWS, strict=True)] == marks


@pytest.mark.slow
def test_all_of_them_fit_and_hold(place: Path, monkeypatch: pytest.MonkeyPatch, posenc: Posenc) -> None:
    """With the laws cut down to two: all of them over all encodings are tests/laws."""
    few = {law: LAWS[law] for law in ("count", "penalty")}
    monkeypatch.setattr("posenc.cli.check.LAWS", few)
    result = posenc("check", "--all")
    assert result.code == 0, result
    rows = {line.split()[0]: line.split()[1:] for line in result.out.splitlines()}
    assert rows["alibi"] == ["+", "+"] and rows["rope"] == ["+", "."] and rows["alibi+rope"] == ["+", "+"]
    documents = json.loads(posenc("check", "--all", "--json").out)
    assert [one["encoding"]["name"] for one in documents] == sorted(
        one["encoding"]["name"] for one in documents
    )
    assert len(documents) > 6


def test_the_failures_of_a_matrix_are_told_in_full(
    place: Path, mine: list[str], monkeypatch: pytest.MonkeyPatch, posenc: Posenc
) -> None:
    monkeypatch.setattr("posenc.cli.check.LAWS", {law: LAWS[law] for law in ("shift", "penalty")})
    long = "encoding.strength=-1.2345678901"
    result = posenc("check", "-m", *mine, f"encoding.strength=1.0,{long.partition('=')[2]}")
    assert result.code == 1 and fits(result.out)
    lines = result.out.splitlines()
    assert lines[lines.index(f"mine {long}") + 1].split() == ["+", "F"]
    assert f"mine {long} fails penalty: {LAWS['penalty'].statement}"[:70] in result.out
    assert "  its bias rises with the distance" in result.out


def test_all_of_them_but_those_that_refuse(posenc: Posenc, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no use for a setting is named; the others are checked."""
    monkeypatch.setattr("posenc.cli.check.LAWS", {"count": LAWS["count"]})
    result = posenc("check", "--all", "positions=randomized")
    assert result.code == 1 and result.err == "", result
    lines = result.out.splitlines()
    assert "nope is not checked: makes no sense with encoding=nope:" in result.out
    assert next(line for line in lines if line.startswith("rope ")).split() == ["rope", "+"]
    documents = {
        one["encoding"]["name"]: one
        for one in json.loads(posenc("check", "--all", "positions=randomized", "--json").out)
    }
    assert "reads no position" in documents["nope"]["refused"] and not documents["nope"]["passed"]
    assert documents["rope"]["passed"] and "refused" not in documents["rope"]
    nobody = posenc("check", "--all", "attention.window=0")
    assert (nobody.code, nobody.out) == (2, "") and "window=0" in nobody.err


def test_float32_is_held_to_the_same_bound_at_any_width(
    posenc: Posenc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm that adds its own type's epsilon differs in float64 by the more the wider the model is."""
    monkeypatch.setattr("posenc.cli.check.LAWS", {"float32": LAWS["float32"]})
    wide = ["model.d_model=256", "model.n_layers=1", "model.n_heads=4", "model.mlp_ratio=2"]
    (verdict,) = json.loads(posenc("check", "encoding=nope", *wide, "--json").out)["verdicts"]
    assert verdict["verdict"] == "pass" and float(verdict["figure"].split()[0]) < 1e-5, verdict


def test_the_size_is_its_own_unless_chosen(posenc: Posenc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenc.cli.check.LAWS", {"order": LAWS["order"]})
    given = json.loads(posenc("check", "model=nano", "model.n_layers=1", "context_length=16", "--json").out)
    assert given["model"]["d_model"] == 128 and given["context_length"] == 16
    (verdict,) = given["verdicts"]
    assert verdict["verdict"] == "n/a" and "one layer" in verdict["reason"]
    assert "d_model 32" in posenc("check", "encoding=alibi", "seed=7").out


WRONG = [
    (["encoding=roppe"], "did you mean: rope"),
    (["encoding.base=0.5"], "base=0.5"),
    (["encoding=nope", "positions=randomized"], "reads no position"),
    (["encoding=rope", "attention.window=0"], "window=0"),
    (["context_length=1"], "context_length=1"),
    (["model.n_heads=3"], "model.n_heads=3"),
    (["plugins=[nowhere_to_be_found]", "encoding.name=mine"], "nowhere_to_be_found"),
    (["-m", "encoding=alibi,rope", "context_length=8,0"], "in the job"),
    (["--all", "encoding=rope"], "--all checks every encoding"),
    (["--cfg", "job"], "posenc train --cfg job"),
    (["--bogus"], "--bogus"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_wrong_input(posenc: Posenc, place: Path, arguments: list[str], says: str) -> None:
    result = posenc("check", *arguments)
    assert (result.code, result.out) == (2, "") and says in result.err, result
    assert len(result.err.splitlines()) < 10 and "Traceback" not in result.err
    assert not list(place.iterdir())


def test_help(posenc: Posenc) -> None:
    shown = posenc("check", "--help")
    assert shown.code == 0 and "--all" in shown.out and "--json" in shown.out
