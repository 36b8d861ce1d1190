"""Files of a run directory that are not what they seem: refused, and nothing hangs, dies or leaves it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.core.errors import RunError, UserError
from posenc.results.load import load_run
from posenc.results.safe_read import plain_yaml
from posenc.results.store import find_record, read_records

Posenc = Callable[..., tiny.Result]

READ = "import sys; from posenc.results.load import load_run; print(load_run(sys.argv[1]).problem)"


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000, "? " * 100_000])
def test_settings_nested_without_end_do_not_end_the_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done  # -11: the parser ran out of stack
    assert "nested too deep" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        *("x: !!int ''", "x: !!bool q", "x: !!timestamp soon", "x: 2001-99-99", "x: 2001-01-01"),
        *("x: !!set {a}", "x: !!binary aGk=", "3: x", "x: " + "9" * 5000, "\x00", "x: &a [1]\ny: *a"),
        *("!!python/name:os.system ''", "[1, 2", "a: b: c"),
    ],
)
def test_settings_that_are_no_plain_data_are_a_problem_and_no_more(text: str) -> None:
    with pytest.raises(ValueError, match=r"config\.yaml: "):
        plain_yaml(text.encode())


def test_plain_settings_are_read() -> None:
    assert plain_yaml(b"a: [1, 2.5, true, null, x]\nb: {c: ''}\n") == {
        "a": [1, 2.5, True, None, "x"],
        "b": {"c": ""},
    }


@pytest.fixture
def record(run_copy: Path) -> Path:
    return next((run_copy / "records").glob("fixed-target-*.json"))


def cell_of(record: Path) -> dict[str, object]:
    keys = ("protocol", "window", "extend", "stride", "fingerprint", "split", "targets_hash")
    stored = json.loads(record.read_text())
    return {key: stored[key] for key in (*keys, "checkpoint_step")}


def test_a_record_is_read_from_a_regular_file_of_the_run_only(
    run_copy: Path, record: Path, place: Path
) -> None:
    cell = cell_of(record)
    assert find_record(run_copy, **cell) is not None  # type: ignore[arg-type]
    record.rename(place / "elsewhere.json")
    record.symlink_to(place / "elsewhere.json")
    assert find_record(run_copy, **cell) is None  # type: ignore[arg-type]
    with pytest.raises(RunError, match="a link"):
        read_records(run_copy)
    record.unlink()
    os.mkfifo(record)  # opening it would wait for ever
    assert find_record(run_copy, **cell) is None  # type: ignore[arg-type]
    with pytest.raises(RunError, match="not a regular file"):
        read_records(run_copy)
    record.unlink()
    with record.open("wb") as file:
        file.truncate(10**12)  # bytes that are only declared
    with pytest.raises(RunError, match="too large"):
        read_records(run_copy)


@pytest.mark.parametrize("name", ["config.yaml", "status.json", "results.json"])
def test_pipes_are_not_opened(run_copy: Path, posenc: Posenc, name: str) -> None:
    (run_copy / name).unlink()
    os.mkfifo(run_copy / name)
    assert "not a regular file" in (load_run(run_copy).problem or "")
    assert posenc("runs").code == 0
    result = posenc("compare")
    assert result.code == 0 and "not a regular file" in result.err, result


class Mark:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize(
    "content", [pickle.dumps(Mark()), b"", (10**15).to_bytes(8, "little") + b"{}", b"\xff" * 64], ids=len
)
def test_weights_that_are_no_weights(run_copy: Path, place: Path, posenc: Posenc, content: bytes) -> None:
    """The manifest fits: whoever changes a file changes that, too."""
    checkpoint = next((run_copy / "checkpoints").iterdir())
    (checkpoint / "model.safetensors").write_bytes(content)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["model.safetensors"] = hashlib.sha256(content).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    for words in (["show", f"run={run_copy}"], ["eval", f"run={run_copy}", "eval.lengths=[1x,8x]"]):
        result = posenc(*words)
        assert result.code in (1, 2) and result.out == "", result
        assert "Traceback" not in result.err and "fault of posenc" not in result.err, result.err
    assert not (place / "executed").exists()


def test_a_foreign_state_is_text(run_copy: Path, posenc: Posenc) -> None:
    status = json.loads((run_copy / "status.json").read_text())
    (run_copy / "status.json").write_text(json.dumps({**status, "status": "\u202efinished\x1b[2J"}))
    for words in (["compare"], ["runs"]):
        result = posenc(*words)
        assert (result.out + result.err).replace("\n", "").isprintable(), result


@pytest.mark.parametrize(
    "change",
    ["n_layers: 1000000000", "d_model: 2000000000", "mlp_ratio: 100000000000", f"n_heads: {10**30}"],
)
def test_a_model_of_a_size_that_nobody_has_is_not_built(run_copy: Path, posenc: Posenc, change: str) -> None:
    config = (run_copy / "config.yaml").read_text()
    key = change.partition(":")[0]
    (run_copy / "config.yaml").write_text(re.sub(rf"^  {key}: .*$", f"  {change}", config, flags=re.M))
    result = posenc("eval", f"run={run_copy}", "eval.lengths=[1x,8x]")
    assert result.code == 2 and f"model.{key}=" in result.err and "too large" in result.err, result


def test_errors_print_foreign_text_as_text() -> None:
    said = UserError("a\x1b[2J", "b\x1b[31m\nerror: none", "c\x07", allowed="d\x9b", hint="e\x1b\nf").text()
    assert said.replace("\n", "").isprintable()
    assert said.splitlines()[0] == r"error: a\x1b[2J=b\x1b[31m\nerror: none: c\x07"
    assert RunError("x\x1b", hint="y\r").text() == "error: x\\x1b\n  y\\r"
    long = UserError("encoding", "x" * 100_000, "y" * 100_000, allowed=["z" * 5000] * 50).text()
    assert len(long) < 2000
