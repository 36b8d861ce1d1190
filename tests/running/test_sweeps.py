"""What a pool begins, puts off, stops and lists (its tasks are scripts of a few lines), and whole sweeps."""

import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace

import pytest
import tiny
from fake_runs import read_json, stamps

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.machine import threads_for
from posenc.core.paths import choice_files
from posenc.core.run_states import FINISHED
from posenc.running.jobs import HELD, check_jobs
from posenc.running.model_parts import build_model
from posenc.running.run_directory import locked
from posenc.running.sweep import pool as pool_module
from posenc.running.sweep import process
from posenc.running.sweep.job_output import LEFT_OUT, JobOutput
from posenc.running.sweep.lines import failure_lines
from posenc.running.sweep.pool import WorkerPool
from posenc.running.sweep.resources import (
    gpu_slots,
    slots_of_a_gpu,
    tasks_at_once,
    tasks_at_once_here,
    visible_gpus,
)
from posenc.running.sweep.task import (
    OUT_OF_MEMORY,
    SweepTask,
    make_tasks,
    outcome_of_process,
    outcome_on_disk,
)
from posenc.settings.stored import read_settings
from posenc.settings.tree import SweepSettings

WAITS_FOR_SIGTERM = """
import time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open('begun', 'w').close()
time.sleep(60)
"""
SAYS_WHY = """
print('error: [red]why\\x1b', file=sys.stderr)
print('  a hint')
sys.exit(1)
"""
WRITES_DONE = "open('done', 'w').close()"
RUNNING = """open('status.json', 'w').write('{"status": "running"}')\n"""


def tasks_of(folder, *scripts, **settings):
    """A task for each script, which runs in a run directory of its own: runs/0, runs/1, ..."""
    tasks = []
    for i, script in enumerate(scripts):
        directory = folder / "runs" / str(i)
        directory.mkdir(parents=True, exist_ok=True)
        begin = f"import os, signal, sys\nos.chdir({str(directory)!r})\n"
        command = [sys.executable, "-S", "-c", begin + script]
        tasks.append(SweepTask(f"[{i + 1}/{len(scripts)}] seed={i}", command, directory, **settings))
    return tasks


@dataclass
class Ended:
    """How a pool ended: its exit code, how each task did, all that was said, and the lines of the end."""

    code: int
    outcomes: dict
    err: str
    summary: list


@pytest.fixture
def run_pool(tmp_path, monkeypatch, capsys):
    """Runs scripts, each in its own run directory."""
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(process, "READ_SECONDS", 0.3)

    def run(*scripts, at_once=1, fail_fast=False, **settings):
        tasks = tasks_of(tmp_path, *scripts, **settings)
        result = WorkerPool(tasks, at_once=at_once, fail_fast=fail_fast).run()
        summary = failure_lines(tasks, result.outcomes)
        states = {task.name: result.outcomes[task.name].state for task in tasks}
        return Ended(result.exit_code, states, capsys.readouterr().err, summary)

    return run


# --- how a task ends


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("os.kill(os.getpid(), 9)", f"killed by SIGKILL, {OUT_OF_MEMORY}"),
        ("os.abort()", "killed by SIGABRT"),
        ("os.write(2, bytes(range(256)) * 4)\nos._exit(4)", "failed, exit code 4 before it was finished"),
        ("sys.exit(3)", "failed, exit code 3 before it was finished"),
        (SAYS_WHY, r"failed, [red]why\x1b"),
        ("os.kill(os.getpid(), 15)", "interrupted, before anything was saved"),
        (RUNNING + "os.kill(os.getpid(), 15)", "interrupted, saved as far as it was"),
    ],
    ids=["killed", "aborted", "garbage", "exits", "says why", "stopped early", "stopped"],
)  # fmt: skip
def test_a_task_that_dies_is_listed_with_its_reason(run_pool, script, told):
    ended = run_pool(script)
    assert ended.summary[0] == f"[1/1] seed=0: {told}"
    assert f"[1/1] seed=0: {told}\n" in ended.err
    assert "\x1b" not in ended.err


def test_a_task_that_dies_takes_no_other_with_it(run_pool):
    ended = run_pool("os.kill(os.getpid(), 9)", WRITES_DONE, "sys.exit(3)", WRITES_DONE, at_once=2)
    assert [*ended.outcomes.values()] == ["killed by SIGKILL", FINISHED, "failed", FINISHED]
    assert re.search(r"^\[2/4\] seed=1: finished, \d:\d\d$", ended.err, re.M)


