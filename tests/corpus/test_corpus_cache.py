from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from posenc import durable
from posenc.corpus import check_lengths, inspect, prepare, read_documents, read_facts
from posenc.corpus import entry as entry_module
from posenc.errors import RunError, UserError

Files = Callable[..., dict[str, Any]]
BYTES = {"name": "bytes"}
BPE = {"name": "bpe", "vocab_size": 290}
WORKER = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
from posenc.corpus import prepare
store = prepare(*json.loads(sys.argv[1]))
print(store.fingerprint, int(store.tokens.astype("int64").sum()))
"""


def worker(data: dict[str, Any], tokenizer: dict[str, Any], code: str = WORKER) -> subprocess.Popen[str]:
    import json

    command = [sys.executable, "-c", code, json.dumps([data, tokenizer])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def entry(cache: Path) -> Path:
    (folder,) = [p for p in (cache / "tokens").iterdir() if p.is_dir()]
    return folder


def test_documents_come_back_whole_in_their_split(files_data: Files) -> None:
    data = files_data()
    documents = read_documents(data)
    for tokenizer in (BYTES, BPE):
        store = prepare(data, tokenizer)
        for name, split in store.splits.items():
            mine = [d for d in documents if d.split == name]
            assert split.ids == [d.id for d in mine] == sorted(split.ids)
            sizes = store.bytes_between(split.starts, split.starts + split.lengths)
            assert sizes.tolist() == [len(d.text) for d in mine]
            for i, document in enumerate(mine):
                start, stop = int(split.starts[i]), int(split.starts[i] + split.lengths[i])
                assert store.token_bytes_of(start, stop).sum() == len(document.text)
                if tokenizer is BYTES:
                    assert store.document(name, i).tobytes() == document.text
        assert sum(split.lengths.sum() for split in store.splits.values()) == len(store.tokens)


def test_mapped_tokens_cannot_be_written(files_data: Files) -> None:
    store = prepare(files_data(), BYTES)
    assert store.tokens.dtype == np.uint8 and not store.tokens.flags.writeable


def test_the_second_time_is_a_hit(files_data: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    data = files_data()
    first, second = prepare(data, BYTES), prepare(data, BYTES)
    assert caplog.text.count("tokenised") == 1
    assert np.array_equal(first.tokens, second.tokens) and first.tokenizer == second.tokenizer


def test_facts_are_not_read_twice(files_data: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    from posenc.corpus import facts as facts_module

    data, reads = files_data(), []
    monkeypatch.setattr(facts_module, "read_documents", lambda d: reads.append(1) or read_documents(d))
    facts = inspect(data, BYTES, split="test", needed_tokens=9, context_length=8)
    prepare(data, BYTES, facts)
    assert len(reads) == 1 and facts.loaded is None


def test_text_that_changes_in_between_is_noticed(files_data: Files, tmp_path: Path) -> None:
    data = files_data()
    facts = read_facts(data)
    facts.loaded = None
    (tmp_path / "texts" / "000.txt").write_text("other")
    with pytest.raises(RunError, match="not what it was"):
        prepare(data, BYTES, facts)


def test_the_key_follows_text_and_tokenizer(files_data: Files, tmp_path: Path, cache: Path) -> None:
    data = files_data()
    for tokenizer in (BYTES, BPE, {**BPE, "vocab_size": 280}):
        prepare(data, tokenizer)
    (tmp_path / "texts" / "000.txt").write_text("other")
    prepare(data, BYTES)
    assert len([p for p in (cache / "tokens").iterdir() if p.is_dir()]) == 4


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
        "import time; from posenc.corpus import cache, tokenizers\n"
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


def test_what_is_too_short_is_told_before_and_after(files_data: Files) -> None:
    data = files_data()
    facts = inspect(data, BYTES, split="test", needed_tokens=9, context_length=8)
    longest = facts.longest["test"]
    store = prepare(data, BYTES, facts)
    for check in (
        lambda **n: inspect(data, BYTES, split="test", **n),
        lambda **n: check_lengths(store, split="test", **n),
    ):
        check(needed_tokens=longest, context_length=facts.longest["train"] - 1)
        with pytest.raises(UserError, match=f"the longest that works is {longest - 1}") as caught:
            check(needed_tokens=longest + 1, context_length=8)
        assert (caught.value.key, caught.value.value) == ("eval.lengths", longest)
        assert "or less" not in str(caught.value)  # a byte is a token
        with pytest.raises(UserError) as caught:
            check(needed_tokens=9, context_length=facts.longest["train"])
        assert caught.value.key == "context_length"


def test_tokens_are_fewer_than_bytes(files_data: Files) -> None:
    data = files_data()
    facts = inspect(data, BPE, split="test", needed_tokens=9, context_length=8)
    longest = facts.longest["test"]
    inspect(data, BPE, split="test", needed_tokens=longest, context_length=8)
    with pytest.raises(UserError, match="tokens"):
        check_lengths(prepare(data, BPE, facts), split="test", needed_tokens=longest, context_length=8)


def test_an_empty_split_is_refused(tmp_path: Path, settings: Callable[[Any], dict[str, Any]]) -> None:
    (tmp_path / "book.txt").write_text("one long book " * 100)
    with pytest.raises(UserError, match="split is empty") as caught:
        inspect(settings(tmp_path / "book.txt"), BYTES, split="test", needed_tokens=9, context_length=8)
    assert caught.value.key == "data"


def test_inspect_writes_nothing_and_knows_sizes(files_data: Files, cache: Path) -> None:
    data = files_data()
    facts = inspect(data, BPE, split="test", needed_tokens=9, context_length=8)
    documents = read_documents(data)
    assert sum(facts.bytes.values()) == sum(len(d.text) for d in documents)
    assert sum(facts.documents.values()) == len(documents) == 30
    assert facts.identity == {"name": "files", "fingerprint": facts.fingerprint}
    assert not cache.exists()


def test_room_is_looked_for_before_it_is_built(
    files_data: Files, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files_data()
    size = sum(read_facts(data).bytes.values())
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
    with pytest.raises(RunError, match="not enough room") as caught:
        prepare(data, BYTES)
    text = caught.value.text()
    assert f"needed: {size:,} bytes; free: {size - 1:,} bytes" in text
    assert str(cache) in text and "POSENC_CACHE" in text
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))
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
