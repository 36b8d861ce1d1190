"""`posenc train --dry-run`: what it would take; nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.cli.dry_run import store_for
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


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern!r} in\n{text}"
    return float(found[1].replace(",", ""))


def test_its_sizes_are_those_of_the_run_and_it_writes_nothing(place: Path, corpus: Path) -> None:
    """As a process, with a cache of its own: not even a lock is left."""
    env = {"POSENC_CACHE": str(place / "cache"), "HOME": str(place)}
    arguments = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=t5"]
    result = tiny.spawn(*arguments, "--dry-run", cwd=place, **env)
    assert result.code == 0 and result.err == "", result.err
    assert [path for path in place.rglob("*") if path.is_file()] == []
    assert tiny.spawn(*arguments, cwd=place, **env).code == 0
    (path,) = (place / "runs" / "default").iterdir()
    facts, out = load_run(path).facts, result.out
    assert facts is not None and f"runs/default/{path.name}" in out and "\n            new" in out
    total = facts["parameters"]["total"]
    parts = re.search(r"parameters +([\d,]+): (.*)", out)
    assert parts is not None and int(parts[1].replace(",", "")) == total
    assert sum(int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", parts[2])) == total
    assert number(out, r"([\d,]+) steps *\n") == facts["steps"]
    assert "a batch is (8, 16): 128 tokens" in out and "60 documents" in out
    assert facts["corpus"]["fingerprint"][:8] in out and "not tokenised yet" in out
    checkpoints = sum(p.stat().st_size for p in (path / "checkpoints").rglob("*.safetensors"))
    assert number(out, r"disk +([\d,]+) MB") == pytest.approx(2 * checkpoints / 1e6, abs=1.1)
    if facts["peak_memory_bytes"] is not None:
        peak = number(out, r"about ([\d,]+) MB at its peak") * 1e6
        assert 0.5 < peak / facts["peak_memory_bytes"] < 1.5
    before = tree(place)
    again = tiny.spawn(*arguments, "--dry-run", cwd=place, **env)
    assert again.code == 0 and tree(place) == before
    assert "finished: the command would only print its table" in again.out and ": cached" in again.out
    assert "about 0:00" in again.out


def test_a_run_that_would_be_continued_says_where(train: Posenc, run_copy: Path) -> None:
    (run_copy / "status.json").write_text('{"status": "interrupted"}')
    before = tree(run_copy)
    result = train("encoding=rope", "--dry-run")
    assert result.code == 0 and "interrupted, would continue at step 40" in result.out, result
    (run_copy / "status.json").write_text('{"status": "diverged"}')
    assert "would refuse" in train("encoding=rope", "--dry-run").out
    assert "\n            new" in train("encoding=rope", "--dry-run", "--retry").out
    assert set(tree(run_copy)) == set(before)


def test_a_sweep_is_a_table_with_the_time_of_what_is_left(train: Posenc, run_copy: Path, place: Path) -> None:
    before = tree(place)
    result = train("-m", "encoding=rope,alibi", "seed=0,1", "--dry-run")
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if re.match(r"(rope|alibi)-", line)]
    assert len(lines) == 4 and lines[0].endswith("finished") and lines[3].rstrip().endswith("new")
    assert "4 jobs, 3 to run" in result.out and tree(place) == before


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
    store, real = store_for(facts, {"name": "bytes"})
    assert not real and not (place / "cache").exists()
    for split, some in store.splits.items():
        assert int(some.lengths.sum()) == facts.bytes[split] and len(some.ids) == facts.documents[split]
    bpe, real = store_for(facts, {"name": "bpe", "vocab_size": 400})
    assert not real and bpe.vocab_size == 400 and not (place / "cache").exists()
    assert 0.3 < len(bpe.tokens) / len(store.tokens) < 0.4


@pytest.mark.parametrize(("load", "warned"), [(0.1, False), (1e3, True)])
def test_an_estimate_beside_other_work_says_so(
    train: Posenc, monkeypatch: pytest.MonkeyPatch, load: float, warned: bool
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    result = train("encoding=nope", "--dry-run")
    assert result.code == 0 and ("several times too long" in result.out) == warned, result
