import csv
import io
import json
import random
from pathlib import Path

import pytest
from fake_runs import MULTIPLES, T, record, write_run

from posenc.core.errors import UserError
from posenc.report import FORMATS, failures_lines, render, render_run, show
from posenc.results import load_runs
from posenc.results.comparison import compare

ENCODINGS = ("nope", "learned", "sinusoidal", "rope", "alibi", "t5")


def sweep(root: Path, multiples=MULTIPLES, seeds=(0, 1, 2), encodings=ENCODINGS) -> set[str]:
    """Write a sweep; returns every loss (3 decimals, mean over seeds) that a table has to show."""
    draw, expected = random.Random(0), set()
    for name in encodings:
        means = {m: 1.2 + draw.random() * 3 for m in multiples}
        params = {"beyond": "untrained"} if name == "learned" else {}
        for seed in seeds:
            shift = 0.01 * (seed - (len(seeds) - 1) / 2)
            write_run(root, name, seed=seed, params=params, losses={m: v + shift for m, v in means.items()})
        expected |= {f"{value:.3f}" for value in means.values()}
    return expected


def fixed_target(root: Path, metric: str = "nats", allow_mixed: bool = False):
    return compare(load_runs([root]), "fixed-target", metric, allow_mixed)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("lengths", [5, 9])
def test_no_width_cuts_a_number(tmp_path: Path, width: int, lengths: int) -> None:
    expected = sweep(tmp_path, multiples=(0.5, 1, 2, 4, 8, 16, 32, 64, 128)[:lengths])
    text = render(fixed_target(tmp_path), "table", width, False)
    assert "…" not in text and "..." not in text
    assert max(map(len, text.splitlines())) <= width
    words = text.replace("*", " ").replace("±", " ").split()
    assert expected <= set(words)
    assert words.count("0.010") == 6 * lengths  # every spread is whole, too


def test_the_headline_fits_eighty_columns_in_one_block(tmp_path: Path) -> None:
    sweep(tmp_path)
    lines = render(fixed_target(tmp_path), "table", 80, False).splitlines()
    heads = [line.split() for line in lines if "1x (T)" in line]
    assert heads == [["0.5x", "1x", "(T)", "2x", "4x", "8x"]]


def test_many_lengths_of_few_encodings_become_rows(tmp_path: Path) -> None:
    sweep(tmp_path, multiples=(0.5, 1, 2, 4, 8, 16, 32, 64, 128), encodings=("rope", "alibi"))
    lines = render(fixed_target(tmp_path), "table", 80, False).splitlines()
    assert sum(line.startswith("1x (T) = 64 ") for line in lines) == 1
    assert any("alibi" in line and "rope" in line for line in lines)


def test_marks_and_words(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.25 + 0.02 * seed, 8: 2.0})
        beyond = {"beyond": "clamp"}
        write_run(tmp_path, "learned", seed=seed, params=beyond, losses={1: 1.5, 8: 1.6})
    text = render(fixed_target(tmp_path), "table", 100, False)
    flat = " ".join(text.split())
    for words in (
        "fixed-target: nats per token, corpus sympy (test), tokenizer bytes, T = 64 tokens, model nano",
        "(803k parameters), trained on 3.28M tokens",
        "learned (beyond: clamp) 1.500±0.000 1.600±0.000*",
        "rope 1.260±0.014* 2.000±0.000 +0.740±0.014",
        "± is the standard deviation over 2 seeds",
        "400 targets in 40 documents at every length",
        "* lowest",
    ):
        assert words in flat, flat


def test_one_seed_says_what_its_interval_is_of(tmp_path: Path) -> None:
    write_run(tmp_path, records=[record(64, 1.0), record(512, 1.5, wiggle=0.3)])
    text = " ".join(render(fixed_target(tmp_path), "table", 80, False).split())
    assert "+0.500±0.065" in text  # 2.0227 * 0.2 / sqrt(39)
    assert "half the 95% interval over documents" in text and "these models only" in text
    assert "standard deviation" not in text and "lowest" not in text


def test_nonoverlapping_comes_with_its_warning(tmp_path: Path) -> None:
    both = [record(w, 1.0, protocol=p) for w in (64, 128) for p in ("fixed-target", "nonoverlapping")]
    write_run(tmp_path, records=both)
    (run,) = load_runs([tmp_path])
    text = render_run(run, "table", "nats", 80, False)
    assert (
        text.index("fixed-target: ") < text.index("nonoverlapping: ") < text.index("rewards longer windows")
    )
    assert "rewards longer" not in render(fixed_target(tmp_path), "table", 80, False)
    notes = [line for line in text.splitlines() if line.startswith(("words hold", "1x is the crop line"))]
    assert len(notes) == len(set(notes)) == 2, "what one table said, the next does not say again"
    assert len(json.loads(render_run(run, "json", "nats", 80, False))["comparisons"]) == 2
    lines = render_run(run, "csv", "nats", 80, False).splitlines()
    assert len(lines) == 5 and sum(line.startswith("protocol,") for line in lines) == 1


