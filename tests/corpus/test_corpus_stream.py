"""Streams: read once, document by document, from a folder laid out like a data set of the hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub_server import COMMIT, Hub, serving

from posenc import durable
from posenc.corpus import (
    entry,
    inspect,
    prepare,
    read_documents,
    read_facts,
    registry,
    streamed,
    tokenizers,
)
from posenc.corpus.documents import fingerprint
from posenc.corpus.sources import stream
from posenc.errors import RunError, UserError
from posenc.paths import conf_dir

BYTES = {"name": "bytes"}
BPE = {"name": "bpe", "vocab_size": 290}
Repository = Callable[..., Path]


def conf(name: str, **changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text())
    return {**data, **changes}


def story(i: int) -> str:
    return f"Story {i} naïve 🙂: " + "once upon a time " * (i % 9 + 1)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A data set of parquet files as it lies on the hub, in several row groups and shards."""

    def make(name: str = "repository", rows: dict[str, list[Any]] | None = None, group: int = 10) -> Path:
        rows = rows or {
            "train": [story(i) for i in range(60)],
            "validation": [story(i) for i in range(60, 80)],
        }
        for split, texts in rows.items():
            half = len(texts) // 2
            for shard, some in enumerate((texts[:half], texts[half:])):
                path = tmp_path / name / "data" / f"{split}-{shard:05d}-of-00002.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                table = pa.table(
                    {"title": [str(i) for i in range(len(some))], "text": pa.array(some, pa.string())}
                )
                pq.write_table(table, path, row_group_size=group)
        return tmp_path / name

    return make


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every corpus that is streamed."""
    seen: list[str] = []
    whole = registry.stream_documents

    def counted(data: dict[str, Any]) -> Iterator[Any]:
        seen.append(data["name"])
        return whole(data)

    monkeypatch.setattr(streamed, "stream_documents", counted)
    return seen


@pytest.mark.parametrize("name", ["pg19", "tinystories", "fineweb_edu"])
def test_settings_are_pinned_and_whole(name: str) -> None:
    data = conf(name)
    identity = registry.pinned_identity(data)
    assert identity is not None and len(identity["revision"]) == 40
    assert {"repository", "config", "splits", "documents", "bytes"} <= set(identity)
    sides = {side for shares in data["splits"].values() for side in shares}
    assert sides == {"train", "validation", "test"}


def test_rows_become_documents_in_their_splits(repository: Repository) -> None:
    data = conf("tinystories", repository=str(repository()))
    found = read_documents(data)
    assert [d.id for d in found] == sorted(d.id for d in found)
    train = [d for d in found if d.split == "train"]
    assert [d.text.decode() for d in train] == [story(i) for i in range(60)]
    assert [d.id for d in train[:2]] == ["train/000000000", "train/000000001"]
    held_out = [d for d in found if d.split != "train"]
    assert {d.text.decode() for d in held_out} == {story(i) for i in range(60, 80)}
    sides = [d.split for d in held_out]
    assert 4 <= sides.count("validation") <= 16 and sides.count("test") == 20 - sides.count("validation")


def test_copies_are_never_on_both_sides_and_blank_rows_are_left_out(repository: Repository) -> None:
    rows = {"train": [story(i % 20) for i in range(60)] + ["", "  \n", None]}
    found = read_documents(conf("fineweb_edu", config=None, repository=str(repository(rows=rows))))
    assert len(found) == 60
    sides: dict[bytes, set[str | None]] = {}
    for document in found:
        sides.setdefault(document.text, set()).add(document.split)
    assert len(sides) == 20 and all(len(some) == 1 for some in sides.values())


def test_shares_are_kept(repository: Repository) -> None:
    rows = {"train": [f"page {i}" for i in range(4000)]}
    found = read_documents(
        conf("fineweb_edu", config=None, repository=str(repository(rows=rows, group=1000)))
    )
    share = {side: sum(d.split == side for d in found) / 4000 for side in ("train", "validation", "test")}
    assert share == pytest.approx({"train": 0.9, "validation": 0.03, "test": 0.07}, abs=0.015)


def test_limits_take_the_first_rows_of_each_split(repository: Repository) -> None:
    data = conf("tinystories", repository=str(repository()))
    few = read_documents({**data, "documents": 7})
    rows = [d.id for d in few]
    assert rows == [f"{split}/{i:09d}" for split in ("train", "validation") for i in range(7)]
    size = len("".join(story(i) for i in range(5)).encode())
    for limit, count in ((size, 5), (size + 1, 5), (size - 1, 4)):
        found = [d for d in read_documents({**data, "bytes": limit}) if d.split == "train"]
        assert len(found) == count and sum(len(d.text) for d in found) <= limit
    whole = read_documents({**data, "bytes": None})
    few_again = {d.id: d for d in few}
    assert all(d == few_again[d.id] for d in whole if d.id in few_again)  # a limit moves no document


def test_a_split_of_copies_is_refused_again_and_again(repository: Repository, reads: list[str]) -> None:
    texts = [story(i) for i in range(60)]
    data = conf("tinystories", repository=str(repository(rows={"train": texts, "validation": texts[:20]})))
    for _ in range(2):
        with pytest.raises(UserError, match="same text as one of the training split"):
            inspect(data, BYTES, split="test", needed_tokens=9, context_length=8)
    assert inspect(data, BYTES, split="test", needed_tokens=9, context_length=None).repeats
    read_facts(data)
    assert not read_facts(conf("tinystories", repository=str(repository("other")))).repeats


def test_it_is_streamed_once_for_all_tokenizers(
    repository: Repository, reads: list[str], cache: Path
) -> None:
    data = conf("tinystories", repository=str(repository()))
    facts = read_facts(data)
    assert reads == ["tinystories"] and facts.loaded is None
    documents = read_documents(data)
    assert facts.fingerprint == fingerprint(documents)
    assert facts.train_fingerprint == fingerprint(d for d in documents if d.split == "train")
    for tokenizer in (BYTES, BPE):
        store = prepare(data, tokenizer, facts)
        for split, some in store.splits.items():
            mine = [d for d in documents if d.split == split]
            assert some.ids == [d.id for d in mine]
            sizes = store.bytes_between(some.starts, some.starts + some.lengths)
            assert sizes.tolist() == [len(d.text) for d in mine]
    assert store.tokenizer["name"] == "tokenizers"
    assert reads == ["tinystories"]
    assert not list((cache / "tokens").glob(".*"))


def test_the_cached_tokens_are_the_text(repository: Repository) -> None:
    rows = {"train": [story(i) for i in range(30)], "validation": ["held " * 9] * 4}
    store = prepare(conf("tinystories", repository=str(repository(rows=rows))), BYTES)
    train = store.splits["train"]
    start, size = int(train.starts[0]), int(train.lengths.sum())
    assert store.tokens[start : start + size].tobytes() == "".join(rows["train"]).encode()


def test_what_holds_a_window_is_counted(repository: Repository) -> None:
    facts = read_facts(conf("tinystories", repository=str(repository(rows={
        "train": ["x" * 64, "x" * 65, "x" * 129, "x" * 1000], "validation": ["y" * 300, "z" * 20],
    }))))  # fmt: skip
    held = facts.holding["train"]
    assert (held[6], held[7], held[8], held[9]) == (3, 2, 1, 1) and len(held) == 10


def test_a_pinned_stream_is_known_without_asking_again(
    repository: Repository, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository()
    monkeypatch.setattr(stream, "_local", lambda _: False)
    local = stream.load
    monkeypatch.setattr(stream, "load", lambda r, c, v, **more: local(str(folder), c, None, **more))
    data = conf("tinystories")
    first = read_facts(data)
    store = prepare(data, BYTES)
    again = read_facts(data)
    assert reads == ["tinystories"] and again == first and store.fingerprint == again.fingerprint
    assert first.identity["revision"] == data["revision"] and "fingerprint" not in first.identity
    ids = [
        registry.pinned_identity({**data, **change})
        for change in ({}, {"bytes": 1000}, {"documents": 5}, {"revision": "0" * 40},
                       {"splits": {"train": {"train": 1}}})
    ]  # fmt: skip
    assert len({json.dumps(one, sort_keys=True) for one in ids}) == 5
    assert registry.pinned_identity({**data, "bytes": 2e8}) == ids[0]  # however the number is written
    # the tokens thrown away, the facts kept: read again, and the same
    for path in entry.tokens_dir().glob("*/tokens.bin"):
        path.unlink()
    assert prepare(data, BPE).fingerprint == first.fingerprint
    assert reads == ["tinystories"] * 2


def test_other_text_under_the_same_name_is_noticed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository()
    other = repository("other", rows={"train": ["another text"] * 9, "validation": ["and more"] * 9})
    monkeypatch.setattr(stream, "_local", lambda _: False)
    local = stream.load
    monkeypatch.setattr(stream, "load", lambda r, c, v, **more: local(str(folder), c, None, **more))
    facts = read_facts(conf("tinystories"))
    for path in entry.tokens_dir().glob("*/tokens.bin"):
        path.unlink()
    monkeypatch.setattr(stream, "load", lambda r, c, v, **more: local(str(other), c, None, **more))
    with pytest.raises(RunError, match="not what it was"):
        prepare(conf("tinystories"), BYTES, facts)


@pytest.mark.parametrize(
    ("change", "key", "near"),
    [
        ({"documents": 0}, "data.documents", "1 and more"),
        ({"bytes": float("inf")}, "data.bytes", "1 and more"),
        ({"bytes": "much"}, "data.bytes", "number"),
        ({"splits": {}}, "data.splits", "no split"),
        ({"splits": {"train": {"trian": 1}}}, "data.splits.train.trian", "train"),
        ({"splits": {"train": {"train": 0.5}}}, "data.splits.train", "sum"),
        ({"splits": {"train": {"train": -1, "test": 2}}}, "data.splits.train.train", "share"),
        ({"splits": {"train": 1}}, "data.splits.train", "SHARE"),
        ({"text": "story"}, "data.text", "data.text_field"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_read(
    change: dict[str, Any], key: str, near: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_facts(conf("tinystories", **change))
    assert caught.value.key == key and near in str(caught.value)


@pytest.mark.parametrize(
    ("change", "key", "near"),
    [
        ({"text_field": "story"}, "data.text_field", "title, text"),
        ({"splits": {"train": {"train": 1}, "dev": {"validation": 0.5, "test": 0.5}}}, "data.splits", "dev"),
        ({"config": "big"}, "data.config", "big"),
    ],
)
def test_what_the_data_set_does_not_have_is_named(
    repository: Repository, cache: Path, change: dict[str, Any], key: str, near: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_facts(conf("tinystories", repository=str(repository()), **change))
    assert caught.value.key == key and near in str(caught.value)
    assert not [path for path in (cache / "tokens").iterdir() if path.is_dir()]


def test_stories_that_are_too_short_name_the_longest_length_that_works(repository: Repository) -> None:
    data = conf("tinystories", repository=str(repository()))
    longest = read_facts(data).longest["test"] - 1
    with pytest.raises(UserError, match=f"the longest that works is {longest}\\b") as caught:
        inspect(data, BYTES, split="test", needed_tokens=513, context_length=64)
    assert caught.value.exit_code == 2 and caught.value.key == "eval.lengths"
    inspect(data, BYTES, split="test", needed_tokens=longest + 1, context_length=64)


@pytest.mark.parametrize("step", ["sync", "write_sealed", "sha256_of_file"])
def test_a_full_disk_leaves_nothing(
    repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    data = conf("tinystories", repository=str(repository()))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(entry, step, full)
        with pytest.raises(RunError, match="No space left") as caught:
            read_facts(data)
    assert "POSENC_CACHE" in str(caught.value)
    assert not [path for path in (cache / "tokens").iterdir() if path.is_dir()]
    assert read_facts(data).documents["train"] == 60


def test_a_disk_that_is_too_small_is_told_before_anything_is_read(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(durable, "free_bytes", lambda _: 10**6)
    with pytest.raises(RunError, match=r"not enough room in .* for up to 200 MB of text") as caught:
        read_facts(conf("tinystories", repository=str(repository())))
    assert "data.bytes" in str(caught.value) and not reads


SLOW = """
import json, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
from posenc.corpus import read_facts, streamed, tokenizers
whole = tokenizers.ByteTokenizer.encode
def encode(self, text):
    print("x", flush=True)
    time.sleep(0.05)
    return whole(self, text)
