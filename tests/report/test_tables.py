"""What is printed: the answer first, on one screen, in each format; strangers' text stays text."""

import csv
import io
import json
import random
import re
from pathlib import Path

import pytest
from fake_runs import MULTIPLES, T, compared, edit_json, positions, recall_records, record, write_run
from tiny import ROOT

from posenc.core.errors import UserError
from posenc.report.captions import answer
from posenc.report.runs_table import unfinished_lines
from posenc.report.writers import FORMATS, render, show_runs, terminal_width, tex, write
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs

LOSSES = {
    "alibi": (1.29, 1.285, 1.286, 1.29, 1.30),
    "rope": (1.25, 1.23, 2.4, 3.2, 3.8),
    "learned": (1.3, 1.27, 3.8, 3.9, 4.0),
    "weak": (1.76, 1.75, 1.75, 1.75, 1.75),
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root, draw = tmp_path_factory.mktemp("sweep"), random.Random(0)
    for name, losses in LOSSES.items():
        for seed in range(3):
            records = [
                record(int(m * T), loss + draw.gauss(0, 0.003), wiggle=0.1 + 0.05 * draw.random())
                for m, loss in zip(MULTIPLES, losses, strict=True)
            ]
            copies = {"protocol": "induction", "targets_hash": "copies", "bytes": [0] * 40}
            records += [record(T, 0.5, **copies), record(8 * T, 5.0, **copies)]
            records += [record(T, 1.81, protocol="trigram")]
            records.append(positions(shift=draw.gauss(0, 0.02), breaks_at=97 if seed else None))
            params = {"beyond": "untrained"} if name == "learned" else {}
            write_run(root, name, seed=seed, records=records, params=params)
    return root


def table(root, *, width=80, full=False, every=False, **request):
    comparisons = compare_runs(load_runs([root]), CompareRequest(**request))
    return render(comparisons, "table", width, full=full, every=every)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def of_run(root, which="", **saved):
    """What is said of runs at the end of their training."""
    stream = io.StringIO()
    show_runs([run for run in load_runs([root]) if run.name.startswith(which)], stream, **saved)
    return stream.getvalue()


def test_a_run_of_the_study_is_one_screen():
    text = of_run(ROOT / "docs" / "records" / "study", "rope-nano-T64-s0-", saved=Path("runs/default/rope"))
    lines = text.splitlines()
    assert len(lines) <= 20 and len(text.split()) <= 140 and max(map(len, lines)) <= 80
    assert len(re.findall(r"\d\.\d", text)) <= 30
    assert lines[0] == "rope | nano 0.82M | T = 64 bytes | sympy | 4M tokens | seed 0 | fp32"
    assert lines[2] == "Collapses at 8x: +1.23 nats at 2x, +2.44 at 8x; breaks at 1.44x."
    assert lines[4].split() == ["context", "32", "64", "=", "T", "128", "256", "512"]
    assert [line.split()[0] for line in lines[5:9]] == ["loss", "change", "95%", "verdict"]
    assert "1 seed: the CI covers documents, not training randomness" in text


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("protocol", ["fixed-target", "positions", "induction"])
def test_no_width_cuts_a_number(sweep, protocol, width):
    comparison = compared(sweep, protocol=protocol)
    text = table(sweep, protocol=protocol, width=width)
    assert max(map(len, text.splitlines())) <= width
    for row in comparison.rows:  # T and the longest are always there
        assert f"{next(cell for cell in row.cells if cell.multiple == 1).mean:.3f}" in text
        assert f"{row.cells[-1].change:+.3f}" in text
    full = table(sweep, protocol=protocol, width=width, full=True)
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    assert all(f"{row.cells[i].mean:.3f}" in full for row in comparison.rows for i in shown)


RECALL = {  # values found of 100 at distances 8, 32, 56, 112, 224 and 448; loss at T, slope past it
    "alibi": ((3, 2, 1, 2, 1, 0), 1.25, 0.001),
    "fire": ((100, 100, 100, 97, 96, 92), 1.3, 0.02),
    "hard_alibi": ((100, 100, 100, 99, 98, 97), 1.3, 0.001),
    "kerple_log": ((100, 97, 88, 80, 70, 44), 1.25, 0.004),
    "nope": ((20, 15, 16, 12, 11, 9), 1.6, 0.15),
    "rope": ((100, 100, 91, 62, 14, 5), 1.2, 0.4),
}


def test_recall_is_beside_the_losses(tmp_path):
    """Six rows are one screen of 80 columns; what did not learn is in brackets and never the best."""
    for name, (found, loss, slope) in RECALL.items():
        losses = [record(int(m * T), loss + max(0, m - 1) * slope) for m in MULTIPLES]
        asked = recall_records(dict(zip((8, 32, 56, 112, 224, 448), found, strict=True)))
        write_run(tmp_path, name, records=[*losses, *asked])
    lines = table(tmp_path).splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert "hard_alibi (97%; tied: fire). Did not learn to recall: alibi and nope." in " ".join(lines)
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["encoding"][1:] == ["1x", "(T)", "2x", "8x", "verdict", "recall@T", "@2x", "@4x", "@8x"]
    assert rows["hard_alibi"][-5:] == ["100", "99", "98", "97", "*"] and rows["fire"][-1] == "~"
    assert rows["rope"][-5:] == ["collapsed", "97", "62", "14", "5"]
    assert rows["alibi"][-5:] == ["same", "(2)", "(2)", "(1)", "(0)"]
    wide = table(tmp_path, width=100)
    assert " 4x " in wide and "wider terminal" not in wide
    alone = table(tmp_path, protocol="recall", recall_level=98.0)
    assert "verdict" not in alone and "hard_alibi (97%; tied: fire)" in alone and "(97)  (62)" in alone
    assert "No row learned" in table(tmp_path, protocol="recall", rows=["alibi", "nope"])
    full = " ".join(table(tmp_path, full=True).split())
    assert "rope 97 [92, 99] 62 [52, 71] 14 [9, 22] 5 [2, 11]" in full
    assert "fire 0 7x+" in full and "rope 0 1.75x" in full and "nope 0 did not learn" in full
    for name, said in (
        ("rope", "recall: 97% within T, 62% at 2x, 14% at 4x, 5% at 8x; horizon 1.75x"),
        ("alibi", "recall: did not learn, 2% within T (below 90%)"),
    ):
        text = of_run(tmp_path, name)
        assert said in text.splitlines() and len(text.splitlines()) <= 20 and "also measured" not in text
    runs = load_runs([tmp_path])
    for protocol, of_losses in (("fixed-target", 1), ("recall", 0)):
        caption = render(compare_runs(runs, CompareRequest(protocol)), "markdown").splitlines()[0]
        assert "each ± half its 95% CI" in caption and caption.count("±: half the 95% CI") == of_losses
    latex = render(compare_runs(runs), "latex")
    assert r"\textbf{97$\pm$4}" in latex and r"recall@: \% of planted values" in latex
    plain = [one for one in runs if one.name.startswith("rope")]
    write_run(tmp_path / "without", records=[one for one in plain[0].records if "recall" not in one])
    assert "recall" not in table(tmp_path / "without") + table(tmp_path / "without", full=True)


def test_one_window_few_documents_and_failures(tmp_path):
    write_run(tmp_path / "a", losses={1: 1.2})
    assert "Not measured past T." in of_run(tmp_path / "a")
    write_run(tmp_path / "b", records=[record(T, 1.2, count=5), record(8 * T, 2.2, count=5)])
    text = of_run(tmp_path / "b")
    assert "5 test documents; 1 seed: no 95% CI" in text and "95% CI  " not in text
    oom = record(8 * T, 0, note="oom at 512 tokens")
    write_run(tmp_path / "c", records=[record(T, 1.2), record(2 * T, 1.9), oom])
    text = of_run(tmp_path / "c")
    assert "+0.70 nats at 2x." in text and re.search(r"loss +1\.200 +1\.900 +oom", text)
    many = [record(int(m * T), 1 + m / 10) for m in (0.125, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16)]
    write_run(tmp_path / "d", records=many)
    text = of_run(tmp_path / "d")
    assert len(text.splitlines()) <= 20 and "more lengths" in text and "64 = T" in text
    write_run(tmp_path / "e", status="failed", reason="boom", results=False)
    assert "No run has a number yet." in of_run(tmp_path / "e")
    for format in FORMATS:
        text = render([compared(tmp_path / "e")], format)
        assert ("boom" in text or format == "csv") and text.endswith("\n")


def test_undertrained_is_said_once(sweep, tmp_path):
    text = table(sweep)
    assert text.count("Undertrained: weak.") == 1 and re.search(r"weak .* undertrained\n", text)
    weak = [record(T, 1.8), record(8 * T, 1.8), record(T, 1.81, protocol="trigram")]
    for seed in (0, 1):
        for name in ("alibi", "rope"):
            write_run(tmp_path / str(seed), name, seed=seed, records=weak)
    assert table(tmp_path).count("All runs undertrained.") == 1
    text = of_run(next((tmp_path / "0").iterdir()), saved=Path("x"))
    assert text.lower().count("undertrained") == 1 and "verdict" not in text
    assert "train.tokens=32768000 (now 3276800)" in text


def test_the_next_command_is_this_one_with_more(tmp_path, monkeypatch):
    run = write_run(tmp_path / "runs" / "default", losses={1: 1.2, 8: 2.0})
    edit_json(run / "status.json", overrides=["encoding=rope", "seed=4"])
    monkeypatch.chdir(tmp_path)
    text = of_run(Path("runs"), saved=Path("runs/default") / run.name)
    assert text.splitlines()[-1] == "next   posenc train -m encoding=rope,alibi seed=0,1,2"
    assert text.splitlines()[-2] == f"saved  runs/default/{run.name}"


def test_the_answer_names_the_best_and_who_keeps_its_loss(tmp_path):
    for name, loss in {"alibi": 1.001, "rope": 1.1, "nope": 2.0, "t5": 3.0, "cope": 0.9}.items():
        for seed in range(3):
            losses = {1: 1.0 + 0.0001 * seed, 8: loss + 0.0001 * seed}
            write_run(tmp_path / "a", name, seed=seed, losses=losses)
    text = answer(compared(tmp_path / "a"))
    assert text.startswith("Best at T: ") and "(tied: 4 others)" in text and "Best at 8x: cope." in text
    assert "At 8x cope gains; alibi keeps its loss; rope gets worse; the other 2 collapse." in text
    text = answer(compared(tmp_path / "a", baseline="nope"))
    assert text == "Against nope at 8x alibi, cope and rope are lower; t5 is higher."
    assert table(tmp_path / "a", baseline="nope").count("baseline") == 1
    for name, curve in (("rope", {"breaks_at": 97}), ("alibi", {"breaks_at": None, "flat": True})):
        write_run(tmp_path / "b", name, records=[positions(**curve)])
    said = answer(compared(tmp_path / "b", protocol="positions"))
    assert said == "Past T alibi does not break; rope breaks."
    write_run(tmp_path / "c", records=[record(T, 1.0), record(8 * T, 1.02, wiggle=0.3)])
    text = answer(compared(tmp_path / "c"))
    assert text == "Is unclear at 8x: +0.020 nats at 8x; more documents would help."


def test_what_is_missing_is_in_the_row(tmp_path):
    write_run(tmp_path, "rope", losses={1: 1.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=1, status="diverged", reason="nan at step 9", results=False)
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(512, 0, note="oom at 512 tokens")])
    text = table(tmp_path)
    assert re.search(r"rope .* 1 of 2 diverged\n", text) and re.search(r"alibi +1\.000 .* oom", text)
    assert "rope: seed 1 diverged: nan at step 9" in table(tmp_path, full=True)
    other = tmp_path / "other"
    write_run(other, "rope", name="bad\n[red]", status="failed", reason="disk\x1b[31m full", results=False)
    write_run(other, "rope", name="busy", status="running", results=False)
    assert unfinished_lines(load_runs([other])) == [
        rf"bad\n[red]: failed, disk\x1b[31m full (log: {other}/bad\n[red]/log.txt)",
        f"busy: running, process 1 on here (log: {other}/busy/log.txt)",
        "to resume: the same command, or what posenc runs shows",
    ]
    with pytest.raises(UserError, match="did you mean: markdown"):
        render([compared(tmp_path)], "markdwn")


