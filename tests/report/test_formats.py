"""Papers and programs: Markdown, LaTeX, CSV and JSON; other people's text stays text in each."""

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
from fake_runs import compared, write_run

from posenc.core.errors import UserError
from posenc.report.figure import renamed
from posenc.report.formats import TABLE_FORMATS, render
from posenc.report.papers import latex_text
from posenc.report.sentences.answer import answer
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest

HOSTILE = ["[red]x[/red]", "=cmd()", "a|b", "two\nlines", "\x1b[31mred", "<img src=x>", "+1"]


def pipe_rows(markdown):
    """The cells of the lines of a pipe table."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_an_unknown_format_names_the_nearest(sweep):
    with pytest.raises(UserError, match="did you mean: markdown"):
        render([compared(sweep)], "markdwn")


@pytest.mark.parametrize("format", [name for name in TABLE_FORMATS if name != "csv"])
def test_every_format_says_why_a_run_has_no_number(tmp_path, format):
    write_run(tmp_path, status="failed", reason="boom", results=False)
    assert "boom" in render([compared(tmp_path)], format)


# --- papers


def test_markdown_has_a_line_for_each_row_and_the_best_in_bold(sweep):
    head, _, *rows = pipe_rows(render([compared(sweep)], "markdown"))
    assert head == ["encoding", "1x (T)", "2x", "4x", "8x", "verdict at 8x"]
    assert len(rows) == 4
    rope = next(row for row in rows if row[0] == "rope")
    assert re.fullmatch(r"\*\*1\.2\d\d±0\.00\d\*\*", rope[1])
    assert rope[-1] == "collapsed"


def test_markdown_aligns_numbers_to_the_right_and_words_to_the_left(sweep):
    _, rule, *_ = pipe_rows(render([compared(sweep)], "markdown"))
    assert [cell.endswith(":") for cell in rule] == [False, True, True, True, True, False]


def test_markdown_says_above_what_was_run_and_below_what_the_numbers_are(sweep):
    lines = render([compared(sweep)], "markdown").splitlines()
    assert lines[0].startswith("**4 encodings, 3 seeds, ")
    assert "- ±: standard deviation over seeds" in lines[-4:]


def test_the_caption_of_latex_is_sentences(sweep):
    caption = render([compared(sweep)], "latex").partition(r"\caption{")[2].partition("}\n")[0]
    assert caption.startswith("4 encodings, 3 seeds, ")
    assert ". Loss in nats/byte at T, then the change" in caption
    assert r" $\pm$: standard deviation over seeds. Bold: lowest" in caption
    assert caption.endswith(".")


def test_latex_has_a_caption_a_label_and_a_line_for_each_row(sweep):
    text = render([compared(sweep)], "latex")
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 4
    assert r"\textbf{1.2" in body[2]
    assert r"$\pm$0.00" in body[2]
    assert r"\label{tab:posenc-fixed-target-nats}" in text
    assert r"\caption{4 encodings" in text


def environment_of(latex):
    """The environment of a table: `table` is as wide as a column, `table*` as both."""
    (name,) = re.findall(r"\\begin\{(table\*?)\}", latex)
    assert latex.rstrip().endswith(rf"\end{{{name}}}")
    return name


@pytest.mark.parametrize(("lengths", "environment"), [((1, 2, 4, 8), "table*"), ((1, 8), "table")])
def test_latex_that_is_wider_than_a_column_stands_across_both(sweep, lengths, environment):
    assert environment_of(render([compared(sweep, columns=lengths)], "latex")) == environment


def test_latex_that_is_wider_than_a_page_says_so(tmp_path):
    write_run(tmp_path, encoding="a" * 110)
    assert "pt wide" in render([compared(tmp_path)], "latex")


@pytest.mark.parametrize("name", ["[a]", "*"])
def test_the_end_of_a_row_takes_no_name_as_its_argument(sweep, name):
    text = render(renamed([compared(sweep)], [f"rope={name}"]), "latex")
    assert f"\n{{}}{name} & " in text


def test_words_keep_off_the_mark_of_a_number_before_them(sweep):
    assert r"r@{\hspace{10pt}}l" in render([compared(sweep)], "latex")


def test_the_caption_has_the_policies_past_t(tmp_path):
    write_run(tmp_path, encoding="learned", params={"beyond": "clamp"})
    caption, _, cells = render([compared(tmp_path)], "latex").partition(r"\begin{tabular}")
    assert "beyond=clamp of learned" in caption
    assert "beyond" not in cells


@pytest.mark.parametrize(("protocol", "times"), [("fixed-target", 1), ("recall", 0)])
def test_the_caption_explains_the_interval_of_losses_only_where_there_are_losses(recalling, protocol, times):
    comparisons = compare_runs(load_runs([recalling]), CompareRequest(protocol))
    notes = render(comparisons, "markdown").rpartition("|\n")[2]
    assert "each with its 95% CI" in notes
    assert notes.count("±: half the 95% CI") == times


def test_beside_a_baseline_the_caption_says_what_its_own_plus_minus_is(sweep):
    text = render([compared(sweep, baseline="rope")], "markdown")
    assert "- ±: half the 95% CI; of a loss the standard deviation over seeds\n" in text
    assert "at the same length; losses have no sign" in text


def test_recall_in_a_paper_has_its_interval(recalling):
    text = render([compared(recalling)], "latex")
    assert r"97 [92, 99]" in text
    assert r"62$\pm$9" in text
    assert r"recall@: \% of planted values" in text


def test_latex_is_text_in_any_font_encoding():
    shown = latex_text('a_b%&#{}~^\\$x$ \\input{/etc/passwd} <i> | é ± "q" -1 --x')
    commands = r"\\textbackslash\{\}|\\text\w+\{\}|\\'\{e\}|\\[&%$#_{}]|\$\\pm\$|\$-\$|-\{\}-"
    bare = re.sub(commands, "", shown)
    assert shown.isascii()
    assert not set(bare) & set("\\{}$&%#_~^")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("-0.123±0.004", r"$-$0.123$\pm$0.004"), ("fixed-target T-2", "fixed-target T-2")],
)
def test_a_minus_before_a_number_is_no_hyphen(text, expected):
    assert latex_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Größe, Łódź, naïve", r"Gr\"{o}{\ss}e, {\L}\'{o}d\'{z}, na\"{\i}ve"),
        ("q·w", r"q\ensuremath{\cdot}w"),
        (
            "θ, λ, Λ, ς",
            r"\ensuremath{\theta}, \ensuremath{\lambda}, \ensuremath{\Lambda}, \ensuremath{\varsigma}",
        ),
        ("中", "[U+4E2D]"),
        ("ą", "[U+0105]"),
    ],
)
def test_letters_and_signs_are_commands_of_latex(text, expected):
    assert latex_text(text) == expected


def test_a_formula_in_a_name_that_the_user_gives_stays_one(sweep):
    comparisons = renamed([compared(sweep)], [r"rope=Ours ($q \cdot w_1$), 5$"])
    assert r"Ours ($q \cdot w_1$), 5\$" in render(comparisons, "latex")
    assert r"Ours ($q \cdot w_1$), 5$" in render(comparisons, "table")


def test_a_formula_that_nobody_typed_is_text():
    assert latex_text(r"$\input{x}$") == r"\$\textbackslash{}input\{x\}\$"


# --- programs


def test_json_has_the_answer(sweep):
    comparison = compared(sweep)
    assert json.loads(render([comparison], "json"))["summary"] == answer(comparison)


def test_json_of_several_tables_is_a_list(sweep):
    comparison = compared(sweep)
    document = json.loads(render([comparison, comparison], "json"))
    assert len(document["comparisons"]) == 2


def test_a_perplexity_that_overflows_is_null_with_a_note(tmp_path):
    write_run(tmp_path, losses={1: 1.0, 8: 800.0})
    document = json.loads(render([compared(tmp_path, metric="ppl")], "json"))
    far = document["rows"][0]["cells"][1]
    assert far["mean"] is None
    assert far["note"] == ">1e30"
    assert far["window"] == 512


def test_whole_numbers_stay_whole_in_csv_beside_empty_fields(tmp_path):
    write_run(tmp_path, "rope", losses={1: 1.0, 8: 2.0})
    write_run(tmp_path, "alibi", status="failed", reason="boom", results=False)
    lines = list(csv.DictReader(io.StringIO(render([compared(tmp_path)], "csv"))))
    assert {line["window"] for line in lines if line["label"] == "rope"} == {"64", "512"}


def test_intervals_in_csv_are_those_of_the_comparison(recalling):
    comparison = compared(recalling)
    lines = csv.DictReader(io.StringIO(render([comparison], "csv")))
    losses = {(line["label"], float(line["multiple"])): line for line in lines if not line["recall"]}
    for row in comparison.rows:
        for cell in row.cells[2:]:  # past T
            line = losses[row.label, cell.multiple]
            in_nats = float(line["change_nats_low"]), float(line["change_nats_high"])
            in_bits = float(line["change_bpb_low"]), float(line["change_bpb_high"])
            assert in_nats == tuple(cell.change_ci95)
            assert in_bits == tuple(cell.verdict_ci95)


def test_the_change_of_several_seeds_has_its_interval_in_csv(sweep):
    comparison = compared(sweep)
    lines = csv.DictReader(io.StringIO(render([comparison], "csv")))
    line_of = {(line["label"], float(line["multiple"])): line for line in lines}
    (row,) = [row for row in comparison.rows if row.label == "rope"]
    for cell in row.cells[2:]:  # past T
        line = line_of["rope", cell.multiple]
        in_nats = float(line["change_nats_low"]), float(line["change_nats_high"])
        assert in_nats == pytest.approx([comparison.header.one_bit * end for end in cell.verdict_ci95])


def test_the_csv_has_the_verdict_of_an_undertrained_row(sweep):
    lines = csv.DictReader(io.StringIO(render([compared(sweep)], "csv")))
    weak = [line for line in lines if line["label"] == "weak"]
    assert {line["undertrained"] for line in weak} == {"True"}
    assert any(line["verdict"] for line in weak)


# --- other people's text


@pytest.fixture(params=HOSTILE)
def hostile(request, tmp_path):
    """A name that means something to a format, and a comparison in which it is everywhere."""
    name = request.param
    for number, encoding in enumerate((name, "rope")):
        facts = {"tokenizer": name, "model": {"name": name}}
        write_run(tmp_path, encoding, name=f"run{number}", params={"beyond": name}, facts=facts)
    return name, compared(tmp_path)


@pytest.mark.parametrize("full", [False, True])
def test_a_name_is_printed_as_it_is_on_a_terminal(hostile, full):
    name, comparison = hostile
    text = render([comparison], "table", 200, full=full)
    assert "\x1b" not in text
    assert name.encode("unicode_escape").decode() in text


def test_a_name_is_no_formula_and_no_line_in_csv(hostile):
    _, comparison = hostile
    rows = list(csv.reader(io.StringIO(render([comparison], "csv"))))
    assert len(rows) == 11
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not any(field.startswith(("=", "@", "+1")) for row in rows for field in row)


def test_a_name_makes_no_column_and_no_element_in_markdown(hostile):
    _, comparison = hostile
    markdown = render([comparison], "markdown")
    rows = pipe_rows(markdown)
    assert [len(row) for row in rows] == [6] * 4
    assert not re.search(r"(?<!\\)<", markdown)


def test_a_name_is_data_in_json(hostile):
    name, comparison = hostile
    document = json.loads(render([comparison], "json"))
    assert name in [row["encoding"] for row in document["rows"]]


def test_a_folder_whose_name_is_no_utf_8_is_a_name_in_json(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/J\xf6rg"))
    write_run(tmp_path / "plain")
    (tmp_path / "plain").rename(folder)
    document = json.loads(render([compared(folder)], "json"))
    (run,) = document["rows"][0]["runs"]
    assert "J\\udcf6rg" in run
