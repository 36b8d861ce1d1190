"""`posenc train --dry-run`: what it would take; nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.cli.dry_run import random_store
from posenc.data import inspect
from posenc.results.load import load_run

Posenc = Callable[..., tiny.Result]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short estimates; and a dry run keeps its process off the network, while this one goes on."""
    monkeypatch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    monkeypatch.setattr("posenc.cli.dry_run.go_offline", lambda: None)
    monkeypatch.setattr("posenc.cli.dry_run.SECONDS", 0.1)


def tree(*folders: Path) -> dict[Path, tuple[int, int]]:
    paths = [path for folder in folders for path in folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def test_its_sizes_are_those_of_the_run_and_it_writes_nothing(
    posenc: Posenc, place: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache of its own: not even a lock is left."""
    monkeypatch.setenv("POSENC_CACHE", str(place / "cache"))
    arguments = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=t5"]
    result = posenc(*arguments, "--dry-run")
    assert result.code == 0 and result.err == "" and " to run" in result.out, result.err
    assert [path for path in place.rglob("*") if path.is_file()] == []
    assert posenc(*arguments).code == 0
    (path,) = (place / "runs" / "default").iterdir()
    facts, out = load_run(path).facts, result.out
    assert facts is not None and f"runs/default/{path.name}" in out
    total, steps = facts["parameters"]["total"], facts["steps"]
    assert f"parameters {total:,}: " in out and f"{steps:,} steps, a batch is (8, 16): 128 tokens" in out
    assert "60 documents" in out and facts["corpus"]["fingerprint"][:8] in out
    checkpoints = sum(p.stat().st_size for p in (path / "checkpoints").rglob("*.safetensors"))
    (shown,) = re.findall(r"disk +([\d,]+) MB", out)
    assert float(shown) == pytest.approx(2 * checkpoints / 1e6, abs=1.1)
    before = tree(place)
    again = posenc(*arguments, "--dry-run")
    assert again.code == 0 and tree(place) == before
    assert " finished" in again.out and "about 0:00 for 1 job" in again.out


def test_states_and_a_sweep(train: Posenc, run_copy: Path, place: Path) -> None:
    result = train("-m", "encoding=rope,alibi", "seed=0,1", "--dry-run")
    assert result.code == 0, result.err
    lines = [line.rstrip() for line in result.out.splitlines() if re.match(r"(rope|alibi)-", line)]
    assert len(lines) == 4 and lines[0].endswith("finished") and lines[3].endswith("to run")
    assert "4 jobs, one after the other" in result.out
    (run_copy / "status.json").write_text('{"status": "diverged"}')
    before = tree(place)
    assert " diverged" in train("encoding=rope", "--dry-run").out
    assert " diverged" not in train("encoding=rope", "--dry-run", "--retry").out
    assert tree(place) == before


def test_what_cannot_be_measured_or_fetched_is_named(train: Posenc, posenc: Posenc) -> None:
    refused = train("encoding=learned", "encoding.beyond=refuse", "--dry-run")
    assert refused.code == 0 and "fixed-target at 32: refused" in refused.out, refused
    away = posenc("train", "data=wikitext103", "--dry-run")
    assert (away.code, away.out) == (1, "") and "posenc data prepare data=wikitext103" in away.err


def test_random_tokens_have_the_documents_lengths(
    place: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": "files", "source": "files", "paths": str(corpus), "text_field": "text"}
    data |= {"split": {"validation": 0.1, "test": 0.2}}  # type: ignore[dict-item]
    monkeypatch.setenv("POSENC_CACHE", str(place / "cache"))
    facts = inspect(data, {"name": "bytes"}, split="test", needed_tokens=65, context_length=16)
    store = random_store(facts, {"name": "bytes"})
    for split, some in store.splits.items():
        assert int(some.lengths.sum()) == sum(facts.sizes[split]) and len(some.ids) == len(facts.sizes[split])
    bpe = random_store(facts, {"name": "bpe", "vocab_size": 400})
    assert bpe.vocab_size == 400 and not (place / "cache").exists()
    assert 0.3 < len(bpe.tokens) / len(store.tokens) < 0.4
