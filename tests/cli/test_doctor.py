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
from posenc.training.device import _most_threads, fit_threads

KEY = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:9", "WANDB_BASE_URL": "http://127.0.0.1:9"}


def findings(place, code=0, *folders, **env):
    env["PYTHONPATH"] = os.pathsep.join(map(str, (*folders, tiny.ROOT)))
    result = tiny.spawn("doctor", "--json", cwd=place, **{**NOWHERE, "HOME": str(place), **env})
    assert result.code == code and result.err == "" and "Traceback" not in result.out, result
    document = json.loads(result.out)
    assert document["ready"] == (code == 0)
    return {one["name"]: one for one in document["findings"]}


@pytest.fixture
def broken(tmp_path):
    """A folder for PYTHONPATH, with an installed package whose encoding is broken."""
    info = tmp_path / "broken" / "odd_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[posenc.encodings]\nodd = odd_package:Odd\n")
    (info.parent / "odd_package.py").write_text("raise KeyError('out of tune')")
    return info.parent


def test_everything_is_told_offline(place, shared_cache, broken):
    found = findings(place, 0, broken, WANDB_API_KEY=KEY)
    for name in ("Python", "torch", "device=auto", "threads", "data=sympy", "cache", "disk"):
        assert found[name]["level"] in ("ok", "note"), found[name]
    assert version("numpy") in found["numpy"]["text"] and ">=2.0" in found["numpy"]["text"]
    assert found["train.precision=auto"]["text"] in ("fp32", "bf16")
    assert str(shared_cache) in found["cache"]["text"]
    assert found["hub"]["level"] == "note" and "data prepare" in found["hub"]["advice"]
    assert "key found" in found["W&B"]["text"] and found["W&B"]["level"] == "ok"
    assert KEY not in json.dumps(found)
    assert "odd cannot be loaded" in json.dumps(found) and "out of tune" in json.dumps(found)
    assert {path.name for path in place.iterdir()} <= {".cache", ".config", ".triton"}


def test_a_torch_that_cannot_be_imported_is_a_line(place, broken):
    (broken / "torch.py").write_text("raise OSError('libtorch_cpu.so: [red]cannot open\\nmore')")
    shutil.rmtree(broken / "odd_package-1.0.dist-info")
    found = findings(place, 1, broken)
    assert found["torch"]["level"] == "problem"
    assert "libtorch_cpu.so: [red]cannot open)" in found["torch"]["text"]
    assert found["encodings"]["level"] == "problem"
    assert found["disk"]["level"] == "ok"  # the rest is told all the same


def test_what_other_processes_take_is_said_if_it_is_a_cores_worth():
    assert Load(2, 0.1).note(2) is None and Load(2, 1.0).note(1) is None  # a core is left
    assert Load(64, 30.0).note(2) is None
    said = "other processes keep {} cores busy: expect about {}% of the usual speed"
    assert Load(2, 1.33).note(2) == said.format("1.3 of 2", 50)  # two, beside the one thread of a start
    assert Load(8, 7.5).note(8) == said.format("7.5 of 8", 30)


@pytest.fixture
def busy():
    """Twice as many busy processes as cores."""
    spin = [sys.executable, "-c", "while True: pass"]
    begun = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    yield [psutil.Process(one.pid) for one in begun]
    for one in begun:
        one.kill()
        one.wait()


def test_the_meter_counts_others_and_not_this_process(busy):
    def used(some):
        return sum(sum(one.cpu_times()[:2]) for one in some)

    meter, own, theirs, began = LoadMeter(), time.process_time(), used(busy), time.monotonic()
    assert meter.load() is None  # too early
    while time.monotonic() < began + 3 * SHORTEST:
        pass
    own, theirs, load = time.process_time() - own, used(busy) - theirs, meter.load()
    seconds = time.monotonic() - began
    assert load is not None and theirs > 0 and own > 0
    assert theirs - 0.1 <= load.others * seconds <= load.cores * seconds - own + 0.1


@pytest.mark.slow
def test_a_run_beside_others_says_so_in_one_line(busy, place, corpus):
    result = tiny.spawn("train", *tiny.TINY, f"data.paths={corpus}", cwd=place)
    lines = [line for line in result.err.splitlines() if "other processes keep" in line]
    assert result.code == 0 and len(lines) == 1 and "of the usual speed" in lines[0], result.err
    found = findings(place)["threads"]
    assert found["level"] == "note" and "other processes keep" in found["advice"]


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
