"""`posenc eval`: other lengths, protocols, corpora and extensions, and what they leave in a run."""

import re
import shutil
from collections import Counter

import tiny
from fake_runs import read_json, stamps

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.running.jobs import check_jobs

FIXED = "eval.protocols=[fixed-target]"


def results_of(run):
    return read_json(run / "results.json")


def fixed_target(run, extend):
    records = [r for r in results_of(run)["records"] if r["protocol"] == "fixed-target"]
    of_name = [r for r in records if (r["extend"] or {}).get("name") == extend and r["split"] == "test"]
    return {r["window"]: r for r in of_name}


def test_other_lengths_add_cells_and_change_no_facts(posenc, run_copy):
    before = results_of(run_copy)
    asked = ["eval", f"run={run_copy}", "eval.lengths=[1x,4x,16x]", FIXED]
    result = posenc(*asked)
    assert result.code == 0 and re.search(r"^context +16 = T +64 +256$", result.out, re.M), result.out
    after = results_of(run_copy)
    assert after["run"] == before["run"]
    new = [r for r in after["records"] if r not in before["records"]]
    # other targets: those that have 256 tokens before them
    cells = {*(("fixed-target", window) for window in (16, 64, 256)), ("trigram", 16)}
    assert {(r["protocol"], r["window"]) for r in new} == cells
    assert len(after["records"]) == len(before["records"]) + len(cells)
    again = posenc(*asked)
    assert again.out == result.out and results_of(run_copy) == after


def test_it_equals_what_the_training_measured(posenc, run_copy):
    before = results_of(run_copy)
    for path in [*(run_copy / "records").iterdir(), run_copy / "results.json"]:
        path.unlink()
    assert posenc("eval", f"run={run_copy}").code == 0
    after = results_of(run_copy)
    assert [{**r, "seconds": 0} for r in after["records"]] == [{**r, "seconds": 0} for r in before["records"]]
    differing = {key for key, value in before["run"].items() if after["run"][key] != value}
    assert differing <= {"peak_memory_bytes", "wall_seconds", "tokens_per_second"}
    assert after["run"]["peak_memory_bytes"] is None  # this process did not train it
    assert after["run"]["wall_seconds"] > 0


def test_another_corpus_is_kept_apart(posenc, run_copy, place):
    other, before = tiny.write_corpus(place / "other", documents=40), results_of(run_copy)
    own = before["run"]["corpus"]["fingerprint"]
    result = posenc("eval", f"run={run_copy}", "data=files", f"data.paths={other}", "eval.lengths=[1x,2x]")
    assert result.code == 0, result.err
    prints = [r["fingerprint"] for r in results_of(run_copy)["records"]]
    # two windows by two protocols and a curve; the trigram is of the corpus that was trained on
    assert prints.count(own) == len(before["records"]) == len(prints) - 5 and len(set(prints)) == 2


def test_an_extension_is_a_row_of_its_own_beside_the_crop_line(posenc, run_copy):
    asked = ["eval", f"run={run_copy}", "extend=pi", FIXED]
    result = posenc(*asked)
    assert result.code == 0, result.err
    rows = [line.split()[0] for line in result.out.splitlines() if line.startswith("rope")]
    assert result.out.startswith("2 rows | ") and rows == ["rope", "rope+pi"], result.out
    found, plain = fixed_target(run_copy, "pi"), fixed_target(run_copy, None)
    factors = {w: r["extend"]["resolved"]["factor"] for w, r in found.items()}
    assert factors == {16: 1.0, 32: 2.0, 64: 4.0}
    assert found[16]["per_document"] == plain[16]["per_document"]  # nothing to extend at T
    assert found[64]["nats"] != plain[64]["nats"]
    assert len({r["targets_hash"] for r in [*found.values(), *plain.values()]}) == 1
    again = posenc(*asked)
    assert again.code == 0 and fixed_target(run_copy, "pi") == found
    assert not [x for x in again.err.splitlines() if "evaluating" in x and "(stored)" not in x]


