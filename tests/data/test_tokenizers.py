import numpy as np
import pytest
from corpora import files
from tiny import write

from posenc.core.errors import RunError, UserError
from posenc.data import build_tokenizer, prepare, read_facts
from posenc.data.tokenizers import bytes_per_token

TEXTS = [
    "plain ascii, twice: plain ascii",
    "naïve Übergröße 漢字かな混じり文",
    "🙂👩‍👧‍👦 🇩🇪 e\u0301\r\n\tline\r\n\x00\x7f",
    " ",
    "\r\n",
    "never seen: ﷺ Ⅳ \u202e x",
]


def built(path=None, **settings):
    given = {"name": "hf", "path": str(path), "revision": "main"} if path else settings
    return build_tokenizer(given, None)


def one(tokenizer, text):
    (encoded,) = tokenizer.encode_all([text.encode()])
    return encoded


def test_bytes_and_bpe_lose_nothing(texts, tmp_path, cache, monkeypatch):
    from tokenizers import Tokenizer

    whole = built(name="bytes")
    facts, settings = read_facts(texts), {"name": "bpe", "vocab_size": 300}
    first = build_tokenizer(settings, facts)
    library = Tokenizer.from_str(str(first.definition))
    for text in TEXTS:
        ids, counts = one(whole, text)
        assert counts is None and ids.tobytes() == text.encode() and ids.max() < whole.vocab_size == 256
        ids, counts = one(first, text)
        assert counts is not None and counts.sum() == len(text.encode()) and len(counts) == len(ids)
        assert library.decode(ids.tolist()) == text
    (path,) = (cache / "tokenizers").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"BPE", b"BPX"))  # damaged: trained again
    assert build_tokenizer(settings, facts).identity() == first.identity() and first.vocab_size == 300
    held_out = next(d.id for d in facts.loaded or [] if d.split == "test")
    (tmp_path / "texts" / held_out).write_text("quite different " * 50)
    other = read_facts(texts)
    assert other.fingerprint != facts.fingerprint
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "another"))  # trained again, on the same training split
    assert build_tokenizer(settings, other).identity() == first.identity()
    assert build_tokenizer({**settings, "vocab_size": 290}, other).identity() != first.identity()


def lossy(path):
    """Lower-cases, drops spaces, truncates, adds a special token: all a tokenizer.json may do."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = {"[UNK]": 0, "[CLS]": 1, "plain": 2, "##ly": 300}  # more ids than words
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    return path


def test_any_tokenizer_accounts_for_every_byte(tmp_path):
    path = lossy(tmp_path / "tokenizer.json")
    text = "  Plainly plain,\r\n 漢字 plain  🙂 é  "
    for given in (path, tmp_path):
        tokenizer = built(given)
        ids, counts = one(tokenizer, text)
        assert tokenizer.vocab_size == 301
        assert ids.tolist() == [2, 300, 2, 0, 0, 0, 2, 0, 0]  # neither cut, padded nor marked
        assert counts.sum() == len(text.encode()) and counts[0] == len("  Plain")
    emoji = "aé🙂bc".encode()  # 1 + 2 + 4 + 1 + 1 bytes
    assert bytes_per_token(emoji, np.array([1, 2, 3, 3, 3, 4])).tolist() == [1, 2, 4, 0, 0, 2]
    assert bytes_per_token(emoji, np.array([3, 1, 5])).tolist() == [7, 0, 2]  # spans that overlap
    assert bytes_per_token(emoji, np.array([], dtype=np.int64)).tolist() == []
    write(tmp_path, {f"{i}.txt": "x" * 70_000 + " plain plain" for i in range(30)})
    store = prepare(files(tmp_path / "*.txt"), {"name": "hf", "path": str(path), "revision": "main"})
    assert store.token_bytes is not None and store.token_bytes.dtype == np.uint32
    assert store.document("train", 0).tolist() == [0, 2, 2]
    assert store.bytes_between(np.arange(3), np.arange(1, 4)).tolist() == [70_000, 6, 6]


def test_files_that_are_no_tokenizer_and_names_out_of_reach(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UserError, match="not a tokenizer"):
        built(tmp_path / "t.json")
    with pytest.raises(RunError, match=r"some/model.*out of reach") as caught:
        built("some/model")
    assert len(caught.value.text().split("\n")) == 2
