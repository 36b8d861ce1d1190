"""`posenc compare` with its choices, on stored runs: what they show, and what wrong ones say."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from fake_runs import T, recall_records, record, write_run


@pytest.fixture
def sweep(working_folder):
    """Three encodings, two seeds, and one run that failed, below runs/."""
    for name, far in {"alibi": 1.3, "rope": 3.0, "nope": 2.5}.items():
        for seed in (0, 1):
            records = [record(T, 1.3 + 0.01 * seed), record(8 * T, far + 0.01 * seed)]
            records.append(record(T, 1.3, protocol="sliding", stride=16))
            write_run(working_folder / "runs", name, seed=seed, records=records)
    write_run(working_folder / "runs", "shaw", status="failed", reason="[red]no memory", results=False)
    return working_folder / "runs"


def document(posenc, *options):
    result = posenc("compare", "--format", "json", *options)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_every_format_holds_the_same_numbers(posenc, sweep):
    finished = ("compare", "--where", "status=finished")
    outputs = {f: posenc(*finished, "--format", f) for f in ("table", "markdown", "csv", "latex", "json")}
    assert all(result.code == 0 and result.err == "" for result in outputs.values())
    assert {row["label"] for row in json.loads(outputs["json"].out)["rows"]} == {"rope", "alibi", "nope"}
    assert outputs["csv"].out.count("\n") == 7 and "| rope" in outputs["markdown"].out
    for format in ("table", "markdown", "latex"):
        assert "1.305" in outputs[format].out and "1.700" in outputs[format].out
    assert posenc(*finished).out == outputs["table"].out
    assert posenc(*finished, "runs", "--format", "json").out == outputs["json"].out


def test_metric_protocol_and_how_much_is_shown(posenc, sweep):
    assert "bits/byte" in posenc("compare", "--metric", "bpb").out
    assert "perplexity" in posenc("compare", "--metric", "ppl").out
    assert posenc("compare", "--protocol", "sliding").out.startswith("sliding, stride 16 | ")
    every = posenc("compare", "--protocol", "all").out
    assert every.count("encoding  ") == 2 and "\nsliding, stride 16\n" in every
    assert "verdict\n" in posenc("compare", "--full").out
    rules = posenc("compare", "nowhere", "--explain")
    assert rules.code == 0 and "the crop line" in rules.out


def test_recall_is_a_protocol_with_a_level(posenc, working_folder):
    found = {8: 100, 32: 100, 56: 70, 112: 60}
    write_run(working_folder / "runs", records=[record(T, 1.0), record(2 * T, 1.1), *recall_records(found)])
    assert "recall: 90% within T, 60% at 2x" in posenc("compare", "--columns", "1x,2x").out
    for level, learned in (("90", True), ("90.5", False)):
        shown = document(posenc, "--protocol", "recall", "--recall-level", level)
        assert shown["recall"]["level"] == float(level)
        assert shown["rows"][0]["recall"]["learned"] is learned is ("Did not learn" not in shown["summary"])
    lines = csv.DictReader(posenc("compare", "--format", "csv").out.splitlines())
    (far,) = [x for x in lines if (x["protocol"], x["multiple"], x["distance"]) == ("recall", "2.0", "112")]
    assert (far["recall"], far["pairs"], far["windows"]) == ("0.6", "4", "100")


def test_choices_together_and_a_failed_run(posenc, sweep):
    options = ["--where", "seed=0", "--where", "encoding!=shaw", "--columns", "8x", "--sort", "-8x"]
    found = document(posenc, *options, "--rows", "rope,alibi", "--baseline", "alibi")
    assert [row["label"] for row in found["rows"]] == ["rope", "alibi"]
    assert [column["multiple"] for column in found["columns"]] == [8]
    assert found["header"]["baseline"] == "alibi" and found["header"]["seeds"] == [0]
    assert found["rows"][0]["cells"][0]["versus_baseline"]["difference"] == pytest.approx(1.7)
    result = posenc("compare")  # a failed run is a row and a line
    assert "shaw" in result.out and "[red]no memory" in posenc("compare", "--full").out
    assert "[red]no memory" in result.err and "log.txt" in result.err


def test_pictures_and_pages_are_written_beside_the_table(posenc, sweep):
    result = posenc("compare", "--plot", "loss.svg", "--html", "page.html")
    assert result.code == 0 and "alibi" in result.out
    assert "wrote loss.svg" in result.err and "wrote page.html" in result.err
    assert "<svg" in Path("loss.svg").read_text() and "alibi" in Path("page.html").read_text()
    Path("null.html").symlink_to("/dev/null")
    refused = posenc("compare", "--html", "null.html")
    assert refused.code == 2 and "not a regular file" in refused.err and Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "case",
    [
        *((f"--sort={order}", "cannot sort by this") for order in ("loss", "3x", "", "8y", "change@3x")),
        ("--columns 512", "multiples of T, not tokens"),
        ("--metric nat", "nats, bpb, ppl"),
        ("--where encoding=roep", "--where encoding=roep", "did you mean: rope"),
        ("--rows rope --baseline alibi", "--baseline=alibi", "among those shown"),
        ("--columns 3x", "--columns=3x", "allowed: 1x, 8x"),
        ("--baseline alibi --metric ppl", "--baseline", "perplexities"),
        ("encoding=rope", "--where encoding=rope"),
        ("--format tex", "--format=tex", "latex"),
        ("--protocol slidin", "--protocol=slidin", "eval.protocols=["),
        ("--length 16x", "No such option: --length"),
        ("--recall-level 200", "--recall-level=200.0", "allowed: 0 to 100"),
        ("--html notes.md", "--html=notes.md", "allowed: .html"),
        ("--plot-kind heatmap", "--plot-kind=heatmap", "--plot FILE"),
        *((f"--against alibi-table2 {option}", f"does not read {option.split()[0]}\n")
          for option in ("--baseline rope", "--full", "--allow-mixed", "--plot a.png", "--html a.html")),
    ],
    ids=lambda case: case[0][:40],
)  # fmt: skip
def test_wrong_choices_are_exit_2_and_write_nothing(posenc, sweep, case):
    before = sorted(Path().rglob("*"))
    result = posenc("compare", *shlex.split(case[0]))
    assert (result.code, result.out) == (2, ""), result
    assert all(word in result.err for word in case[1:]), result.err
    assert sorted(Path().rglob("*")) == before
