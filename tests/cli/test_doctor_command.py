"""`posenc doctor`: what is there, what is broken, what to do about it; also where very much is broken."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import tiny

from posenc.cli import doctor
from posenc.cli.doctor import Finding, guarded

KEY = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:9", "WANDB_BASE_URL": "http://127.0.0.1:9"}


def findings(place: Path, code: int = 0, **env: str) -> dict[str, dict[str, Any]]:
    result = tiny.spawn("doctor", "--json", cwd=place, **{**NOWHERE, "HOME": str(place), **env})
    assert result.code == code, result
    assert result.err == "" and "Traceback" not in result.out
    document = json.loads(result.out)
    assert document["ready"] == (code == 0)
    return {one["name"]: one for one in document["findings"]}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH."""
    folder = tmp_path / "broken"
    folder.mkdir()
    return folder


def test_everything_is_told_within_ten_seconds_offline(place: Path, shared_cache: Path) -> None:
    began = time.monotonic()
    found = findings(place, WANDB_API_KEY=KEY)
    assert time.monotonic() - began < 60  # an idle machine: 4 s; what it guards against is a hang
    for name in (
        "Python",
        "torch",
        "device=auto",
        "threads",
        "configuration",
        "encodings",
        "cache",
        "disk",
        "git",
    ):
        assert found[name]["level"] in ("ok", "note"), found[name]
    assert version("numpy") in found["numpy"]["text"] and ">=2.0" in found["numpy"]["text"]
    assert "fp32's speed" in found["train.precision=auto"]["text"]
    assert str(shared_cache) in found["cache"]["text"]
    assert found["hub"]["level"] == "note" and "data prepare" in found["hub"]["advice"]
    assert "key found" in found["W&B"]["text"] and found["W&B"]["level"] == "note"
    assert KEY not in json.dumps(found)
    assert {path.name for path in place.iterdir()} <= {".cache", ".config", ".triton"}


def test_the_table_fits_and_says_what_to_do(place: Path) -> None:
    result = tiny.spawn("doctor", cwd=place, COLUMNS="80", **NOWHERE)
    assert result.code == 0 and result.err == ""
    assert all(len(line) <= 80 for line in result.out.splitlines())
    assert "-> " in result.out and "ready: posenc train encoding=rope" in result.out


def test_a_torch_that_cannot_be_imported_is_a_line(place: Path, broken: Path) -> None:
    (broken / "torch.py").write_text("raise OSError('libtorch_cpu.so: [red]cannot open\\nmore')")
    found = findings(place, 1, PYTHONPATH=str(broken))
    assert (
        found["torch"]["level"] == "problem"
        and "libtorch_cpu.so: [red]cannot open)" in found["torch"]["text"]
    )
    assert [name for name, one in found.items() if one["level"] == "problem"].count("encodings") == 1
    assert found["disk"]["level"] == "ok"  # the rest is told all the same


@pytest.mark.parametrize(
    "missing",
    ["numpy", "hydra", *(pytest.param(name, marks=[pytest.mark.slow]) for name in ("yaml", "platformdirs"))],
)
def test_other_broken_packages_do_not_end_it(place: Path, broken: Path, missing: str) -> None:
    (broken / f"{missing}.py").write_text("raise ImportError('torn apart')")
    result = tiny.spawn("doctor", cwd=place, PYTHONPATH=str(broken), **NOWHERE)
    assert "Traceback" not in result.err + result.out, result.err
    assert "torn apart" in result.out and result.code == 1, result


def test_a_cache_that_cannot_be_written_is_a_problem(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = findings(place, 1, POSENC_CACHE=str(tmp_path / "file" / "cache"))
    assert found["cache"]["level"] == "problem" and "POSENC_CACHE" in found["cache"]["advice"]
    assert found["runs_dir"]["level"] == "ok"


def test_an_installed_encoding_that_is_broken_is_named_with_its_reason(place: Path, broken: Path) -> None:
    (broken / "odd_package.py").write_text("raise KeyError('out of tune')")
    info = broken / "odd_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[posenc.encodings]\nodd = odd_package:Odd\n")
    result = tiny.spawn("doctor", cwd=place, PYTHONPATH=str(broken), COLUMNS="200", **NOWHERE)
    assert result.code == 0  # rope can still be trained
    assert "odd cannot be loaded" in result.out and "out of tune" in result.out
    assert "of posenc's own" in result.out


def test_a_full_disk_and_other_versions(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    usage = type("Usage", (), {"free": 1e6})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    levels = {one.name: one.level for one in doctor.runs()}
    assert levels["disk"] == "problem"
    monkeypatch.setattr(doctor, "requirements", lambda: [("numpy>=99", None), ("not_there_at_all", None)])
    found = {one.name: one for one in doctor.packages()}
    assert found["numpy"].level == "note" and found["not_there_at_all"].level == "problem"


def test_what_a_check_raises_is_a_finding() -> None:
    def raises() -> Any:
        yield Finding("first", "ok", "fine")
        raise SystemExit("gave up")

    first, second = guarded("it", raises, essential=True)
    assert first.level == "ok" and second.level == "problem" and "gave up" in second.text
