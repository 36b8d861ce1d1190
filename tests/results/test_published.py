"""The papers' numbers, and a comparison held against their directions."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from fake_runs import T, record, write_run

from posenc.core.errors import UserError
from posenc.report.against import FORMATS, render_against, show_against
from posenc.results import load_runs, published
from posenc.results.against import Against, against, protocol_like
from posenc.results.published import TRANSCRIBED, table_rows, tables

# From 512 to 1024 tokens in alibi-table2 by nonoverlapping windows: sinusoidal 20.05 -> 43.54 (at 1012), ...
FOLLOWS = {"sinusoidal": (1.20, 2.0), "rope": (1.20, 1.26), "t5": (1.18, 1.13), "alibi": (1.19, 1.14)}
REVERSE = {"sinusoidal": (1.20, 0.5), "rope": (1.20, 1.10), "t5": (1.18, 1.25), "alibi": (1.19, 1.30)}


def runs_of(
    root: Path, losses: dict[str, tuple[float, float]], *, wiggle: float = 0.01, count: int = 40
) -> Path:
    for name, pair in losses.items():
        for seed in range(3):
            records = [
                record(m * T, loss + 0.001 * seed, protocol="nonoverlapping", wiggle=wiggle * m, count=count)
                for m, loss in zip((1, 2), pair, strict=True)
            ]
            write_run(root, name, seed=seed, records=records)
    return root


def outcomes(found: Against, kind: str) -> dict[str, str]:
    return {check.what: check.outcome for check in found.checks if check.kind == kind}


def test_no_row_of_the_file_is_lost() -> None:
    path = Path(published.__file__).with_name("published.csv")
    with path.open(newline="") as file:
        raw = list(csv.DictReader(file))
    rows = published.published()
    assert len(rows) == len(raw) > 500
    assert [row.value for row in rows] == [float(line["value"]) for line in raw]
    assert all(row.value > 0 and row.eval_length >= row.train_length > 0 for row in rows)
    assert {row.metric for row in rows} == {"ppl", "nats"}
    assert set(tables()) >= TRANSCRIBED


@pytest.mark.parametrize("table", tables())
def test_every_table_stands_beside_runs_in_every_format(table: str, tmp_path: Path) -> None:
    found = against(load_runs([runs_of(tmp_path, FOLLOWS)]), table)
    for name in FORMATS:
        text = render_against(found, name, 80, False)
        assert table in text or name == "markdown"
        if name == "table":
            assert max(map(len, text.splitlines())) <= 80
    assert json.loads(render_against(found, "json", 80, False))["table"] == table
    lines = list(csv.DictReader(io.StringIO(render_against(found, "csv", 80, False))))
    assert len(lines) == sum(len(block.entries) for block in found.blocks)
    for block in found.blocks:
        own = [row for row in table_rows(table) if row.train_length == block.train_length]
        assert len(block.entries) + block.not_shown == len(own)


def test_runs_that_follow_the_paper_pass_and_their_reverse_fails(tmp_path: Path) -> None:
    follows = against(load_runs([runs_of(tmp_path / "follows", FOLLOWS)]), "alibi-table2")
    signs = outcomes(follows, "sign")
    assert {what for what, outcome in signs.items() if outcome != "cannot tell"} == {
        "alibi falls from 1x to 2x",
        "rope rises from 1x to 2x",
        "sinusoidal rises from 1x to 2x",
        "t5 falls from 1x to 2x",
    }
    assert "fail" not in signs.values()
    orders = outcomes(follows, "order")
    assert orders["rope below sinusoidal at 2x"] == orders["t5 below rope at 2x"] == "pass"
    assert "fail" not in orders.values()
    reverse = against(load_runs([runs_of(tmp_path / "reverse", REVERSE)]), "alibi-table2")
    assert {what: outcome for what, outcome in outcomes(reverse, "sign").items() if "2x" in what} == {
        what: "fail" for what in signs if "2x" in what
    }
    assert outcomes(reverse, "order")["rope below sinusoidal at 2x"] == "fail"


def test_noise_cannot_tell(tmp_path: Path) -> None:
    losses = {name: (1.2, 1.2 + 0.001 * i) for i, name in enumerate(FOLLOWS)}
    found = against(load_runs([runs_of(tmp_path, losses, wiggle=0.5)]), "alibi-table2")
    assert set(outcomes(found, "sign").values()) == {"cannot tell"}
    assert set(outcomes(found, "order").values()) == {"cannot tell"}


def test_few_documents_cannot_tell(tmp_path: Path) -> None:
    found = against(load_runs([runs_of(tmp_path, FOLLOWS, count=20)]), "alibi-table2")
    assert set(outcomes(found, "sign").values()) == {"cannot tell"}


def test_changes_are_logarithms_of_perplexities(tmp_path: Path) -> None:
    (block,) = against(load_runs([runs_of(tmp_path, FOLLOWS)]), "alibi-table2").blocks
    entry = next(one for one in block.entries if one.encoding == "rope" and one.multiple == 2)
    values = {row.eval_length: row.value for row in table_rows("alibi-table2") if row.encoding == "rope"}
    near = min(values, key=lambda length: abs(length - 1024))
    assert entry.published_length == near and entry.published == values[near]
    assert entry.published_change == pytest.approx(math.log(values[near] / values[512]))
    assert entry.measured_change == pytest.approx(0.06)
    at_t = next(one for one in block.entries if one.encoding == "rope" and one.multiple == 1)
    assert at_t.published_change is None and at_t.measured_change is None


def test_an_extension_stands_beside_its_own_row(tmp_path: Path) -> None:
    yarn = {"name": "yarn", "factor": "auto"}
    records = [
        record(T, 1.2),
        record(4 * T, 3.0),
        record(4 * T, 1.4, extend=yarn),
        record(T, 1.2, extend=yarn),
    ]
    write_run(tmp_path, "rope", records=records)
    (block,) = against(load_runs([tmp_path]), "scale-invariant-table1").blocks
    measured = {e.encoding: e.measured for e in block.entries if e.multiple == 4}
    assert measured["rope"] == pytest.approx(3.0) and measured["rope+yarn"] == pytest.approx(1.4)
    assert measured["rope+ntk"] is None


def test_another_setting_of_an_encoding_is_not_the_papers(tmp_path: Path) -> None:
    records = [record(T, 1.2), record(4 * T, 3.0)]
    for base in (10000.0, 500000.0):
        write_run(tmp_path, "rope", records=records, params={"base": base})
    found = against(load_runs([tmp_path]), "scale-invariant-table1")
    assert {e.measured for block in found.blocks for e in block.entries if e.encoding == "rope"} == {None}


def test_what_is_not_the_papers_protocol_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, "alibi", records=[record(T, 1.2), record(2 * T, 1.2)])
    runs = load_runs([tmp_path])
    assert any("no run has measured nonoverlapping" in n for n in against(runs, "alibi-table2").notes)
    assert any("transcription" in n for n in against(runs, "kerple-table3").notes)
    assert any("one seed" in n for n in against(runs, "kerple-table3").notes)
    assert protocol_like("sliding stride=1") == "sliding"


def test_wrong_words(tmp_path: Path) -> None:
    runs = load_runs([runs_of(tmp_path, FOLLOWS)])
    with pytest.raises(UserError, match="did you mean: alibi-table2"):
        against(runs, "alibi-tabel2")
    with pytest.raises(UserError, match="no such format"):
        show_against(against(runs, "alibi-table2"), "latex", io.StringIO())


def test_names_of_strangers_stay_text(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=[record(T, 1.2, corpus="[red]<b>=1|x\x1b[2J")])
    found = against(load_runs([tmp_path]), "kerple-table3")
    for name in FORMATS:
        assert "\x1b" not in render_against(found, name, 80, False)
    assert "<b>" not in render_against(found, "markdown", 80, False).replace("\\<b\\>", "")
