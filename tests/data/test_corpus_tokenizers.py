from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenc.core.errors import RunError, UserError
from posenc.data import build_tokenizer, check_tokenizer, prepare, read_facts
from posenc.data.tokenizers import bytes_per_token

Files = Callable[..., dict[str, Any]]
TEXTS = [
    "plain ascii, twice: plain ascii",
    "naïve Übergröße 漢字かな混じり文",
    "🙂👩‍👧‍👦 🇩🇪 e\u0301\r\n\tline\r\n\x00\x7f",
    " ",
    "\r\n",
    "never seen: ﷺ Ⅳ \u202e x",
]


def test_bytes_round_trip() -> None:
    tokenizer = build_tokenizer({"name": "bytes"}, None)  # type: ignore[arg-type]
    for text in TEXTS:
        ids, counts = tokenizer.encode(text.encode())
        assert counts is None and ids.tobytes() == text.encode() and ids.max() < tokenizer.vocab_size == 256


def test_bpe_is_the_same_every_time_and_loses_nothing(
    files_data: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    settings = {"name": "bpe", "vocab_size": 300}
    facts = read_facts(files_data())
    first = build_tokenizer(settings, facts)
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "another"))
    second = build_tokenizer(settings, facts)
    assert first.identity() == second.identity() and first.vocab_size == 300
    library = Tokenizer.from_str(first._library.to_str())  # type: ignore[attr-defined]
    for text in TEXTS:
        ids, counts = first.encode(text.encode())
        assert counts is not None and counts.sum() == len(text.encode()) and len(counts) == len(ids)
        assert library.decode(ids.tolist()) == text
        assert [len(text.encode()) for _ in ids] >= counts.tolist()


def test_bpe_learns_from_the_training_split_only(
    files_data: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files_data()
    settings = {"name": "bpe", "vocab_size": 300}
    before = read_facts(data)
    trained = build_tokenizer(settings, before)
    assert before.loaded is not None
    held_out = next(d.id for d in before.loaded if d.split == "test")
    (tmp_path / "texts" / held_out).write_text("quite different " * 50)
    after = read_facts(data)
    assert after.fingerprint != before.fingerprint
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "another"))  # so that it is trained again
    assert build_tokenizer(settings, after).identity() == trained.identity()
    assert build_tokenizer({**settings, "vocab_size": 290}, after).identity() != trained.identity()


def test_a_damaged_tokenizer_is_trained_again(files_data: Files, cache: Path) -> None:
    facts = read_facts(files_data())
    identity = build_tokenizer({"name": "bpe", "vocab_size": 290}, facts).identity()
    (path,) = (cache / "tokenizers").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"BPE", b"BPX"))
    assert build_tokenizer({"name": "bpe", "vocab_size": 290}, facts).identity() == identity


def lossy(path: Path) -> Path:
    """Lower-cases, drops spaces, truncates, adds a special token: all a tokenizer.json may do."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = {"[UNK]": 0, "[CLS]": 1, "plain": 2, "##ly": 3}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    return path


def test_any_tokenizer_accounts_for_every_byte(tmp_path: Path) -> None:
    path = lossy(tmp_path / "tokenizer.json")
    for given in (path, tmp_path):
        settings = {"name": "hf", "path": str(given), "revision": "main"}
        tokenizer = build_tokenizer(settings, None)  # type: ignore[arg-type]
    text = "  Plainly plain,\r\n 漢字 plain  🙂 é  "
    ids, counts = tokenizer.encode(text.encode())
    assert (
        ids.tolist() == [2, 3, 2, 0, 0, 0, 2, 0, 0] and counts is not None
    )  # neither cut, padded nor marked
    assert counts.sum() == len(text.encode()) and counts[0] == len("  Plain")
    assert tokenizer.identity().keys() == {"name", "sha256"}


def test_bytes_per_token_of_overlapping_and_missing_spans() -> None:
    text = "aé🙂bc".encode()  # 1 + 2 + 4 + 1 + 1 bytes
    assert bytes_per_token(text, np.array([1, 2, 3, 3, 3, 4])).tolist() == [1, 2, 4, 0, 0, 2]
    assert bytes_per_token(text, np.array([3, 1, 5])).tolist() == [7, 0, 2]
    assert bytes_per_token(text, np.array([], dtype=np.int64)).tolist() == []


def test_a_token_of_many_bytes_is_counted(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i}.txt").write_text("x" * 70_000 + " plain plain")
    data = {"name": "n", "source": "files", "paths": str(tmp_path / "*.txt"), "text_field": "text"}
    data["split"] = {"validation": 0.2, "test": 0.2}  # type: ignore[assignment]
    path = lossy(tmp_path / "t.json")
    store = prepare(data, {"name": "hf", "path": str(path), "revision": "main"})
    assert store.token_bytes is not None and store.token_bytes.dtype == np.uint32
    assert store.document("train", 0).tolist() == [0, 2, 2]
    assert store.token_bytes_of(0, 3).tolist() == [70_000, 6, 6]


@pytest.mark.parametrize(
    ("settings", "key", "says"),
    [
        ({"name": "byte"}, "tokenizer", "did you mean: bytes"),
        ({"name": "bytes", "vocab_size": 3}, "tokenizer.vocab_size", "no parameters"),
        ({"name": "bpe", "vocab_size": "many"}, "tokenizer.vocab_size", "whole number"),
        ({"name": "bpe", "vocab_size": 100}, "tokenizer.vocab_size", "256"),
        ({"name": "bpe", "vocabsize": 300}, "tokenizer.vocabsize", "tokenizer.vocab_size"),
        ({"name": "hf", "path": "???", "revision": "main"}, "tokenizer.path", "missing"),
        ({"name": "hf", "path": "./no.json", "revision": "main"}, "tokenizer.path", "no such file"),
        ({}, "tokenizer", "allowed"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        check_tokenizer(settings)
    assert caught.value.key == key and says in str(caught.value)


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UserError, match="is not a tokenizer"):
        build_tokenizer({"name": "hf", "path": str(tmp_path / "t.json"), "revision": "main"}, None)  # type: ignore[arg-type]


def test_a_name_on_a_hub_out_of_reach() -> None:
    with pytest.raises(RunError) as caught:
        build_tokenizer({"name": "hf", "path": "some/model", "revision": "main"}, None)  # type: ignore[arg-type]
    assert "some/model" in caught.value.text() and len(caught.value.text().split("\n")) == 2


def test_a_vocabulary_with_gaps_keeps_its_ids(tmp_path: Path) -> None:
    """As of a pruned one: ids beyond their number were stored in too small a type, modulo 256."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    library = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 300}, unk_token="a"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    settings = {"name": "hf", "path": str(tmp_path), "revision": "main"}
    tokenizer = build_tokenizer(settings, None)  # type: ignore[arg-type]
    assert tokenizer.vocab_size == 301
    assert tokenizer.encode(b"a b c")[0].tolist() == [0, 1, 300]
