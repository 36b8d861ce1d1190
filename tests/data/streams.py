"""Settings of streams, and stories to stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from posenc.core.paths import conf_dir

BYTES = {"name": "bytes"}
BPE = {"name": "bpe", "vocab_size": 290}
Repository = Callable[..., Path]


def conf(name: str, **changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text())
    return {**data, **changes}


def story(i: int) -> str:
    return f"Story {i} naïve 🙂: " + "once upon a time " * (i % 9 + 1)
