"""`posenc compare` with its choices, on stored runs: what they show, and what wrong ones say."""

import csv
import json
import shlex
import shutil
from pathlib import Path

import pytest
import tiny
from fake_runs import T, recall_records, record, write_run


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory):
    """Three encodings with two seeds, and one run that failed; never changed."""
    root = tmp_path_factory.mktemp("compare") / "runs"
    for name, far in {"alibi": 1.3, "rope": 3.0, "nope": 2.5}.items():
        for seed in (0, 1):
            at_t = record(T, 1.3 + 0.01 * seed)
            at_8t = record(8 * T, far + 0.01 * seed)
            sliding = record(T, 1.3, protocol="sliding", stride=16)
            write_run(root, name, seed=seed, records=[at_t, at_8t, sliding])
    write_run(root, "shaw", status="failed", reason="[red]no memory", results=False)
    return root


@pytest.fixture
def compare(posenc, working_folder, stored_runs):
    """Return a function that calls `posenc compare` above a folder of those runs."""
    shutil.copytree(stored_runs, working_folder / "runs")
    return lambda *options: posenc("compare", *options)


def json_of(result):
    assert result.code == 0, result.err
    return json.loads(result.out)


# --- Formats
FINISHED = ("--where", "status=finished")


@pytest.mark.parametrize("output_format", ["table", "markdown", "latex"])
def test_every_format_for_readers_has_the_losses(compare, output_format):
    result = compare(*FINISHED, "--format", output_format)
    assert result.code == 0
    assert result.err == ""
    assert "1.305" in result.out  # at T
    assert "1.700" in result.out  # the change of rope at 8T


def test_json_has_the_rows(compare):
    rows = json_of(compare(*FINISHED, "--format", "json"))["rows"]
    assert {row["label"] for row in rows} == {"rope", "alibi", "nope"}


def test_csv_has_a_line_for_each_cell(compare):
    lines = compare(*FINISHED, "--format", "csv").out.splitlines()
    assert len(lines) == 1 + 3 * 2


def test_markdown_has_a_line_for_each_row(compare):
    assert "| rope" in compare(*FINISHED, "--format", "markdown").out


def test_the_usual_format_is_the_table(compare):
    assert compare(*FINISHED).out == compare(*FINISHED, "--format", "table").out


def test_the_usual_folder_is_runs(compare):
    in_json = (*FINISHED, "--format", "json")
    assert compare(*in_json).out == compare(*in_json, "runs").out


def test_a_letter_that_latex_lacks_is_named_once(compare):
    result = compare(*FINISHED, "--labels", "rope=中文,alibi=中θ", "--out", "table.tex")
    assert result.code == 0
    said = [line for line in result.err.splitlines() if "LaTeX" in line]
    assert said == ["LaTeX has no command for 中 文: its number is there, as [U+4E2D]"]


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_table(compare):
    result = compare(*FINISHED, "--plot", "a.pdf", "--plot-kind", "recall")
    assert result.code == 2
    assert result.out == ""


# --- What is shown
@pytest.mark.parametrize(("metric", "text"), [("bpb", "bits/byte"), ("ppl", "perplexity")])
def test_the_metric_is_chosen(compare, metric, text):
    assert text in compare("--metric", metric).out


def test_the_protocol_is_chosen(compare):
    assert compare("--protocol", "sliding").out.startswith("sliding, stride 16 | ")


def test_all_protocols_have_a_table_each(compare):
    text = compare("--protocol", "all").out
    assert text.count("encoding  ") == 2
    assert "\nsliding, stride 16\n" in text


def test_a_full_table_has_verdicts(compare):
    assert "  verdict" in compare("--full").out


def test_the_rules_are_explained_without_any_run(posenc, working_folder):
    result = posenc("compare", "nowhere", "--explain")
    assert result.code == 0
    assert "the crop line" in result.out


def test_choices_apply_together(compare):
    conditions = ["--where", "seed=0", "--where", "encoding!=shaw"]
    choices = ["--columns", "8x", "--sort", "-8x", "--rows", "rope,alibi", "--baseline", "alibi"]
    table = json_of(compare("--format", "json", *conditions, *choices))
    assert [row["label"] for row in table["rows"]] == ["rope", "alibi"]
    assert [column["multiple"] for column in table["columns"]] == [8]
    assert table["header"]["baseline"] == "alibi"
    assert table["header"]["seeds"] == [0]
    assert table["rows"][0]["cells"][0]["versus_baseline"]["difference"] == pytest.approx(1.7)


def test_a_file_has_the_columns_that_are_asked_for(posenc, working_folder):
    for name in ("rope", "alibi"):
        write_run(working_folder / "runs", name, losses={0.5: 1.4, 1: 1.3, 8: 2.0})
    printed = posenc("compare", "--columns", "0.5x,8x", "--format", "markdown", "--out", "t.md").out
    assert "0.5x" in printed
    assert (working_folder / "t.md").read_text().splitlines() == printed.splitlines()


