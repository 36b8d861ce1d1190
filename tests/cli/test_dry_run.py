"""`posenc train --dry-run`: what it would take; nothing is written."""

import os
import re
import statistics
import time

import pytest
import tiny
from fake_runs import only_run, stamps

from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine
from posenc.encodings.registry import encoding_class
from posenc.results.runs import load_run
from posenc.running import estimate as estimates
from posenc.running.bench.case import make_cases
from posenc.running.bench.work import training_work
from posenc.running.estimate import Rates, estimate
from posenc.running.plan_training import plan_training


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A dry run keeps its process off the network, while this one goes on."""
    monkeypatch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    monkeypatch.setattr("posenc.cli.dry_run.go_offline", lambda: None)
    monkeypatch.setattr(estimates, "CALIBRATION_SECONDS", 0.05)


def jobs(corpus, *words):
    line = [*tiny.MODEL, "data=files", f"data.paths={corpus}", "context_length=64", "device=cpu", *words]
    return compose_jobs("train", CommandLine(line)).jobs


def test_its_sizes_are_those_of_the_run_and_it_writes_nothing(posenc, working_folder, corpus, monkeypatch):
    """With a cache of its own: not even a lock is left."""
    monkeypatch.setenv("POSENC_CACHE", str(working_folder / "cache"))
    arguments = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=t5"]
    result = posenc(*arguments, "--dry-run")
    assert result.code == 0 and " to run" in result.out, result
    assert [path for path in working_folder.rglob("*") if path.is_file()] == []
    assert posenc(*arguments).code == 0
    path, out = only_run(working_folder / "runs"), result.out
    facts = load_run(path).facts
    assert facts is not None and f"runs/default/{path.name}" in out
    total, steps = facts["parameters"]["total"], facts["steps"]
    assert f" {total:,} " in out and f"{steps:,} steps, a batch is (8, 16): 128 tokens" in out
    before = stamps(working_folder)
    again = posenc(*arguments, "--dry-run")
    assert again.code == 0 and stamps(working_folder) == before
    assert " finished" in again.out and "About 0 s for 1 job" in again.out


def test_states_and_a_sweep(train, run_copy, working_folder):
    result = train("-m", "encoding=rope,alibi", "seed=1,0", "--dry-run")
    assert result.code == 0, result.err
    lines = re.findall(r"^(\w+)-.*-s(\d)-\w+ .* (finished|to run) *$", result.out, re.M)
    # seed by seed, as they run
    assert [" ".join(line[:2]) for line in lines] == ["rope 1", "alibi 1", "rope 0", "alibi 0"]
    assert [line[2] for line in lines] == ["to run", "to run", "finished", "to run"]
    assert "4 jobs, one after the other" in result.out
    (run_copy / "status.json").write_text('{"status": "diverged"}')
    before = stamps(working_folder)
    assert " diverged" in train("encoding=rope", "--dry-run").out
    assert " diverged" not in train("encoding=rope", "--dry-run", "--retry").out
    assert stamps(working_folder) == before


def test_a_model_that_does_not_fit_is_named(train, monkeypatch):
    monkeypatch.setattr("posenc.cli.dry_run.free_memory", lambda: 1e4)
    result = train("encoding=rope", "--dry-run")
    assert result.code == 1 and "does not fit: 0 MB free" in " ".join(result.out.split())


def test_the_cost_that_encodings_declare_counts(working_folder, corpus, monkeypatch):
    monkeypatch.setattr(estimates, "measure_rates", lambda *_: Rates(flop=1e-11, times=0.0, call=0.0))

    def seconds(*words):
        (one,) = jobs(corpus, *words)
        return estimate(plan_training(one.settings)).training_seconds

    plain, (cost, _) = seconds("encoding=nope"), encoding_class("cope").cost
    assert seconds("encoding=cope") == pytest.approx(cost * plain, rel=0.02)  # it has parameters
    assert seconds("encoding=sum", "encoding.parts=[alibi,cope]") == pytest.approx(cost * plain, rel=0.02)


@pytest.mark.slow
def test_an_estimate_is_right_within_a_factor(working_folder, corpus):
    """Of the training, in seconds of this thread; 2 and not 1.5, on a machine that does other things."""
    found = jobs(corpus, "model.d_model=64")
    job, (case,) = plan_training(found[0].settings), make_cases(found, "none")
    said = estimate(job).training_seconds / job.training.steps
    work, times = training_work(case, case.model()), []
    for _ in range(20):
        began = time.thread_time()
        work.run()
        times.append(time.thread_time() - began)
    assert said / 2 < statistics.median(times[2:]) < 2 * said


def test_what_cannot_be_measured_or_fetched_is_named(train, posenc):
    refused = train("encoding=learned", "encoding.beyond=refuse", "--dry-run")
    assert refused.code == 0 and "fixed-target at 32: refused" in refused.out, refused
    away = posenc("train", "data=wikitext103", "--dry-run")
    assert (away.code, away.out) == (1, "") and "posenc data prepare data=wikitext103" in away.err
