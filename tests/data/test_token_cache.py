"""The token cache: whole documents, one entry a key; damaged, shared, killed, on a full disk."""

import shutil
from unittest import mock

import numpy as np
import pytest
import tiny
from corpora import BYTES, bpe, documents_of, files, library_tokenizer

from posenc.core import atomic_files
from posenc.core.errors import RunError, UserError
from posenc.data import check_lengths, corpus_notes, inspect, prepare, read_facts, token_cache
from posenc.data.corpus import CorpusFacts, CorpusText, Figures


def entries(cache):
    return [path for path in (cache / "tokens").iterdir() if path.is_dir()]


def checked(data, tokenizer, needed=9, context_length=8):
    return inspect(data, tokenizer, splits=["test"], needed_tokens=needed, context_length=context_length)


# --- What comes back


@pytest.mark.parametrize("tokenizer", [BYTES, bpe()], ids=["bytes", "bpe"])
class TestATokenisedCorpus:
    def test_has_the_documents_of_each_split_in_the_order_of_their_ids(self, texts, tokenizer):
        store = prepare(texts, tokenizer)
        for name, split in store.splits.items():
            ids = [document.id for document in documents_of(texts) if document.split == name]
            assert split.ids == ids == sorted(ids)

    def test_accounts_for_the_bytes_of_every_document(self, texts, tokenizer):
        store = prepare(texts, tokenizer)
        for name, split in store.splits.items():
            sizes = store.bytes_between(split.starts, split.starts + split.lengths)
            expected = [len(document.text) for document in documents_of(texts) if document.split == name]
            assert sizes.tolist() == expected

    def test_has_no_tokens_but_those_of_documents(self, texts, tokenizer):
        store = prepare(texts, tokenizer)
        assert sum(split.lengths.sum() for split in store.splits.values()) == len(store.tokens)

    def test_comes_from_the_cache_the_second_time(self, texts, tokenizer, caplog):
        caplog.set_level("INFO")
        first, second = prepare(texts, tokenizer), prepare(texts, tokenizer)
        assert caplog.text.count("tokenised") == 1
        assert np.array_equal(first.tokens, second.tokens)
        assert first.tokenizer == second.tokenizer

    def test_cannot_be_written_to(self, texts, tokenizer):
        assert not prepare(texts, tokenizer).tokens.flags.writeable

    def test_is_read_once_and_let_go(self, texts, tokenizer, reads):
        facts = checked(texts, tokenizer)
        prepare(texts, tokenizer, facts)
        assert reads == ["files"]
        assert not facts.text.is_loaded


def test_bytes_are_the_text(texts):
    store = prepare(texts, BYTES)
    for name in store.splits:
        documents = [document for document in documents_of(texts) if document.split == name]
        for i, document in enumerate(documents):
            assert store.document(name, i).tobytes() == document.text


def test_facts_count_the_text(texts):
    facts = read_facts(texts)
    assert sum(map(sum, facts.sizes.values())) == sum(len(document.text) for document in documents_of(texts))


def test_own_text_is_identified_by_its_fingerprint(texts):
    assert read_facts(texts).identity == {"name": "files", "fingerprint": prepare(texts, BYTES).fingerprint}


def test_each_tokenizer_and_text_has_an_entry(texts, tmp_path, cache):
    prepare(texts, bpe())
    prepare(texts, bpe(280))
    (tmp_path / "texts" / "000.txt").write_text("other")
    prepare(texts, BYTES)
    assert len(entries(cache)) == 3


def test_text_that_has_changed_since_it_was_read_is_refused(texts, tmp_path):
    facts = read_facts(texts)
    facts.release()
    (tmp_path / "texts" / "000.txt").write_text("other")
    with pytest.raises(RunError, match="has changed"):
        prepare(texts, bpe(270), facts)


# --- Too small


def longest(facts, split):
    return max(facts.sizes[split])


def test_a_check_writes_nothing(texts, cache):
    checked(texts, BYTES)
    assert not cache.exists()


def test_the_longest_documents_are_long_enough(texts):
    facts = read_facts(texts)
    needed, context_length = longest(facts, "test"), longest(facts, "train") - 1
    checked(texts, BYTES, needed, context_length)
    store = prepare(texts, BYTES)
    check_lengths(store, splits=["test"], needed_tokens=needed, context_length=context_length)


@pytest.mark.parametrize("key", ["eval.lengths", "context_length"])
@pytest.mark.parametrize("unit", ["bytes", "tokens"])
def test_a_length_that_no_document_has_is_refused(texts, key, unit):
    facts = read_facts(texts)
    text = facts if unit == "bytes" else prepare(texts, BYTES)
    sizes = {"needed_tokens": 9, "context_length": 8}
    if key == "eval.lengths":
        sizes["needed_tokens"] = longest(facts, "test") + 1
    else:
        sizes["context_length"] = longest(facts, "train")
    with pytest.raises(UserError, match=unit) as caught:
        check_lengths(text, splits=["test"], **sizes)
    assert caught.value.key == key


def test_the_longest_that_works_is_named(texts):
    facts = read_facts(texts)
    with pytest.raises(UserError, match=f"longest that works is {longest(facts, 'test') - 1}"):
        checked(texts, BYTES, longest(facts, "test") + 1)


def test_a_length_beyond_all_documents_is_said_in_multiples_too(texts):
    longest_test = longest(read_facts(texts), "test")
    with pytest.raises(UserError, match=r"is that long \(100x\)") as caught:
        checked(texts, BYTES, 801, 8)
    assert caught.value.hint == f"the longest that works is {longest_test - 1}, so {(longest_test - 1) // 8}x"


