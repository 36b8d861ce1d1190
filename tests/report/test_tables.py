"""Tables of comparisons in each format: numbers whole, strangers' text as text, notes that are true."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_runs import MULTIPLES, T, positions, record, write_run

from posenc.core.errors import UserError
from posenc.report.captions import millions, summary_sentence
from posenc.report.runs_table import unfinished_lines
from posenc.report.writers import FORMATS, render, show, show_run
from posenc.report.writers import tex as latex
from posenc.results import load_runs
from posenc.results.comparison import Comparison, View, compare

LOSSES = {
    "alibi": (1.29, 1.285, 1.286, 1.29, 1.30),
    "rope": (1.25, 1.23, 2.4, 3.2, 3.8),
    "nope": (1.252, 1.231, 1.3, 1.6, 2.1),
    "learned": (1.3, 1.27, 3.8, 3.9, 4.0),
    "t5": (1.3, 1.288, 1.29, 1.3, 1.31),
    "weak": (1.76, 1.75, 1.75, 1.75, 1.75),
}
STRANGE = 'a_b%&#{}~^\\$x$ \\input{/etc/passwd} <i> | é ± "q" -1 --x'


def write_sweep(root: Path, seeds: int = 3) -> Path:
    draw = random.Random(0)
    for name, losses in LOSSES.items():
        for seed in range(seeds):
            records = [
                record(int(m * T), loss + draw.gauss(0, 0.003), wiggle=0.1 + 0.05 * draw.random())
                for m, loss in zip(MULTIPLES, losses, strict=True)
            ]
            records.append(record(T, 1.81, protocol="trigram"))
            for window, loss in ((T, 2.0), (8 * T, 1.7 + draw.gauss(0, 0.02))):
                records.append(record(window, loss, protocol="far-copy", targets_hash="far"))
            for window, loss in ((T, 0.5), (8 * T, 5.0)):
                changes = {"targets_hash": "copies", "bytes": [0] * 40}
                records.append(record(window, loss, protocol="induction", **changes))
            records.append(positions(shift=draw.gauss(0, 0.02), breaks_at=97 if seed else None))
            params = {"beyond": "untrained"} if name == "learned" else {}
            write_run(root, name, seed=seed, records=records, params=params)
    return root


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


def compared(
    root: Path, protocol: str = "fixed-target", metric: Any = "nats", mixed: bool = False, **view: Any
) -> Comparison:
    return compare(load_runs([root]), protocol, metric, mixed, View(**view))


def table(root: Path, *arguments: Any, width: int = 80, **view: Any) -> str:
    """The terminal's table as words with one space between them."""
    return " ".join(render(compared(root, *arguments, **view), "table", width, False).split())


def losses(comparison: Comparison) -> set[str]:
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    found = {f"{row.cells[i].mean:.3f}" for row in comparison.rows for i in shown}
    return found | {f"{probe.cell.mean:.3f}" for row in comparison.rows for probe in row.probes}


# --- layout


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("protocol", ["fixed-target", "positions", "induction"])
def test_no_width_cuts_a_number(sweep: Path, protocol: str, width: int) -> None:
    comparison = compared(sweep, protocol)
    text = render(comparison, "table", width, False)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert losses(comparison) <= set(text.translate(str.maketrans("*=?±", "    ")).split())
    if width >= 80 and protocol == "fixed-target":
        heads = [line.split() for line in text.splitlines() if "1x (T)" in line]
        assert heads == [["0.5x", "1x", "(T)", "2x", "4x", "8x"]], "one block"
    assert losses(comparison) <= set(re.findall(r"\d\.\d{3}(?!\d)", render(comparison, "latex", 80, False)))