def test_in_full(sweep):
    text = table(sweep, full=True, width=200)
    said = (
        "by length, in nats/byte",
        "loss      sd  change  sd of change  verdict",
        "above the best\n",
        "0 1 2",
    )
    more = ("400 targets; 40 test documents", "a byte trigram of the training text: 1.810 nats/byte")
    assert not [words for words in (*said, *more) if words not in text]
    assert re.search(r"rope .* \[\+2\.\d+, \+2\.\d+\] p<0\.001", text)


def test_papers_get_a_caption_a_label_and_a_line_a_row(sweep):
    shown = {name: render([compared(sweep)], name) for name in ("markdown", "latex")}
    rows = [line for line in shown["markdown"].splitlines() if line.startswith("|")]
    assert len(rows) == 6 and rows[0] == "| encoding | 1x (T) | 2x | 4x | 8x | verdict at 8x |"
    assert "| rope | **1.2" in rows[4] and "±0.00" in rows[4] and rows[4].endswith(" | collapsed |")
    assert shown["markdown"].startswith("**4 encodings, 3 seeds, ")
    body = shown["latex"].partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 4 and r"\textbf{1.2" in body[2] and r"$\pm$0.00" in body[2]
    assert r"\label{tab:posenc-fixed-target-nats}" in shown["latex"]
    assert r"\caption{4 encodings" in shown["latex"]


