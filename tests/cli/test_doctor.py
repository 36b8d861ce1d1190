"""`posenc doctor`: what is there, what is broken, what to do about it; also where very much is broken."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version

import psutil
import pytest
import tiny
import torch

from posenc.core.machine import SHORTEST, Load, LoadMeter, load_meter
from posenc.running.doctor import _repeatable
from posenc.training.device import _most_threads, fit_threads

KEY = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:9", "WANDB_BASE_URL": "http://127.0.0.1:9"}


def findings(working_folder, *folders, code=0, **env):
    """Run `posenc doctor --json` with these folders on the path; return the findings by name."""
    env["PYTHONPATH"] = os.pathsep.join(map(str, (*folders, tiny.ROOT)))
    result = tiny.spawn(
        "doctor", "--json", cwd=working_folder, **{**NOWHERE, "HOME": str(working_folder), **env}
    )
    assert result.code == code, result
    assert result.err == ""
    assert "Traceback" not in result.out
    document = json.loads(result.out)
    assert document["ready"] == (code == 0)
    return {finding["name"]: finding for finding in document["findings"]}


@pytest.fixture
def broken(tmp_path):
    """A folder for PYTHONPATH, with an installed package whose encoding is broken."""
    info = tmp_path / "broken" / "odd_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[posenc.encodings]\nodd = odd_package:Odd\n")
    (info.parent / "odd_package.py").write_text("raise KeyError('out of tune')")
    return info.parent


@pytest.fixture
def offline(working_folder, shared_cache, broken):
    """What it finds without a network, with a W&B key and a broken package."""
    return findings(working_folder, broken, WANDB_API_KEY=KEY)


@pytest.mark.slow
def test_everything_is_told_offline(offline, shared_cache, working_folder):
    for name in ("Python", "torch", "device=auto", "threads", "data=sympy", "cache", "disk"):
        assert offline[name]["level"] in ("ok", "note"), offline[name]
    assert version("numpy") in offline["numpy"]["text"]
    assert ">=2.0" in offline["numpy"]["text"]
    assert offline["train.precision=auto"]["text"] in ("fp32", "bf16")
    assert str(shared_cache) in offline["cache"]["text"]
    assert offline["hub"]["level"] == "note"
    assert "data prepare" in offline["hub"]["advice"]
    assert "key found" in offline["W&B"]["text"]
    assert offline["W&B"]["level"] == "ok"
    text = json.dumps(offline)
    assert KEY not in text  # no key is shown
    assert "odd cannot be loaded" in text  # the encoding of the broken package
    assert "out of tune" in text
    assert {path.name for path in working_folder.iterdir()} <= {".cache", ".config", ".triton"}


def test_a_torch_that_cannot_be_imported_is_a_line(working_folder, broken):
    (broken / "torch.py").write_text("raise OSError('libtorch_cpu.so: [red]cannot open\\nmore')")
    shutil.rmtree(broken / "odd_package-1.0.dist-info")
    found = findings(working_folder, broken, code=1)
    assert found["torch"]["level"] == "problem"
    assert "libtorch_cpu.so: [red]cannot open)" in found["torch"]["text"]
    assert found["encodings"]["level"] == "problem"
    assert found["disk"]["level"] == "ok"  # the rest is told all the same


@pytest.mark.parametrize(("device", "level"), [("cpu", "ok"), ("cuda", "note")])
def test_sums_without_a_fixed_order_are_named_on_a_gpu(device, level):
    finding = _repeatable(device)
    assert finding.level == level
    assert ("no fixed order" in finding.text) == (level == "note")


@pytest.mark.parametrize(
    ("cores", "others", "threads"),
    [(2, 0.1, 2), (2, 1.0, 1), (64, 30.0, 2)],
    ids=["nobody else", "a core is left", "many are left"],
)
def test_other_processes_that_leave_enough_are_not_mentioned(cores, others, threads):
    assert Load(cores, others).note(threads) is None


@pytest.mark.parametrize(
    ("cores", "others", "threads", "busy", "speed"),
    [
        (2, 1.33, 2, "1.3 of 2", 50),  # two processes, beside the one thread of a start
        (8, 7.5, 8, "7.5 of 8", 30),
    ],
)
def test_other_processes_that_take_a_cores_worth_are_named(cores, others, threads, busy, speed):
    note = f"other processes keep {busy} cores busy: expect about {speed}% of the usual speed"
    assert Load(cores, others).note(threads) == note


@pytest.fixture
def busy():
    """Twice as many busy processes as cores."""
    spin = [sys.executable, "-c", "while True: pass"]
    begun = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    yield [psutil.Process(process.pid) for process in begun]
    for process in begun:
        process.kill()
        process.wait()


def cpu_seconds(processes):
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def test_the_meter_counts_others_and_not_this_process(busy):
    meter = LoadMeter()
    assert meter.load() is None  # too early
    began = time.monotonic()
    own_before = time.process_time()
    others_before = cpu_seconds(busy)
    while time.monotonic() < began + 3 * SHORTEST:
        pass
    own = time.process_time() - own_before
    others = cpu_seconds(busy) - others_before
    load = meter.load()
    seconds = time.monotonic() - began
    assert load is not None
    assert others > 0
    assert own > 0
    assert others - 0.1 <= load.used_by_others * seconds
    assert load.used_by_others * seconds <= load.cores * seconds - own + 0.1


@pytest.mark.slow
def test_a_run_beside_others_says_so_in_one_line(busy, working_folder, corpus):
    result = tiny.spawn("train", *tiny.TINY, f"data.paths={corpus}", cwd=working_folder)
    assert result.code == 0, result.err
    (line,) = [line for line in result.err.splitlines() if "other processes keep" in line]
    assert "of the usual speed" in line


@pytest.mark.slow
def test_the_doctor_names_other_processes(busy, working_folder):
    threads = findings(working_folder)["threads"]
    assert threads["level"] == "note"
    assert "other processes keep" in threads["advice"]


@pytest.mark.slow
def test_torch_gets_the_threads_that_others_leave(busy, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    for cached in (load_meter, _most_threads):  # by an earlier test
        cached.cache_clear()
    try:
        fit_threads(torch.device("cpu"))
        assert torch.get_num_threads() == 2  # too early to say
        time.sleep(1.1)
        fit_threads(torch.device("cpu"))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
        _most_threads.cache_clear()
