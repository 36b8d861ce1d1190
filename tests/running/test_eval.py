"""`posenc eval`: other lengths, protocols, corpora and extensions, and what they leave in a run."""

import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
from fake_runs import read_json, stamps
from in_process import called_in

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.results.comparison import compare_runs
from posenc.results.runs import load_run
from posenc.running.jobs import check_jobs

FIXED = "eval.protocols=[fixed-target]"
TIMES = {"peak_memory_bytes", "wall_seconds", "tokens_per_second"}  # facts that another process may not know


def results_of(run):
    return read_json(run / "results.json")


def fixed_target(run, extend, precision=None):
    """The records of fixed targets on test documents with an extension (None: as trained), by window."""
    by_window = {}
    for record in results_of(run)["records"]:
        name = (record["extend"] or {}).get("name")
        is_measured_so = record["split"] == "test" and record.get("precision") == precision
        if record["protocol"] == "fixed-target" and name == extend and is_measured_so:
            by_window[record["window"]] = record
    return by_window


def tried_on_validation(run):
    return [record for record in results_of(run)["records"] if record["split"] == "validation"]


# --- other lengths


@dataclass(frozen=True)
class Evaluated:
    """A copy of the trained run that was measured further, for several tests to read."""

    run: Path
    before: dict[str, Any]  # its results
    out: str
    err: str


@pytest.fixture(scope="module")
def evaluated(trained_once, tmp_path_factory, shared_cache):
    """Measure a copy of the trained run by these overrides."""

    def measure(*overrides):
        folder = tmp_path_factory.mktemp("evaluated")
        shutil.copytree(trained_once, folder / "runs")
        (run,) = (folder / "runs" / "default").iterdir()
        before = results_of(run)
        result = called_in(folder, shared_cache, "eval", f"run={run}", *overrides)
        assert result.code == 0, result.err
        return Evaluated(run, before, result.out, result.err)

    return measure


@pytest.fixture(scope="module")
def at_other_lengths(evaluated):
    return evaluated("eval.lengths=[1x,4x,16x]", FIXED)


def test_other_lengths_are_shown(at_other_lengths):
    assert re.search(r"^context +16 = T +64 +256$", at_other_lengths.out, re.M), at_other_lengths.out


def test_other_lengths_add_cells(at_other_lengths):
    before = at_other_lengths.before["records"]
    new = [record for record in results_of(at_other_lengths.run)["records"] if record not in before]
    # the targets are others: those that have 256 tokens before them
    cells = {("fixed-target", 16), ("fixed-target", 64), ("fixed-target", 256), ("trigram", 16)}
    assert {(record["protocol"], record["window"]) for record in new} == cells
    assert len(new) == len(cells)


def test_other_lengths_change_no_facts_of_the_run(at_other_lengths):
    assert results_of(at_other_lengths.run)["run"] == at_other_lengths.before["run"]


def test_the_same_again_measures_nothing(at_other_lengths, posenc):
    run = at_other_lengths.run
    results = results_of(run)
    again = posenc("eval", f"run={run}", "eval.lengths=[1x,4x,16x]", FIXED)
    assert again.out.partition("saved")[0] == at_other_lengths.out.partition("saved")[0]
    assert results_of(run) == results


# --- it equals what the training measured


@pytest.fixture
def measured_anew(posenc, run_copy):
    """Drop everything that was measured and measure it again; return the results before and after."""
    before = results_of(run_copy)
    for path in [*(run_copy / "records").iterdir(), run_copy / "results.json"]:
        path.unlink()
    assert posenc("eval", f"run={run_copy}").code == 0
    return before, results_of(run_copy)


def test_it_has_the_numbers_of_the_training(measured_anew):
    before, after = ([{**record, "seconds": 0} for record in run["records"]] for run in measured_anew)
    assert after == before


def test_it_has_the_facts_of_the_training_but_for_what_it_cannot_know(measured_anew):
    before, after = (run["run"] for run in measured_anew)
    differing = {key for key, value in before.items() if after[key] != value}
    assert differing <= TIMES
    assert after["peak_memory_bytes"] is None  # this process did not train it
    assert after["wall_seconds"] > 0


# --- another corpus, another precision


