"""Streams under faults: full disks, interruptions, many at once, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from streams import BYTES, Repository, conf

from posenc.core import atomic_files
from posenc.core.errors import RunError
from posenc.data import entry, prepare, read_facts


@pytest.mark.parametrize("step", ["sync", "write_sealed", "sha256_of_file"])
def test_a_full_disk_leaves_nothing(
    repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    data = conf("tinystories", repository=str(repository()))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(entry, step, full)
        with pytest.raises(RunError, match="No space left") as caught:
            read_facts(data)
    assert "POSENC_CACHE" in str(caught.value)
    assert not [path for path in (cache / "tokens").iterdir() if path.is_dir()]
    assert read_facts(data).documents["train"] == 60


def test_a_disk_that_is_too_small_is_told_before_anything_is_read(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(atomic_files, "free_bytes", lambda _: 10**6)
    with pytest.raises(RunError, match=r"not enough room in .* for up to 200 MB of text") as caught:
        read_facts(conf("tinystories", repository=str(repository())))
    assert "data.bytes" in str(caught.value) and not reads


SLOW = """
import json, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
from posenc.data import read_facts, streamed, tokenizers
whole = tokenizers.ByteTokenizer.encode
def encode(self, text):
    print("x", flush=True)
    time.sleep(0.05)
    return whole(self, text)
tokenizers.ByteTokenizer.encode = encode
facts = read_facts(json.loads(sys.argv[1]))
print(facts.fingerprint)
"""


def child(data: dict[str, Any], code: str = SLOW, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interruption_leaves_nothing_that_is_believed(
    repository: Repository, cache: Path, number: signal.Signals
) -> None:
    data = conf("tinystories", repository=str(repository()))
    victim = child(data)
    assert victim.stdout is not None
    for _ in range(3):
        assert victim.stdout.readline() == "x\n"
    victim.send_signal(number)
    victim.communicate()
    assert not list((cache / "tokens").glob("[!.]*/"))
    facts = read_facts(data)
    assert facts.documents["train"] == 60 and not list((cache / "tokens").glob(".*"))
    assert len(prepare(data, BYTES, facts).tokens) == sum(facts.bytes.values())


def test_many_at_once_stream_once(repository: Repository, tmp_path: Path) -> None:
    """Four processes want the same pinned stream."""
    folder = repository()
    code = SLOW.replace(
        "facts =",
        f"""
from posenc.data.sources import stream
local = stream.load
stream._local = lambda _: False
stream.load = lambda r, c, v, **more: local({str(folder)!r}, c, None, **more)
facts =""",
    )
    children = [child(conf("tinystories", documents=15), code) for _ in range(4)]
    ends = [one.communicate(timeout=120) for one in children]
    assert [one.returncode for one in children] == [0] * 4, ends
    prints = [out.split() for out, _ in ends]
    assert len({lines[-1] for lines in prints}) == 1
    assert sorted(len(lines) for lines in prints)[:3] == [1, 1, 1]
    assert sum("waiting for another process" in err for _, err in ends) >= 1


def test_memory_stays_small(repository: Repository) -> None:
    """100 MB of text in row groups of 1 MB; the whole of it at once would show."""
    rows = {"train": [f"{i:04d} " * 20000 for i in range(1000)], "validation": ["x" * 999] * 9}
    folder = repository(rows=rows, group=8)
    code = """
import json, resource, sys
from posenc.data import prepare, read_facts
import datasets
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = {**json.loads(sys.argv[1]), "documents": 20}
prepare(few, {"name": "bytes"}, read_facts(few))
before = peak()
facts = read_facts(json.loads(sys.argv[1]))
print(sum(facts.bytes.values()) / 1e6, peak() - before)
"""
    out, err = child(conf("tinystories", repository=str(folder)), code).communicate()
    text, more = map(float, out.split())
    assert text > 90 and more < text / 3, (text, more, err)
