"""How verdicts, ranks, context, probes and curves read in each format."""

import csv
import io
import json
import random
from pathlib import Path

import pytest
from fake_runs import MULTIPLES, T, positions, record, write_run

from posenc.report import render, render_run
from posenc.results import load_runs
from posenc.results.comparison import View, compare

LOSSES = {
    "alibi": (1.29, 1.285, 1.286, 1.29, 1.30),
    "rope": (1.25, 1.23, 2.4, 3.2, 3.8),
    "nope": (1.252, 1.231, 1.3, 1.6, 2.1),
    "learned": (1.3, 1.27, 3.8, 3.9, 4.0),
    "t5": (1.3, 1.288, 1.29, 1.3, 1.31),
    "weak": (1.76, 1.75, 1.75, 1.75, 1.75),
}


def sweep(root: Path, seeds: int = 3, noise: float = 0.003) -> None:
    draw = random.Random(0)
    for name, losses in LOSSES.items():
        for seed in range(seeds):
            records = [
                record(int(m * T), loss + draw.gauss(0, noise), wiggle=0.1 + 0.05 * draw.random())
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


def compared(root: Path, protocol: str = "fixed-target", metric: str = "nats", view: View | None = None):
    return compare(load_runs([root]), protocol, metric, False, view or View())


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("protocol", ["fixed-target", "positions", "far-copy", "induction"])
def test_every_table_keeps_to_its_width(tmp_path: Path, protocol: str, width: int) -> None:
    sweep(tmp_path)
    comparison = compared(tmp_path, protocol)
    text = render(comparison, "table", width, False)
    assert max(map(len, text.splitlines())) <= width
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    words = set(text.translate(str.maketrans("*=?±", "    ")).split())
    for row in comparison.rows:
        assert {f"{row.cells[i].mean:.3f}" for i in shown} <= words
        assert {f"{probe.cell.mean:.3f}" for probe in row.probes} <= words


def test_the_headline_reads_in_eighty_columns(tmp_path: Path) -> None:
    sweep(tmp_path)
    lines = render(compared(tmp_path), "table", 80, False).splitlines()
    assert [line.split() for line in lines if "1x (T)" in line] == [["0.5x", "1x", "(T)", "2x", "4x", "8x"]]
    second = next(i for i, line in enumerate(lines) if "effective" in line)
    assert lines[second].split() == ["effective", "T", "against", "induction", "far-copy"]
    assert lines[second + 1].split() == ["context", "T/2", "8x", "8x"]
    text = flat("\n".join(lines))
    for words in (
        "collapsed collapsed collapsed",
        "trigram reference 1.810 nats per token: a byte trigram of the training text, same targets",
        "same within 0.02 (0.014 nats), collapsed beyond 0.5 (0.347 nats); given where the 95%",
        "* lowest of its length; = a tie with it (within 0.02 bits per byte); ? cannot be told from it; "
        "no mark: higher by more than 0.02 bits per byte (95% intervals over seeds and documents, Holm",
        "weak: undertrained: at 1x not clearly 0.1 bits per byte below the trigram reference (it is at -0.08",
        "8x+",
        "+: the longest that was measured",
        "its ± is half the 95% interval over seeds and documents",
    ):
        assert words in text, (words, text)


def test_a_row_of_one_seed_beside_rows_of_three_is_said_to_be_of_one(tmp_path: Path) -> None:
    sweep(tmp_path)
    write_run(tmp_path, "fire", losses={0.5: 1.25, 1: 1.2, 8: 1.9})
    text = flat(render(compared(tmp_path), "table", 80, False))
    for words in (
        "over 3 seeds (of a change: of each seed's own), rows of one seed have none; ",
        "given where the 95% interval over seeds and documents (of one seed: documents, these models only)",
        "between rows with one seed in common over documents: ranks of these models only)",
        "below 0 where text helps; its ± "
        "is half the 95% interval over seeds and documents (of one seed: documents, these models only)",
    ):
        assert words in text, (words, text)
    text = flat(render(compared(tmp_path, view=View(baseline="fire")), "table", 80, False))
    assert "± behind a loss is the standard deviation over 3 seeds, rows of one seed have none" in text
    assert "its ± is half the 95% interval over documents (these models only); lower or higher" in text


def test_rows_that_share_one_seed_or_none_are_said_to(tmp_path: Path) -> None:
    for name, seeds in (("rope", (0, 1)), ("nope", (1, 2)), ("alibi", (5,))):
        for seed in seeds:
            write_run(tmp_path, name, seed=seed, losses={1: 1.2})
    text = flat(render(compared(tmp_path), "table", 80, False))
    assert "Holm-corrected; one seed in common: ranks are of these models only" in text
    assert "rows without a seed in common are not told apart)" in text


def test_perplexities_beyond_measure_are_not_taken_for_one_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed, losses={1: 80, 2: 90})
    text = flat(render(compared(tmp_path, metric="ppl"), "table", 80, False))
    assert ">1e30" in text and "one seed" not in text


