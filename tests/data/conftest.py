"""Small corpora as real files, and a cache for each test."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import files, story
from tiny import write

from posenc.data import hub, hub_texts, sources


@pytest.fixture(autouse=True)
def cache(working_folder, tmp_path, monkeypatch):
    """A cache instead of the shared one, and no hub."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("POSENC_CACHE", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens on "discard"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    hub._connects.cache_clear()
    return folder


@pytest.fixture
def texts(tmp_path):
    """Settings of data=files over 30 documents of different lengths and scripts."""
    contents = {f"{i:03d}.txt": f"document {i} naïve 🙂👩‍👧\r\n" * (i % 7 + 1) for i in range(30)}
    return files(write(tmp_path / "texts", contents))


@pytest.fixture
def repository(tmp_path):
    """Make a data set of parquet files as it lies on the hub, in several row groups and shards."""

    def make(name="repository", rows=None, group=10, columns=("title", "text")):
        stories = [story(i) for i in range(80)]
        rows = rows or {"train": stories[:60], "validation": stories[60:]}
        for split, texts in rows.items():
            half = len(texts) // 2
            for shard, part in enumerate((texts[:half], texts[half:])):
                path = tmp_path / name / "data" / f"{split}-{shard:05d}-of-00002.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                table = {"title": [str(i) for i in range(len(part))], "text": pa.array(part, pa.string())}
                pq.write_table(pa.table(table).select(list(columns)), path, row_group_size=group)
        return tmp_path / name

    return make


@pytest.fixture
def pinned(monkeypatch):
    """Have a folder answer for any data set of the hub at its pinned commit."""
    load_local = hub_texts.load

    def serve(folder):
        def load(column):
            return load_local(replace(column, repository=str(folder), config=None, revision="main"))

        monkeypatch.setattr(hub_texts, "load", load)

    return serve


@pytest.fixture
def reads(monkeypatch):
    """The names of the corpora whose text was read, in order."""
    names = []
    read_documents = sources.read_documents

    def counted(data, notes):
        names.append(data.name)
        return read_documents(data, notes)

    monkeypatch.setattr(sources, "read_documents", counted)
    return names
