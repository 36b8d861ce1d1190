"""posenc compare with its choices: what they show, and what wrong ones say. Fake runs, the real command."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))
from fake_runs import write_run

Posenc = Callable[..., tiny.Result]


@pytest.fixture
def sweep(place: Path) -> Path:
    """Three encodings, two seeds, and one run that failed, below runs/."""
    for name, far in {"alibi": 1.3, "rope": 3.0, "nope": 2.5}.items():
        for seed in (0, 1):
            write_run(place / "runs", name, seed=seed, losses={1: 1.3 + 0.01 * seed, 8: far + 0.01 * seed})
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
        (["--facet", "modl"], ["--facet=modl", "did you mean: model"]),
        (["--extensions", "cells"], ["--extensions=cells", "rows, columns"]),
        (["--format", "tex"], ["--format=tex", "latex"]),
        (["--metric", "nat"], ["--metric=nat", "did you mean: nats"]),
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