def test_marks_stand_behind_their_numbers(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.2})
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.205})
        write_run(tmp_path, "fire", seed=seed, losses={1: 1.25 + 0.05 * seed})
        write_run(tmp_path, "nope", seed=seed, losses={1: 1.3})
    lines = render(compared(tmp_path), "table", 80, False).splitlines()
    cells = {line.split()[0]: line.split()[1] for line in lines if "±0.0" in line and len(line.split()) == 2}
    assert cells == {
        "alibi": "1.205±0.000=",
        "fire": "1.300±0.050?",
        "nope": "1.300±0.000",
        "rope": "1.200±0.000*",
    }
    markdown = render(compared(tmp_path), "markdown", 80, False)
    assert "| rope | **1.200±0.000** |" in markdown and "| alibi | 1.205±0.000 = |" in markdown
    assert "| fire | 1.300±0.050 ? |" in markdown and "bold: lowest of its length; = a tie" in markdown


def test_one_seed_ranks_and_judges_these_models_only(tmp_path: Path) -> None:
    sweep(tmp_path, seeds=1)
    text = flat(render(compared(tmp_path), "table", 80, False))
    assert "one seed: ranks are of these models only" in text
    assert "over documents (these models only) clears the margin" in text
    assert "more documents are needed" in text and "more seeds" not in text


def test_what_is_not_ranked_says_why(tmp_path: Path) -> None:
    sweep(tmp_path)
    text = flat(render(compared(tmp_path, metric="ppl"), "table", 80, False))
    assert "perplexities are not ranked: --metric nats and --metric bpb are" in text
    assert "lowest" not in text and "collapsed" in text
    write_run(tmp_path, "rope", seed=3, status="diverged", reason="nan", results=False)
    text = flat(render(compared(tmp_path), "table", 80, False))
    assert "not ranked: rows that lost a seed" in text


def test_positions_show_octaves_slope_and_where_it_breaks(tmp_path: Path) -> None:
    sweep(tmp_path)
    text = render(compared(tmp_path, "positions"), "table", 200, False)
    head = next(line for line in text.splitlines() if "1x (T)" in line)
    assert head.split() == ["0.125x", "0.25x", "0.5x", "1x", "(T)", "2x", "4x", "8x"]
    for words in (
        "a column is the last bin before that position",
        "the rise over the mean from T/2 to T in the same passes",
        "+1.0e-03±0e+00 1.52x",
        "2 of 3 seeds",
        "breaks at: the start of the first bin past T that is 0.1 nats above the level at T",
        "its ± is the standard deviation over seeds",
    ):
        assert words in flat(text), words
    few = positions(breaks_at=None)
    few["curve"]["rise_ci95"] = [None] * len(few["curve"]["nats"])
    runs = {"one": positions(), "none": positions(breaks_at=None, flat=True), "few": few}
    for name, found in runs.items():
        write_run(tmp_path / name, records=[found])
    one = flat(render(compared(tmp_path / "one", "positions"), "table", 80, False))
    assert "+1.0e-03±2e-04 1.52x" in one and "its ± is half the 95% interval over documents" in one
    for name, word in (("none", "no break"), ("few", "unclear")):
        text = render(compared(tmp_path / name, "positions"), "markdown", 80, False)
        assert f"| {word} |" in text and "unclear: neither, more documents are needed" in text


