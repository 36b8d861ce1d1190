"""What a pool begins, leaves, puts off and lists, its jobs scripts of a few lines; and whole sweeps."""

import os
import re
import shutil
import signal
import sys
import threading
import time

import pytest
import tiny
import yaml
from fake_runs import read_json, stamps

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.machine import threads_for
from posenc.running import sweep as module
from posenc.running.jobs import check_jobs
from posenc.running.run_directory import FINISHED
from posenc.running.sweep import OUT_OF_MEMORY, Job, WorkerPool, failures, jobs_at_once, visible_gpus

LONG = """
import time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open('begun', 'w').close()
time.sleep(60)
"""
DONE = "open('done', 'w').close()"


def jobs_of(folder, *scripts, **more):
    found = []
    for i, script in enumerate(scripts):
        place = folder / "runs" / str(i)
        place.mkdir(parents=True, exist_ok=True)
        begin = f"import os, signal, sys\nos.chdir({str(place)!r})\n"
        words = [sys.executable, "-S", "-c", begin + script]
        found.append(Job(f"[{i + 1}/{len(scripts)}] seed={i}", words, place, **more))
    return found


@pytest.fixture
def pool(tmp_path, monkeypatch, capsys):
    """Runs scripts, each in its own run directory; returns the exit code of a sweep and what was said."""
    monkeypatch.setattr(module, "BETWEEN", 0.1)
    monkeypatch.setattr(module, "LAST_LINES", 0.3)

    def run(*scripts, at_once=1, fail_fast=False, **more):
        jobs = jobs_of(tmp_path, *scripts, **more)
        done = WorkerPool(jobs, fail_fast=fail_fast)
        done.at_once = done.cores = at_once
        for job in jobs:
            job.settle("already finished")
        code = done.run() or int(any(job.state != FINISHED for job in jobs))
        return code, capsys.readouterr().err + "\n".join(["", *failures(jobs)])

    return run


def test_every_death_is_listed_with_its_reason(pool):
    garbage = "os.write(2, bytes(range(256)) * 4)\nos._exit(4)"
    says = "print('error: [red]why\\x1b', file=sys.stderr)\nprint('  a hint')\nsys.exit(1)"
    scripts = ("os.kill(os.getpid(), 9)", DONE, "os.abort()", garbage, "sys.exit(3)", says)
    code, err = pool(*scripts, at_once=2)
    assert code == 1 and "[2/6] seed=1: finished, 0:0" in err and "\x1b" not in err
    end = err[err.rindex("[1/6]") :].splitlines()
    assert [line for line in end if line.startswith("[")] == [
        f"[1/6] seed=0: killed by SIGKILL, {OUT_OF_MEMORY}",
        "[3/6] seed=2: killed by SIGABRT",
        "[4/6] seed=3: failed, exit code 4 before it was finished",
        "[5/6] seed=4: failed, exit code 3 before it was finished",
        "[6/6] seed=5: failed, [red]why\\x1b",
    ]
    assert end[-2] == "6 jobs: 1 killed by SIGKILL, 1 finished, 1 killed by SIGABRT, 3 failed"
    assert end[-1] == "the same command resumes what is not finished"


def test_the_run_directory_tells_what_is_finished_or_diverged(pool, tmp_path, run_copy):
    evaluation = yaml.safe_load((run_copy / "config.yaml").read_text())["eval"]
    for i in (0, 1):
        shutil.copytree(run_copy, tmp_path / "runs" / str(i))
    status = tmp_path / "runs" / "1" / "status.json"
    status.write_text('{"status": "diverged", "reason": "non-finite loss at step 7"}')
    code, err = pool("sys.exit(9)", "sys.exit(9)", "sys.exit(0)", evaluation=evaluation)
    assert code == 1 and "[1/3] seed=0: already finished" in err
    assert "[2/3] seed=1: diverged before, which is final without --retry" in err
    assert f"seed=1: diverged, non-finite loss at step 7 (log: {status.parent}/log.txt)" in err
    assert "[3/3] seed=2: failed, exit code 0 before it was finished" in err
    assert err.endswith("with --retry the same command trains those again")