def test_a_failed_run_is_a_row_and_a_line(compare):
    result = compare()
    assert "shaw" in result.out
    assert "[red]no memory" in result.err
    assert "log.txt" in result.err


def test_a_full_table_has_the_reason_of_a_failed_run(compare):
    assert "[red]no memory" in compare("--full").out


# --- Recall
@pytest.fixture
def compare_recall(posenc, working_folder):
    """Return a function that calls `posenc compare` on a run that finds 90% within T and 60% at 2T."""
    recall = recall_records({8: 100, 32: 100, 56: 70, 112: 60})
    write_run(working_folder / "runs", records=[record(T, 1.0), record(2 * T, 1.1), *recall])
    return lambda *options: posenc("compare", *options)


def test_recall_is_a_line_beside_the_losses(compare_recall):
    assert "recall: 90% within T, 60% at 2x" in compare_recall("--columns", "1x,2x").out


def test_a_page_has_recall_of_plants_that_the_training_did_not_have(posenc, working_folder):
    recall = recall_records({8: 30, 32: 30, 56: 30, 112: 30})
    for measured in recall:
        measured["recall"] |= {"kind": "assignments", "choices": 16}
    write_run(working_folder / "runs", records=[record(T, 1.0), record(2 * T, 1.1), *recall])
    assert posenc("compare", "--html", "page.html").code == 0
    assert "% of values of planted names found within T" in Path("page.html").read_text()


@pytest.mark.parametrize(("level", "learned"), [("90", True), ("90.5", False)])
def test_the_level_of_recall_decides_what_a_row_learned(compare_recall, level, learned):
    table = json_of(compare_recall("--format", "json", "--protocol", "recall", "--recall-level", level))
    assert table["recall"]["level"] == float(level)
    assert table["rows"][0]["recall"]["learned"] is learned
    assert ("Did not learn" in table["summary"]) is not learned


def test_csv_has_a_line_for_each_distance_of_recall(compare_recall):
    lines = csv.DictReader(compare_recall("--format", "csv").out.splitlines())
    recall = {(line["multiple"], line["distance"]): line for line in lines if line["protocol"] == "recall"}
    far = recall["2.0", "112"]
    assert far["recall"] == "0.6"
    assert far["pairs"] == "4"
    assert far["windows"] == "100"


# --- Pictures, pages and other files
WITHOUT_ALTAIR = """
import sys
from posenc import cli
try:
    cli.main()
finally:
    assert 'altair' not in sys.modules
"""


SHOW = "show encoding=rope context_length=16"


@pytest.mark.parametrize("command", ["compare", pytest.param(SHOW, marks=pytest.mark.slow)])
def test_text_needs_no_altair(working_folder, stored_runs, command):
    """Its import takes 0.35 s."""
    shutil.copytree(stored_runs, working_folder / "runs")
    result = tiny.python("-c", WITHOUT_ALTAIR, *command.split(), cwd=working_folder)
    assert result.code == 0, result.err


def test_a_picture_is_written_beside_the_table(compare):
    result = compare("--plot", "loss.svg")
    assert result.code == 0
    assert "alibi" in result.out
    assert "wrote loss.svg" in result.err
    assert "<svg" in Path("loss.svg").read_text()


def test_the_caption_of_a_picture_is_printed(compare):
    assert "caption: 4 encodings, 2 seeds, " in compare("--plot", "loss.svg").err


@pytest.mark.parametrize(
    ("options", "caption"),
    [(["--caption", "Ours is best."], "Ours is best."), (["--caption"], "4 encodings")],
    ids=["text", "own"],
)
def test_a_caption_that_is_wanted_is_in_the_picture(compare, options, caption):
    result = compare(*options, "--plot", "loss.svg")
    assert caption in Path("loss.svg").read_text()
    assert "caption" not in result.err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.png", b"\x89PNG"),
        ("a.svg", b"<svg"),
        ("a.pdf", b"%PDF"),
        ("a.tex", b"\\begin{table}"),
        ("a.md", b"| encoding |"),
        ("a.csv", b"protocol,"),
        ("a.json", b'"schema_version"'),
        ("a.txt", b"alibi"),
        ("a.html", b"<!DOCTYPE html>"),
    ],
)
def test_a_file_has_the_format_of_its_ending(compare, name, content):
    result = compare("--out", name)
    assert f"wrote {name}" in result.err
    assert content in Path(name).read_bytes()


def test_several_files_are_written_at_once(compare):
    result = compare("--out", "a.pdf", "--plot", "b.png", "--out", "c.tex", "--html", "d.html")
    assert result.code == 0
    assert all(Path(name).is_file() for name in ("a.pdf", "b.png", "c.tex", "d.html"))


