"""Streams: read once, document by document, from a folder laid out like a data set of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streams import BPE, BYTES, Repository, conf, story

from posenc.core.errors import RunError, UserError
from posenc.data import entry, inspect, prepare, read_documents, read_facts, registry, tokenizers
from posenc.data.documents import fingerprint
from posenc.data.sources import stream


@pytest.mark.parametrize("name", ["pg19", "tinystories", "fineweb_edu"])
def test_settings_are_pinned_and_whole(name: str) -> None:
    data = conf(name)
    identity = registry.pinned_identity(data)
    assert identity is not None and len(identity["revision"]) == 40
    assert {"repository", "config", "splits", "documents", "bytes"} <= set(identity)
    sides = {side for shares in data["splits"].values() for side in shares}
    assert sides == {"train", "validation", "test"}


def test_rows_become_documents_in_their_splits(repository: Repository) -> None:
    data = conf("tinystories", repository=str(repository()))
    found = read_documents(data)
    assert [d.id for d in found] == sorted(d.id for d in found)
    train = [d for d in found if d.split == "train"]
    assert [d.text.decode() for d in train] == [story(i) for i in range(60)]
    assert [d.id for d in train[:2]] == ["train/000000000", "train/000000001"]
    held_out = [d for d in found if d.split != "train"]
    assert {d.text.decode() for d in held_out} == {story(i) for i in range(60, 80)}
    sides = [d.split for d in held_out]
    assert 4 <= sides.count("validation") <= 16 and sides.count("test") == 20 - sides.count("validation")


def test_copies_are_never_on_both_sides_and_blank_rows_are_left_out(repository: Repository) -> None:
    rows = {"train": [story(i % 20) for i in range(60)] + ["", "  \n", None]}
    found = read_documents(conf("fineweb_edu", config=None, repository=str(repository(rows=rows))))
    assert len(found) == 60
    sides: dict[bytes, set[str | None]] = {}
    for document in found:
        sides.setdefault(document.text, set()).add(document.split)
    assert len(sides) == 20 and all(len(some) == 1 for some in sides.values())


def test_shares_are_kept(repository: Repository) -> None:
    rows = {"train": [f"page {i}" for i in range(4000)]}
    found = read_documents(
        conf("fineweb_edu", config=None, repository=str(repository(rows=rows, group=1000)))
    )
    share = {side: sum(d.split == side for d in found) / 4000 for side in ("train", "validation", "test")}
    assert share == pytest.approx({"train": 0.9, "validation": 0.03, "test": 0.07}, abs=0.015)


def test_limits_take_the_first_rows_of_each_split(repository: Repository) -> None:
    data = conf("tinystories", repository=str(repository()))
    few = read_documents({**data, "documents": 7})
    rows = [d.id for d in few]
    assert rows == [f"{split}/{i:09d}" for split in ("train", "validation") for i in range(7)]
    size = len("".join(story(i) for i in range(5)).encode())
    for limit, count in ((size, 5), (size + 1, 5), (size - 1, 4)):
        found = [d for d in read_documents({**data, "bytes": limit}) if d.split == "train"]
        assert len(found) == count and sum(len(d.text) for d in found) <= limit
    whole = read_documents({**data, "bytes": None})
    few_again = {d.id: d for d in few}
    assert all(d == few_again[d.id] for d in whole if d.id in few_again)  # a limit moves no document


def test_a_split_of_copies_is_refused_again_and_again(repository: Repository, reads: list[str]) -> None:
    texts = [story(i) for i in range(60)]
    data = conf("tinystories", repository=str(repository(rows={"train": texts, "validation": texts[:20]})))
    for _ in range(2):
        with pytest.raises(UserError, match="same text as one of the training split"):
            inspect(data, BYTES, split="test", needed_tokens=9, context_length=8)
    assert inspect(data, BYTES, split="test", needed_tokens=9, context_length=None).repeats
    read_facts(data)
    assert not read_facts(conf("tinystories", repository=str(repository("other")))).repeats


def test_it_is_streamed_once_for_all_tokenizers(
    repository: Repository, reads: list[str], cache: Path
) -> None:
    data = conf("tinystories", repository=str(repository()))
    facts = read_facts(data)
    assert reads == ["tinystories"] and facts.loaded is None
    documents = read_documents(data)
    assert facts.fingerprint == fingerprint(documents)
    assert facts.train_fingerprint == fingerprint(d for d in documents if d.split == "train")
    for tokenizer in (BYTES, BPE):
        store = prepare(data, tokenizer, facts)
        for split, some in store.splits.items():
            mine = [d for d in documents if d.split == split]
            assert some.ids == [d.id for d in mine]
            sizes = store.bytes_between(some.starts, some.starts + some.lengths)
            assert sizes.tolist() == [len(d.text) for d in mine]
    assert store.tokenizer["name"] == "tokenizers"
    assert reads == ["tinystories"]
    assert not list((cache / "tokens").glob(".*"))


def test_the_cached_tokens_are_the_text(repository: Repository) -> None:
    rows = {"train": [story(i) for i in range(30)], "validation": ["held " * 9] * 4}
    store = prepare(conf("tinystories", repository=str(repository(rows=rows))), BYTES)
    train = store.splits["train"]
    start, size = int(train.starts[0]), int(train.lengths.sum())
    assert store.tokens[start : start + size].tobytes() == "".join(rows["train"]).encode()


def test_what_holds_a_window_is_counted(repository: Repository) -> None:
    facts = read_facts(conf("tinystories", repository=str(repository(rows={
        "train": ["x" * 64, "x" * 65, "x" * 129, "x" * 1000], "validation": ["y" * 300, "z" * 20],
    }))))  # fmt: skip
    held = facts.holding["train"]
    assert (held[6], held[7], held[8], held[9]) == (3, 2, 1, 1) and len(held) == 10


def test_a_pinned_stream_is_known_without_asking_again(
    repository: Repository, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository()
    monkeypatch.setattr(stream, "is_folder", lambda _: False)
    local = stream.load
    monkeypatch.setattr(stream, "load", lambda r, c, v, **more: local(str(folder), c, None, **more))
    data = conf("tinystories")
    first = read_facts(data)
    store = prepare(data, BYTES)
    again = read_facts(data)
    assert reads == ["tinystories"] and again == first and store.fingerprint == again.fingerprint
    assert first.identity["revision"] == data["revision"] and "fingerprint" not in first.identity
    ids = [
        registry.pinned_identity({**data, **change})
        for change in ({}, {"bytes": 1000}, {"documents": 5}, {"revision": "0" * 40},
                       {"splits": {"train": {"train": 1}}})
    ]  # fmt: skip
    assert len({json.dumps(one, sort_keys=True) for one in ids}) == 5
    assert registry.pinned_identity({**data, "bytes": 2e8}) == ids[0]  # however the number is written
    # the tokens thrown away, the facts kept: read again, and the same
    for path in entry.tokens_dir().glob("*/tokens.bin"):
        path.unlink()
    assert prepare(data, BPE).fingerprint == first.fingerprint
    assert reads == ["tinystories"] * 2


def test_other_text_under_the_same_name_is_noticed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository()
    other = repository("other", rows={"train": ["another text"] * 9, "validation": ["and more"] * 9})
    monkeypatch.setattr(stream, "is_folder", lambda _: False)
    local = stream.load
    monkeypatch.setattr(stream, "load", lambda r, c, v, **more: local(str(folder), c, None, **more))
    facts = read_facts(conf("tinystories"))
    for path in entry.tokens_dir().glob("*/tokens.bin"):
        path.unlink()
    monkeypatch.setattr(stream, "load", lambda r, c, v, **more: local(str(other), c, None, **more))
    with pytest.raises(RunError, match="not what it was"):
        prepare(conf("tinystories"), BYTES, facts)


@pytest.mark.parametrize(
    ("change", "key", "near"),
    [
        ({"documents": 0}, "data.documents", "1 and more"),
        ({"bytes": float("inf")}, "data.bytes", "1 and more"),
        ({"bytes": "much"}, "data.bytes", "number"),
        ({"splits": {}}, "data.splits", "no split"),
        ({"splits": {"train": {"trian": 1}}}, "data.splits.train.trian", "train"),
        ({"splits": {"train": {"train": 0.5}}}, "data.splits.train", "sum"),
        ({"splits": {"train": {"train": -1, "test": 2}}}, "data.splits.train.train", "share"),
        ({"splits": {"train": 1}}, "data.splits.train", "SHARE"),
        ({"text": "story"}, "data.text", "data.text_field"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_read(
    change: dict[str, Any], key: str, near: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_facts(conf("tinystories", **change))
    assert caught.value.key == key and near in str(caught.value)


@pytest.mark.parametrize(
    ("change", "key", "near"),
    [
        ({"text_field": "story"}, "data.text_field", "title, text"),
        ({"splits": {"train": {"train": 1}, "dev": {"validation": 0.5, "test": 0.5}}}, "data.splits", "dev"),
        ({"config": "big"}, "data.config", "big"),
    ],
)
def test_what_the_data_set_does_not_have_is_named(
    repository: Repository, cache: Path, change: dict[str, Any], key: str, near: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_facts(conf("tinystories", repository=str(repository()), **change))
    assert caught.value.key == key and near in str(caught.value)
    assert not [path for path in (cache / "tokens").iterdir() if path.is_dir()]


def test_stories_that_are_too_short_name_the_longest_length_that_works(repository: Repository) -> None:
    data = conf("tinystories", repository=str(repository()))
    longest = read_facts(data).longest["test"] - 1
    with pytest.raises(UserError, match=f"the longest that works is {longest}\\b") as caught:
        inspect(data, BYTES, split="test", needed_tokens=513, context_length=64)
    assert caught.value.exit_code == 2 and caught.value.key == "eval.lengths"
    inspect(data, BYTES, split="test", needed_tokens=longest + 1, context_length=64)


def test_long_documents_go_to_the_tokenizer_in_small_batches() -> None:
    texts = [b"x" * n for n in (10, tokenizers.BATCH_BYTES, 5, *[1] * 100)]
    batches = [[len(text) for text in batch] for batch in tokenizers._batches(texts)]
    assert batches[0] == [10, tokenizers.BATCH_BYTES] and len(batches[1]) == tokenizers.BATCH
    assert [size for batch in batches for size in batch] == [len(text) for text in texts]


def test_progress_goes_to_stderr_and_names_the_split(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(conf("tinystories", repository=str(repository())), BYTES)
    out, err = capsys.readouterr()
    assert not out
    assert "reading tinystories: train, 60 documents" in err and "validation, 20 documents" in err
    assert "of at most 200 MB" in err
