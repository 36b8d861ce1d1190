"""`posenc data list|info|prepare` as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from posenc.core.atomic_files import write_sealed
from posenc.core.paths import conf_dir
from posenc.data import cached_of, prepare, read_documents, read_facts
from posenc.data.entry import cached_tokens

Posenc = Callable[..., Any]


@pytest.fixture
def own_cache(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own; `place` has the shared one."""
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "own"


def test_list_names_every_corpus_in_80_columns(posenc: Posenc, own_cache: Path) -> None:
    result = posenc("data", "list")
    assert result.code == 0 and not result.err
    lines = result.out.splitlines()
    assert max(len(line) for line in lines if str(own_cache) not in line) <= 80
    for path in (conf_dir() / "data").glob("*.yaml"):
        assert sum(line.startswith(f"{path.stem} ") for line in lines) == 1, path.stem
    for word in ("BSD", "CC BY-SA", "ODC-By 1.0", "15.8 MB", "needed", "network", str(own_cache)):
        assert word in " ".join(result.out.split())
    assert not own_cache.exists()


def test_list_says_what_is_cached(posenc: Posenc, corpus: Path, own_cache: Path) -> None:
    files = ("data=files", f"data.paths={corpus}")
    before = {row["name"]: row for row in json.loads(posenc("data", "list", "--json").out)}
    assert before["files"]["cached"] == [] and before["wikitext2"]["network"]
    assert not before["sympy"]["network"] and all(row["licence"] and row["size"] for row in before.values())
    done = posenc("data", "prepare", *files, "tokenizer=bpe", "tokenizer.vocab_size=300")
    assert done.code == 0 and "300" not in done.out and "tokens of bpe" in done.err
    assert "tokens of bytes" in done.err and str(own_cache) in done.err
    after = {row["name"]: row for row in json.loads(posenc("data", "list", "--json").out)}
    kinds = {row["tokenizer"]: row for row in after["files"]["cached"]}
    assert set(kinds) == {"bpe", "bytes"} and kinds["bpe"]["vocab_size"] == 300
    for row in kinds.values():
        size = sum(path.stat().st_size for path in Path(row["path"]).iterdir())
        assert 0 < row["tokens"] <= row["bytes_on_disk"] <= size
    assert "bpe (300)" in " ".join(posenc("data", "list").out.split())
    assert not after["sympy"]["cached"]


def test_tokens_of_unknown_text_are_not_called_a_pinned_corpus(own_cache: Path) -> None:
    manifest = {
        "layout": 1, "corpus": "pg19", "fingerprint": "f", "tokenizer_name": "bytes",
        "vocab_size": 256, "dtype": "|u1", "files": {"tokens.bin": "0"},
    }  # fmt: skip
    write_sealed(own_cache / "tokens" / "x" / "manifest.json", manifest)
    (own_cache / "tokens" / "x" / "tokens.bin").write_bytes(b"12345")
    damaged = own_cache / "tokens" / "y" / "manifest.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    assert [row["tokens"] for row in cached_tokens()] == [5]
    data = yaml.safe_load((conf_dir() / "data" / "pg19.yaml").read_text())
    assert cached_of(data) == []  # another revision or limit, for all that is known
    assert len(cached_of({"name": "pg19", "source": "files"})) == 1