def test_another_corpus_is_kept_apart(posenc, run_copy, working_folder):
    other, before = tiny.write_corpus(working_folder / "other", documents=40), results_of(run_copy)
    trained_on = before["run"]["corpus"]["fingerprint"]
    result = posenc("eval", f"run={run_copy}", "data=files", f"data.paths={other}", "eval.lengths=[1x,2x]")
    assert result.code == 0, result.err
    counts = Counter(record["fingerprint"] for record in results_of(run_copy)["records"])
    assert counts.pop(trained_on) == len(before["records"])
    # two windows by two protocols, a curve, and the frequencies of the text's tokens
    assert list(counts.values()) == [6]


def eval_in(posenc, run, precision):
    return posenc("eval", f"run={run}", FIXED, f"eval.precision={precision}")


def test_another_precision_is_measured_anew_and_noted(posenc, run_copy):
    before = fixed_target(run_copy, None)
    assert eval_in(posenc, run_copy, "bf16").code == 0
    after = fixed_target(run_copy, None, precision="bf16")
    assert after.keys() == before.keys()
    assert any(after[window]["nats"] != record["nats"] for window, record in before.items())


def test_another_precision_replaces_no_number(posenc, run_copy):
    before = fixed_target(run_copy, None)
    assert eval_in(posenc, run_copy, "bf16").code == 0
    assert fixed_target(run_copy, None) == before


def test_another_precision_is_a_table_of_its_own(posenc, run_copy):
    assert eval_in(posenc, run_copy, "bf16").code == 0
    tables = compare_runs([load_run(run_copy)])
    assert [table.header.evaluated_in for table in tables] == [None, "bf16"]


def test_another_precision_is_not_measured_twice(posenc, run_copy):
    assert eval_in(posenc, run_copy, "bf16").code == 0
    first = fixed_target(run_copy, None, precision="bf16")
    assert eval_in(posenc, run_copy, "bf16").code == 0
    assert fixed_target(run_copy, None, precision="bf16") == first


def test_a_precision_that_does_not_exist_is_refused(posenc, run_copy):
    refused = eval_in(posenc, run_copy, "fp16")
    assert refused.code == 2
    assert "eval.precision=fp16" in refused.err
    assert "bf16" in refused.err


# --- extensions


@pytest.fixture(scope="module")
def extended(evaluated):
    return evaluated("extend=pi", FIXED)


def test_an_extension_is_a_row_of_its_own(extended):
    rows = re.findall(r"^(rope\S*) +\d", extended.out, re.M)
    assert extended.out.startswith("2 rows | ")
    assert rows == ["rope", "rope+pi"], extended.out


def test_an_extension_says_what_its_knobs_come_to(extended):
    records = fixed_target(extended.run, "pi")
    factors = {window: record["extend"]["resolved"]["factor"] for window, record in records.items()}
    assert factors == {16: 1.0, 32: 2.0, 64: 4.0}


def test_an_extension_changes_nothing_at_the_training_length(extended):
    plain = fixed_target(extended.run, None)[16]
    assert fixed_target(extended.run, "pi")[16]["per_document"] == plain["per_document"]


def test_an_extension_changes_numbers_beyond_it(extended):
    plain = fixed_target(extended.run, None)[64]
    assert fixed_target(extended.run, "pi")[64]["nats"] != plain["nats"]


def test_an_extension_is_measured_on_the_same_targets(extended):
    records = [*fixed_target(extended.run, "pi").values(), *fixed_target(extended.run, None).values()]
    assert len({record["targets_hash"] for record in records}) == 1


def test_an_extension_is_not_measured_twice(extended, posenc):
    before = fixed_target(extended.run, "pi")
    again = posenc("eval", f"run={extended.run}", "extend=pi", FIXED)
    assert fixed_target(extended.run, "pi") == before
    assert not [line for line in again.err.splitlines() if "evaluating" in line and "(stored)" not in line]


@pytest.fixture
def alibi(train, working_folder, run_copy):
    """A trained run that turns no pairs."""
    assert train("encoding=alibi", "eval.lengths=[1x]", FIXED).code == 0
    (run,) = (working_folder / "runs" / "default").glob("alibi*")
    return run


def test_weights_of_another_encoding_are_refused(posenc, alibi, run_copy):
    shutil.rmtree(run_copy / "checkpoints")
    shutil.copytree(alibi / "checkpoints", run_copy / "checkpoints")
    refused = posenc("eval", f"run={run_copy}")
    assert refused.code == 1
    assert "encoding.name=alibi" in refused.err
    assert "encoding.name=rope" in refused.err


def test_an_extension_that_does_not_apply_is_refused(posenc, alibi):
    before = stamps(alibi)
    refused = posenc("eval", f"run={alibi}", "extend=yarn")
    assert refused.code == 2
    assert "extend=yarn: does not apply to encoding=alibi" in refused.err
    assert "it is for encodings that turn pairs" in refused.err
    assert stamps(alibi) == before


