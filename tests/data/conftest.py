"""Small corpora as real files, and a cache of each test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streams import Repository, story

from posenc.data import registry, streamed


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("POSENC_CACHE", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens on "discard"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def files_data(tmp_path: Path, settings: Callable[[Any], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Settings of data=files over a folder of `n` documents of different lengths and scripts."""

    def make(n: int = 30, folder: str = "texts") -> dict[str, Any]:
        (tmp_path / folder).mkdir()
        for i in range(n):
            text = f"document {i} naïve 🙂👩‍👧\r\n" * (i % 7 + 1)
            (tmp_path / folder / f"{i:03d}.txt").write_bytes(text.encode())
        return settings(tmp_path / folder)

    return make


@pytest.fixture(name="settings")
def settings_of_files() -> Callable[[Any], dict[str, Any]]:
    """Settings of data=files over one path or a list."""

    def make(paths: Any) -> dict[str, Any]:
        return {
            "name": "files",
            "source": "files",
            "paths": [str(p) for p in paths] if isinstance(paths, list) else str(paths),
            "text_field": "text",
            "split": {"validation": 0.2, "test": 0.2},
        }

    return make


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
