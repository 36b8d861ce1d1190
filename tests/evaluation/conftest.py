from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
import torch
from tiny_model import T
from token_stores import ask

from posenc.data import TokenStore
from posenc.evaluation import PROTOCOLS, induction
from posenc.evaluation.evaluate import evaluate, plan_cells
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import Blocks, EvalRequest, RecallGrid
from posenc.results.schema import Record


@pytest.fixture
def store(place: Path, corpus: Path) -> TokenStore:
    return tiny_model.tokens_of(corpus)


@pytest.fixture
def few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The induction probe with four sequences."""
    monkeypatch.setattr(induction, "COUNT", 4)


def every_third(blocks: Blocks) -> np.ndarray:
    """Call every third target a key token."""
    keys: np.ndarray = np.arange(len(blocks.ends) * blocks.block).reshape(-1, blocks.block) % 3 == 0
    return keys


@pytest.fixture
def subject_of(store: TokenStore) -> Callable[..., EvalContext]:
    """A model with its initial values, as the subject of a measurement."""

    def make(
        encoding: str, *, batch_tokens: int = 1024, tokens: TokenStore | None = None, **params: Any
    ) -> EvalContext:
        chosen = tokens or store
        model = tiny_model.build(encoding, chosen, **params)
        with torch.no_grad():
            # attention that matters, or a wrong window would not show
            for name, parameter in model.named_parameters():
                if "attention" in name and parameter.ndim == 2:
                    parameter.mul_(3)
        return EvalContext(model, T, 0, "fp32", torch.device("cpu"), chosen, "test", batch_tokens)

    return make


@pytest.fixture
def asked_of(store: TokenStore) -> Callable[..., EvalRequest]:
    """What protocols are asked for, of the tiny corpus at its T."""

    def make(windows: list[int], **changes: Any) -> EvalRequest:
        plant = {"share": 0.5, "pairs": 2, "cue": 1, "weight": 1.0}
        usual = {"store": store, "max_targets": 300, "plant": plant, "recall": RecallGrid([4], [1], 4)}
        return ask(**{"windows": windows, "key_tokens": every_third, **usual, **changes})

    return make


@pytest.fixture
def measured(
    tmp_path: Path, asked_of: Callable[..., EvalRequest], few_sequences: None
) -> Callable[..., dict[tuple[str, int], Record]]:
    """Records of a subject by (protocol, window), of all protocols unless some are named."""

    def go(subject: EvalContext, windows: list[int], **changes: Any) -> dict[tuple[str, int], Record]:
        on_cell = changes.pop("on_cell", lambda record, was_there: None)
        step, protocols = changes.pop("checkpoint_step", 1), changes.pop("protocols", list(PROTOCOLS))
        folder = changes.pop("folder", None) or tmp_path / f"cells-{len(list(tmp_path.iterdir()))}"
        asked = asked_of(windows, **{"store": subject.store, "split": subject.split, **changes})
        cells = plan_cells(subject, asked, protocols)
        records = evaluate(cells, folder, corpus="files", checkpoint_step=step, on_cell=on_cell)
        return {(r["protocol"], r["window"]): r for r in records}

    return go
