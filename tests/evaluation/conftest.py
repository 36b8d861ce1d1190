import numpy as np
import pytest
import tiny_model
import torch
from tiny_model import T
from token_stores import ask

from posenc.evaluation import PROTOCOLS, forward_cache, induction
from posenc.evaluation.evaluate import evaluate, plan_cells
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import RecallGrid


@pytest.fixture
def few_sequences(monkeypatch):
    """The induction probe with four sequences."""
    monkeypatch.setattr(induction, "COUNT", 4)


@pytest.fixture
def windows_passed(monkeypatch):
    """Tokens of every window that went through the model, a number for each."""
    made = []
    forward = forward_cache._forward

    def counted(subject, batch, *others):
        made.extend([batch.shape[1] - 1] * len(batch))
        return forward(subject, batch, *others)

    monkeypatch.setattr(forward_cache, "_forward", counted)
    return made


def every_third(blocks):
    """Call every third target a key token."""
    return np.arange(len(blocks.ends) * blocks.block).reshape(-1, blocks.block) % 3 == 0


@pytest.fixture
def subject_of(store):
    """A model with its initial values, as the subject of a measurement."""

    def make(encoding, *, batch_tokens=1024, tokens=None, **params):
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
def asked_of(store):
    """What protocols are asked for, of the tiny corpus at its T."""

    def make(windows, **changes):
        plant = {"share": 0.5, "pairs": 2, "cue": 1, "alphabet": 64, "weight": 1.0}
        usual = {"store": store, "max_targets": 300, "plant": plant, "recall": RecallGrid([4], [1], 4)}
        return ask(**{"windows": windows, "key_tokens": every_third, **usual, **changes})

    return make


@pytest.fixture
def measured(tmp_path, asked_of, few_sequences):
    """Records of a subject by (protocol, window), of all protocols unless some are named."""

    def go(subject, windows, **changes):
        on_cell = changes.pop("on_cell", lambda record, was_there: None)
        protocols = changes.pop("protocols", list(PROTOCOLS))
        folder = changes.pop("folder", None) or tmp_path / f"cells-{len(list(tmp_path.iterdir()))}"
        asked = asked_of(windows, **{"store": subject.store, "split": subject.split, **changes})
        cells = plan_cells(subject, asked, protocols)
        records = evaluate(cells, folder, corpus="files", checkpoint_step=1, on_cell=on_cell)
        return {(r["protocol"], r["window"]): r for r in records}

    return go