def test_fail_fast_begins_nothing_more_and_stops_what_runs(pool, tmp_path):
    fails = "import time\nwhile not os.path.exists('../1/begun'): time.sleep(0.01)\nsys.exit(1)"
    code, err = pool(fails, LONG, DONE, DONE, at_once=2, fail_fast=True)
    assert code == 1 and "[2/4] seed=1: interrupted, saved as far as it was" in err
    assert "[3/4] seed=2: not started\n[4/4] seed=3: not started\n" in err
    assert "4 jobs: 1 failed, 1 interrupted, 2 not started" in err
    assert pool("sys.exit(1)", DONE, DONE)[0] == 1  # without it all the others run
    assert all((tmp_path / "runs" / str(i) / "done").exists() for i in (1, 2))


def test_a_signal_reaches_every_job_and_ends_the_sweep(pool, tmp_path):
    before, began = signal.getsignal(signal.SIGTERM), time.monotonic()

    def stop():
        while not all((tmp_path / "runs" / str(i) / "begun").exists() for i in (0, 1)):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    code, err = pool(LONG, LONG, DONE, at_once=2)
    thread.join()
    assert code == 143 and "3 jobs: 2 interrupted, 1 not started" in err
    assert time.monotonic() - began < 30 and signal.getsignal(signal.SIGTERM) is before


def test_output_is_read_to_its_end_whoever_keeps_it_open(pool, tmp_path, capsys):
    leave = "import subprocess\nsubprocess.Popen(['sleep', '5'])\n"
    says = "print('out', flush=True)\nsys.stderr.buffer.write(b'one\\n\\ntwo\\xff\\r\\nno end\\x1b')\n"
    began = time.monotonic()
    jobs = jobs_of(tmp_path, leave + DONE, says + DONE)
    WorkerPool(jobs).run()
    assert time.monotonic() - began < 4 and list(jobs[1].said) == ["out", "one", "two�", "no end\x1b"]
    printed = capsys.readouterr()
    assert printed.out == "" and "[2/2] seed=1: no end\\x1b\n" in printed.err


def test_each_job_gets_its_share_of_threads_and_the_least_busy_gpu(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    jobs = jobs_of(tmp_path, *[""] * 6, device="cuda")
    pool = WorkerPool(jobs)
    for job in jobs:
        job.threads = 2
    pool.at_once, pool.gpus = 3, ["5", "GPU-a"]

    def given(i):
        share = pool._share(jobs[i])
        assert share["OMP_NUM_THREADS"] == "2"
        jobs[i].state = module.RUNNING
        return share.get("CUDA_VISIBLE_DEVICES")

    assert [given(0), given(1), given(2)] == ["5", "GPU-a", "5"]  # more jobs than GPUs
    jobs[1].state = jobs[2].state = FINISHED
    assert given(3) == "GPU-a"  # free, whatever the order
    jobs[4].device, jobs[5].device = "cuda:1", "cpu"
    assert given(4) is given(5) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # the user's own is left alone
    assert "OMP_NUM_THREADS" not in pool._share(jobs[5])


def test_how_many_at_once(tmp_path, monkeypatch):
    import torch

    cpu, gpu = jobs_of(tmp_path, ""), jobs_of(tmp_path, "", "", device="cuda")
    for job in [*cpu, *gpu]:
        job.memory = 1e9
    assert jobs_at_once(cpu, cores=6, free=1e12, gpu_jobs=0) == 6
    assert jobs_at_once(cpu, cores=6, free=3.5e9, gpu_jobs=0) == 3
    assert jobs_at_once([*cpu, *gpu], cores=6, free=1e12, gpu_jobs=4) == 4
    cpu[0].threads = 4
    assert jobs_at_once(cpu, cores=6, free=1e12, gpu_jobs=0) == 1
    assert [threads_for(n, 8) for n in (800_000, 100_000_000)] == [1, 4]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-a1")
    assert visible_gpus() == ["5", "GPU-a1"]


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
    jobs = module.jobs_of("train", line, check_jobs("train", compose_jobs("train", line)))
    assert jobs[1].words[1:7] == ["-P", "-m", "posenc", "train", "--config-dir", "conf"]
    assert list(jobs[1].words[-2:]) == ["seed=1", "hydra.mode=RUN"] and jobs[1].name == "[2/2] seed=1"
