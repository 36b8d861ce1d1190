"""The token cache: whole documents, one entry a key, sizes told before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenc.core.errors import RunError, UserError
from posenc.data import check_lengths, inspect, prepare, read_documents, read_facts

Files = Callable[..., dict[str, Any]]
BYTES = {"name": "bytes"}
BPE = {"name": "bpe", "vocab_size": 290}


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
    from posenc.data import facts as facts_module

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
