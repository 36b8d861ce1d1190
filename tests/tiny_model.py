"""The tiny model in this process: its tokens, its training, its weights."""

import contextlib
import hashlib
import itertools
from dataclasses import replace
from types import SimpleNamespace

import torch

from posenc.data import WindowSampler, prepare
from posenc.encodings import build_encoding
from posenc.encodings.options import build_options, position_limits
from posenc.model.attention import Attention
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.training.loop import train
from posenc.training.optimizer import Optimization

T = 16
STEPS = 12
SHAPE = ModelShape("nano", d_model=32, n_layers=2, n_heads=2, mlp_ratio=4)
RATES = {"lr": 2e-3, "warmup_fraction": 0.25, "final_lr_fraction": 0.0}
OPTIMIZATION = Optimization(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, grad_clip=1.0, **RATES)


def stop_at(after):
    """Asks for a stop from the time on that it is asked for the `after`th time; never for None."""
    asked = itertools.count(1)
    requested = (lambda: next(asked) >= after) if after else (lambda: False)
    return SimpleNamespace(requested=requested, at_once=contextlib.nullcontext)


def tokens_of(folder, tokenizer=None):
    data = {"name": "files", "source": "files", "paths": str(folder), "text_field": "text"}
    data["split"] = {"validation": 0.1, "test": 0.2}
    return prepare(data, tokenizer or {"name": "bytes"})


def encoding_of(name, train_length=T, n_heads=2, head_dim=8, n_layers=2, **params):
    """With the parameters of its YAML, unless they are given; not initialised."""
    sizes = {"d_model": n_heads * head_dim, "n_heads": n_heads, "head_dim": head_dim, "n_layers": n_layers}
    return build_encoding(name, train_length=train_length, **sizes, **params)


def build(encoding, store, seed=0, positions=None, attention=Attention, **params):
    """With its initial values."""
    drawn = positions or {"name": "contiguous"}
    limits = dict(zip(("position_limit", "distance_limit"), position_limits(drawn, T), strict=True))
    own = encoding_of(encoding, head_dim=16, **limits, **params)
    options = build_options(own.shape, own, positions=drawn, window=None, scale="none")
    model = Decoder(SHAPE, store.vocab_size, own, options, attention)
    initialize(model, seed)
    return model


USUAL = {"steps": STEPS, "batch_windows": 4, "log_every": 5, "precision": "fp32", "checkpoint_seconds": 1e9}
NOTHING = {"on_log": lambda _: None, "on_resume": lambda _: None, "files": {}}


def run(model, store, folder, *, seed=0, stop_after=None, sampler=None, settings_hash="12345678", **how):
    """Train, with checkpoints in `folder`; `how` has what differs from USUAL and from OPTIMIZATION."""
    optimization = {key: how.pop(key) for key in ("name", "grad_clip") if key in how}
    of_run = {"encoding": {"name": model.encoding.name}, "settings_hash": settings_hash}
    return train(
        model,
        sampler or WindowSampler(store, T, seed),
        replace(OPTIMIZATION, **optimization),
        context_length=T,
        seed=seed,
        device=torch.device("cpu"),
        checkpoints=folder,
        provenance={"fingerprint": store.fingerprint, "tokenizer": store.tokenizer, "run": of_run},
        stop=stop_at(stop_after),
        **{**USUAL, **NOTHING, **how},
    )


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def on_disk(folder, step=STEPS):
    checkpoint = folder / f"step-{step:08d}"
    return sha256(checkpoint / "model.safetensors"), sha256(checkpoint / "optimizer.safetensors")
