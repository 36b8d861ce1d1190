from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from tiny_model import T

from posenc.corpus import TokenStore
from posenc.evaluation.evaluate import evaluate
from posenc.evaluation.subject import Subject
from posenc.results.records import Record


@pytest.fixture
def store(place: Path, corpus: Path) -> TokenStore:
    return tiny_model.tokens_of(corpus)


@pytest.fixture
def subject_of(store: TokenStore) -> Callable[..., Subject]:
    """A model with its initial values, as the subject of a measurement."""

    def make(
        encoding: str, *, batch_tokens: int = 1024, tokens: TokenStore | None = None, **params: Any
    ) -> Subject:
        chosen = tokens or store
        model = tiny_model.build(encoding, chosen, **params)
        with torch.no_grad():
            # attention that matters, or a wrong window would not show
            for name, parameter in model.named_parameters():
                if "attention" in name and parameter.ndim == 2:
                    parameter.mul_(3)
        return Subject(model, T, 0, "fp32", torch.device("cpu"), chosen, "test", batch_tokens)

    return make


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., dict[tuple[str, int], Record]]:
    """Records of a subject by (protocol, window)."""

    def go(subject: Subject, windows: list[int], **changes: Any) -> dict[tuple[str, int], Record]:
        wanted: dict[str, Any] = {
            "protocols": ["fixed-target", "nonoverlapping"],
            "target_fraction": 0.25,
            "max_targets": 300,
            "corpus": "files",
            "checkpoint_step": 1,
            "on_cell": lambda record, was_there: None,
            **changes,
        }
        folder = wanted.pop("folder", None) or tmp_path / f"cells-{len(list(tmp_path.iterdir()))}"
        records = evaluate(subject, folder, windows=windows, **wanted)
        return {(r["protocol"], r["window"]): r for r in records}

    return go
