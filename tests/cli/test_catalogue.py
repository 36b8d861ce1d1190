"""`posenc encodings`: everything that the classes say, grouped, readable in 80 columns."""

from __future__ import annotations

import json

import pytest

from posenc.cli.catalogue import PLACES, print_catalogue, reflow
from posenc.encodings import encoding_class, list_encodings


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str | None) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    print_catalogue(name, as_json=False)
    return capsys.readouterr().out


def test_every_encoding_stands_under_where_it_acts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(capsys, monkeypatch, None).splitlines()
    assert max(map(len, lines)) <= 80
    place, found = "", {}
    for line in lines:
        if line in PLACES.values():
            place = next(key for key, words in PLACES.items() if words == line)
        elif line.startswith("  ") and line[2:3].strip():
            found[line.split()[0]] = place
    for name in list_encodings():
        assert found[name] == encoding_class(name).acts_on


@pytest.mark.parametrize("name", list_encodings())
def test_one_encoding_in_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out = shown(capsys, monkeypatch, name)
    cls = encoding_class(name)
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    for text in (*cls.traps, cls.past_training, *cls.refuses.values()):
        assert " ".join(text.split()) in words
    assert out.startswith(f"{name}  (acts on: {cls.acts_on})")


def test_json_is_one_document_with_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    print_catalogue(None, as_json=True)
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert sorted(entries) == list_encodings()
    assert entries["rope"]["parameters"]["base"] == 10000.0
    assert entries["kerple_log"]["learned_parameters"] == "2*H"
    assert "attention.scale" in entries["stick_breaking"]["refuses"]
    assert not entries["normalized"]["prefix_stable"]


def test_reflow_joins_what_runs_on_and_hangs_terms() -> None:
    text = (
        f"Title.\n\nFormula: {'a ' * 45}\nand on. Short.\nPaper: one.\n"
        f"  term      {'word ' * 16}\n            more words\n  other     x"
    )
    lines = "\n".join(reflow(text, 60)).splitlines()
    assert lines[:2] == ["Title.", ""]
    assert "Paper: one." in lines  # a new heading is never joined
    start = lines.index("Paper: one.") + 1
    assert lines[start].startswith("  term      word")
    assert all(line.startswith(" " * 12) for line in lines[start + 1 : -1])
    assert lines[-1] == "  other     x"
    assert " ".join("\n".join(lines).split()) == " ".join(text.split())
