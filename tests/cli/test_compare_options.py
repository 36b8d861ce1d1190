"""posenc compare with its choices: what they show, and what wrong ones say. Fake runs, the real command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from fake_runs import T, record, write_run

Posenc = Callable[..., tiny.Result]


@pytest.fixture
def sweep(place: Path) -> Path:
    """Three encodings, two seeds, and one run that failed, below runs/."""
    for name, far in {"alibi": 1.3, "rope": 3.0, "nope": 2.5}.items():
        for seed in (0, 1):
            records = [record(T, 1.3 + 0.01 * seed), record(8 * T, far + 0.01 * seed)]
            records.append(record(T, 1.3, protocol="sliding", stride=16))
            write_run(place / "runs", name, seed=seed, records=records)
    write_run(place / "runs", "shaw", status="failed", reason="out of memory", results=False)
    return place / "runs"


def document(posenc: Posenc, *options: str) -> dict:
    result = posenc("compare", "--format", "json", *options)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_where_rows_columns_sort_and_baseline_together(posenc: Posenc, sweep: Path) -> None:
    options = ["--where", "seed=0", "--where", "encoding!=shaw", "--columns", "8x", "--sort", "-8x"]
    found = document(posenc, *options, "--rows", "rope,alibi", "--baseline", "alibi")
    assert [row["label"] for row in found["rows"]] == ["rope", "alibi"]
    assert [column["multiple"] for column in found["columns"]] == [8]
    assert found["header"]["baseline"] == "alibi" and found["header"]["seeds"] == [0]
    assert found["rows"][0]["cells"][0]["against"]["difference"] == pytest.approx(1.7)
    assert found["summary"].startswith("Against alibi at 8x, in nats: rope is higher (+1.700).")


def test_a_failed_run_is_a_row_and_a_line(posenc: Posenc, sweep: Path) -> None:
    result = posenc("compare")
    assert "shaw" in result.out and "failed: out of memory" in result.out
    assert "out of memory" in result.err and "log.txt" in result.err
    only = posenc("compare", "--where", "status=finished")
    assert "shaw" not in only.out + only.err


def test_facets_in_the_formats(posenc: Posenc, sweep: Path) -> None:
    found = document(posenc, "--facet", "seed", "--where", "status=finished")
    values = [one["header"]["facet"]["value"] for one in found["comparisons"]]
    assert values == ["0", "1"] and all(len(one["rows"]) == 3 for one in found["comparisons"])
    table = posenc("compare", "--facet", "seed", "--where", "status=finished").out
    assert table.count("seed 0, fixed-target") == table.count("seed 1, fixed-target") == 1
    lines = list(csv.DictReader(io.StringIO(posenc("compare", "--facet", "seed", "--format", "csv").out)))
    assert {(line["encoding"], line["seed"]) for line in lines} >= {("rope", "0"), ("rope", "1")}


def test_pictures_and_pages_are_written_beside_the_table(posenc: Posenc, sweep: Path) -> None:
    result = posenc("compare", "--plot", "loss.svg", "--html", "page.html")
    assert result.code == 0 and "alibi" in result.out
    assert "wrote loss.svg" in result.err and "wrote page.html" in result.err
    assert "<svg" in Path("loss.svg").read_text() and "alibi" in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--where", "encoding=roep"], ["--where encoding=roep", "did you mean: rope"]),
        (["--where", "x"], ["not a condition"]),
        (["--rows", "roep"], ["--rows=roep", "did you mean: rope"]),
        (["--columns", "3x"], ["--columns=3x", "allowed: 1x, 8x"]),
        (["--columns", "far"], ["--columns=far", "not a multiple of T"]),
        (["--sort", "loss"], ["--sort=loss", "8x"]),
        (["--baseline", "alibii"], ["--baseline=alibii", "did you mean: alibi"]),
        (["--baseline", "alibi", "--metric", "ppl"], ["--baseline", "perplexities"]),
        (["encoding=rope"], ["--where encoding=rope"]),
        (["--html", "notes.md"], ["--html=notes.md", "allowed: .html"]),
        (["--protocol", "slidin"], ["--protocol=slidin", "eval.protocols=["]),
        (["--plot-kind", "heatmap"], ["--plot-kind=heatmap", "--plot FILE"]),
        (["--plot-width", "3.3"], ["--plot-width=3.3", "--plot FILE"]),
        (["--against", "alibi-table2", "--extensions", "columns"], ["--extensions=columns", "--against"]),
        (["--stride", "7"], ["--stride=7", "allowed: none"]),
        (["--facet", "modl"], ["--facet=modl", "did you mean: model"]),
        (["--extensions", "cells"], ["--extensions=cells", "rows, columns"]),
        (["--format", "tex"], ["--format=tex", "latex"]),
        (["--metric", "nat"], ["--metric=nat", "did you mean: nats"]),
        (["--stride", "7", "--protocol", "sliding"], ["--stride=7", "allowed: 16"]),
        (["--length", "16x"], ["--length=16x", "allowed: 1x, 8x"]),
        (["--columns", "512"], ["--columns=512x", "multiples of T, not tokens"]),
        (["--columns", ","], ["--columns=,", "empty"]),
        (["--where", "T!=64"], ["--where=T!=64", "all of them have that"]),
        (["--plot-kind", "heat"], ["--plot-kind=heat", "did you mean: heatmap"]),
        (["--plot", "a.png", "--plot-width", "0"], ["--plot-width"]),
        (["--plot", "a.png", "--plot-width", "nan"], ["--plot-width"]),
        (["--html", "nowhere/a.html"], ["--html=nowhere/a.html", "folder"]),
        (["--plot", "a.jpg"], ["--plot", "png"]),
        (["--plot", "a.png", "--plot-kind", "heat"], ["--plot-kind", "did you mean: heatmap"]),
        (["--against", "alibi-table2", "--baseline", "rope"], ["--baseline", "--against"]),
    ],
)
def test_wrong_choices_are_exit_2_and_write_nothing(
    posenc: Posenc, sweep: Path, options: list[str], words: list[str]
) -> None:
    before = sorted(Path().rglob("*"))
    result = posenc("compare", *options)
    assert (result.code, result.out) == (2, ""), result
    assert all(word in result.err for word in words), result.err
    assert sorted(Path().rglob("*")) == before


def test_devices_and_links_are_not_replaced(posenc: Posenc, sweep: Path) -> None:
    real = Path("real.html")
    real.write_text("old")
    Path("link.html").symlink_to(real)
    assert posenc("compare", "--html", "link.html").code == 0
    assert Path("link.html").is_symlink() and "alibi" in real.read_text()
    Path("null.html").symlink_to("/dev/null")
    result = posenc("compare", "--html", "null.html")
    assert result.code == 2 and "not a regular file" in result.err and Path("/dev/null").is_char_device()


def test_a_page_leaves_out_protocols_that_cannot_be_shown_so(posenc: Posenc, sweep: Path) -> None:
    both = [record(T, 1.3), record(T, 1.2, protocol="sliding", stride=16)]
    write_run(sweep, "cope", records=[*both, record(8 * T, 1.2, extend={"name": "yarn"})])
    result = posenc("compare", "--rows", "cope+yarn", "--html", "page.html")
    assert result.code == 0 and "not on the page: sliding" in result.err and Path("page.html").is_file()


def test_a_facet_by_encoding_keeps_the_rows_names_in_csv(posenc: Posenc, sweep: Path) -> None:
    lines = csv.DictReader(io.StringIO(posenc("compare", "--facet", "encoding", "--format", "csv").out))
    found = {(line["facet_encoding"], line["encoding"]) for line in lines}
    assert {("rope", "rope"), ("alibi", "alibi")} <= found


def test_odd_records_are_a_damaged_run_not_a_fault(posenc: Posenc, sweep: Path) -> None:
    run = write_run(sweep, "odd")
    results = json.loads((run / "results.json").read_text())
    results["records"][0]["protocol"] = ["x"]
    (run / "results.json").write_text(json.dumps(results))
    result = posenc("compare")
    assert result.code == 0 and "damaged" in result.err and "record.protocol" in result.err


def test_a_facet_is_a_ranking_like_any_other(posenc: Posenc, sweep: Path) -> None:
    """What differs beside its key is not compared unless it is asked for."""
    for length, tokens in ((64, 999), (64, 5000), (128, 999)):
        facts, config = {"context_length": length, "tokens": tokens}, {"context_length": length}
        write_run(sweep / "other", "hope", config=config, facts=facts, name=f"h{length}-{tokens}")
    refused = posenc("compare", str(sweep / "other"), "--facet", "context_length")
    assert refused.code == 2 and "tokens trained: 5000" in refused.err and "is 64" in refused.err
    asked = posenc("compare", str(sweep / "other"), "--facet", "context_length", "--allow-mixed")
    assert asked.code == 0 and "[tokens trained 5000]" in asked.out


def test_a_row_of_a_mixed_table_is_chosen_by_its_whole_name(posenc: Posenc, sweep: Path) -> None:
    for tokens, split in ((999, "test"), (5000, "validation")):
        records = [record(T, 1.3, split=split)]
        write_run(sweep / "two", "hope", facts={"tokens": tokens}, records=records, name=f"h{tokens}")
    table = ("compare", str(sweep / "two"), "--allow-mixed", "--format", "csv")
    name = "hope [split test, tokens trained 999]"
    assert name in posenc(*table, "--rows", "rope").err
    chosen = posenc(*table, "--rows", name)
    assert chosen.code == 0 and len(list(csv.DictReader(io.StringIO(chosen.out)))) == 1