tokenizers.ByteTokenizer.encode = encode
facts = read_facts(json.loads(sys.argv[1]))
print(facts.fingerprint)
"""


def child(data: dict[str, Any], code: str = SLOW, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interruption_leaves_nothing_that_is_believed(
    repository: Repository, cache: Path, number: signal.Signals
) -> None:
    data = conf("tinystories", repository=str(repository()))
    victim = child(data)
    assert victim.stdout is not None
    for _ in range(3):
        assert victim.stdout.readline() == "x\n"
    victim.send_signal(number)
    victim.communicate()
    assert not list((cache / "tokens").glob("[!.]*/"))
    facts = read_facts(data)
    assert facts.documents["train"] == 60 and not list((cache / "tokens").glob(".*"))
    assert len(prepare(data, BYTES, facts).tokens) == sum(facts.bytes.values())


def test_many_at_once_stream_once(repository: Repository, tmp_path: Path) -> None:
    """Four processes want the same pinned stream."""
    folder = repository()
    code = SLOW.replace(
        "facts =",
        f"""
from posenc.corpus.sources import stream
local = stream.load
stream._local = lambda _: False
stream.load = lambda r, c, v, **more: local({str(folder)!r}, c, None, **more)
facts =""",
    )
    children = [child(conf("tinystories", documents=15), code) for _ in range(4)]
    ends = [one.communicate(timeout=120) for one in children]
    assert [one.returncode for one in children] == [0] * 4, ends
    prints = [out.split() for out, _ in ends]
    assert len({lines[-1] for lines in prints}) == 1
    assert sorted(len(lines) for lines in prints)[:3] == [1, 1, 1]
    assert sum("waiting for another process" in err for _, err in ends) >= 1


def test_memory_stays_small(repository: Repository) -> None:
    """100 MB of text in row groups of 1 MB; the whole of it at once would show."""
    rows = {"train": [f"{i:04d} " * 20000 for i in range(1000)], "validation": ["x" * 999] * 9}
    folder = repository(rows=rows, group=8)
    code = """
