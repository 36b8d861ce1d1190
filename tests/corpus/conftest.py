"""Small corpora as real files, and a cache of each test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


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