def test_programs_get_the_answer_and_finite_numbers(tmp_path):
    write_run(tmp_path, losses={1: 1.0, 8: 800.0})
    found = compared(tmp_path, metric="ppl")
    data = json.loads(render([found], "json"))
    assert data["summary"] == answer(found)
    far = data["rows"][0]["cells"][1]
    assert (far["mean"], far["note"], far["window"]) == (None, ">1e30", 512)
    assert len(json.loads(render([found, found], "json"))["comparisons"]) == 2


def test_streams_decide_width_colour_and_signs(sweep, monkeypatch):
    for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    comparison = compared(sweep)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write(render([comparison], "table", full=True), stream)
    stream.seek(0)
    text = stream.read()
    assert "\\xb10.0" in text and "\x1b" not in text  # what it lacks becomes an escape
    monkeypatch.setenv("COLUMNS", "60")
    narrow = render([comparison], "table", terminal_width())
    assert max(map(len, narrow.splitlines())) <= 60
    assert "\x1b[1;32m" in render([comparison], "table", 80, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in render([comparison], "table", 80, True)


@pytest.mark.parametrize(
    "name", ["[red]x[/red]", "=cmd()", "a|b", "two\nlines", "\x1b[31mred", "<img src=x>", "+1"]
)
def test_strangers_names_stay_text(tmp_path, name):
    for i, encoding in enumerate((name, "rope")):
        facts = {"tokenizer": name, "model": {"name": name}}
        write_run(tmp_path, encoding, name=f"run{i}", params={"beyond": name}, facts=facts)
    comparison = compared(tmp_path)
    for full in (False, True):
        shown = render([comparison], "table", 200, full=full)
        assert "\x1b" not in shown and name.encode("unicode_escape").decode() in shown
        assert render([comparison], "table", 30, full=full)
    rows = list(csv.reader(io.StringIO(render([comparison], "csv"))))
    assert len(rows) == 11 and {len(row) for row in rows} == {len(rows[0])}
    assert not any(field.startswith(("=", "@", "+1")) for row in rows for field in row)
    markdown = render([comparison], "markdown")
    pipes = [line.replace("\\|", "").count("|") for line in markdown.splitlines() if line.startswith("|")]
    assert pipes == [7] * 4 and not re.search(r"(?<!\\)<", markdown)
    data = json.loads(render([comparison], "json"))
    assert any(row["encoding"] == name for row in data["rows"])


def test_latex_is_text():
    shown = tex('a_b%&#{}~^\\$x$ \\input{/etc/passwd} <i> | é ± "q" -1 --x')
    bare = re.sub(r"\\textbackslash\{\}|\\text\w+\{\}|\\[&%$#_{}]|\$\\pm\$|\$-\$|-\{\}-", "", shown)
    assert shown.isascii() and not set(bare) & set("\\{}$&%#_~^")
    assert tex("-0.123±0.004") == r"$-$0.123$\pm$0.004" and tex("fixed-target T-2") == "fixed-target T-2"
