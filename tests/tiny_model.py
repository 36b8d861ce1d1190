"""The tiny model in this process: its tokens, its training, its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posenc.data import TokenStore, WindowSampler, prepare
from posenc.encodings import build_encoding
from posenc.encodings.options import build_options, position_limits
from posenc.model.attention import Attention
from posenc.model.decoder import Decoder, MakeAttention, ModelShape, initialize
from posenc.training.loop import Progress, Trained, Training, alone, training
from posenc.training.optimizer import Optimization

T = 16
STEPS = 12
SHAPE = ModelShape("nano", d_model=32, n_layers=2, n_heads=2, mlp_ratio=4)
OPTIMIZATION = Optimization(
    lr=2e-3,
    betas=(0.9, 0.95),
    eps=1e-8,
    weight_decay=0.1,
    grad_clip=1.0,
    warmup_fraction=0.25,
    final_lr_fraction=0.0,
)


class StopAt:
    """Asks for a stop once it was asked `after` times; never for None."""

    def __init__(self, after: int | None = None) -> None:
        self.after, self.asked = after, 0

    def requested(self) -> bool:
        self.asked += 1
        return self.after is not None and self.asked >= self.after


def data_settings(folder: Path) -> dict[str, Any]:
    return {
        "name": "files",
        "source": "files",
        "paths": str(folder),
        "text_field": "text",
        "split": {"validation": 0.1, "test": 0.2},
    }


def tokens_of(folder: Path, tokenizer: dict[str, Any] | None = None) -> TokenStore:
    return prepare(data_settings(folder), tokenizer or {"name": "bytes"})


def build(
    encoding: str,
    store: TokenStore,
    seed: int = 0,
    positions: dict[str, Any] | None = None,
    attention: MakeAttention = Attention,
    **params: Any,
) -> Decoder:
    """With its initial values."""
    drawn = positions or {"name": "contiguous"}
    limits = dict(zip(("position_limit", "distance_limit"), position_limits(drawn, T), strict=True))
    shape = {"d_model": 32, "n_heads": 2, "head_dim": 16, "n_layers": 2, "train_length": T}
    own = build_encoding(encoding, **shape, **limits, **params)
    options = build_options(own.shape, own, positions=drawn, window=None, scale="none")
    model = Decoder(SHAPE, store.vocab_size, own, options, attention)
    initialize(model, seed)
    return model


def training_of(
    model: Decoder,
    store: TokenStore,
    folder: Path,
    *,
    seed: int = 0,
    stop_after: int | None = None,
    on_log: Callable[[Progress], None] = lambda _: None,
    on_resume: Callable[[int], None] = lambda _: None,
    sampler: Any = None,
    checkpoint_seconds: float = 1e9,
    precision: str = "fp32",
    files: dict[str, str] | None = None,
    steps: int = STEPS,
    windows: int = 4,
    log_every: int = 5,
    settings_hash: str = "12345678",
    **optimization: float,
) -> Training:
    """`steps` updates of `windows` windows; checkpoints in `folder`."""
    return training(
        model,
        sampler or WindowSampler(store, T, seed),
        replace(OPTIMIZATION, **optimization),
        steps=steps,
        batch_windows=windows,
        context_length=T,
        seed=seed,
        precision=precision,
        device=torch.device("cpu"),
        checkpoints=folder,
        checkpoint_seconds=checkpoint_seconds,
        log_every=log_every,
        provenance={
            "fingerprint": store.fingerprint,
            "tokenizer": store.tokenizer,
            "run": {"encoding": {"name": model.encoding.name}, "settings_hash": settings_hash},
        },
        files=files or {},
        on_resume=on_resume,
        on_log=on_log,
        stop=StopAt(stop_after),
    )


def run(model: Decoder, store: TokenStore, folder: Path, **how: Any) -> Trained:
    """Train to the end, or to the stop; see `training_of`."""
    return alone(training_of(model, store, folder, **how))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def on_disk(folder: Path, step: int = STEPS) -> tuple[str, str]:
    """sha256 of weights and optimizer in the checkpoint of a step."""
    checkpoint = folder / f"step-{step:08d}"
    return sha256(checkpoint / "model.safetensors"), sha256(checkpoint / "optimizer.safetensors")