def test_a_corpus_with_enough_bytes_may_have_too_few_tokens(texts):
    needed = longest(checked(texts, BYTES), "test")
    checked(texts, bpe(), needed)
    with pytest.raises(UserError, match="tokens"):
        check_lengths(prepare(texts, bpe()), splits=["test"], needed_tokens=needed, context_length=8)


def test_an_empty_split_is_refused(tmp_path):
    (tmp_path / "book.txt").write_text("one short book " * 100)
    with pytest.raises(UserError, match="split is empty"):
        checked(files(tmp_path / "book.txt"), BYTES)


def test_a_tokenizer_without_a_token_for_the_text_is_named_and_not_the_text(texts, tmp_path):
    from tokenizers import Tokenizer, models

    path = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE(vocab={"ж": 0}, merges=[])).save(str(path))
    with pytest.raises(UserError, match="has no token for any character of files") as caught:
        prepare(texts, library_tokenizer(path))
    assert caught.value.key == "tokenizer.path"


def test_training_documents_that_are_too_short_are_told():
    sizes = {"train": [*[10] * 9, 30], "validation": [], "test": [65] * 30}
    figures = Figures("", "", sizes, copies={}, notes=[])
    facts = CorpusFacts("files", figures, {}, CorpusText(None, ""))
    (note,) = corpus_notes(facts, "test", 64, 16)
    assert note.startswith("only 1 of 10 training documents is longer than 16 bytes, 25%")


# --- Damage and full disks


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("name", ["tokens.bin", "manifest.json"])
def test_damage_is_noticed_and_repaired(texts, cache, caplog, name, damage):
    tokens = prepare(texts, bpe()).tokens.tobytes()
    damage(entries(cache)[0] / name)
    assert prepare(texts, bpe()).tokens.tobytes() == tokens
    assert caplog.text.count("damaged") == 1


def test_what_was_repaired_is_not_damaged(texts, cache, caplog):
    tokens = prepare(texts, bpe()).tokens.tobytes()
    flip(entries(cache)[0] / "tokens.bin")
    prepare(texts, bpe())
    caplog.clear()
    assert prepare(texts, bpe()).tokens.tobytes() == tokens
    assert "damaged" not in caplog.text


def test_a_big_endian_machine_writes_the_same_files(texts, cache, monkeypatch):
    """Its numbers are big-endian if nothing else is said."""
    tokens = prepare(texts, bpe()).tokens.tolist()
    (entry,) = entries(cache)
    written = (entry / "tokens.bin").read_bytes()
    shutil.rmtree(entry)
    native_type = np.min_scalar_type
    monkeypatch.setattr(np, "min_scalar_type", lambda value: native_type(value).newbyteorder(">"))
    assert prepare(texts, bpe()).tokens.tolist() == tokens
    assert (entry / "tokens.bin").read_bytes() == written


@pytest.fixture(params=[(atomic_files, "sync"), (token_cache, "sealed")], ids=["sync", "manifest"])
def full_disk(request, monkeypatch):
    """A disk that is full in one of the steps of writing an entry."""
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patch:
        owner, call = request.param
        patch.setattr(owner, call, full)
        yield patch


def test_a_full_disk_says_path_needed_and_free(texts, cache, full_disk):
    with pytest.raises(RunError, match="No space left") as caught:
        prepare(texts, BYTES)
    for part in (str(cache), "needed: ", "free: ", "POSENC_CACHE"):
        assert part in str(caught.value)


def test_a_full_disk_leaves_nothing(texts, cache, full_disk):
    with pytest.raises(RunError):
        prepare(texts, BYTES)
    assert not entries(cache)
    full_disk.undo()
    assert len(prepare(texts, BYTES).tokens)


# --- Several processes

WORKER = """
import sys, time
from posenc.data import prepare
from posenc.data.tokenizers import Tokenizer
from posenc.settings.tree import DataSettings, TokenizerSettings
encode_all = Tokenizer.encode_all
def slowly(*arguments):
    for encoded in encode_all(*arguments):
        print("x", flush=True)
        time.sleep(0.03)
        yield encoded
Tokenizer.encode_all = slowly
data = DataSettings.model_validate_json(sys.argv[1])
print(prepare(data, TokenizerSettings(name="bytes")).fingerprint)
"""


def start_worker(texts):
    """A process that tokenises slowly, prints an x for each document, and then the fingerprint."""
    return tiny.start_python("-c", WORKER, texts.model_dump_json())


@pytest.fixture
def outputs(texts):
    """What each of three processes printed that began at once, the shortest first."""
    workers = [start_worker(texts) for _ in range(3)]
    ends = [tiny.finished(worker, 120) for worker in workers]
    assert [end.code for end in ends] == [0, 0, 0], ends
    return sorted((end.out.split() for end in ends), key=len)


def test_many_processes_at_once_make_one_build(outputs, cache):
    assert [len(words) for words in outputs[:2]] == [1, 1]
    assert len(entries(cache)) == 1
    assert not list((cache / "tokens").glob(".*"))


def test_many_processes_at_once_have_the_same_text(outputs):
    assert len({words[-1] for words in outputs}) == 1


@pytest.fixture
def killed(texts):
    """A process that was killed after three documents."""
    victim = start_worker(texts)
    for _ in range(3):
        assert victim.stdout.readline() == "x\n"
    victim.kill()
    victim.communicate()


def test_a_kill_leaves_nothing_that_is_believed(killed, cache):
    assert not list((cache / "tokens").glob("[!.]*/"))


def test_after_a_kill_the_text_is_whole(killed, texts, cache):
    store = prepare(texts, BYTES)
    text_by_id = {document.id: document.text for document in documents_of(texts)}
    for name, split in store.splits.items():
        for i, document_id in enumerate(split.ids):
            assert store.document(name, i).tobytes() == text_by_id[document_id]
    assert not list((cache / "tokens").glob(".*"))
