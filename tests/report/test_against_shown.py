"""How a comparison beside a published table reads in each format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from fake_runs import T, record, write_run

from posenc.core.errors import UserError
from posenc.report.against import FORMATS, render_against, show_against
from posenc.results import load_runs
from posenc.results.against import PaperComparison, against, tables

LOSSES = {
    "alibi": (1.20, 1.15, 1.14, 1.13),
    "rope": (1.20, 1.30, 1.70, 2.10),
    "sinusoidal": (1.21, 2.0, 3.0, 4.0),
    "t5": (1.18, 1.13, 1.15, 1.4),
}
EXTENDED = (1.20, 1.21, 1.25, 1.3)  # rope+yarn


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for name, own in LOSSES.items():
        for seed in range(2):
            records = [
                record(m * T, loss + 0.001 * seed, protocol=protocol, extend=extend, wiggle=0.01 * m)
                for protocol in ("fixed-target", "nonoverlapping")
                for extend, losses in ((None, own), ({"name": "yarn", "factor": "auto"}, EXTENDED))
                if extend is None or name == "rope"
                for m, loss in zip((1, 2, 4, 8), losses, strict=True)
            ]
            write_run(root, name, seed=seed, records=records)
    return root


def flat(text: str) -> str:
    return " ".join(text.split())


def words(text: str) -> str:
    """Without spaces: what a fold may have broken."""
    return "".join(text.split())


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("table", tables())
def test_nothing_of_a_table_is_cut(root: Path, table: str, width: int) -> None:
    found = against(load_runs([root]), table)
    text = render_against(found, "table", width, color=False)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for block in found.blocks:
        for entry in block.entries:
            line = [f"{entry.published_length}", f"{entry.published:g}"]
            line += [] if entry.measured is None else [f"{entry.measured:.3f}"]
            assert set(line) <= set(text.split())
    for check in found.checks:
        assert words(check.what) in words(text) and words(check.reason) in words(text)
    for said in (found.published["paper"], found.published["corpus"], found.published["protocol"]):
        assert said in flat(text)
    for note in found.notes:
        assert note in flat(text)


def test_the_settings_of_both_sides_stand_above(root: Path) -> None:
    lines = render_against(against(load_runs([root]), "alibi-table2"), "table", 400, color=False).splitlines()
    assert lines[0] == (
        "published: alibi-table2, ALiBi (arXiv 2108.12409), 247M parameters, WikiText-103 validation, "
        "nonoverlapping, ppl"
    )
    assert lines[1] == (
        "measured: model nano (803k parameters), sympy (test), nonoverlapping, nats per token, "
        "tokenizer bytes, T = 64, trained on 3.28M tokens, seeds 0, 1"
    )


def test_a_row_has_both_sides_and_both_lengths(root: Path) -> None:
    text = render_against(against(load_runs([root]), "alibi-table2"), "table", 80, color=False)
    rows = [line.split() for line in text.splitlines()]
    assert ["rope", "1x", "=", "512", "20.07", "1.200"] in rows
    (at_2x,) = [row for row in rows if "21.37" in row]
    assert at_2x[:-1] == ["2x", "=", "1012", "21.37", "+0.063", "1.300"] and at_2x[-1].startswith("+0.100±")
    assert [row[:6] for row in rows if "31.58" in row] == [["4x", "~", "2512", "(4.91x)", "31.58", "+0.453"]]


def test_every_check_is_counted_and_those_of_one_reason_share_a_line(root: Path) -> None:
    found = against(load_runs([root]), "alibi-table2")
    text = flat(render_against(found, "table", 80, color=False))
    counts = [sum(c.outcome == o for c in found.checks) for o in ("pass", "fail", "cannot tell")]
    assert all(counts[::2])
    assert "directions: {} pass, {} fail, {} cannot tell".format(*counts) in text
    unmeasured = [c.what for c in found.checks if c.reason == "not measured by nonoverlapping"]
    assert len(unmeasured) > 1 and f"cannot tell {'; '.join(unmeasured)}: not measured by" in text


def test_programs_get_every_number_and_every_check(root: Path) -> None:
    found = against(load_runs([root]), "scale-invariant-table1")
    document = json.loads(render_against(found, "json", 80, color=False))
    (block,) = document["blocks"]
    assert document["table"] == "scale-invariant-table1" and document["notes"] == found.notes
    assert [check["what"] for check in block["checks"]] == [check.what for check in found.checks]
    yarn = next(c for c in block["checks"] if c["what"] == "rope+yarn rises from 1x to 4x")
    assert yarn["outcome"] == "pass" and yarn["interval"][0] < yarn["measured"] < yarn["interval"][1]
    lines = list(csv.DictReader(io.StringIO(render_against(found, "csv", 80, color=False))))
    assert [line["encoding"] for line in lines] == [entry["encoding"] for entry in block["entries"]]
    line = next(one for one in lines if one["encoding"] == "rope+yarn" and one["multiple"] == "4.0")
    assert line["sign"] == "pass" and float(line["measured_change"]) == pytest.approx(0.05)


def test_markdown_is_pipe_tables_and_lists(root: Path) -> None:
    found = against(load_runs([root]), "alibi-table12")
    text = render_against(found, "markdown", 80, color=False)
    bars = [line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")]
    assert len(bars) == sum(2 + len(block.entries) for block in found.blocks) and set(bars) == {7}
    assert sum(line.startswith("- pass: ") for line in text.splitlines()) >= 1


def test_colors_and_signs_are_left_out_where_a_stream_has_none(root: Path) -> None:
    found = against(load_runs([root]), "alibi-table2")
    assert "\x1b[" in render_against(found, "table", 80, color=True)
    for format in FORMATS:
        text = render_against(found, format, 80, color=False, unicode=False)
        assert "±" not in text and "\x1b" not in text
    assert "+/-" in render_against(found, "table", 80, color=False, unicode=False)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show_against(found, "table", stream)
    stream.seek(0)
    assert "+/-" in stream.read()


def test_an_unknown_format_is_refused(root: Path) -> None:
    with pytest.raises(UserError, match="no such format") as caught:
        render_against(against(load_runs([root]), "alibi-table2"), "latex\x1b", 80, color=False)
    assert caught.value.allowed == list(FORMATS) and "\x1b" not in str(caught.value)


def test_names_of_strangers_stay_text(tmp_path: Path) -> None:
    hostile = "[red]<b>=1|x\x1b[2J"
    for tokens in (1, 2):
        write_run(
            tmp_path,
            "rope",
            records=[record(m * T, 1.2, corpus=hostile, note=None) for m in (1, 2)],
            facts={"tokens": tokens, "model": {"name": hostile}, "tokenizer": hostile},
            params={"base": f"{hostile}{tokens}"},
        )
    write_run(tmp_path, "alibi", records=[record(T, 1.2), record(2 * T, 1.2, note=hostile)])
    found: PaperComparison = against(load_runs([tmp_path]), "alibi-table2", allow_mixed=True)
    for format in FORMATS:
        text = render_against(found, format, 80, color=False)
        assert "\x1b" not in text and "<b>" not in (text if format == "markdown" else "")
        assert format == "csv" or "[2J" in words(text).replace("\\[", "[")  # csv has no text of the runs