def test_failed_cells_say_why(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={1: 1.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=1, status="diverged", reason="nan at step 9", results=False)
    write_run(tmp_path, "alibi", records=[record(64, 1.0), record(512, 0, note="oom at 512 tokens")])
    text = render(fixed_target(tmp_path), "table", 80, False)
    assert "only 1 seed" in text and "rope: seed 1 diverged: nan at step 9" in text
    assert "alibi: 8x: oom at 512 tokens" in text and "nan" not in text.replace("nan at", "").replace(
        "nano", ""
    )
    assert failures_lines(load_runs([tmp_path]))[0].startswith("rope-nano-T64-s1")


def test_failures_name_reason_and_log(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", name="good")
    write_run(tmp_path, "rope", name="bad\n[red]", status="failed", reason="disk\x1b[31m full", results=False)
    write_run(tmp_path, "rope", name="busy", status="running", results=False)
    lines = failures_lines(load_runs([tmp_path]))
    assert lines == [
        rf"bad\n[red]: failed, disk\x1b[31m full (log: {tmp_path}/bad\n[red]/log.txt)",
        f"busy: running, by process 1 on here (log: {tmp_path}/busy/log.txt)",
    ]


HOSTILE = ["[red]x[/red]", "=cmd()", "a|b", "../x", "two\nlines", "\x1b[31mred", "<b>x", "日本語" * 20, "+1"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(tmp_path: Path, name: str) -> None:
    for i, encoding in enumerate((name, "rope")):
        facts = {"tokenizer": name, "model": {"name": name}}
        write_run(tmp_path, encoding, name=f"run{i}", params={"beyond": name}, facts=facts)
    comparison = fixed_target(tmp_path)
    table = render(comparison, "table", 200, False)
    assert "\x1b" not in table and "".join(name.split("\n")[0].split("\x1b")) in table
    assert render(comparison, "table", 30, False)
    rows = list(csv.reader(io.StringIO(render(comparison, "csv", 80, False))))
    assert len(rows) == 11 and {len(row) for row in rows} == {len(rows[0])}
    assert not any(row[3].startswith(("=", "+", "-", "@")) for row in rows)
    markdown = render(comparison, "markdown", 80, False)
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(lines) == 8  # two tables
    assert [line.replace("\\|", "").count("|") for line in lines] == [7] * 4 + [4] * 4
    assert "<b>" not in markdown.replace("\\<", "")
    data = json.loads(render(comparison, "json", 80, False))
    assert any(row["encoding"] == name for row in data["rows"])


def test_json_and_csv_hold_the_numbers(tmp_path: Path) -> None:
    write_run(tmp_path, losses={1: 1.0, 8: 800.0})
    data = json.loads(render(fixed_target(tmp_path, "ppl"), "json", 80, False))
    assert set(data) == {"summary", "schema_version", "header", "columns", "probes", "rows", "extensions"}
    assert data["header"]["unit"] == "perplexity per token"
    far = data["rows"][0]["cells"][1]
    assert (far["mean"], far["note"], far["window"]) == (None, ">1e30", 512)
    assert ">1e30" in render(fixed_target(tmp_path, "ppl"), "table", 80, False)
    (at, far) = csv.DictReader(io.StringIO(render(fixed_target(tmp_path), "csv", 80, False)))
    assert (float(at["mean"]), float(far["change"])) == (pytest.approx(1.0), pytest.approx(799.0))
    assert (at["encoding"], at["window"], at["seeds"], at["spread"]) == ("rope", "64", "1", "")


def test_mixed_rows_carry_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path, "rope")
    write_run(tmp_path, "rope", facts={"tokens": 99})
    comparison = fixed_target(tmp_path, allow_mixed=True)
    text = " ".join(render(comparison, "table", 200, False).split())
    assert "rope [tokens trained 3276800]" in text and "rope [tokens trained 99]" in text
    header, *rows = csv.reader(io.StringIO(render(comparison, "csv", 80, False)))
    assert sorted({row[header.index("tokens trained")] for row in rows}) == ["3276800", "99"]


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_but_failures_still_renders(tmp_path: Path, format: str) -> None:
    write_run(tmp_path, status="failed", reason="boom", results=False)
    text = render(fixed_target(tmp_path), format, 80, False)
    assert "boom" in text and text.endswith("\n")


def test_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(UserError, match="did you mean: markdown"):
        render(fixed_target(tmp_path), "markdwn", 80, False)


def test_streams_decide_width_colour_and_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    sweep(tmp_path, encodings=("rope", "alibi"))
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    show([fixed_target(tmp_path)], "table", stream)
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "+/-0.010" in text and "\\x" not in text and "\x1b" not in text
    assert max(map(len, text.splitlines())) > 100  # a pipe is 200 wide
    starts = {line.index(" 128") for line in text.splitlines() if " 128" in line}
    assert len(starts) == 1
    monkeypatch.setenv("COLUMNS", "60")
    narrow = io.StringIO()
    show([fixed_target(tmp_path)], "table", narrow)
    assert max(map(len, narrow.getvalue().splitlines())) <= 60


def test_colour_and_no_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    sweep(tmp_path, encodings=("rope", "alibi"))
    assert "\x1b[1;32m" in render(fixed_target(tmp_path), "table", 80, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in render(fixed_target(tmp_path), "table", 80, True)


def test_no_torch_and_nothing_heavy_at_import() -> None:
    import subprocess
    import sys

    code = "import sys, posenc.results, posenc.report, posenc.results.store\n"
    code += "print([m for m in ('torch', 'numpy', 'scipy', 'yaml', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_multiples_are_of_the_training_length() -> None:
    assert record(32, 1.0)["multiple"] == 0.5 and T == 64