def test_the_end_counts_the_states_and_says_what_resumes(run_pool):
    ended = run_pool("os.abort()", WRITES_DONE, "sys.exit(3)", "sys.exit(4)")
    assert ended.summary[-2:] == [
        "4 jobs: 1 killed by SIGABRT, 1 finished, 2 failed",
        "the same command resumes what is not finished",
    ]


def test_a_sweep_says_how_many_jobs_are_done_and_run(run_pool, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    ended = run_pool(WRITES_DONE, WRITES_DONE, WRITES_DONE)
    assert "0 of 3 done, 1 running\n" in ended.err
    assert re.search(r"^2 of 3 done, 1 running, \d+ s left$", ended.err, re.M)


def test_a_sweep_counts_the_jobs_that_had_ended_before(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    WorkerPool(tasks_of(tmp_path, WRITES_DONE, WRITES_DONE)).run(settled=4)
    told = capsys.readouterr().err
    assert "4 of 6 done, 1 running\n" in told
    assert re.search(r"^5 of 6 done, 1 running, \d+ s left$", told, re.M)


def test_a_sweep_that_is_finished_has_no_list_of_failures(run_pool):
    assert run_pool(WRITES_DONE, WRITES_DONE).summary == []


# --- what the run directory says


@pytest.fixture
def task_of_run(run_copy):
    """A task whose run is finished."""
    evaluation = read_settings((run_copy / "config.yaml").read_bytes()).eval
    return SweepTask(
        "[1/1] seed=0", [sys.executable, "-c", "raise SystemExit(9)"], run_copy, evaluation=evaluation
    )


def test_a_finished_run_needs_no_process(task_of_run):
    assert outcome_on_disk(task_of_run).state == FINISHED


def test_a_run_that_diverged_is_final_without_retry(task_of_run):
    status = task_of_run.directory / "status.json"
    status.write_text('{"status": "diverged", "reason": "non-finite loss at step 7"}')
    outcome = outcome_on_disk(task_of_run)
    assert outcome.text == "diverged, non-finite loss at step 7"
    assert outcome_on_disk(replace(task_of_run, retry=True)) is None
    listed = failure_lines([task_of_run], {task_of_run.name: outcome})
    assert listed[0].endswith(f"diverged, non-finite loss at step 7 (log: {status.parent}/log.txt)")
    assert listed[-1] == "diverged is final; with --retry the same command trains those runs again"


def test_an_evaluation_that_fails_says_why_also_if_its_run_diverged(task_of_run):
    (task_of_run.directory / "status.json").write_text('{"status": "diverged", "reason": "a loss"}')
    evaluation = replace(task_of_run, evaluation=None)
    assert outcome_of_process(evaluation, 1, ["error: no room"]).text == "failed, no room"
    assert outcome_of_process(task_of_run, 1, ["error: no room"]).text == "diverged, a loss"


def test_exit_code_0_is_not_enough_for_a_training(run_pool, task_of_run):
    ended = run_pool("sys.exit(0)", evaluation=task_of_run.evaluation)
    assert ended.summary[0] == "[1/1] seed=0: failed, exit code 0 before it was finished"


# --- stopping


def test_fail_fast_begins_nothing_more_and_stops_what_runs(run_pool):
    fails = "import time\nwhile not os.path.exists('../1/begun'): time.sleep(0.01)\nsys.exit(1)"
    ended = run_pool(fails, WAITS_FOR_SIGTERM, WRITES_DONE, WRITES_DONE, at_once=2, fail_fast=True)
    assert ended.code == 0  # no signal came from outside
    assert [*ended.outcomes.values()] == ["failed", "interrupted", "not started", "not started"]
    assert "4 jobs: 1 failed, 1 interrupted, 2 not started" in ended.summary


def test_without_fail_fast_the_others_run(run_pool):
    ended = run_pool("sys.exit(1)", WRITES_DONE, WRITES_DONE)
    assert [*ended.outcomes.values()] == ["failed", FINISHED, FINISHED]


def signalled_when(condition, number):
    """Send this process a signal once the condition holds; returns the thread to join."""

    def send():
        while not condition():
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_signal_reaches_every_task_and_ends_the_sweep(run_pool, tmp_path):
    handler_before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()
    begun = [tmp_path / "runs" / str(i) / "begun" for i in (0, 1)]
    thread = signalled_when(lambda: all(path.exists() for path in begun), signal.SIGTERM)
    ended = run_pool(WAITS_FOR_SIGTERM, WAITS_FOR_SIGTERM, WRITES_DONE, at_once=2)
    thread.join()
    assert ended.code == 143
    assert [*ended.outcomes.values()] == ["interrupted", "interrupted", "not started"]
    assert time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGTERM) is handler_before


def test_a_signal_while_only_held_runs_are_left_ends_the_sweep(run_pool, tmp_path, capsys):
    (tmp_path / "runs" / "0").mkdir(parents=True)
    began = time.monotonic()
    with locked(tmp_path / "runs" / "0"):
        thread = signalled_when(lambda: time.monotonic() > began + 0.5, signal.SIGINT)
        ended = run_pool(WRITES_DONE)
    thread.join()
    assert ended.code == 130
    assert ended.outcomes == {"[1/1] seed=0": "not started"}


# --- runs that another process holds


def test_a_held_run_comes_back_later(run_pool, tmp_path):
    """The second task releases the first one's run: so it is run before, and only once."""
    (tmp_path / "runs" / "0").mkdir(parents=True)
    released = threading.Event()

    def hold():
        with locked(tmp_path / "runs" / "0"):
            held.set()
            while not (tmp_path / "runs" / "1" / "done").exists():
                time.sleep(0.02)
        released.set()

    held = threading.Event()
    threading.Thread(target=hold).start()
    held.wait()
    ended = run_pool(WRITES_DONE, WRITES_DONE)
    assert released.is_set()
    assert [*ended.outcomes.values()] == [FINISHED, FINISHED]
    assert ended.err.count("[1/2] seed=0: waits for another process (pid ") == 1
    assert ended.err.index("[2/2] seed=1: begins") < ended.err.index("[1/2] seed=0: begins")


def test_a_run_that_another_process_takes_first_is_tried_again(run_pool):
    held_once = f"""
if not os.path.exists('tried'):
    open('tried', 'w').close()
    sys.exit({HELD})
"""
    ended = run_pool(held_once)
    assert ended.outcomes == {"[1/1] seed=0": FINISHED}
    assert ended.err.count("begins") == 2


def test_tasks_of_one_run_go_one_after_the_other(tmp_path):
    alone = "import time\nos.mkdir('busy')\ntime.sleep(0.2)\nos.rmdir('busy')\n"
    (task,) = tasks_of(tmp_path, alone)
    second = replace(task, name="[2/2] the same run")
    result = WorkerPool([task, second], at_once=2).run()
    assert {outcome.state for outcome in result.outcomes.values()} == {FINISHED}


# --- output


def test_a_process_left_behind_does_not_keep_the_sweep_waiting(run_pool):
    began = time.monotonic()
    ended = run_pool("import subprocess\nsubprocess.Popen(['sleep', '5'])\n" + WRITES_DONE)
    assert [*ended.outcomes.values()] == [FINISHED]
    assert time.monotonic() - began < 4


def test_output_is_passed_on_line_by_line_whatever_it_holds(run_pool):
    script = "print('out', flush=True)\nsys.stderr.buffer.write(b'one\\n\\ntwo\\xff\\r\\nno end\\x1b')\n"
    lines = run_pool(script).err.splitlines()
    assert [line.removeprefix("[1/1] seed=0: ") for line in lines[1:-1]] == [
        "out",
        "one",
        "two�",
        r"no end\x1b",
    ]


# --- what a task gets of the machine


def test_a_task_gets_its_share_of_threads(run_pool, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ended = run_pool("print(os.environ['OMP_NUM_THREADS'])", threads=3)
    assert "begins, OMP_NUM_THREADS=3\n[1/1] seed=0: 3\n" in ended.err


def test_threads_that_the_user_has_set_are_left_alone(run_pool, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    ended = run_pool("print(os.environ['OMP_NUM_THREADS'])", threads=3)
    assert "begins\n[1/1] seed=0: 7\n" in ended.err


def test_a_free_gpu_comes_before_one_that_has_a_task():
    slots = gpu_slots(["5", "GPU-a"], at_once=3)
    taken = [slots.get() for _ in range(3)]
    assert [slot.gpu for slot in taken] == ["5", "GPU-a", "5"]  # more tasks than GPUs
    slots.put(taken[2])
    slots.put(taken[1])
    assert slots.get().gpu == "GPU-a"  # whatever the order of their ends


@pytest.mark.parametrize(("device", "seen"), [("cuda", "GPU-a"), ("cuda:1", "unset"), ("cpu", "unset")])
def test_only_a_task_that_leaves_the_choice_gets_a_gpu(tmp_path, capsys, monkeypatch, device, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tasks = tasks_of(
        tmp_path, "print('sees', os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))", device=device
    )
    WorkerPool(tasks, gpus=["GPU-a"]).run()
    assert f"sees {seen}\n" in capsys.readouterr().err


def test_a_gpu_is_free_again_after_its_task(tmp_path, capsys):
    tasks = tasks_of(tmp_path, "", "", "", device="cuda")
    WorkerPool(tasks, gpus=["0"]).run()
    assert capsys.readouterr().err.count("CUDA_VISIBLE_DEVICES=0") == 3


@pytest.mark.parametrize(
    ("settings", "free_bytes", "at_once"),
    [
        ({}, 1e12, 6),  # by cores
        ({}, 3.5e9, 3),  # by memory
        ({}, 1.0, 1),  # one at least
        ({"threads": 4}, 1e12, 1),
        ({"device": "cuda"}, 1e12, 4),  # by the slots of the GPUs
    ],
)
def test_how_many_tasks_there_is_room_for(tmp_path, settings, free_bytes, at_once):
    tasks = tasks_of(tmp_path, "", memory=1e9, **settings)
    assert tasks_at_once(tasks, cores=6, free_bytes=free_bytes, gpu_slots=4) == at_once


@pytest.mark.parametrize(
    ("weights", "settings", "room", "slots"),
    [
        pytest.param(800_000, "auto", {}, 8, id="small models"),
        pytest.param(800_000, "auto", {"free_bytes": 9e9}, 4, id="by the memory of the GPU"),
        pytest.param(800_000, "auto", {"cores": 2}, 2, id="by cores"),
        pytest.param(800_000, "auto", {"free_bytes": 1e6, "cores": 0}, 1, id="one at least"),
        pytest.param(30_000_000, "auto", {}, 1, id="a larger model"),
        pytest.param(30_000_000, 3, {"cores": 1}, 3, id="what was set"),
    ],
)
def test_how_many_tasks_share_a_gpu(tmp_path, weights, settings, room, slots):
    sweep = SweepSettings(jobs=None, slots=settings, fail_fast=False)
    assert slots_of_a_gpu(tasks_of(tmp_path, "", weights=weights), sweep, **room) == slots


@pytest.mark.parametrize(("weights", "threads"), [(800_000, 1), (100_000_000, 4)])
def test_a_large_model_gets_several_threads(weights, threads):
    assert threads_for(weights, 8) == threads


@pytest.mark.parametrize(("named", "gpus"), [(None, ["0", "1"]), ("5, GPU-a1", ["5", "GPU-a1"])])
def test_gpus_are_those_that_this_process_may_use(monkeypatch, named, gpus):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == gpus


@pytest.mark.parametrize(("device", "at_once"), [("cuda", 4), ("cuda:1", 2)])
def test_tasks_on_one_gpu_get_its_room_alone(tmp_path, monkeypatch, device, at_once):
    monkeypatch.setattr("posenc.running.sweep.resources.visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr("posenc.running.sweep.resources.least_free_gpu_memory", lambda: 1e12)
    sweep = SweepSettings(jobs=None, slots=2, fail_fast=False)
    tasks = tasks_of(tmp_path, *[""] * 8, weights=800_000, device=device, memory=1.0)
    assert tasks_at_once_here(tasks, sweep) == at_once


# --- what jobs print
def test_a_line_that_another_job_has_printed_is_left_out_and_that_is_said_once(capsys):
    output = JobOutput()
    for name in ("a", "b", "c"):
        output.of_job(name)("warning: few documents")
    assert capsys.readouterr().err.splitlines() == ["a: warning: few documents", LEFT_OUT]


def test_a_job_may_print_a_line_twice(capsys):
    print_line = JobOutput().of_job("a")
    print_line("1 of 2")
    print_line("1 of 2")
    assert capsys.readouterr().err.splitlines() == ["a: 1 of 2", "a: 1 of 2"]


def test_the_same_error_is_printed_of_each_job(capsys):
    output = JobOutput()
    output.of_job("a")("error: no memory")
    output.of_job("b")("error: no memory")
    assert capsys.readouterr().err.splitlines() == ["a: error: no memory", "b: error: no memory"]


# --- whole sweeps


def test_a_sweep_ends_with_the_comparison_and_skips_what_is_there(
    run_copy, working_folder, train, monkeypatch
):
    """Rope with seed 0 is trained already."""
    monkeypatch.setenv("POSENC_PROGRESS", "0")
    before = stamps(run_copy / "checkpoints")
    result = train("-m", "encoding=rope", "seed=0,1,0")
    assert result.code == 0, result.err
    assert re.search(r"^1 of 2 done, 1 running, .* left$", result.err, re.M)  # before any job has ended
    told = [line for line in result.err.splitlines() if "seed=" in line]  # a busy machine is told in between
    assert told[:2] == ["[1/2] seed=0: already finished", "[2/2] seed=1: begins"]  # seed=0 twice is one job
    ends = r"\[2/2\] seed=1: finished, 1x \d\.\d{3}, 2x \d\.\d{3}, 4x \d\.\d{3} nats/token; \d:\d\d\n"
    assert re.search(ends, result.err)
    assert "\x1b" not in result.err
    assert stamps(run_copy / "checkpoints") == before
    assert len(list((working_folder / "runs" / "default").iterdir())) == 2
    assert sorted(p.name for p in working_folder.iterdir()) == ["runs"]  # Hydra left nothing beside it
    assert [line for line in result.out.splitlines() if line.startswith("rope")]


def test_an_eval_sweep_with_a_failing_job_ends_with_1(run_copy, posenc):
    """The run itself stays finished, so its status cannot tell that measuring it failed."""
    (record,) = (run_copy / "records").glob("nonoverlapping-W16-*")
    record.write_text("{}")
    result = posenc("eval", "-m", f"run={run_copy}", "eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]")
    assert result.code == 1
    assert "damaged record" in result.err
    assert f"(log: {run_copy}/log.txt)" in result.err
    assert "damaged record" in (run_copy / "log.txt").read_text()
    assert read_json(run_copy / "status.json")["status"] == "finished"


@pytest.fixture
def tasks_of_line(working_folder, corpus):
    """The tasks of a command line with two seeds."""

    def make(*words, retry=False):
        line = parse([*words, "-m", *tiny.TINY, f"data.paths={corpus}", "seed=0,1"])
        return make_tasks("train", line, check_jobs(compose_jobs("train", line)), retry=retry)

    return make


def test_a_task_keeps_the_folder_of_yaml_and_is_no_sweep(tasks_of_line, working_folder):
    (working_folder / "conf").mkdir()
    task = tasks_of_line("--config-dir", "conf")[1]
    assert task.command[1:7] == ["-P", "-m", "posenc", "train", "--config-dir", "conf"]
    assert task.command[-2:] == ["seed=1", "hydra.mode=RUN"]


def test_a_task_is_named_by_its_number_and_what_tells_it_from_others(tasks_of_line):
    assert [task.name for task in tasks_of_line()] == ["[1/2] seed=0", "[2/2] seed=1"]


@pytest.mark.parametrize("attention", sorted(choice_files("attention")))
def test_a_task_counts_the_weights_of_its_attention(working_folder, corpus, attention):
    line = parse(["-m", *tiny.TINY, f"data.paths={corpus}", f"attention={attention}"])
    (checked,) = check_jobs(compose_jobs("train", line))
    (task,) = make_tasks("train", line, [checked])
    model = build_model(checked.job.run_settings, checked.job.run_shape, vocab_size=256)
    assert task.weights == sum(weight.numel() for weight in model.blocks.parameters())


def test_a_name_that_may_be_a_path_has_no_quotes(working_folder):
    line = parse(["-m", "data=task", "data.task=copy,sort", "encoding=rope"])
    tasks = make_tasks("train", line, check_jobs(compose_jobs("train", line)), retry=False)
    assert [task.name for task in tasks] == ["[1/2] data.task=copy", "[2/2] data.task=sort"]


def test_retry_is_passed_on(tasks_of_line):
    assert all("--retry" in task.command for task in tasks_of_line(retry=True))
    assert not any("--retry" in task.command for task in tasks_of_line())
