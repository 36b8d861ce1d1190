"""Whole sweeps: jobs in processes of their own, the comparison at the end, failures listed."""

import re

import tiny
from fake_runs import read_json, stamps

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.running.jobs import check_jobs, seed_by_seed
from posenc.running.sweep import jobs_of


def test_a_sweep_ends_with_the_comparison_and_skips_what_is_there(run_copy, place, corpus):
    """Rope with seed 0 is trained already."""
    before = stamps(run_copy / "checkpoints")
    sweep = ["train", "-m", *tiny.TINY, f"data.paths={corpus}", "encoding=rope", "seed=0,1,0"]
    result = tiny.spawn(*sweep, cwd=place)
    assert result.code == 0, result.err
    told = [line for line in result.err.splitlines() if "seed=" in line]  # a busy machine is told in between
    assert told[:2] == ["[1/2] seed=0: already finished", "[2/2] seed=1: begins"]  # seed=0 twice is one job
    ends = r"\[2/2\] seed=1: finished, 1x \d\.\d{3}, 2x \d\.\d{3}, 4x \d\.\d{3} nats per token; \d:\d\d\n"
    assert re.search(ends, result.err)
    assert stamps(run_copy / "checkpoints") == before and "\x1b" not in result.err
    assert len(list((place / "runs" / "default").iterdir())) == 2
    assert sorted(p.name for p in place.iterdir()) == ["runs"]  # Hydra left nothing beside it
    assert [line for line in result.out.splitlines() if line.startswith("rope")]


def test_an_eval_sweep_with_a_failing_job_ends_with_1(run_copy, place):
    """The run itself stays finished, so its status cannot tell that measuring it failed."""
    (record,) = (run_copy / "records").glob("nonoverlapping-W16-*")
    record.write_text("{}")
    words = ("eval", "-m", f"run={run_copy}", "eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]")
    result = tiny.spawn(*words, cwd=place)
    assert result.code == 1 and "damaged record" in result.err
    assert f"(log: {run_copy}/log.txt)" in result.err
    assert "damaged record" in (run_copy / "log.txt").read_text()
    assert read_json(run_copy / "status.json")["status"] == "finished"


def test_a_job_keeps_the_folder_of_yaml_and_is_no_sweep(place, corpus):
    (place / "conf").mkdir()
    line = parse(["--config-dir", "conf", "-m", *tiny.TINY, f"data.paths={corpus}", "seed=0,1"])
    jobs = jobs_of("train", line, check_jobs("train", compose_jobs("train", line)))
    assert jobs[1].words[1:7] == ["-P", "-m", "posenc", "train", "--config-dir", "conf"]
    assert list(jobs[1].words[-2:]) == ["seed=1", "hydra.mode=RUN"] and jobs[1].name == "[2/2] seed=1"


def test_a_sweep_goes_seed_by_seed_under_the_same_name():
    composed = compose_jobs("train", parse(["-m", "encoding=rope,alibi", "train.lr=1e-3,2e-3", "seed=2,0"]))
    jobs = [one for one, _ in seed_by_seed([(one, None) for one in composed.jobs])]
    assert [job.settings["seed"] for job in jobs] == [2] * 4 + [0] * 4
    assert [job.settings["encoding"]["name"] for job in jobs] == ["rope", "rope", "alibi", "alibi"] * 2
    assert sorted(job.overrides for job in jobs) == sorted(job.overrides for job in composed.jobs)