def test_programs_get_everything_unrounded(tmp_path: Path) -> None:
    sweep(tmp_path)
    data = json.loads(render(compared(tmp_path), "json", 80, False))
    far = data["columns"][4]
    assert len(far["pairs"]) == 15
    pair = next(p for p in far["pairs"] if p["rows"] == ["alibi", "rope"])
    assert pair["word"] == "lower" and pair["p"] < 0.05 and pair["interval"][1] < -0.02
    assert pair["difference"] == pytest.approx(-2.5 / 0.6931, rel=0.01)
    rope = next(row for row in data["rows"] if row["label"] == "rope")
    cell = rope["cells"][4]
    assert cell["verdict"] == "collapsed" and cell["verdict_ci95"][0] > 0.5
    assert rope["effective_context"] == {"multiple": 1, "window": 64, "longest": False}
    assert rope["uses_context"]["change"] == pytest.approx(-0.02, abs=0.01)
    assert data["header"]["reference"]["mean"] == pytest.approx(1.81)
    assert data["header"]["margins"] == {
        "unit": "bits per byte",
        "same": 0.02,
        "collapsed": 0.5,
        "confidence": 0.95,
    }
    assert [probe["protocol"] for probe in data["probes"]] == ["induction", "far-copy"]

    lines = list(csv.DictReader(io.StringIO(render(compared(tmp_path), "csv", 80, False))))
    assert len(lines) == 30
    line = next(x for x in lines if x["encoding"] == "rope" and float(x["multiple"]) == 8)
    assert (line["verdict"], line["mark"], line["effective_context"]) == ("collapsed", "", "64")
    assert float(line["verdict_ci95_low"]) == cell["verdict_ci95"][0]
    assert float(line["above_lowest"]) == -pair["difference"]
    assert float(line["above_lowest_low"]) == -pair["interval"][1]
    assert float(line["above_lowest_p"]) == pair["p"]
    assert float(line["far-copy 8x"]) == rope["probes"][1]["cell"]["mean"]
    assert float(line["far-copy 8x change"]) == rope["probes"][1]["cell"]["change"]
    assert float(line["reference"]) == pytest.approx(1.81)
    lowest = next(x for x in lines if x["encoding"] == "alibi" and float(x["multiple"]) == 8)
    assert (lowest["mark"], lowest["above_lowest"]) == ("lowest", "")


def test_programs_get_every_bin(tmp_path: Path) -> None:
    sweep(tmp_path)
    lines = list(csv.DictReader(io.StringIO(render(compared(tmp_path, "positions"), "csv", 80, False))))
    rope = [line for line in lines if line["encoding"] == "rope"]
    assert [line["window"] for line in rope] == ["8", "16", "32", "48", "64", "96", "128", "256", "512"]
    assert {line["breaks_at"] for line in rope} == {"unclear 97 97"}
    assert {line["slope"] for line in rope} == {"0.001"}


@pytest.mark.parametrize("metric", ["nats", "bpb", "ppl"])
def test_a_runs_own_table_shows_every_protocol_in_any_metric(tmp_path: Path, metric: str) -> None:
    sweep(tmp_path, seeds=1)
    run = next(run for run in load_runs([tmp_path]) if "rope" in run.name)
    text = render_run(run, "table", metric, 80, False)
    starts = [line.split(":")[0] for line in text.splitlines() if line.startswith(("fixed-target: ", "pos"))]
    assert starts[0] == "fixed-target" and "positions: nats per token, corpus" in flat(text)
    assert "trigram: " not in text
    named = list(csv.reader(io.StringIO(render_run(run, "csv", metric, 80, False))))
    assert {len(line) for line in named} == {len(named[0])}


def test_signs_are_ascii_where_asked(tmp_path: Path) -> None:
    sweep(tmp_path)
    for protocol in ("fixed-target", "positions"):
        assert render(compared(tmp_path, protocol), "table", 80, False, unicode=False).isascii()
        assert render(compared(tmp_path, protocol), "markdown", 80, False, unicode=False).isascii()


def test_hostile_units_and_names_stay_text(tmp_path: Path) -> None:
    far = [record(w, 1.0, protocol="far-copy", unit="\x1b[31m|<b>", targets_hash="f") for w in (T, 8 * T)]
    for name in ("a|b", "[red]x"):
        write_run(tmp_path, name, name=f"run{len(name)}", records=[record(T, 1.0), record(8 * T, 1.0), *far])
    table = render(compared(tmp_path), "table", 80, False)
    assert "\x1b" not in table and "[red]x" in table and "\\x1b[31m|<b>" in table
    markdown = render(compared(tmp_path), "markdown", 80, False)
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(lines) == 8 and "<b>" not in markdown.replace("\\<", "")


def test_random_sequences_are_no_documents(tmp_path: Path) -> None:
    records = [record(m * T, 5.0, protocol="induction", bytes=[0] * 40) for m in (1, 8)]
    write_run(tmp_path, records=records)
    text = flat(render(compare(load_runs([tmp_path]), "induction", "nats", False), "table", 100, False))
    assert "400 targets in 40 sequences" in text and "interval over sequences" in text
