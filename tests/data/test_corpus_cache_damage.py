"""The token cache on a bad day: damaged, built by many, killed while it is built, on a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from posenc.core import atomic_files
from posenc.core.errors import RunError
from posenc.data import entry as entry_module
from posenc.data import prepare, read_documents, read_facts

Files = Callable[..., dict[str, Any]]
BYTES = {"name": "bytes"}
BPE = {"name": "bpe", "vocab_size": 290}
WORKER = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
from posenc.data import prepare
store = prepare(*json.loads(sys.argv[1]))
print(store.fingerprint, int(store.tokens.astype("int64").sum()))
"""


def worker(data: dict[str, Any], tokenizer: dict[str, Any], code: str = WORKER) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, json.dumps([data, tokenizer])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def entry(cache: Path) -> Path:
    (folder,) = [p for p in (cache / "tokens").iterdir() if p.is_dir()]
    return folder


@pytest.mark.parametrize("name", ["tokens.bin", "token_bytes.bin", "documents.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_is_noticed_and_repaired(
    files_data: Files, cache: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    data = files_data()
    good = prepare(data, BPE).tokens.tobytes()
    path = entry(cache) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "gone":
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    caplog.clear()
    assert prepare(data, BPE).tokens.tobytes() == good
    assert caplog.text.count("damaged") == 1
    caplog.clear()
    prepare(data, BPE)
    assert not caplog.text


def test_many_at_once_make_one_build(files_data: Files, cache: Path) -> None:
    data = files_data()
    workers = [worker(data, BPE) for _ in range(4)]
    ends = [w.communicate(timeout=120) for w in workers]
    assert [w.returncode for w in workers] == [0] * 4, ends
    assert sum(err.count("tokenised") for _, err in ends) == 1
    assert len({out for out, _ in ends}) == 1
    assert not list((cache / "tokens").glob(".*"))


def test_killed_while_building(files_data: Files, cache: Path) -> None:
    data = files_data()
    slow = WORKER.replace(
        "store =",
        "import time; from posenc.data import cache, tokenizers\n"
        "whole = tokenizers.ByteTokenizer.encode\n"
        "def encode(self, text): print('x', flush=True); time.sleep(0.2); return whole(self, text)\n"
        "tokenizers.ByteTokenizer.encode = encode\nstore =",
    )
    victim = worker(data, BYTES, slow)
    assert victim.stdout is not None
    victim.stdout.readline()
    time.sleep(0.3)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert list((cache / "tokens").glob(".*")), "it was killed before it began"
    store = prepare(data, BYTES)
    assert store.tokens.tobytes() == b"".join(
        d.text for name in ("train", "validation", "test") for d in read_documents(data) if d.split == name
    )
    assert not list((cache / "tokens").glob(".*"))


@pytest.mark.parametrize("step", ["sync", "write_sealed", "sha256_of_file"])
def test_a_failure_at_any_step_leaves_nothing(
    files_data: Files, cache: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    data = files_data()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(entry_module, step, full)
        with pytest.raises(RunError, match="No space left") as caught:
            prepare(data, BYTES)
    assert str(cache) in str(caught.value) and "POSENC_CACHE" in str(caught.value)
    assert not [p for p in (cache / "tokens").iterdir() if p.name.startswith(".")]
    assert len(prepare(data, BYTES).tokens)


@pytest.mark.parametrize("tokenizer", [BYTES, BPE])
def test_a_cache_that_cannot_be_made(
    files_data: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: dict[str, Any]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(RunError, match="POSENC_CACHE"):
        prepare(files_data(), tokenizer)


def test_room_is_looked_for_before_it_is_built(
    files_data: Files, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files_data()
    size = sum(read_facts(data).bytes.values())
    monkeypatch.setattr(atomic_files.shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
    with pytest.raises(RunError, match="not enough room") as caught:
        prepare(data, BYTES)
    text = caught.value.text()
    assert f"needed: {size:,} bytes; free: {size - 1:,} bytes" in text
    assert str(cache) in text and "POSENC_CACHE" in text
    monkeypatch.setattr(atomic_files.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))
    assert prepare(data, BYTES).tokens.nbytes == size


def test_a_full_disk_says_path_needed_and_free(
    files_data: Files, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(entry_module, "sync", full)
    with pytest.raises(RunError) as caught:
        prepare(files_data(), BYTES)
    for part in (str(cache), "No space left", "needed: ", "free: ", "POSENC_CACHE"):
        assert part in caught.value.text()


def test_what_was_killed_under_another_key_is_removed_unless_it_is_alive(
    files_data: Files, cache: Path
) -> None:
    tokens = cache / "tokens"
    for key in ("dead", "alive"):
        (tokens / f".{key}.123").mkdir(parents=True)
    with FileLock(tokens / "alive.lock"):
        prepare(files_data(), BYTES)
    assert [p.name for p in tokens.glob(".*")] == [".alive.123"]