import json, resource, sys
from posenc.corpus import prepare, read_facts
import datasets
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = {**json.loads(sys.argv[1]), "documents": 20}
prepare(few, {"name": "bytes"}, read_facts(few))
before = peak()
facts = read_facts(json.loads(sys.argv[1]))
print(sum(facts.bytes.values()) / 1e6, peak() - before)
"""
    out, err = child(conf("tinystories", repository=str(folder)), code).communicate()
    text, more = map(float, out.split())
    assert text > 90 and more < text / 3, (text, more, err)


def posenc(hub: Hub, *arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The command with this hub for a hub."""
    start = f"{code}\nimport sys\nfrom posenc import cli\ncli.main()"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_TELEMETRY": "1"},
    )


def test_over_http_and_then_without_it(repository: Repository) -> None:
    """`data prepare` from a hub that answers, with a branch for a revision; then info with no hub."""
    with serving(Hub("roneneldan/TinyStories", repository())) as hub:
        asked = ("data=tinystories", "data.revision=main", "tokenizer=bpe", "tokenizer.vocab_size=290")
        done = posenc(hub, "data", "prepare", *asked)
        assert done.returncode == 0, done.stderr
        assert "tokens of bpe" in done.stderr and "need no network" in done.stderr
        assert any(f"resolve/{COMMIT}/data/train-00000" in line for line in hub.asked)
        count = len(hub.asked)
        info = posenc(hub, "data", "info", "data=tinystories", f"data.revision={COMMIT}", "--json")
        assert len(hub.asked) == count  # the same commit: nothing is asked
    offline = posenc(hub, "data", "info", *asked, "--json")  # the address answers no more
    assert offline.returncode == info.returncode == 0, offline.stderr + info.stderr
    facts = json.loads(offline.stdout)
    assert facts == json.loads(info.stdout)
    assert facts["identity"]["revision"] == COMMIT and facts["splits"]["train"]["documents"] == 60
    assert {row["tokenizer"] for row in facts["cached"]} == {"bytes", "bpe"}


