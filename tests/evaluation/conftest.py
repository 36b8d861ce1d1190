import numpy as np
import pytest
import tiny_model
import torch
from measuring import SETTINGS, TEXT_PROTOCOLS, protocol_of
from tiny_model import T
from token_stores import request_for

from posenc.evaluation.evaluate import evaluate, plan_cells
from posenc.evaluation.models.scoring import DecoderScorer, GivenModelScorer
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols import induction, key_tokens
from posenc.settings.tree import PlantSettings

PLANT = PlantSettings(share=0.5, pairs=2, cue=1, alphabet=64, weight=1.0)


@pytest.fixture
def few_sequences(monkeypatch):
    """The induction probe with four sequences."""
    monkeypatch.setattr(induction, "COUNT", 4)


@pytest.fixture
def every_third_is_key(monkeypatch):
    """Every third target is a key token, without a reference."""

    def every_third(run, blocks):
        return np.arange(len(blocks.ends) * blocks.block).reshape(-1, blocks.block) % 3 == 0

    monkeypatch.setattr(key_tokens, "stored_keys", every_third)


@pytest.fixture
def windows_passed(monkeypatch):
    """Tokens of every window that went through the model, a number for each."""
    passed = []

    def counted(make_pass):
        def make_counted_pass(scorer, model_pass, *others, **options):
            passed.extend([model_pass.inputs.shape[1]] * len(model_pass.inputs))
            return make_pass(scorer, model_pass, *others, **options)

        return make_counted_pass

    for name in ("losses", "target_logits"):
        monkeypatch.setattr(DecoderScorer, name, counted(getattr(DecoderScorer, name)))
    return passed


@pytest.fixture
def passes_made(monkeypatch):
    """Return a list of the passes, each a ModelPass, by which a given model scores targets."""
    made = []
    losses = GivenModelScorer.losses

    def noted_losses(scorer, model_pass, targets, **options):
        made.append(model_pass)
        return losses(scorer, model_pass, targets, **options)

    monkeypatch.setattr(GivenModelScorer, "losses", noted_losses)
    return made


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
        return EvalContext(
            model=model,
            context_length=T,
            seed=0,
            precision="fp32",
            device=torch.device("cpu"),
            store=chosen,
            split="test",
            batch_tokens=batch_tokens,
        )

    return make


@pytest.fixture
def asked_of(store):
    """What protocols are asked for, of the tiny corpus at its T."""

    def make(windows, **changes):
        return request_for(
            **{"store": store, "windows": windows, "max_targets": 300, "plant": PLANT, **changes}
        )

    return make


@pytest.fixture
def measured(tmp_path, asked_of, few_sequences, every_third_is_key):
    """Records of a subject by (protocol, window), of all protocols unless some are named."""

    def go(subject, windows, **changes):
        on_cell = changes.pop("on_cell", lambda record, was_stored: None)
        names = changes.pop("protocols", TEXT_PROTOCOLS)
        folder = changes.pop("folder", None) or tmp_path / f"cells-{len(list(tmp_path.iterdir()))}"
        settings = {key: changes.pop(key) for key in SETTINGS if key in changes}
        request = asked_of(windows, **{"store": subject.store, "split": subject.split, **changes})
        protocols = [protocol_of(name, **settings) for name in names]
        cells = plan_cells(subject, request, protocols)
        records = evaluate(cells, folder, corpus="files", checkpoint_step=1, on_cell=on_cell)
        return {(r["protocol"], r["window"]): r for r in records}

    return go
