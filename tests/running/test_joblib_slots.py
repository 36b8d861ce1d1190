"""Several jobs at once: how many, what each gets of the machine, and processes that are read and ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from hydra.core.config_store import ConfigStore

from posenc.config.compose import checked_n_jobs, compose_jobs
from posenc.config.overrides import parse
from posenc.core.console import shown
from posenc.core.errors import UserError
from posenc.core.machine import usable_cores
from posenc.report.live import SweepState
from posenc.report.several import PROGRESS, Several
from posenc.running.processes import Processes
from posenc.running.slots import Slots, how_many, visible_gpus

Posenc = Callable[..., tiny.Result]
SEVERAL = ["-m", "hydra/launcher=joblib"]


def write(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_usable_cores_are_those_of_the_binding_and_of_the_containers_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores(tmp_path) == 8  # nothing is limited
    v2 = {
        "proc/self/cgroup": "0::/outer/inner",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
        "sys/fs/cgroup/outer/cpu.max": "350000 100000",
    }
    assert usable_cores(write(tmp_path / "v2", v2)) == 3  # of 3.5, and set on an outer group
    v1 = {
        "proc/self/cgroup": "12:memory:/x\n4:cpu,cpuacct:/job\n0::/x",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
    }
    assert usable_cores(write(tmp_path / "v1", v1)) == 1  # half a core is one
    (tmp_path / "v1/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path / "v1") == 8
    write(tmp_path / "odd", {"proc/self/cgroup": "nonsense\n0::/..", "sys/fs/cgroup/cpu.max": "a b"})
    assert usable_cores(tmp_path / "odd") == 8


def test_how_many_at_once() -> None:
    assert how_many(-1, ["cpu", "cpu"], cores=6, gpus=2) == 6
    assert how_many(-1, ["cuda", "cpu"], cores=6, gpus=2) == 2
    assert how_many(-1, ["mps"], cores=6, gpus=0) == 1
    assert [how_many(n, ["cuda"], cores=6, gpus=2) for n in (1, 4)] == [1, 4]


def test_n_jobs_is_checked_before_anything_runs(posenc: Posenc, place: Path) -> None:
    assert [checked_n_jobs(n) for n in (1, 4, -1)] == [1, 4, -1]
    for wrong in (0, -2, 1.5, "two", None, [2]):
        with pytest.raises(UserError, match="n_jobs"):
            checked_n_jobs(wrong)
    result = posenc("train", *SEVERAL, "hydra.launcher.n_jobs=0", "seed=0,1")
    assert result.code == 2 and "n_jobs" in result.err and not list(place.iterdir())


@pytest.mark.parametrize("installed", [False, True])
def test_the_launcher_is_there_with_hydras_plug_in_and_without(
    installed: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """hydra-joblib-launcher stores its settings under the same name."""
    store = ConfigStore.instance()
    launchers = {
        name: node for name, node in store.repo["hydra"]["launcher"].items() if name != "joblib.yaml"
    }
    monkeypatch.setitem(store.repo["hydra"], "launcher", launchers)
    if installed:
        node = {"_target_": "elsewhere", "n_jobs": -1, "backend": None}
        store.store(group="hydra/launcher", name="joblib", node=node)
    found = compose_jobs("train", parse([*SEVERAL, "seed=0,1"]))
    assert found.launcher is None and found.n_jobs == -1 and len(found.jobs) == 2
    several = compose_jobs("eval", parse([*SEVERAL, "run=a,b", "hydra.launcher.n_jobs=3"]))
    assert several.launcher is None and several.n_jobs == 3
    assert compose_jobs("train", parse(["-m", "seed=0,1"])).n_jobs == 1
    assert not recwarn.list


def test_gpus_are_those_the_user_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert visible_gpus({}) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "5, GPU-a1"}) == ["5", "GPU-a1"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert visible_gpus({}) == visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []


def test_each_job_gets_its_share_of_threads_and_the_least_busy_gpu() -> None:
    slots = Slots(3, cores=8, gpus=["5", "GPU-a"], environment={})
    assert slots.take(0, "cuda") == {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "5"}
    assert slots.take(1, "cuda")["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert slots.take(2, "cuda")["CUDA_VISIBLE_DEVICES"] == "5"  # more jobs than GPUs
    slots.give_back(1)
    slots.give_back(2)
    assert slots.take(3, "cuda")["CUDA_VISIBLE_DEVICES"] == "GPU-a"  # free, whatever the order
    assert slots.take(4, "cuda:1") == slots.take(5, "cpu") == {"OMP_NUM_THREADS": "2"}
    assert Slots(4, cores=2, gpus=[], environment={}).take(0, "cuda") == {"OMP_NUM_THREADS": "1"}
    assert Slots(2, cores=8, gpus=[], environment={"OMP_NUM_THREADS": "3"}).take(0, "cpu") == {}


BYTES = r"sys.stderr.buffer.write(b'one\ntwo\r3\xff\r\nno end')"


def python(*lines: str) -> list[str]:
    return [sys.executable, "-S", "-c", "\n".join(lines)]


def test_what_a_process_says_is_read_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    script = python("import sys", "print('out')", BYTES, "sys.exit(3)")
    with Processes() as processes:
        processes.start(7, script, os.environ, said.append)
        assert processes.next_ended() == (7, 3)
        processes.start(8, python("import os", "os.abort()"), os.environ, said.append)
        assert processes.next_ended() == (8, -signal.SIGABRT)
    assert said == ["one", "two", "3�", "no end"] and capsys.readouterr().out == "out\n"


def test_somebody_who_keeps_the_output_open_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from posenc.running import processes as module

    monkeypatch.setattr(module, "LAST_LINES", 0.1)
    leave = "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(5)'])"
    began = time.monotonic()
    with Processes() as processes:
        processes.start(0, python("import subprocess, sys", leave), os.environ, lambda _: None)
        assert processes.next_ended() == (0, 0)
    assert time.monotonic() - began < 4


def test_nobody_reading_us_does_not_hold_a_job_up() -> None:
    def gone(line: str) -> None:
        raise BrokenPipeError

    with Processes() as processes:
        much = "print('x' * 99 + '\\n' * 9, file=sys.stderr)"
        processes.start(0, python("import sys", f"for _ in range(5000): {much}"), os.environ, gone)
        assert processes.next_ended() == (0, 0)


def test_a_signal_reaches_all_and_an_error_of_ours_leaves_none_behind() -> None:
    wait = python("import time", "print(flush=True)", "time.sleep(60)")
    before = signal.getsignal(signal.SIGTERM)
    with Processes() as processes:
        for job in (0, 1):
            processes.start(job, wait, os.environ, lambda _: None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert {processes.next_ended()[1] for _ in range(2)} == {-signal.SIGTERM}
        assert processes.received == [signal.SIGTERM]
        processes.start(2, wait, os.environ, lambda _: None)  # begun as the signal came
        assert processes.next_ended() == (2, -signal.SIGTERM)
    began = time.monotonic()
    with pytest.raises(KeyError), Processes() as processes:
        processes.start(0, wait, os.environ)
        raise KeyError
    assert time.monotonic() - began < 30 and signal.getsignal(signal.SIGTERM) is before


def several(**more: Any) -> Several:
    given: dict[str, Any] = {
        "state": lambda: SweepState(1, 2, ""),
        "left": lambda: "1:00 left",
        "over": lambda: 1,
        "pace": lambda job, left: None,
    }
    return Several(["rope seed=0", "odd [red]\x1b"], 2, **{**given, **more})


def test_what_a_job_says_of_its_progress_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """The line is written by report.progress in the job, and read by the sweep."""
    with shown("training", 400) as bar:
        bar.begin(0)
        bar.update(400, "loss 1.234  54,321 tokens/s")
    (line,) = capsys.readouterr().err.splitlines()
    assert PROGRESS.fullmatch(line)
    paces: list[tuple[int, float]] = []
    with several(pace=lambda job, left: paces.append((job, left))) as told:
        told.line(0, line.replace("0:00 left", "1:02:05 left"))
    assert paces == [(0, 3725.0)]
    said = capsys.readouterr().err
    assert said.startswith("[1/2] rope seed=0: training 400/400  loss 1.234  54,321 tokens/s  1:02:05 left; ")
    assert said.endswith("; 1 of 2 done, 1:00 left in all\n")


def test_lines_of_several_jobs_stay_whole_and_carry_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    with several() as told:
        speakers = [
            threading.Thread(target=lambda job=job: [told.line(job, "x" * 50) for _ in range(200)])
            for job in (0, 1)
        ]
        for speaker in speakers:
            speaker.start()
        for speaker in speakers:
            speaker.join()
        told.line(0, "")
        told.line(1, "\x1b[2Jcleared")
    lines = capsys.readouterr().err.splitlines()
    names = ("[1/2] rope seed=0: ", "[2/2] odd [red]\\x1b: ")
    assert [lines.count(name + "x" * 50) for name in names] == [200, 200]
    assert lines[400:] == [names[1] + "\\x1b[2Jcleared"]
