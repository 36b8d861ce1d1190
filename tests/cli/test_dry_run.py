"""`posenc train --dry-run`: what it would take; nothing is written, wrong input is refused as always."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.cli.dry_run import store_for
from posenc.data import inspect
from posenc.results.load import load_run

Posenc = Callable[..., tiny.Result]


@pytest.fixture(autouse=True)
def online_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run keeps its process off the network; this one goes on."""
    monkeypatch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    monkeypatch.setattr("posenc.cli.dry_run.go_offline", lambda: None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenc.cli.dry_run.SECONDS", 0.1)


def tree(*folders: Path) -> dict[Path, tuple[int, int]]:
    paths = [path for folder in folders for path in folder.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern!r} in\n{text}"
    return float(found[1].replace(",", ""))


def test_it_tells_sizes_that_are_right_and_writes_nothing(place: Path, corpus: Path) -> None:
    """As a process, with a cache of its own: not even a lock is left."""
    cache = place / "cache"
    arguments = [*tiny.TINY, f"data.paths={corpus}", "encoding=t5"]
    result = tiny.spawn("train", *arguments, "--dry-run", cwd=place, POSENC_CACHE=str(cache), HOME=str(place))
    assert result.code == 0 and result.err == "", result.err
    assert [path for path in place.rglob("*") if path.is_file()] == []
    out = result.out
    real = tiny.spawn("train", *arguments, cwd=place, POSENC_CACHE=str(cache))
    assert real.code == 0
    (path,) = (place / "runs" / "default").iterdir()
    run = load_run(path)
    assert run.facts is not None
    assert f"runs/default/{path.name}" in out and "\n            new" in out
    assert number(out, r"parameters +([\d,]+):") == run.facts["parameters"]["total"]
    parts = re.search(r"parameters .*: (.*)", out)
    assert parts is not None
    assert (
        sum(int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", parts[1]))
        == run.facts["parameters"]["total"]
    )
    assert number(out, r"([\d,]+) steps *\n") == run.facts["steps"]
    assert "a batch is (8, 16): 128 tokens" in out and "60 documents" in out
    assert run.facts["corpus"]["fingerprint"][:8] in out
    assert "not tokenised yet" in out
    checkpoints = sum(p.stat().st_size for p in (path / "checkpoints").rglob("*.safetensors"))
    assert number(out, r"disk +([\d,]+) MB") == pytest.approx(2 * checkpoints / 1e6, abs=1.1)
    peak = run.facts["peak_memory_bytes"]
    if peak is not None:
        assert 0.5 < number(out, r"about ([\d,]+) MB at its peak") * 1e6 / peak < 1.5
    before = tree(place)
    again = tiny.spawn("train", *arguments, "--dry-run", cwd=place, POSENC_CACHE=str(cache), HOME=str(place))
    assert again.code == 0 and tree(place) == before
    assert "finished: the command would only print its table" in again.out and ": cached" in again.out
    assert "about 0:00" in again.out


def test_a_run_that_would_be_continued_says_where(train: Posenc, run_copy: Path) -> None:
    (run_copy / "status.json").write_text('{"status": "interrupted"}')
    step = next((run_copy / "checkpoints").iterdir())
    before = tree(run_copy)
    result = train("encoding=rope", "--dry-run")
    assert result.code == 0 and "interrupted, would continue at step 40" in result.out, result
    (run_copy / "status.json").write_text('{"status": "diverged"}')
    assert "would refuse" in train("encoding=rope", "--dry-run").out
    assert step.is_dir() and set(tree(run_copy)) == set(before)


def test_a_sweep_is_a_table_with_the_time_of_what_is_left(train: Posenc, run_copy: Path, place: Path) -> None:
    before = tree(place)
    result = train("-m", "encoding=rope,alibi", "seed=0,1", "--dry-run")
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if re.match(r"(rope|alibi)-", line)]
    assert len(lines) == 4 and lines[0].endswith("finished") and lines[3].rstrip().endswith("new")
    assert "4 jobs, 3 to run" in result.out
    assert tree(place) == before


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["encoding=roppe"], "did you mean: rope"),
        (["eval.lengths=[1000x]"], "longest that works"),
        (["-m", "encoding=rope,alibi", "seed=0,-1"], "in job 2 of 4"),
        (["model.n_heads=3"], "model.d_model"),
    ],
)
def test_wrong_input_is_exit_2(train: Posenc, place: Path, overrides: list[str], says: str) -> None:
    result = train(*overrides, "--dry-run")
    assert (result.code, result.out) == (2, "") and says in result.err
    assert not list(place.iterdir())


def test_a_corpus_that_is_not_here_is_not_fetched(posenc: Posenc, place: Path) -> None:
    result = posenc("train", "data=wikitext103", "--dry-run")
    assert (result.code, result.out) == (1, "")
    assert "posenc data prepare data=wikitext103" in result.err


def test_a_length_that_is_refused_is_told(train: Posenc) -> None:
    result = train("encoding=learned", "encoding.beyond=refuse", "--dry-run")
    assert result.code == 0 and "fixed-target at 32: refused" in result.out, result


def test_random_tokens_have_the_documents_lengths(place: Path, corpus: Path) -> None:
    data = {"name": "files", "source": "files", "paths": str(corpus), "text_field": "text"}
    data["split"] = {"validation": 0.1, "test": 0.2}  # type: ignore[assignment]
    shutil.rmtree(place / "cache", ignore_errors=True)
    os.environ["POSENC_CACHE"] = str(place / "cache")
    facts = inspect(data, {"name": "bytes"}, split="test", needed_tokens=65, context_length=16)
    store, real = store_for(facts, {"name": "bytes"})
    assert not real and not (place / "cache").exists()
    for split, some in store.splits.items():
        assert int(some.lengths.sum()) == facts.bytes[split] and len(some.ids) == facts.documents[split]
    assert len(store.tokens) == sum(facts.bytes.values())
    bpe, real = store_for(facts, {"name": "bpe", "vocab_size": 400})
    assert not real and bpe.vocab_size == 400 and not (place / "cache").exists()
    assert 0.3 < len(bpe.tokens) / len(store.tokens) < 0.4


@pytest.mark.parametrize(("load", "told"), [(0.1, False), (1e3, True)])
def test_an_estimate_beside_other_work_says_so(
    train: Posenc, monkeypatch: pytest.MonkeyPatch, load: float, told: bool
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    result = train("encoding=nope", "--dry-run")
    assert result.code == 0 and ("several times too long" in result.out) == told, result
