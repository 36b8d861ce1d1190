"""Models of transformers as subjects, checked against loops over transformers itself; runs as its checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hf_models
import numpy as np
import pytest
import tiny
import torch
import transformers

import posenc as px
from posenc.core.errors import UserError
from posenc.data import prepare
from posenc.evaluation import fixed_target
from posenc.evaluation.extensions import extensions
from posenc.evaluation.plans import EvalRequest

T = hf_models.T
Posenc = Callable[..., tiny.Result]


@pytest.fixture(scope="module")
def checkpoints(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoints(name, bos=...)`: trained once a module; never changed."""
    place = tmp_path_factory.mktemp("checkpoints")
    text = b"".join(path.read_bytes() for path in sorted(corpus.iterdir()))

    def made(name: str, *, bos: bool = False) -> Path:
        folder = place / f"{name}{'-bos' * bos}"
        if not folder.exists():
            hf_models.save(hf_models.trained(name, text, steps=100), folder, bos=bos)
        return folder

    return made


@pytest.fixture
def asked(place: Path, corpus: Path) -> dict[str, Any]:
    evaluation = {"lengths": ["1x", "2x", "8x"], "max_targets": 200, "protocols": ["fixed-target"]}
    return {"data": "files", "data.paths": corpus, "eval": evaluation, "device": "cpu"}


def measured(path: Path, asked: dict[str, Any], **more: Any) -> dict[int, float]:
    """The loss by window, as posenc measures it."""
    run = px.evaluate("hf", **{"subject.path": path, "context_length": "auto", **asked, **more})
    found = [r for r in run.records if bool(r["extend"]) == ("extend" in more)]
    return {r["window"]: r["nats"] for r in found}


def windows(path: Path, asked: dict[str, Any], window: int) -> tuple[torch.Tensor, int]:
    """The text of every fixed target: (N, window + 1) tokens, and how many of the last are targets."""
    tokenizer = {"name": "hf", "path": str(path), "revision": "main"}
    settings = px.evaluate("hf", **{"subject.path": path, "context_length": T, **asked}).config
    store = prepare(settings["data"], tokenizer)
    lengths = [T, 2 * T, 8 * T]
    plan = fixed_target.plan(EvalRequest(store, "test", lengths, T, 0.25, 200, T // 4))
    stops = store.splits["test"].starts[plan.documents] + plan.ends
    rows = np.stack([store.tokens[stop - window - 1 : stop] for stop in stops]).astype(np.int64)
    return torch.from_numpy(rows), plan.block


def by_hand(model: Any, tokens: torch.Tensor, block: int, bos: int | None = None) -> float:
    """The mean of `model(...).loss`, with every label but the targets' masked."""
    losses = []
    for row in tokens.split(16):
        labels = torch.full_like(row, -100)
        labels[:, -block:] = row[:, -block:]
        given = row.clone()
        if bos is not None:
            given[:, 0] = bos
        with torch.no_grad():
            losses += [float(model(given, labels=labels).loss)] * len(row)
    return float(np.mean(losses))


@pytest.mark.parametrize("bos", [False, True], ids=["text", "bos"])
@pytest.mark.parametrize("name", sorted(hf_models.CONFIGS))
def test_the_loss_is_that_of_a_loop_over_the_model(
    name: str, bos: bool, checkpoints: Callable[..., Path], asked: dict[str, Any]
) -> None:
    path = checkpoints(name, bos=bos)
    found = measured(path, asked, **({"context_length": T} if name in ("bloom", "gpt2") else {}))
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    for window in (T, 8 * T):
        tokens, block = windows(path, asked, window)
        if name == "mpt":
            model.config.max_seq_len = window + 1
        if name == "gpt2" and window == 8 * T:  # one token more than its table: the last is a target only
            continue
        want = by_hand(model, tokens, block, 256 if bos else None)
        assert found[window] == pytest.approx(want, abs=1e-4), window


# --- traps: the number of the naive way, and ours


def test_a_replaced_rope_dictionary_drops_its_base(
    checkpoints: Callable[..., Path], asked: dict[str, Any]
) -> None:
    path = checkpoints("llama")
    tokens, block = windows(path, asked, 8 * T)
    scaled = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": T}
    load = transformers.AutoModelForCausalLM.from_pretrained
    whole = by_hand(load(path, rope_parameters=scaled | {"rope_theta": 500.0}), tokens, block)
    naive = by_hand(load(path, rope_parameters=scaled | {"rope_theta": 10_000.0}), tokens, block)
    found = measured(path, asked, extend="yarn")[8 * T]
    assert found == pytest.approx(whole, abs=1e-4) and abs(found - naive) > 1e-3


@pytest.mark.parametrize(
    ("extend", "scaled"),
    [
        ({"extend": "pi"}, {"rope_type": "linear", "factor": 8.0}),
        ({"extend": "yarn"}, {"rope_type": "yarn", "factor": 8.0}),
        ({"extend": "dynamic_ntk", "extend.factor": 1.0}, {"rope_type": "dynamic", "factor": 1.0}),
        (
            {"extend": "llama3"},
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
    ],
    ids=lambda given: given.get("extend"),
)
def test_an_extension_is_what_transformers_makes_of_the_same_settings(
    extend: dict[str, Any], scaled: dict[str, Any], checkpoints: Callable[..., Path], asked: dict[str, Any]
) -> None:
    path = checkpoints("llama")
    rope = {**scaled, "rope_theta": 500.0, "original_max_position_embeddings": T}
    model = transformers.AutoModelForCausalLM.from_pretrained(path, rope_parameters=rope)
    tokens, block = windows(path, asked, 8 * T)
    found = measured(path, asked, **extend)[8 * T]
    with torch.no_grad():
        logits = torch.cat([model(row[:, :-1]).logits[:, -block:] for row in tokens.split(16)])
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, -block:].flatten())
    assert found == pytest.approx(float(want), abs=1e-4)