def test_in_a_sweep_an_extension_that_does_not_apply_is_left_out(alibi, capsys):
    swept = compose_jobs("eval", parse(["-m", f"run={alibi}", "extend=pi,yarn,window", FIXED]))
    checked = check_jobs(swept)
    assert [entry.composed.settings.extend.name for entry in checked] == ["window"]
    assert re.findall(r"left out: (\w+): does not apply", capsys.readouterr().err) == ["pi", "yarn"]


def test_in_a_sweep_of_trainings_it_is_left_out_too(alibi, capsys, corpus):
    line = ["-m", "encoding=alibi", "extend=yarn,window", f"train.init={alibi}"]
    swept = compose_jobs("train", parse([*line, *tiny.TINY, f"data.paths={corpus}"]))
    checked = check_jobs(swept)
    assert [entry.composed.settings.extend.name for entry in checked] == ["window"]
    assert re.search(r"extend=yarn .*: left out: yarn: does not apply", capsys.readouterr().err)


# --- knobs that are chosen on validation documents


def summed_losses(records, knob):
    """The loss of each value of a knob, summed over windows."""
    losses = Counter()
    for record in records:
        value = record["extend"][knob]
        losses[tuple(value) if isinstance(value, list) else value] += record["nats"]
    return losses


@pytest.fixture(scope="module")
def tuned(evaluated):
    return evaluated("extend=yarn", "extend.tune=true", FIXED)


def test_candidates_are_tried_on_validation_documents_beyond_training(tuned):
    tried = tried_on_validation(tuned.run)
    assert {record["extend"]["name"] for record in tried} == {"yarn"}
    assert {record["window"] for record in tried} == {32, 64}


def test_the_best_candidate_is_reported(tuned):
    losses = summed_losses(tried_on_validation(tuned.run), "beta_fast")
    reported = fixed_target(tuned.run, "yarn").values()
    assert len(losses) > 1
    assert {record["extend"]["beta_fast"] for record in reported} == {min(losses, key=losses.get)}


def test_a_tuned_row_says_so(tuned):
    assert "extend=yarn: beta_fast=" in tuned.err
    assert "rope+yarn (tuned: beta_fast)" in tuned.out
    reported = fixed_target(tuned.run, "yarn").values()
    assert {record["extend"]["tuned_on"] for record in reported} == {"validation"}


def test_a_single_candidate_is_not_tuned(evaluated):
    single = evaluated("extend=yarn", "extend.tune=true", "extend.tries=1", FIXED)
    assert "extend=yarn: the only candidate that was tried" in single.err
    assert "tuned" not in single.out
    assert all("tuned" not in record["extend"] for record in fixed_target(single.run, "yarn").values())


LONGROPE = ("extend=longrope", "extend.tune=true", "extend.tries=9", FIXED)


@pytest.fixture(scope="module")
def searched(evaluated):
    return evaluated(*LONGROPE)


def test_divisors_have_to_be_given_or_searched(posenc, run_copy):
    refused = posenc("eval", f"run={run_copy}", "extend=longrope", FIXED)
    assert refused.code == 2
    assert "or extend.tune=true" in refused.err


def test_divisors_are_searched_on_validation_documents(searched):
    assert "the best of 9 on validation documents" in searched.err
    losses = summed_losses(tried_on_validation(searched.run), "factors")
    factor, pairs = 4, 8  # the longest window over T, and pairs of a head
    assert (1.0,) * pairs in losses
    assert (factor,) * pairs in losses
    assert 4 <= len(losses) <= 9


def test_searched_divisors_grow_with_the_pair(searched):
    for divisors in summed_losses(tried_on_validation(searched.run), "factors"):
        assert list(divisors) == sorted(divisors)
        assert divisors[0] >= 1
        assert divisors[-1] <= 1.25 * 4


def test_the_best_divisors_are_reported(searched):
    losses = summed_losses(tried_on_validation(searched.run), "factors")
    reported = fixed_target(searched.run, "longrope").values()
    assert {tuple(record["extend"]["factors"]) for record in reported} == {min(losses, key=losses.get)}
    assert "rope+longrope (tuned: factors)" in searched.out


def test_every_candidate_is_stored(searched, posenc):
    before = results_of(searched.run)["records"]
    assert posenc("eval", f"run={searched.run}", *LONGROPE).code == 0
    assert results_of(searched.run)["records"] == before