def test_marks_are_behind_their_numbers(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        for name, loss in (("rope", 1.2), ("alibi", 1.205), ("fire", 1.25 + 0.05 * seed), ("nope", 1.3)):
            write_run(tmp_path, name, seed=seed, losses={1: loss})
    lines = render(compared(tmp_path), "table", 80, False).splitlines()
    cells = dict(line.split() for line in lines if "±0.0" in line and len(line.split()) == 2)
    fire = {"alibi": "1.205±0.000=", "fire": "1.300±0.050?"}
    assert cells == {**fire, "nope": "1.300±0.000", "rope": "1.200±0.000*"}
    markdown = render(compared(tmp_path), "markdown", 80, False)
    assert "| rope | **1.200±0.000** |" in markdown and "| alibi | 1.205±0.000 = |" in markdown
    assert "bold: lowest of its length; = a tie" in markdown
    text = render(compared(tmp_path), "latex", 80, False)
    assert r"\textbf{1.200$\pm$0.000}" in text and r"1.205$\pm$0.000\rlap{=}" in text


def test_streams_decide_width_colour_and_signs(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    comparison = compared(sweep)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show([comparison], "table", stream)
    stream.seek(0)
    text = stream.read()
    assert "+/-0.0" in text and "\\x" not in text and "\x1b" not in text
    assert 100 < max(map(len, text.splitlines())) <= 200, "a pipe is 200 wide"
    assert len({line.index(" 128") for line in text.splitlines() if " 128" in line}) == 1
    monkeypatch.setenv("COLUMNS", "60")
    narrow = io.StringIO()
    show([comparison], "table", narrow)
    assert max(map(len, narrow.getvalue().splitlines())) <= 60
    assert "\x1b[1;32m" in render(comparison, "table", 80, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in render(comparison, "table", 80, True)
    assert render(comparison, "markdown", 80, False, unicode=False).isascii()


def test_one_run_has_a_table_for_each_protocol_and_no_note_twice(tmp_path: Path) -> None:
    both = [record(w, 1.0, protocol=p) for w in (64, 128) for p in ("fixed-target", "nonoverlapping")]
    write_run(tmp_path, records=both)
    (run,) = load_runs([tmp_path])
    stream = io.StringIO()
    show_run(run, stream)
    text = stream.getvalue()
    places = [text.index(words) for words in ("fixed-target: ", "nonoverlapping: ", "rewards longer windows")]
    assert places == sorted(places)
    notes = [line for line in text.splitlines() if line.startswith(("verdicts in", "1x is the crop line"))]
    assert len(notes) == len(set(notes)) == 2


def test_counts_are_short() -> None:
    counts = {512: "512", 9_999: "9999", 10_000: "10k", 999_499: "999k", 3_276_800: "3.28M", 10**9: "1B"}
    assert {count: millions(count) for count in counts} == counts


# --- what is said


def test_the_notes_of_a_full_table(sweep: Path) -> None:
    text = table(sweep)
    for words in (
        "fixed-target: nats per token, corpus sympy (test), tokenizer bytes, T = 64 tokens, model nano "
        "(803k parameters), trained on 3.28M tokens",
        "400 targets in 40 documents; a byte trigram of the training text: 1.810 nats per token",
        "a number with a sign: change against 1x; ±: standard deviation over 3 seeds",
        "verdicts in bits per byte: same within 0.02 (0.014 nats), collapsed beyond 0.5 (0.347 nats)",
        "* lowest of its length; = a tie with it; ? cannot be told from it; no mark: higher (95%",
        "the longest window within 0.02 nats of the row's best loss (+: the longest measured)",
        "T against T/2: the loss at 1x minus that at 0.5x",
        "8x+",
        "weak: undertrained: at 1x not clearly 0.1 bits per byte below the trigram reference (it is at -0.08",
    ):
        assert words in text, words
    assert "effective T against induction far-copy encoding context T/2 8x 8x" in text
    notes = text.rpartition(" 1x is the crop line")[2].partition("learned")[0]
    assert len(notes) < 1000
    assert "lowest" not in table(sweep, "fixed-target", "ppl")
    assert "perplexities are not ranked" in table(sweep, "fixed-target", "ppl")


def test_what_the_interval_is_over(sweep: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "a", records=[record(64, 1.0), record(512, 1.5, wiggle=0.3)])
    text = table(tmp_path / "a")
    assert "+0.500±0.065" in text  # 2.0227 * 0.2 / sqrt(39)
    assert "±: half the 95% interval over documents; one seed: these models only" in text
    assert "standard deviation" not in text and "lowest" not in text
    assert "more documents are needed" in table(write_sweep(tmp_path / "b", seeds=1))
    write_run(tmp_path / "c", records=[record(m * T, 5.0, protocol="induction") for m in (1, 8)])
    text = table(tmp_path / "c", "induction")
    assert "400 targets in 40 sequences" in text and "interval over sequences" in text
    for seed in (0, 1):
        write_run(tmp_path / "d", seed=seed, losses={1: 80, 2: 90})
    text = table(tmp_path / "d", "fixed-target", "ppl")
    assert ">1e30" in text and "one seed" not in text
    shutil.copytree(sweep, tmp_path / "e")
    write_run(tmp_path / "e", "fire", losses={0.5: 1.25, 1: 1.2, 8: 1.9})
    assert "standard deviation over 3 seeds, none for one seed" in table(tmp_path / "e")
    text = table(tmp_path / "e", baseline="fire")
    assert "difference to fire at the same length" in text and "verdicts" not in text
    assert "± half its 95% interval; lower or higher by more than 0.02" in text and "one seed: these" in text
    write_run(tmp_path / "e", "rope", seed=3, status="diverged", reason="nan", results=False)
    assert "not ranked: rows that lost a seed" in table(tmp_path / "e")
    for seed, name in enumerate(("rope", "nope")):
        write_run(tmp_path / "f", name, seed=seed, losses={1: 1.2})
    assert "not ranked: no two rows have a seed in common" in table(tmp_path / "f")


def test_curves_show_slope_and_where_they_break(sweep: Path, tmp_path: Path) -> None:
    text = table(sweep, "positions", width=200)
    assert "0.125x 0.25x 0.5x 1x (T) 2x 4x 8x" in text
    assert "rope +1.0e-03±0e+00 1.52x 2 of 3 seeds" in text
    assert "the rise over the mean from T/2 to T; ±: standard deviation over 3 seeds" in text
    few = positions(breaks_at=None)
    few["curve"]["rise_ci95"] = [None] * len(few["curve"]["nats"])
    runs = {"1.52x": positions(), "no break": positions(breaks_at=None, flat=True), "unclear": few}
    for word, found in runs.items():
        write_run(tmp_path / word, records=[found])
        markdown = render(compared(tmp_path / word, "positions"), "markdown", 80, False)
        spread = "" if word == "unclear" else "±2e-04"
        assert f"| +1.0e-03{spread} | {word} |" in markdown, markdown
        assert ("±: half the 95% interval over documents" in markdown) == bool(spread)


def test_failures_say_why(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={1: 1.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=1, status="diverged", reason="nan at step 9", results=False)
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(512, 0, note="oom at 512 tokens")])
    text = table(tmp_path)
    assert "only 1 seed" in text and "rope: seed 1 diverged: nan at step 9" in text
    assert "alibi: 8x: oom at 512 tokens" in text and "nan" not in re.sub("nan at|nano", "", text)
    other = tmp_path / "other"
    write_run(other, "rope", name="good")
    write_run(other, "rope", name="bad\n[red]", status="failed", reason="disk\x1b[31m full", results=False)
    write_run(other, "rope", name="busy", status="running", results=False)
    assert unfinished_lines(load_runs([other])) == [
        rf"bad\n[red]: failed, disk\x1b[31m full (log: {other}/bad\n[red]/log.txt)",
        f"busy: running, by process 1 on here (log: {other}/busy/log.txt)",
    ]
    write_run(tmp_path / "none", status="failed", reason="boom", results=False)
    for format in FORMATS:
        text = render(compared(tmp_path / "none"), format, 80, False)
        assert "boom" in text and text.endswith("\n")
    with pytest.raises(UserError, match="did you mean: markdown"):
        render(compared(tmp_path), "markdwn", 80, False)


# --- the answer


def said(root: Path, *arguments: Any, **view: Any) -> str:
    return summary_sentence(compared(root, *arguments, **view))


def test_the_answer_has_words_sizes_and_counts(tmp_path: Path) -> None:
    at_8x = {"alibi": 1.001, "kerple": 1.002, "rope": 1.1, "nope": 2.0, "t5": 3.0, "cope": 0.9}
    for name, loss in at_8x.items():
        for seed in range(3):
            shift = 0.0001 * seed
            write_run(tmp_path, name, seed=seed, losses={1: 1.0 + shift, 8: loss + shift})
    text = said(tmp_path)
    assert text.startswith(
        "At 8x cope gains (-0.100 nats); alibi and kerple keep their loss; rope loses (+0.100 nats); "
        "nope and t5 collapse (+1.000 to +2.000 nats). Lowest at T "
    )
    assert text.endswith(", at 8x cope. 3 seeds, 40 documents.")
    text = said(tmp_path, baseline="nope")
    assert text.startswith("Against nope at 8x, in nats: 4 rows") or "t5 is higher (+1.000)" in text
    assert "t5 is higher (+1.000)" in text


def test_the_answer_names_what_is_unclear_missing_or_undertrained(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.0, 1.1)):
        write_run(tmp_path / "a", "rope", seed=seed, losses={1: 1.0, 8: loss})
        lost = [record(T, 1.0), record(8 * T, 0.0, note="oom")]
        write_run(tmp_path / "a", "shaw", seed=seed, records=lost)
    text = said(tmp_path / "a")
    assert "unclear for rope (+0.050 nats)" in text and "no number for shaw" in text
    for i in range(7):
        write_run(tmp_path / "b", f"e{i}", losses={1: 1.0, 8: 2.0})
    assert "At 8x 7 rows collapse (+1.000 nats)" in said(tmp_path / "b")
    for seed in range(3):
        note = "diverged" if seed == 0 else None
        write_run(tmp_path / "c", "alibi", seed=seed, records=[record(T, 1.0), record(8 * T, 2.6, note=note)])
        write_run(tmp_path / "c", "rope", seed=seed, losses={1: 1.0, 8: 1.001})
    write_run(tmp_path / "c", "nope", seed=7, losses={1: 1.0, 8: 1.0})
    assert "no verdict for alibi" in said(tmp_path / "c")
    text = said(tmp_path / "c", baseline="rope", rows=["rope", "nope"])
    assert "not held against it: nope" in text and "seed" not in text
    weak = [record(T, 1.8), record(8 * T, 1.8), record(T, 1.81, protocol="trigram")]
    write_run(tmp_path / "d", "alibi", records=weak)
    assert "alibi (undertrained) keeps its loss" in said(tmp_path / "d")
    for name, curve in (("rope", {"breaks_at": 97}), ("alibi", {"breaks_at": None, "flat": True})):
        write_run(tmp_path / "e", name, records=[positions(**curve)])
    assert said(tmp_path / "e", "positions").startswith("Past T rope breaks at 1.52x; alibi does not break.")
    write_run(tmp_path / "f", losses={1: 1.0})
    assert said(tmp_path / "f") == "1 seed, 40 documents."


# --- for programs


def test_programs_get_everything_unrounded(sweep: Path, tmp_path: Path) -> None:
    data = json.loads(render(compared(sweep), "json", 80, False))
    assert data["summary"] == summary_sentence(compared(sweep))
    pair = next(p for p in data["columns"][4]["pairs"] if p["rows"] == ["alibi", "rope"])
    cell = next(row for row in data["rows"] if row["label"] == "rope")["cells"][4]
    lines = list(csv.DictReader(io.StringIO(render(compared(sweep), "csv", 80, False))))
    assert len(lines) == 30
    line = next(x for x in lines if x["encoding"] == "rope" and float(x["multiple"]) == 8)
    assert (line["verdict"], line["mark"], line["effective_context"]) == ("collapsed", "", "64")
    assert float(line["verdict_ci95_low"]) == cell["verdict_ci95"][0]
    assert float(line["above_lowest"]) == -pair["difference"]
    assert float(line["above_lowest_low"]) == -pair["interval"][1]
    assert float(line["above_lowest_p"]) == pair["p"] and float(line["reference"]) == pytest.approx(1.81)
    lowest = next(x for x in lines if x["encoding"] == "alibi" and float(x["multiple"]) == 8)
    assert (lowest["mark"], lowest["above_lowest"]) == ("lowest", "")
    curves = list(csv.DictReader(io.StringIO(render(compared(sweep, "positions"), "csv", 80, False))))
    rope = [one for one in curves if one["encoding"] == "rope"]
    assert [one["window"] for one in rope] == ["8", "16", "32", "48", "64", "96", "128", "256", "512"]
    assert {one["breaks_at"] for one in rope} == {"unclear 97 97"} and {one["slope"] for one in rope} == {
        "0.001"
    }

    write_run(tmp_path, losses={1: 1.0, 8: 800.0})
    far = json.loads(render(compared(tmp_path, "fixed-target", "ppl"), "json", 80, False))["rows"][0][
        "cells"
    ][1]
    assert (far["mean"], far["note"], far["window"]) == (None, ">1e30", 512)
    write_run(tmp_path, facts={"tokens": 99})
    comparison = compared(tmp_path, mixed=True)
    header, *rows = csv.reader(io.StringIO(render(comparison, "csv", 80, False)))
    assert sorted({row[header.index("tokens trained")] for row in rows}) == ["3276800", "99"]
    assert "rope [tokens trained 99]" in render(comparison, "table", 200, False)


# --- strangers' text


@pytest.mark.parametrize("name", ["[red]x[/red]", "=cmd()", "a|b", "two\nlines", "\x1b[31mred", "<b>x", "+1"])
def test_strangers_names_stay_text(tmp_path: Path, name: str) -> None:
    far = [record(w, 1.0, protocol="far-copy", unit=name, targets_hash="f") for w in (T, 8 * T)]
    for i, encoding in enumerate((name, "rope")):
        records = [record(int(m * T), 1.3) for m in MULTIPLES] + far
        facts = {"tokenizer": name, "model": {"name": name}}
        beyond = {"beyond": name}
        write_run(tmp_path, encoding, name=f"run{i}", params=beyond, facts=facts, records=records)
    comparison = compared(tmp_path)
    shown = render(comparison, "table", 200, False)
    assert "\x1b" not in shown and name.encode("unicode_escape").decode() in shown
    assert render(comparison, "table", 30, False)
    rows = list(csv.reader(io.StringIO(render(comparison, "csv", 80, False))))
    assert len(rows) == 11 and {len(row) for row in rows} == {len(rows[0])}
    assert not any(row[3].startswith(("=", "+", "-", "@")) for row in rows)
    markdown = render(comparison, "markdown", 80, False)
    pipes = [line.replace("\\|", "").count("|") for line in markdown.splitlines() if line.startswith("|")]
    assert pipes == [7] * 4 + [5] * 4 and "<b>" not in markdown.replace("\\<", "")
    data = json.loads(render(comparison, "json", 80, False))
    assert any(row["encoding"] == name for row in data["rows"])


def test_latex_is_text() -> None:
    shown = latex(STRANGE)
    bare = re.sub(r"\\textbackslash\{\}|\\text\w+\{\}|\\[&%$#_{}]|\$\\pm\$|\$-\$|-\{\}-", "", shown)
    assert shown.isascii() and not set(bare) & set("\\{}$&%#_~^")
    assert latex("-0.123±0.004") == r"$-$0.123$\pm$0.004" and latex("fixed-target T-2") == "fixed-target T-2"


def test_nothing_heavy_at_import() -> None:
    code = "import sys, posenc.results, posenc.report\n"
    code += "print([m for m in ('torch', 'numpy', 'pandas', 'yaml', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
