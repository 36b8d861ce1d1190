"""`posenc train --dry-run`: what it would take; nothing is written."""

import json
import os
import re
import shutil
import statistics
import time

import pytest
import tiny
import torch
from fake_runs import only_run, stamps

from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine
from posenc.core.quantities import duration
from posenc.data import Stage
from posenc.encodings.registry import encoding_class
from posenc.results.runs import load_run
from posenc.running import estimate as estimates
from posenc.running import machine_rates
from posenc.running.bench.case import make_cases
from posenc.running.bench.work import training_work
from posenc.running.estimate import estimate
from posenc.running.machine_rates import Rates
from posenc.running.pass_costs import DecoderCosts
from posenc.running.plan_training import plan_training
from posenc.running.room import room_on
from posenc.running.sweep.resources import seconds_of_all


@pytest.fixture(autouse=True)
def quick_dry_runs(monkeypatch):
    """Measure for 0.05 s, and keep this process on the network: a dry run would take its own off."""
    monkeypatch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    monkeypatch.setattr("posenc.cli.dry_run.go_offline", lambda: None)
    monkeypatch.setattr(machine_rates, "CALIBRATION_SECONDS", 0.05)


def compose(corpus, *overrides):
    common = [*tiny.MODEL, "data=files", f"data.paths={corpus}", "context_length=64", "device=cpu"]
    return compose_jobs("train", CommandLine([*common, *overrides])).jobs


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


# --- Against the run that follows
def test_a_dry_run_writes_nothing(train, working_folder, monkeypatch):
    """Without the shared cache, in which files are already: not even a lock is left."""
    monkeypatch.setenv("POSENC_CACHE", str(working_folder / "cache"))
    result = train("encoding=t5", "--dry-run")
    assert result.code == 0, result
    assert " to run" in result.out
    assert files_below(working_folder) == []


def test_the_sizes_of_a_dry_run_are_those_of_the_run(train, trained_once):
    run = only_run(trained_once)
    facts = load_run(run).facts
    text = train("encoding=rope", "--dry-run").out
    assert f"runs/default/{run.name}" in text
    assert f" {facts['parameters']['total']:,} " in text
    assert f"{facts['steps']:,} steps, a batch is (8, 16): 128 tokens" in text


def test_a_finished_run_takes_no_time(train, run_copy, working_folder):
    before = stamps(working_folder)
    result = train("encoding=rope", "--dry-run")
    assert result.code == 0
    assert " finished" in result.out
    assert "About 0 s for 1 job" in result.out
    assert stamps(working_folder) == before


@pytest.fixture
def stopped(run_copy):
    """Return a run that stopped before its last update, as its status and its checkpoint say."""
    done_steps = tiny.STEPS * 9 // 10
    checkpoints = run_copy / "checkpoints"
    (checkpoints / f"step-{tiny.STEPS:08d}").rename(checkpoints / f"step-{done_steps:08d}")
    (run_copy / "status.json").write_text('{"status": "interrupted"}')
    return run_copy


def estimate_ten_seconds(job, threads, **_):
    """Stand for an estimate of 10 s a step, whose evaluation takes no time."""
    return estimates.Estimate(
        1, job.training.stages, {job.settings.context_length: 10.0}, 0.0, memory=1.0, problems=[]
    )


