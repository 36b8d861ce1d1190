"""Tokenizers: nothing is lost, every byte is accounted for, a trained one depends on the training text."""

import errno
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from corpora import BYTES, bpe, files, library_tokenizer
from tiny import write

from posenc.core.errors import RunError, UserError
from posenc.data import build_tokenizer, prepare, read_facts
from posenc.data.tokenizers import bytes_per_token, check_tokenizer
from posenc.settings.tree import TokenizerSettings

TEXTS = [
    "plain ascii, twice: plain ascii",
    "naïve Übergröße 漢字かな混じり文",
    "🙂👩‍👧‍👦 🇩🇪 e\u0301\r\n\tline\r\n\x00\x7f",
    " ",
    "\r\n",
    "never seen: ﷺ Ⅳ \u202e x",
]


def encoded(tokenizer, text):
    """The ids of a text, and the bytes of each."""
    (pair,) = tokenizer.encode_all([text.encode()])
    return pair


# --- Bytes and BPE


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_lose_nothing(text):
    tokenizer = build_tokenizer(BYTES, None)
    ids, counts = encoded(tokenizer, text)
    assert counts is None
    assert ids.tobytes() == text.encode()
    assert ids.max() < tokenizer.vocab_size == 256


@pytest.mark.parametrize("text", TEXTS)
def test_bpe_loses_nothing(texts, text):
    tokenizer = build_tokenizer(bpe(300), read_facts(texts))
    ids, counts = encoded(tokenizer, text)
    assert tokenizer.decode(ids.tolist()) == text
    assert len(counts) == len(ids)
    assert counts.sum() == len(text.encode())


def test_bpe_has_the_vocabulary_that_was_asked_for(texts):
    assert build_tokenizer(bpe(300), read_facts(texts)).vocab_size == 300


def test_a_damaged_bpe_is_trained_again(texts, cache):
    facts = read_facts(texts)
    first = build_tokenizer(bpe(300), facts)
    (path,) = (cache / "tokenizers").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"BPE", b"BPX"))
    assert build_tokenizer(bpe(300), facts).identity() == first.identity()


def test_bpe_depends_on_the_training_split_alone(texts, tmp_path, monkeypatch):
    facts = read_facts(texts)
    first = build_tokenizer(bpe(300), facts)
    held_out = next(document.id for document in facts.read() if document.split == "test")
    (tmp_path / "texts" / held_out).write_text("quite different " * 50)
    changed = read_facts(texts)
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "another"))
    assert changed.fingerprint != facts.fingerprint
    assert build_tokenizer(bpe(300), changed).identity() == first.identity()


def test_another_vocabulary_is_another_tokenizer(texts):
    facts = read_facts(texts)
    assert build_tokenizer(bpe(290), facts).identity() != build_tokenizer(bpe(300), facts).identity()


# --- Any tokenizer of the library

LOSSY_TEXT = "  Plainly plain,\r\n 漢字 plain  🙂 é  "


@pytest.fixture
def lossy(tmp_path):
    """A file that lower-cases, drops spaces, truncates, pads and marks: all a tokenizer.json may do."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = {"[UNK]": 0, "[CLS]": 1, "plain": 2, "##ly": 300}  # more ids than words
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture(params=["file", "folder"])
def lossy_tokenizer(request, lossy):
    return build_tokenizer(library_tokenizer(lossy if request.param == "file" else lossy.parent), None)


def test_a_word_without_a_token_is_an_error_of_the_tokenizer(tmp_path):
    from tokenizers import Tokenizer, models

    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"plain": 0}, unk_token="[UNK]")).save(str(path))
    tokenizer = build_tokenizer(library_tokenizer(path), None)
    with pytest.raises(UserError, match="cannot encode the text"):
        list(tokenizer.encode_all([b"other"]))


def test_a_vocabulary_counts_gaps(lossy_tokenizer):
    assert lossy_tokenizer.vocab_size == 301


def test_text_is_neither_cut_padded_nor_marked(lossy_tokenizer):
    ids, _ = encoded(lossy_tokenizer, LOSSY_TEXT)
    assert ids.tolist() == [2, 300, 2, 0, 0, 0, 2, 0, 0]


def test_every_byte_is_accounted_for(lossy_tokenizer):
    _, counts = encoded(lossy_tokenizer, LOSSY_TEXT)
    assert counts.sum() == len(LOSSY_TEXT.encode())
    assert counts[0] == len("  Plain")


@pytest.mark.parametrize(
    ("ends", "counts"),
    [
        pytest.param([1, 2, 3, 3, 3, 4], [1, 2, 4, 0, 0, 2], id="several tokens of one character"),
        pytest.param([3, 1, 5], [7, 0, 2], id="spans that overlap"),
        pytest.param([], [], id="no tokens"),
    ],
)
def test_bytes_are_counted_by_the_ends_of_tokens(ends, counts):
    text = "aé🙂bc".encode()  # 1 + 2 + 4 + 1 + 1 bytes
    assert bytes_per_token(text, np.array(ends, dtype=np.int64)).tolist() == counts


def test_tokens_of_many_bytes_are_stored(tmp_path, lossy):
    write(tmp_path, {f"{i}.txt": "x" * 70_000 + " plain plain" for i in range(30)})
    store = prepare(files(tmp_path / "*.txt"), library_tokenizer(lossy))
    assert store.token_bytes.dtype == np.uint32
    assert store.document("train", 0).tolist() == [0, 2, 2]
    assert store.bytes_between(np.arange(3), np.arange(1, 4)).tolist() == [70_000, 6, 6]


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UserError, match="not a tokenizer"):
        build_tokenizer(library_tokenizer(tmp_path / "t.json"), None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_said_to_be_so(tmp_path):
    write(tmp_path, {"tokenizer.json": "{}"})
    (tmp_path / "tokenizer.json").chmod(0)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
        build_tokenizer(library_tokenizer(tmp_path), None)


def test_a_file_that_the_disk_does_not_give_is_not_called_no_tokenizer(tmp_path, monkeypatch):
    write(tmp_path, {"tokenizer.json": "{}"})
    monkeypatch.setattr(Path, "read_text", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(UserError, match=r"cannot be read \(Input/output error\)"):
        build_tokenizer(library_tokenizer(tmp_path), None)


def test_a_name_out_of_reach_is_said_in_two_lines():
    with pytest.raises(RunError, match=r"some/model.*out of reach") as caught:
        build_tokenizer(library_tokenizer("some/model"), None)
    assert len(caught.value.text().split("\n")) == 2


def test_a_folder_without_a_definition_is_not_looked_for_on_the_hub(working_folder):
    """`gpt2` may be a folder of weights here, and everywhere else a name on the hub."""
    (working_folder / "gpt2").mkdir()
    with pytest.raises(UserError, match=r"a folder here, without a tokenizer\.json"):
        check_tokenizer(TokenizerSettings.model_validate({"name": "hf", "path": "gpt2", "revision": "main"}))