@pytest.mark.slow
def test_a_hub_that_breaks_off_leaves_nothing(repository: Repository, cache: Path) -> None:
    text = {"train": [os.urandom(6000).hex() for _ in range(60)], "validation": ["x" * 99] * 9}
    folder = repository(rows=text, group=5)
    with serving(Hub("roneneldan/TinyStories", folder, breaks_after=250_000)) as hub:
        patient = "import time\ntime.sleep = lambda _: None"
        done = posenc(hub, "data", "info", "data=tinystories", "data.revision=main", code=patient)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "could not be loaded" in done.stderr and "ways out" in done.stderr
        assert hub.sent >= 250_000
        assert not [path for path in (cache / "tokens").iterdir() if path.is_dir()]
        hub.left = None
        assert posenc(hub, "data", "info", "data=tinystories", "data.revision=main").returncode == 0


@pytest.mark.slow
def test_a_hub_that_knows_no_such_revision_or_data_set(repository: Repository) -> None:
    with serving(Hub("roneneldan/TinyStories", repository())) as hub:
        for change in ("data.revision=v9", ""):
            done = posenc(hub, "data", "info", "data=tinystories", *([change] if change else []))
            assert done.returncode == 2 and "data.revision" in done.stderr
        done = posenc(hub, "data", "info", "data=pg19")
        assert done.returncode == 2 and "data.repository" in done.stderr