def test_another_precision_is_measured_anew_and_noted(posenc, run_copy):
    before = fixed_target(run_copy, None)
    for precision, noted in (("bf16", "bf16"), ("auto", None)):
        asked = ["eval", f"run={run_copy}", FIXED, f"eval.precision={precision}"]
        assert posenc(*asked).code == 0
        found = fixed_target(run_copy, None)
        assert found.keys() == before.keys()  # one record a cell
        assert {record.get("precision") for record in found.values()} == {noted}
        same = [found[window]["nats"] == record["nats"] for window, record in before.items()]
        assert all(same) == (noted is None)
        assert posenc(*asked).code == 0 and fixed_target(run_copy, None) == found  # not again
    wrong = posenc("eval", f"run={run_copy}", "eval.precision=fp16")
    assert wrong.code == 2 and "eval.precision=fp16" in wrong.err and "bf16" in wrong.err


def test_what_does_not_fit_the_encoding_is_refused(posenc, train, run_copy, place, capsys):
    assert train("encoding=alibi", "eval.lengths=[1x]", FIXED).code == 0
    (run,) = (place / "runs" / "default").glob("alibi*")
    shutil.rmtree(run_copy / "checkpoints")
    shutil.copytree(run / "checkpoints", run_copy / "checkpoints")
    refused = posenc("eval", f"run={run_copy}")
    assert refused.code == 1 and "encoding.name=alibi" in refused.err and "encoding.name=rope" in refused.err
    # what does not apply is refused, and in a sweep left out
    before = stamps(run)
    refused = posenc("eval", f"run={run}", "extend=yarn")
    assert refused.code == 2 and "extend=yarn: does not apply to encoding=alibi" in refused.err
    assert "it is for encodings that turn pairs" in refused.err
    assert stamps(run) == before
    swept = compose_jobs("eval", parse(["-m", f"run={run}", "extend=pi,yarn,window", FIXED]))
    checked = check_jobs(swept)
    assert [entry.composed.settings.extend.name for entry in checked] == ["window"]
    assert re.findall(r"left out: (\w+): does not apply", capsys.readouterr().err) == ["pi", "yarn"]


def test_knobs_are_chosen_on_validation_documents(posenc, run_copy):
    result = posenc("eval", f"run={run_copy}", "extend=yarn", "extend.tune=true", FIXED)
    assert result.code == 0 and "extend=yarn: beta_fast=" in result.err, result.err
    tried = [r for r in results_of(run_copy)["records"] if r["split"] == "validation"]
    assert {r["extend"]["name"] for r in tried} == {"yarn"} and {r["window"] for r in tried} == {32, 64}
    losses = Counter()
    for r in tried:
        losses[r["extend"]["beta_fast"]] += r["nats"]
    assert "rope+yarn (tuned: beta_fast)" in result.out and len(losses) > 1
    reported = fixed_target(run_copy, "yarn").values()
    assert {r["extend"]["beta_fast"] for r in reported} == {min(losses, key=lambda k: losses[k])}
    assert {r["extend"]["tuned_on"] for r in reported} == {"validation"}


def test_divisors_are_searched_on_validation_documents(posenc, run_copy):
    refused = posenc("eval", f"run={run_copy}", "extend=longrope", FIXED)
    assert refused.code == 2 and "or extend.tune=true" in refused.err
    asked = ["eval", f"run={run_copy}", "extend=longrope", "extend.tune=true", "extend.tries=9", FIXED]
    result = posenc(*asked)
    assert result.code == 0 and "the best of 9 on validation documents" in result.err, result.err
    tried = Counter()
    for r in (r for r in results_of(run_copy)["records"] if r["split"] == "validation"):
        tried[tuple(r["extend"]["factors"])] += r["nats"]
    s, pairs = 4, 8  # the longest window over T, and pairs of a head
    assert (1.0,) * pairs in tried and (s,) * pairs in tried and 4 <= len(tried) <= 9
    assert all(list(f) == sorted(f) and f[0] >= 1 and f[-1] <= 1.25 * s for f in tried)
    reported = fixed_target(run_copy, "longrope").values()
    assert {tuple(r["extend"]["factors"]) for r in reported} == {min(tried, key=lambda f: tried[f])}
    assert "rope+longrope (tuned: factors)" in result.out
    before = results_of(run_copy)["records"]
    assert posenc(*asked).code == 0 and results_of(run_copy)["records"] == before  # every candidate is stored