@pytest.mark.parametrize(
    ("status", "steps_left"),
    [("interrupted", tiny.STEPS - tiny.STEPS * 9 // 10), ("diverged", tiny.STEPS)],
)
def test_a_run_that_stopped_takes_the_time_of_the_steps_that_are_left(
    train, stopped, monkeypatch, status, steps_left
):
    """With --retry a run that diverged begins anew."""
    (stopped / "status.json").write_text(json.dumps({"status": status}))
    monkeypatch.setattr("posenc.cli.dry_run.estimate", estimate_ten_seconds)
    result = train("encoding=rope", "--dry-run", "--retry")
    assert f" {duration(10 * steps_left)} " in result.out
    assert ("to run, 90% trained" in " ".join(result.out.split())) == (status == "interrupted")


def test_what_an_evaluation_measured_before_it_was_stopped_takes_no_time(train, run_copy, monkeypatch):
    monkeypatch.setattr(DecoderCosts, "seconds", lambda *_: 100.0)
    (run_copy / "status.json").write_text('{"status": "interrupted"}')
    row_without_time = r"^rope-\S+ +\S+ +0 s +0 s .* to run, 100% trained *$"
    assert re.search(row_without_time, train("encoding=rope", "--dry-run").out, re.M)
    shutil.rmtree(run_copy / "records")
    assert not re.search(row_without_time, train("encoding=rope", "--dry-run").out, re.M)


def test_a_seed_that_is_finished_leaves_the_evaluation_of_the_others(train, run_copy, monkeypatch):
    """The seeds of a row share an estimate, and what is stored is of one of them alone."""
    monkeypatch.setattr(DecoderCosts, "seconds", lambda *_: 3600.0)
    text = train("-m", "encoding=rope", "seed=0,1", "sweep.jobs=1", "--dry-run").out
    assert re.search(r"^rope-\S+-s0-\S+ .* finished *$", text, re.M)
    assert re.search(r"^rope-\S+-s1-\S+ .* [\d.]+ h .* to run *$", text, re.M)


# --- Sweeps and states
def test_a_sweep_has_a_line_for_each_job_in_the_order_in_which_they_run(train, run_copy):
    result = train("-m", "encoding=rope,alibi", "seed=1,0", "sweep.jobs=1", "--dry-run")
    assert result.code == 0, result.err
    jobs = re.findall(r"^(\w+)-.*-s(\d)-\w+ .* (finished|to run) *$", result.out, re.M)
    assert jobs == [
        ("rope", "1", "to run"),
        ("alibi", "1", "to run"),
        ("rope", "0", "finished"),
        ("alibi", "0", "to run"),
    ]
    assert "4 jobs, one after the other" in result.out


@pytest.mark.parametrize(("options", "is_diverged"), [([], True), (["--retry"], False)])
def test_a_run_that_diverged_is_not_run_without_retry(train, run_copy, options, is_diverged):
    (run_copy / "status.json").write_text('{"status": "diverged"}')
    before = stamps(run_copy)
    result = train("encoding=rope", "--dry-run", *options)
    assert (" diverged" in result.out) == is_diverged
    assert stamps(run_copy) == before


def test_a_sweep_takes_a_list_of_threads(train, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")  # OpenMP's form; the first number counts
    threads = []

    def estimate_of(job, threads_of_job, **_):
        threads.append(threads_of_job)
        return estimate_ten_seconds(job, threads_of_job)

    monkeypatch.setattr("posenc.cli.dry_run.estimate", estimate_of)
    assert train("-m", "seed=0,1", "--dry-run").code == 0
    assert threads == [2]  # one estimate for both seeds


def test_threads_that_are_no_number_are_refused(train, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    result = train("-m", "seed=0,1", "--dry-run")
    assert result.code == 2
    assert "OMP_NUM_THREADS=many: is no number of threads" in result.err


@pytest.mark.parametrize(
    ("jobs", "said"),
    [(1, "About 50 s for 4 jobs, one after the other,"), (2, "About 25 s for 4 jobs, 2 at once,")],
)
def test_a_sweep_takes_as_long_as_its_jobs_run_at_once(train, monkeypatch, jobs, said):
    # Each begins for 5 s. At once: 15 + 10 beside 15 + 10.
    seconds = iter([10.0, 10.0, 5.0, 5.0])

    def estimate_of(job, threads, **_):
        stages = [Stage(last_step=1, length=16)]
        return estimates.Estimate(1, stages, {16: next(seconds)}, 0.0, memory=1.0, problems=[])

    monkeypatch.setattr("posenc.cli.dry_run.estimate", estimate_of)
    monkeypatch.setattr(
        "posenc.cli.dry_run.cost_key", lambda settings: str((settings.encoding.name, settings.seed))
    )
    result = train("-m", "encoding=rope,alibi", "seed=0,1", f"sweep.jobs={jobs}", "--dry-run")
    assert result.code == 0, result.err
    assert said in result.out


@pytest.mark.parametrize(
    ("seconds", "at_once", "total"),
    [([3, 1, 1], 1, 5), ([3, 1, 1], 2, 3), ([1, 1, 3], 2, 4), ([2, 2], 5, 2), ([], 1, 0)],
)
def test_each_job_begins_when_one_before_it_ends(seconds, at_once, total):
    assert seconds_of_all(seconds, at_once) == total


# --- What cannot be done is named
def test_a_model_that_does_not_fit_is_named(train, monkeypatch):
    monkeypatch.setattr("posenc.running.room.free_memory", lambda: 1e4)
    result = train("encoding=rope", "--dry-run")
    assert result.code == 1
    assert re.search(r"does not fit: \d+ MB free", " ".join(result.out.split()))


def test_a_gpu_of_a_mac_has_the_memory_of_the_machine(monkeypatch):
    monkeypatch.setattr("posenc.running.room.free_memory", lambda: 1e9)
    room = room_on(torch.device("mps"))
    assert room.free == 1e9 + room.loaded
    assert room.fits(1e9)
    assert not room.fits(1e9 + 1)


def test_a_length_that_will_be_refused_is_named(train):
    result = train("encoding=learned", "encoding.beyond=refuse", "--dry-run")
    assert result.code == 0, result
    assert "fixed-target at 32: refused" in result.out


def test_a_corpus_that_must_be_fetched_first_is_named(posenc):
    result = posenc("train", "data=wikitext103", "--dry-run")
    assert result.code == 1
    assert result.out == ""
    assert "posenc data prepare data=wikitext103" in result.err


# --- Estimates
@pytest.fixture
def training_seconds(working_folder, corpus, monkeypatch):
    """Estimate the training of a line on a machine of a fixed speed."""
    rates = Rates(flop=1e-11, multiplication=0.0, call=0.0)
    monkeypatch.setattr(estimates, "measure_rates", lambda *_: rates)

    def seconds(*overrides):
        (job,) = compose(corpus, *overrides)
        return estimate(plan_training(job.settings)).training_seconds

    return seconds


@pytest.mark.parametrize(
    "overrides",
    [["encoding=cope"], ["encoding=sum", "encoding.parts=[alibi,cope]"]],
    ids=["alone", "in a sum"],
)
def test_the_cost_that_encodings_declare_counts(training_seconds, overrides):
    cost, _ = encoding_class("cope").cost
    expected = cost * training_seconds("encoding=nope")
    assert training_seconds(*overrides) == pytest.approx(expected, rel=0.02)  # it has parameters, too


def test_a_training_that_begins_with_short_windows_takes_less_time(training_seconds):
    schedule = "train.length_schedule=[[0.75,16],[0.25,64]]"
    at_16 = training_seconds("encoding=nope", "context_length=16")
    at_64 = training_seconds("encoding=nope")
    assert at_16 < at_64
    expected = 0.75 * at_16 + 0.25 * at_64
    assert training_seconds("encoding=nope", schedule) == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_an_estimate_is_right_within_a_factor_of_two(working_folder, corpus):
    """In seconds of this thread; 2 and not 1.5, since a machine does other things as well."""
    jobs = compose(corpus, "model.d_model=64")
    (case,) = make_cases(jobs, "none")
    plan = plan_training(jobs[0].settings)
    estimated_step = estimate(plan).training_seconds / plan.training.steps
    work = training_work(case, case.model())
    seconds = []
    for _ in range(20):
        began = time.thread_time()
        work.run()
        seconds.append(time.thread_time() - began)
    measured_step = statistics.median(seconds[2:])
    assert estimated_step / 2 < measured_step < 2 * estimated_step


NOT_IMPORTED = {
    "torch.utils.cpp_extension",  # with a torch for GPUs and no GPU, it begins each command with a warning
    "altair",  # 0.35 s, for pictures alone
}


def test_a_dry_run_does_not_import_what_it_does_not_need(working_folder, corpus):
    call = "import sys; from posenc import cli\ntry: cli.main()\nfinally: "
    call += f"assert not {NOT_IMPORTED} & set(sys.modules)"
    result = tiny.python(
        "-c", call, "train", *tiny.TINY, f"data.paths={corpus}", "--dry-run", cwd=working_folder
    )
    assert result.code == 0, result.err