@pytest.mark.parametrize("change", [(), pytest.param(("data.revision=main",), marks=[pytest.mark.slow])])
def test_out_of_reach_is_said_in_two_lines_and_soon(tmp_path: Path, change: tuple[str, ...]) -> None:
    hub = Hub("a/b", tmp_path)
    hub.server_close()
    began = time.monotonic()
    done = posenc(hub, "data", "prepare", "data=fineweb_edu", *change)
    assert done.returncode == 1 and len(done.stderr.strip().split("\n")) == 2
    assert "fineweb-edu" in done.stderr and "data=files" in done.stderr
    assert time.monotonic() - began < 90


@pytest.mark.slow
def test_a_copy_in_the_librarys_cache_is_read_without_network(repository: Repository, tmp_path: Path) -> None:
    """Loaded once by the library from a hub, then read by us with no hub: only of the same revision."""
    load = "import datasets; datasets.load_dataset('roneneldan/TinyStories', revision='main')"
    with serving(Hub("roneneldan/TinyStories", repository())) as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.address}
        subprocess.run([sys.executable, "-c", load], check=True, capture_output=True, env=env)
    done = posenc(hub, "data", "info", "data=tinystories", f"data.revision={COMMIT}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["splits"]["train"]["documents"] == 60
    done = posenc(hub, "data", "info", "data=tinystories")
    assert done.returncode == 1 and "out of reach" in done.stderr


def test_long_documents_go_to_the_tokenizer_in_small_batches() -> None:
    texts = [b"x" * n for n in (10, tokenizers.BATCH_BYTES, 5, *[1] * 100)]
    batches = [[len(text) for text in batch] for batch in tokenizers._batches(texts)]
    assert batches[0] == [10, tokenizers.BATCH_BYTES] and len(batches[1]) == tokenizers.BATCH
    assert [size for batch in batches for size in batch] == [len(text) for text in texts]


def test_progress_goes_to_stderr_and_names_the_split(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(conf("tinystories", repository=str(repository())), BYTES)
    out, err = capsys.readouterr()
    assert not out
    assert "reading tinystories: train, 60 documents" in err and "validation, 20 documents" in err
    assert "of at most 200 MB" in err