def test_tokens_of_a_pinned_text_are_its_own_under_any_name(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {
        "layout": 1, "corpus": "mine", "fingerprint": "f", "tokenizer_name": "bytes",
        "vocab_size": 256, "dtype": "|u1", "files": {"tokens.bin": "0"},
    }  # fmt: skip
    for name, fingerprint in (("x", "f"), ("y", "g")):
        write_sealed(own_cache / "tokens" / name / "manifest.json", {**manifest, "fingerprint": fingerprint})
        (own_cache / "tokens" / name / "tokens.bin").write_bytes(b"12345")
    monkeypatch.setattr("posenc.data.listing.known_figures", lambda pinned: {"fingerprint": "f"})
    data = yaml.safe_load((conf_dir() / "data" / "wikitext2.yaml").read_text())
    assert [Path(row["path"]).name for row in cached_of(data)] == ["x"]


def test_info_counts_what_fits(posenc: Posenc, tmp_path: Path, own_cache: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(80):
        (texts / f"{i}.txt").write_text("x" * (64 * (i + 1)))
    asked = ("data", "info", "data=files", f"data.paths={texts}", "context_length=100")
    result = posenc(*asked)
    assert result.code == 0 and max(map(len, result.out.splitlines())) <= 80 and not result.err
    facts = json.loads(posenc(*asked, "--json").out)
    assert facts["fingerprint"] in result.out
    splits = facts["splits"]
    assert sum(split["documents"] for split in splits.values()) == 80
    assert sum(split["bytes"] for split in splits.values()) == 64 * 80 * 81 // 2
    longest = splits["test"]["longest"] - 1
    data = {"name": "files", "source": "files", "paths": str(texts), "text_field": "text",
            "split": {"validation": 0.1, "test": 0.2}}  # fmt: skip
    lengths = {d.id: (d.split, len(d.text)) for d in read_documents(data)}.values()
    assert 100 in [row["context_length"] for row in facts["lengths"]]
    for row in facts["lengths"]:
        length = row["context_length"]
        for key, split, window in (
            ("train_documents", "train", length),
            ("test_documents", "test", length),
            ("test_documents_8x", "test", 8 * length),
        ):
            assert row[key] == sum(s == split and size > window for s, size in lengths), (key, length)
        if longest < length:
            assert row["longest_window"] is None and row["longest_multiple"] is None
        else:
            assert (
                row["longest_window"]
                == row["longest_multiple"] * length
                <= longest
                < 2 * row["longest_window"]
            )
    assert f"the longest window of all is {longest:,}" in result.out
    assert not (own_cache / "tokens").exists()
    far = posenc(*asked[:-1], "context_length=100000")
    (line,) = [line.split() for line in far.out.splitlines() if line.split()[:1] == ["100000"]]
    assert far.code == 0 and line == ["100000", "0", "0,", "0", "none"]


def test_a_length_between_powers_of_two_is_counted_from_the_bytes(posenc: Posenc, corpus: Path) -> None:
    """Where the text was let go of, its cached bytes say the same."""
    data = {"name": "files", "source": "files", "paths": str(corpus), "text_field": "text",
            "split": {"validation": 0.2, "test": 0.2}}  # fmt: skip
    facts = read_facts(data)
    windows = [3, 100, facts.longest["train"] - 1, facts.longest["train"], 10**9]
    before = [facts.reaching("train", window) for window in windows]
    sizes = [len(document.text) for document in read_documents(data) if document.split == "train"]
    assert before == [sum(size > window for size in sizes) for window in windows]
    assert before[0] and before[2] and before[3:] == [0, 0]
    prepare(data, {"name": "bytes"}, facts=facts)
    assert facts.loaded is None
    assert [facts.reaching("train", window) for window in windows] == before
    assert facts.loaded is None


def test_what_info_calls_the_longest_works_and_twice_that_does_not(
    posenc: Posenc, corpus: Path, own_cache: Path
) -> None:
    files = ("data=files", f"data.paths={corpus}")
    facts = json.loads(posenc("data", "info", *files, "--json").out)
    row = next(row for row in facts["lengths"] if row["context_length"] == 64)
    window = row["longest_window"]
    assert window is not None
    train = ("train", *files, "experiment=smoke", "train.tokens=2048", "eval.max_targets=64")
    assert posenc(*train, f"eval.lengths=[64,{window}]").code == 0
    refused = posenc(*train, f"eval.lengths=[64,{2 * window}]")
    assert refused.code == 2 and "the longest that works is" in refused.err


@pytest.mark.parametrize("verb", ["info", "prepare"])
def test_wrong_input_is_exit_2(posenc: Posenc, own_cache: Path, verb: str) -> None:
    for wrong, near in (
        ("data=tinystory", "tinystories"),
        ("data.bytes=1e9", "data"),
        ("data=files", "paths"),
        ("context_length=-1", "from 2"),
    ):
        result = posenc("data", verb, wrong)
        assert result.code == 2 and near in result.err and not result.out


def test_prepare_is_enough_to_train_without_the_text(
    posenc: Posenc, corpus: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pinned corpus: after `prepare` nobody opens its source, for training, measuring and the trigram."""
    from posenc.data.sources import hub

    rows = {"train": ["word " * 400] * 6, "validation": ["held " * 400] * 2, "test": ["test " * 400] * 4}

    class Column:
        column_names = ("text",)

        def __init__(self, texts: list[str]) -> None:
            self.texts = texts

        def __getitem__(self, field: str) -> list[str]:
            return self.texts

    monkeypatch.setattr(hub, "_load", lambda *_: {split: Column(some) for split, some in rows.items()})
    asked = ("data=wikitext2", "data.rows=documents", "tokenizer=bpe", "tokenizer.vocab_size=260")
    assert posenc("data", "prepare", *asked).code == 0

    def gone(*_: object) -> None:
        raise AssertionError("the source was opened")

    monkeypatch.setattr(hub, "_load", gone)
    small = ("experiment=smoke", "train.tokens=2048", "context_length=16", "eval.lengths=[1x,2x]")
    done = posenc("train", *asked, *small)
    assert done.code == 0 and "trigram" in done.out, done.err
