"""The token cache: whole documents, one entry a key; damaged, shared, killed, on a full disk."""

import json
from functools import partial
from unittest import mock

import numpy as np
import pytest
import tiny
from corpora import BPE, BYTES, documents_of, files

from posenc.core.errors import RunError, UserError
from posenc.data import check_lengths, corpus_notes, inspect, prepare, read_facts, token_cache


def entries(cache):
    return [path for path in (cache / "tokens").iterdir() if path.is_dir()]


@pytest.mark.parametrize("tokenizer", [BYTES, BPE])
def test_documents_come_back_whole_and_the_second_time_from_the_cache(texts, reads, caplog, tokenizer):
    caplog.set_level("INFO")
    facts = inspect(texts, tokenizer, splits=["test"], needed_tokens=9, context_length=8)
    store = prepare(texts, tokenizer, facts)
    assert reads == ["files"] and facts.loaded is None  # nothing is read twice
    documents = documents_of(texts)
    assert sum(map(sum, facts.sizes.values())) == sum(len(d.text) for d in documents)
    assert facts.identity == {"name": "files", "fingerprint": store.fingerprint}
    for name, split in store.splits.items():
        mine = [d for d in documents if d.split == name]
        assert split.ids == [d.id for d in mine] == sorted(split.ids)
        sizes = store.bytes_between(split.starts, split.starts + split.lengths)
        assert sizes.tolist() == [len(d.text) for d in mine]
        for i, document in enumerate(mine):
            assert tokenizer is BPE or store.document(name, i).tobytes() == document.text
    assert sum(split.lengths.sum() for split in store.splits.values()) == len(store.tokens)
    again = prepare(texts, tokenizer)
    assert caplog.text.count("tokenised") == 1 and not store.tokens.flags.writeable
    assert np.array_equal(store.tokens, again.tokens) and store.tokenizer == again.tokenizer


def test_the_key_follows_text_and_tokenizer(texts, tmp_path, cache):
    for tokenizer in (BPE, {**BPE, "vocab_size": 280}):
        prepare(texts, tokenizer)
    facts = read_facts(texts)
    facts.loaded = None
    (tmp_path / "texts" / "000.txt").write_text("other")
    with pytest.raises(RunError, match="has changed"):
        prepare(texts, {**BPE, "vocab_size": 270}, facts)
    prepare(texts, BYTES)
    assert len(entries(cache)) == 3


def test_corpora_that_are_too_small(texts, tmp_path, cache):
    facts = inspect(texts, BYTES, splits=["test"], needed_tokens=9, context_length=8)
    assert not cache.exists()
    test, train = (max(facts.sizes[split]) for split in ("test", "train"))
    inspect(texts, BPE, splits=["test"], needed_tokens=test, context_length=8)
    with pytest.raises(UserError, match="tokens"):  # tokens are fewer than bytes
        check_lengths(prepare(texts, BPE), splits=["test"], needed_tokens=test, context_length=8)
    before, after = partial(inspect, texts, BYTES), partial(check_lengths, prepare(texts, BYTES, facts))
    for check in (partial(one, splits=["test"]) for one in (before, after)):
        check(needed_tokens=test, context_length=train - 1)
        for needed, context, key in ((test + 1, 8, "eval.lengths"), (9, train, "context_length")):
            with pytest.raises(UserError) as caught:
                check(needed_tokens=needed, context_length=context)
            assert caught.value.key == key
            assert key == "context_length" or f"longest that works is {test - 1}" in str(caught.value)
    (tmp_path / "book.txt").write_text("one short book " * 100)
    with pytest.raises(UserError, match="split is empty"):
        inspect(files(tmp_path / "book.txt"), BYTES, splits=["test"], needed_tokens=9, context_length=8)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
@pytest.mark.parametrize("name", ["tokens.bin", "manifest.json"])
def test_damage_is_noticed_and_repaired(texts, cache, caplog, name, damage):
    good = prepare(texts, BPE).tokens.tobytes()
    path = entries(cache)[0] / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "gone":
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    for warnings in (1, 0):
        caplog.clear()
        assert prepare(texts, BPE).tokens.tobytes() == good
        assert caplog.text.count("damaged") == warnings


@pytest.mark.parametrize("step", ["sync", "write_sealed"])
def test_a_full_disk_leaves_nothing_and_says_path_needed_and_free(texts, cache, monkeypatch, step):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patch, pytest.raises(RunError, match="No space left") as caught:
        patch.setattr(token_cache, step, full)
        prepare(texts, BYTES)
    assert all(part in str(caught.value) for part in (str(cache), "needed: ", "free: ", "POSENC_CACHE"))
    assert not entries(cache)
    assert len(prepare(texts, BYTES).tokens)


WORKER = """
import json, sys, time
from posenc.data import prepare
from posenc.data.tokenizers import Tokenizer
whole = Tokenizer.encode_all
def slowly(*given):
    for one in whole(*given):
        print("x", flush=True)
        time.sleep(0.03)
        yield one
Tokenizer.encode_all = slowly
print(prepare(json.loads(sys.argv[1]), {"name": "bytes"}).fingerprint)
"""


def test_many_processes_at_once_make_one_build(texts, cache):
    workers = [tiny.start_python("-c", WORKER, json.dumps(texts)) for _ in range(3)]
    ends = [tiny.finished(one, 120) for one in workers]
    assert [one.code for one in ends] == [0] * 3, ends
    lines = sorted((one.out.split() for one in ends), key=len)
    assert len({some[-1] for some in lines}) == 1 and [len(some) for some in lines[:2]] == [1, 1]
    assert not list((cache / "tokens").glob(".*")) and len(entries(cache)) == 1


def test_a_kill_leaves_nothing_that_is_believed(texts, cache):
    victim = tiny.start_python("-c", WORKER, json.dumps(texts))
    for _ in range(3):
        assert victim.stdout.readline() == "x\n"
    victim.kill()
    victim.communicate()
    assert not list((cache / "tokens").glob("[!.]*/"))
    store, whole = prepare(texts, BYTES), {d.id: d.text for d in documents_of(texts)}
    for name, split in store.splits.items():
        found = [store.document(name, i).tobytes() for i in range(len(split.ids))]
        assert found == [whole[i] for i in split.ids]
    assert not list((cache / "tokens").glob(".*"))


def test_short_training_documents_are_told(texts):
    facts = read_facts(texts)
    facts.sizes = {"train": [*[10] * 9, 30], "validation": [], "test": [65] * 30}
    (note,) = corpus_notes(facts, "test", 64, 16)
    assert note.startswith("only 1 of 10 training documents is longer than 16 bytes, 25%")
