"""`posenc check` as people call it: tables, a matrix, JSON, exit codes."""

import json
from pathlib import Path

import tiny
from test_show import own_encoding

from posenc.laws import LAWS, statement


def only(monkeypatch, *laws):

    monkeypatch.setattr("posenc.cli.check.LAWS", {law: LAWS[law] for law in laws})


def fits(text):
    return all(len(line.rstrip()) <= 80 for line in text.splitlines())


def test_a_good_one(place):
    result = tiny.spawn("check", "encoding=rope", "encoding.base=500.0", cwd=place, COLUMNS="80")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert lines[0].startswith(f"rope: {len(LAWS)} laws at d_model 32, 2 layers, 4 heads, T = 32")
    assert [line.split()[0] for line in lines[1:-1]] == list(LAWS)
    assert lines[-1] == f"{len(LAWS) - 1} hold, 1 do not apply, 0 fail"
    assert fits(result.out) and "…" not in result.out and not list(place.iterdir())


def test_a_broken_plug_in_is_named_with_its_law(posenc, place, monkeypatch):
    only(monkeypatch, "shift", "penalty")
    mine = own_encoding(place)
    broken = posenc("check", *mine, "encoding.strength=-1.0", "--json")
    assert broken.code == 1, broken
    document = json.loads(broken.out)
    verdicts = {one["law"]: one for one in document["verdicts"]}
    assert verdicts["shift"]["verdict"] == "pass" and verdicts["penalty"]["verdict"] == "fail"
    assert verdicts["penalty"]["reason"] == "its bias rises with the distance"
    assert verdicts["penalty"]["statement"] == statement("penalty")
    assert document["encoding"] == {"name": "mine", "strength": -1.0} and document["passed"] is False
    assert document["model"]["d_model"] == 32 and document["context_length"] == 32
    result = posenc("check", *mine, "encoding.strength=1.0,-2.5")
    assert result.code == 1 and fits(result.out) and result.out.splitlines()[1:3] == ["shift", "| penalty"]
    assert "+ F mine encoding.strength=-2.5" in result.out.splitlines()
    assert "mine encoding.strength=-2.5 fails penalty" in result.out


def test_all_of_them_but_those_that_refuse(posenc, monkeypatch):
    """One that has no use for a setting is named; the others are checked."""
    only(monkeypatch, "count")
    few = {"nope": Path(), "rope": Path(), "alibi": Path(), "t5": Path()}
    monkeypatch.setattr("posenc.cli.check.choice_files", lambda group, folder: few)
    result = posenc("check", "--all", "positions=randomized")
    assert result.code == 1 and result.err == "", result
    assert "nope is not checked" in result.out and "rope" in result.out
    documents = json.loads(posenc("check", "--all", "positions=randomized", "--json").out)
    refused = {one["encoding"]["name"] for one in documents if "refused" in one}
    assert "nope" in refused and len(documents) == 4
