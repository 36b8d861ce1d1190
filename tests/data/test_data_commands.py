"""`posenc data list|info|prepare` as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import conf

from posenc.core.atomic_files import write_sealed
from posenc.core.paths import conf_dir
from posenc.data import cached_of, corpus, hub, read_documents
from posenc.data.token_cache import cached_tokens

Posenc = Callable[..., Any]


@pytest.fixture
def own_cache(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own; `place` has the shared one."""
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "own"


def test_list_names_every_corpus_and_what_is_cached(posenc: Posenc, corpus: Path, own_cache: Path) -> None:
    result = posenc("data", "list")
    assert result.code == 0 and not result.err and not own_cache.exists()
    lines = result.out.splitlines()
    assert max(len(line) for line in lines if str(own_cache) not in line) <= 80
    for path in (conf_dir() / "data").glob("*.yaml"):
        assert sum(line.startswith(f"{path.stem} ") for line in lines) == 1, path.stem
    for word in ("BSD", "CC BY-SA", "15.8 MB", "needed", "network", str(own_cache)):
        assert word in " ".join(result.out.split())
    asked = ("data=files", f"data.paths={corpus}", "tokenizer=bpe", "tokenizer.vocab_size=300")
    done = posenc("data", "prepare", *asked)
    assert done.code == 0 and "300" not in done.out and str(own_cache) in done.err
    assert "tokens of bpe" in done.err and "tokens of bytes" in done.err
    rows = {row["name"]: row for row in json.loads(posenc("data", "list", "--json").out)}
    assert rows["wikitext2"]["network"] and not rows["sympy"]["network"] and not rows["sympy"]["cached"]
    assert all(row["licence"] and row["size"] for row in rows.values())
    kinds = {row["tokenizer"]: row for row in rows["files"]["cached"]}
    assert set(kinds) == {"bpe", "bytes"} and kinds["bpe"]["vocab_size"] == 300
    for row in kinds.values():
        size = sum(path.stat().st_size for path in Path(row["path"]).iterdir())
        assert 0 < row["tokens"] <= row["bytes_on_disk"] <= size
    assert "bpe (300)" in " ".join(posenc("data", "list").out.split())


def test_cached_tokens_belong_to_the_text_not_to_the_name(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {
        "layout": 1, "corpus": "pg19", "tokenizer_name": "bytes",
        "vocab_size": 256, "dtype": "|u1", "files": {"tokens.bin": "0"},
    }  # fmt: skip
    for name in ("x", "y"):
        write_sealed(own_cache / "tokens" / name / "manifest.json", {**manifest, "fingerprint": name})
        (own_cache / "tokens" / name / "tokens.bin").write_bytes(b"12345")
    damaged = own_cache / "tokens" / "z" / "manifest.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    assert [row["tokens"] for row in cached_tokens()] == [5, 5]
    assert cached_of(conf("pg19")) == []  # another revision or limit, for all that is known
    assert len(cached_of({"name": "pg19", "source": "files"})) == 2
    monkeypatch.setattr(corpus, "known_figures", lambda pinned: {"fingerprint": "x"})
    assert [Path(row["path"]).name for row in cached_of(conf("wikitext2"))] == ["x"]


def test_info_counts_what_fits(posenc: Posenc, tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "sized"
    folder.mkdir()
    for i in range(80):
        (folder / f"{i}.txt").write_text("x" * (64 * (i + 1)))
    asked = ("data", "info", "data=files", f"data.paths={folder}", "context_length=100")
    result = posenc(*asked)
    assert result.code == 0 and max(map(len, result.out.splitlines())) <= 80 and not result.err
    facts = json.loads(posenc(*asked, "--json").out)
    assert facts["fingerprint"] in result.out and not (own_cache / "tokens").exists()
    splits = facts["splits"]
    assert sum(split["documents"] for split in splits.values()) == 80
    assert sum(split["bytes"] for split in splits.values()) == 64 * 80 * 81 // 2
    longest = splits["test"]["longest"] - 1
    documents = read_documents(conf("files", paths=str(folder)))
    assert 100 in [row["context_length"] for row in facts["lengths"]]
    for row in facts["lengths"]:
        length = row["context_length"]
        for key, split, window in (
            ("train_documents", "train", length),
            ("test_documents", "test", length),
            ("test_documents_8x", "test", 8 * length),
        ):
            assert row[key] == sum(d.split == split and len(d.text) > window for d in documents), (key, row)
        if longest < length:
            assert row["longest_window"] is None and row["longest_multiple"] is None
        else:
            window = row["longest_window"]
            assert window == row["longest_multiple"] * length <= longest < 2 * window
    far = posenc(*asked[:-1], "context_length=100000")
    (line,) = [line.split() for line in far.out.splitlines() if line.split()[:1] == ["100000"]]
    assert far.code == 0 and line == ["100000", "0", "0,", "0", "none"]


def test_prepare_is_enough_to_train_without_the_text(
    posenc: Posenc, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pinned corpus: after `prepare` nobody opens its source, for training, measuring and the trigram."""
    rows = {"train": ["word " * 400] * 6, "validation": ["held " * 400] * 2, "test": ["test " * 400] * 4}

    class Column:
        column_names = ("text",)

        def __init__(self, texts: list[str]) -> None:
            self.texts = texts

        def __getitem__(self, field: str) -> list[str]:
            return self.texts

    monkeypatch.setattr(hub, "load", lambda *_: {split: Column(some) for split, some in rows.items()})
    asked = ("data=wikitext2", "data.rows=documents", "tokenizer=bpe", "tokenizer.vocab_size=260")
    assert posenc("data", "prepare", *asked).code == 0

    def gone(*_: object) -> None:
        raise AssertionError("the source was opened")

    monkeypatch.setattr(hub, "load", gone)
    small = ("experiment=smoke", "train.tokens=2048", "context_length=16", "eval.lengths=[1x,2x]")
    done = posenc("train", *asked, *small)
    assert done.code == 0 and "trigram" in done.out, done.err