@pytest.mark.parametrize(
    "name", ["a.txt", "a.md", "a.tex", "a.svg", pytest.param("a.html", marks=pytest.mark.slow)]
)
def test_a_label_is_in_what_people_read(compare, name):
    compare("--labels", "rope=Ours & more", "--out", name)
    assert "Ours " in Path(name).read_text()


def test_a_label_is_not_in_data(compare):
    rows = json_of(compare("--labels", "rope=Ours", "--format", "json"))["rows"]
    assert {row["label"] for row in rows} == {"alibi", "nope", "rope", "shaw"}


def test_a_label_names_the_baseline(compare):
    out = compare("--labels", "rope=Ours", "--baseline", "rope").out
    assert "Against Ours at 8x" in out


def test_a_page_is_written_beside_the_table(compare):
    result = compare("--html", "page.html")
    assert result.code == 0
    assert "wrote page.html" in result.err
    assert "alibi" in Path("page.html").read_text()


def test_what_is_no_regular_file_is_not_replaced(compare):
    Path("null.html").symlink_to("/dev/null")
    result = compare("--html", "null.html")
    assert result.code == 2
    assert "not a regular file" in result.err
    assert Path("/dev/null").is_char_device()


# --- Wrong choices
@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ("--sort=loss", ["cannot sort by this"]),
        ("--sort=3x", ["cannot sort by this"]),
        ("--sort=", ["cannot sort by this"]),
        ("--sort=8y", ["cannot sort by this"]),
        ("--sort=change@3x", ["cannot sort by this"]),
        ("--columns 512", ["multiples of T, not tokens"]),
        ("--metric nat", ["nats, bpb, ppl"]),
        ("--where encoding=roep", ["--where encoding=roep", "did you mean: rope"]),
        ("--rows rope --baseline alibi", ["--baseline=alibi", "among those shown"]),
        ("--columns 3x", ["--columns=3x", "allowed: 1x, 8x"]),
        ("--baseline alibi --metric ppl", ["--baseline", "perplexities"]),
        ("--explain --out rules.md", ["--explain", "--out has no effect"]),
        ("--explain --metric ppl", ["--explain", "--metric has no effect"]),
        ("--explain --format json", ["--explain", "--format has no effect"]),
        ("--explain --where seed=0", ["--explain", "--where has no effect"]),
        ("--explain --against alibi-table2", ["--explain", "--against has no effect"]),
        ("--explain --full", ["--explain", "--full has no effect"]),
        ("encoding=rope", ["--where encoding=rope"]),
        ("--format tex", ["--format=tex", "latex"]),
        ("--protocol slidin", ["--protocol=slidin", "did you mean: sliding"]),
        ("--protocol neddle", ["--protocol=neddle", "did you mean: needle"]),
        ("--protocol needle", ["no run has measured it", "eval.protocols=["]),
        ("--length 16x", ["--length: there is no such option"]),
        ("--recall-level 200", ["--recall-level=200.0", "allowed: 0 to 100"]),
        ("--html notes.md", ["--html=notes.md", "allowed: .html"]),
        ("--plot-kind heatmap", ["--plot-kind=heatmap", "--plot FILE"]),
        ("--size 3x2", ["--size=3x2", "--plot FILE"]),
        ("--legend off --out a.tex", ["--legend=off", "--plot FILE"]),
        ("--legend no --plot a.png", ["--legend=no", "allowed: on, off"]),
        ("--size 3by2 --plot a.png", ["--size=3by2", "3.25x2.4"]),
        ("--font Nope --plot a.png", ["--font=Nope", "fc-list"]),
        ("--labels rope --plot a.png", ["is not NAME=TEXT"]),
        ("--labels roep=Ours", ["--labels=roep", "did you mean: rope"]),
        ("--out a.gif", ["--out=a.gif", "allowed: .png, "]),
        ("--plot a.tex", ["--plot=a.tex", "allowed: .png, .svg, .pdf"]),
        ("--against alibi-table2 --baseline rope", ["does not read --baseline\n"]),
        ("--against alibi-table2 --full", ["does not read --full\n"]),
        ("--against alibi-table2 --allow-mixed", ["does not read --allow-mixed\n"]),
        ("--against alibi-table2 --plot a.png", ["does not read --plot\n"]),
        ("--against alibi-table2 --out a.tex", ["does not read --out\n"]),
        ("--against alibi-table2 --labels rope=Ours", ["does not read --labels\n"]),
        ("--against alibi-table2 --html a.html", ["does not read --html\n"]),
    ],
)
def test_wrong_choices_are_exit_2_and_write_nothing(compare, options, messages):
    paths = sorted(Path().rglob("*"))
    result = compare(*shlex.split(options))
    assert result.code == 2, result
    assert result.out == ""
    for message in messages:
        assert message in result.err
    assert sorted(Path().rglob("*")) == paths
