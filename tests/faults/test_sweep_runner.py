"""What a sweep begins, leaves, puts off and lists; its jobs are scripts of a few lines here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posenc.config.compose import ComposedJob, Jobs, compose_jobs
from posenc.config.overrides import CommandLine, parse
from posenc.core.errors import UserError
from posenc.report.runs_table import Ended, sweep_lines
from posenc.running import job_log
from posenc.running import sweep as module
from posenc.running import sweep_runner as runner
from posenc.running.job_end import OUT_OF_MEMORY

LINE = CommandLine([], True, None, False, False)
FINISH = "open('done', 'w').close()"
LONG = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open('begun', 'w').close()
time.sleep(60)
"""
LOCKED = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print(flush=True)
    time.sleep(float(sys.argv[2]))
    exec(sys.argv[3])
"""
WHILE_ANOTHER_BEGINS = "import os, time\nwhile not os.path.exists('../1/begun'): time.sleep(0.01)\n"


@pytest.fixture
def sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs scripts, each in its own run directory, as the jobs of a training sweep."""
    monkeypatch.setattr(module, "_show_tables", lambda *_: None)
    monkeypatch.setattr(runner, "BETWEEN", 0.1)

    def run(*scripts: str, at_once: int = 1, fail_fast: bool = False) -> tuple[int, str]:
        places = [tmp_path / "runs" / str(i) for i in range(len(scripts))]

        def stands(i: int) -> str:
            found = [word for word in ("done", "diverged") if (places[i] / word).exists()]
            return {"done": "finished"}.get(found[0], found[0]) if found else "open"

        def words(self: object, i: int) -> list[str]:
            places[i].mkdir(parents=True, exist_ok=True)
            script = f"import os, signal, sys\nos.chdir({str(places[i])!r})\n{scripts[i]}"
            return [sys.executable, "-S", "-c", script]

        monkeypatch.setattr(runner.Runner, "words", words)
        settings = {"device": "cpu", "encoding": {"name": "seed=0"}, "sweep": {"fail_fast": fail_fast}}
        jobs = [ComposedJob([f"seed={i}"], settings) for i in range(len(scripts))]
        code = module.run_sweep("train", LINE, Jobs(jobs, at_once), places, stands, {})
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("at_once", [1, 2])
def test_every_death_is_listed_with_its_reason_and_a_log(
    at_once: int, sweep: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    garbage = "os.write(2, bytes(range(256)) * 4)\nos._exit(0)"
    code, err = sweep(
        "os.kill(os.getpid(), 9)", FINISH, "os.abort()", garbage, "sys.exit(3)", at_once=at_once
    )
    assert code == 1
    end = err[err.rindex("[1/5]") :].splitlines()
    logs = [Path(line.removeprefix("  log: ")).read_text() for line in end if line.startswith("  log: ")]
    told = [line for line in end if line.startswith("[")]
    assert told[0] == f"[1/5] seed=0: killed by SIGKILL, {OUT_OF_MEMORY}"
    assert told[1] == "[3/5] seed=2: killed by SIGABRT"
    assert told[2].endswith("exit code 0 before it was finished") and told[2].startswith(
        "[4/5] seed=3: failed"
    )
    assert told[3] == "[5/5] seed=4: failed, exit code 3 before it was finished"
    reasons = ("killed by SIGKILL, out of memory", "killed by SIGABRT", "exit code 0", "exit code 3")
    assert len(logs) == 4 and all(reason in log for reason, log in zip(reasons, logs, strict=True))
    assert end[-2] == "5 jobs: 1 killed by SIGKILL, 1 finished, 1 killed by SIGABRT, 2 failed"
    assert end[-1] == "the same command goes on with what is not finished"
    again, err = sweep(FINISH, "sys.exit(9)", FINISH, FINISH, FINISH, at_once=at_once)
    assert again == 0 and "[2/5] seed=1: already finished" in err and "goes on" not in err


def test_what_a_job_wrote_down_itself_is_its_reason(
    sweep: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    place = tmp_path / "runs" / "0"
    job_log.add(place, "of an earlier try\n", "an old reason")
    code, err = sweep("open('log.txt', 'a').write('failed: [red]why\\x1b\\n'); sys.exit(1)")
    assert code == 1 and "[1/1] seed=0: failed, [red]why\\x1b\n" in err and "an old reason" not in err
    assert "\x1b" not in err
    assert job_log.reason_since(place, 0) == "[red]why\x1b"


def test_what_diverged_before_is_not_begun_and_listed(
    sweep: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    place = tmp_path / "runs" / "0"
    place.mkdir(parents=True)
    (place / "diverged").touch()
    (place / "status.json").write_text('{"status": "diverged", "reason": "non-finite loss at step 7"}')
    (place / "log.txt").touch()
    code, err = sweep("open('begun', 'w')", FINISH)
    assert code == 1 and not (place / "begun").exists()
    assert "[1/2] seed=0: diverged before, which is final without --retry" in err
    assert f"[1/2] seed=0: diverged, non-finite loss at step 7\n  log: {place}/log.txt" in err
    assert err.endswith("with --retry the same command trains those again from the start\n")


def test_fail_fast_begins_nothing_more_and_stops_what_runs(
    sweep: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    assert sweep(FINISH, "sys.exit(1)", FINISH, fail_fast=True)[0] == 1
    assert not (tmp_path / "runs" / "2" / "done").exists()
    shutil.rmtree(tmp_path / "runs")
    began = time.monotonic()
    fails = f"{WHILE_ANOTHER_BEGINS}sys.exit(1)"
    code, err = sweep(fails, LONG, FINISH, FINISH, at_once=2, fail_fast=True)
    assert code == 1 and time.monotonic() - began < 50
    assert "[2/4] seed=1: interrupted, saved as far as it was" in err
    assert "[3/4] seed=2: not started\n[4/4] seed=3: not started\n" in err
    assert "4 jobs: 1 failed, 1 interrupted, 2 not started" in err
    # without it all the others run
    assert sweep("sys.exit(1)", FINISH, FINISH, FINISH)[0] == 1
    assert all((tmp_path / "runs" / str(i) / "done").exists() for i in (1, 2, 3))


def test_fail_fast_is_no_part_of_a_run(place: Path, corpus: Path) -> None:
    from posenc.running.validated import frozen

    line = ["-m", "seed=0,1"]
    with_it = compose_jobs("train", parse([*line, "sweep.fail_fast=true"]))
    without = compose_jobs("train", parse(line))
    assert module.fails_fast(with_it) and not module.fails_fast(without)
    names = []
    for found in (with_it, without):
        with module.named_sweep(found.jobs):
            names.append(os.environ["POSENC_SWEEP"])
    assert names[0] == names[1]
    assert [frozen(job.settings) for job in with_it.jobs] == [frozen(job.settings) for job in without.jobs]
    with pytest.raises(UserError, match="fail_fast"):
        module.fails_fast(Jobs(with_it.jobs, launcher="slurm"))


def another(place: Path, seconds: float, then: str) -> subprocess.Popen[str]:
    """A process that holds the run for some time, and does `then` with it."""
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", LOCKED, str(place / ".run.lock"), str(seconds), then]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "\n"
    return process


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_that_another_process_holds_comes_later(
    at_once: int, sweep: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """The other finishes job 0 and dies at job 1, which is then ours."""
    others = [
        another(tmp_path / "runs" / "0", 1.5, FINISH),
        another(tmp_path / "runs" / "1", 1.5, "import os; os.abort()"),
    ]
    code, err = sweep("sys.exit(9)", FINISH, FINISH, at_once=at_once)
    assert code == 0, err
    assert "[1/3] seed=0: finished by another process" in err
    assert "waiting for other processes to end: [1/3] seed=0 (pid unknown), [2/3] seed=1" in err
    assert err.index("[3/3]") < err.index("waiting for")
    for other in others:
        other.communicate(timeout=60)


def test_a_job_that_finds_its_run_held_comes_again(
    sweep: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    once = f"if not os.path.exists('seen'):\n    open('seen', 'w')\n    os._exit({runner.HELD})\n{FINISH}"
    code, err = sweep(once, FINISH)
    assert code == 0 and "[1/2] seed=0: another process works on it; comes again later" in err
    # with nobody there it is an exit code like any other, in the end
    code, err = sweep(FINISH, FINISH, f"os._exit({runner.HELD})")
    assert code == 1 and err.count("comes again later") == runner.REFUSED
    assert f"[3/3] seed=2: failed, exit code {runner.HELD} before it was finished" in err


def test_a_signal_ends_the_waiting(sweep: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    other = another(tmp_path / "runs" / "0", 60, "")
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    began = time.monotonic()
    code, err = sweep(FINISH)
    assert code == 143 and time.monotonic() - began < 30 and "[1/1] seed=0: not started" in err
    other.kill()
    other.communicate()


def test_the_list_at_the_end_escapes_and_counts() -> None:
    assert sweep_lines([Ended("a", "finished"), Ended("b", "finished")]) == []
    lines = sweep_lines([Ended("a", "finished"), Ended("b\n", "failed", "\x1b[31m", Path("x\ny"))])
    assert lines[:2] == [r"b\n: failed, \x1b[31m", r"  log: x\ny"]
    assert lines[2:] == ["2 jobs: 1 finished, 1 failed", "the same command goes on with what is not finished"]


def test_the_log_of_a_strangers_run_is_no_way_out_of_it(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    run.mkdir()
    outside.write_text("failed: a secret\n")
    (run / "log.txt").symlink_to(outside)
    with pytest.raises(OSError):
        job_log.add(run, "text", "why")
    assert job_log.reason_since(run, 0) is None and outside.read_text() == "failed: a secret\n"
    (run / "log.txt").unlink()
    os.mkfifo(run / "log.txt")
    with pytest.raises(OSError):
        job_log.add(run, "text", "why")
    assert job_log.reason_since(run, 0) is None
