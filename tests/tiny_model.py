"""The tiny model in this process: its tokens, its training, its weights."""

import contextlib
import hashlib
import itertools
from dataclasses import replace
from types import SimpleNamespace

import torch

from posenc.data import WindowSampler, prepare
from posenc.encodings.base import Shape
from posenc.encodings.building import build_of_shape
from posenc.encodings.options import build_options
from posenc.encodings.positions import position_limits
from posenc.model.attention import Attention
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.settings.tree import DataSettings, EncodingSettings, TokenizerSettings
from posenc.training.checkpoint import CheckpointPlan, Provenance
from posenc.training.loop import Callbacks, train
from posenc.training.optimizer import Optimization
from posenc.training.plan import TrainingPlan

T = 16
STEPS = 12
SHAPE = ModelShape("nano", d_model=32, n_layers=2, n_heads=2, mlp_ratio=4)
OPTIMIZATION = Optimization(
    name="adamw",
    lr=2e-3,
    betas=(0.9, 0.95),
    eps=1e-8,
    weight_decay=0.1,
    grad_clip=1.0,
    warmup_fraction=0.25,
    final_lr_fraction=0.0,
)


def stop_at(step):
    """Return a stop flag that is set once it was looked at in `step` steps; None: never."""
    steps = itertools.count(1)

    def requested():
        return step is not None and next(steps) >= step

    return SimpleNamespace(requested=requested, at_once=contextlib.nullcontext)


def tokens_of(folder, tokenizer=None):
    data = DataSettings(
        name="files",
        source="files",
        paths=str(folder),
        text_field="text",
        separator=None,
        split={"validation": 0.1, "test": 0.2},
    )
    return prepare(data, TokenizerSettings.model_validate(tokenizer or {"name": "bytes"}))


def encoding_of(name, train_length=T, n_heads=2, head_dim=8, n_layers=2, **params):
    """Build an encoding with the parameters of its YAML, changed by `params`; not initialised."""
    position_limit = params.pop("position_limit", None)
    distance_limit = params.pop("distance_limit", None)
    plugins = params.pop("plugins", ())
    shape = Shape(
        n_heads * head_dim, n_heads, head_dim, n_layers, train_length, position_limit, distance_limit
    )
    return build_of_shape(shape, EncodingSettings(name=name, **params), plugins)


def build(encoding, store, seed=0, positions=None, attention=Attention, attention_options=None, **params):
    """Build a decoder with this encoding, these options of its attention, and its initial values."""
    drawn_positions = positions or {"name": "contiguous"}
    position_limit, distance_limit = position_limits(drawn_positions, T)
    built_encoding = encoding_of(
        encoding, head_dim=16, position_limit=position_limit, distance_limit=distance_limit, **params
    )
    options = build_options(
        built_encoding.shape,
        built_encoding,
        positions=drawn_positions,
        attention={"window": None, "scale": "none", **(attention_options or {})},
    )
    model = Decoder(SHAPE, store.vocab_size, built_encoding, options, attention)
    initialize(model, seed)
    return model


def plan_of(model, store, folder, *, settings_hash="12345678", checkpoint_seconds=1e9, **changes):
    """Return a plan of STEPS steps with four windows each, and checkpoints in `folder`."""
    provenance = Provenance(
        fingerprint=store.fingerprint,
        tokenizer=store.tokenizer,
        code={},
        writer={"encoding": {"name": model.encoding.name}, "settings_hash": settings_hash},
    )
    plan = TrainingPlan(
        steps=STEPS,
        batch_windows=4,
        context_length=T,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        log_every=5,
        checkpoints=CheckpointPlan(folder, checkpoint_seconds, provenance, files={}),
    )
    return replace(plan, **changes)


def run(
    model, store, folder, *, sampler=None, optimization=OPTIMIZATION, logged=None, stop_after=None, **changes
):
    """Train by the plan with `changes`; `logged` takes what is logged, `stop_after` is a step."""
    plan = plan_of(model, store, folder, **changes)
    logged = [] if logged is None else logged
    return train(
        model,
        sampler or WindowSampler(store, T, plan.seed),
        optimization,
        plan,
        Callbacks(on_resume=lambda step: None, on_log=logged.append),
        stop_at(stop_after),
    )


def sha256(path):
    """Return the checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def on_disk(folder, step=STEPS):
    """Return the checksums of the weights and of the optimizer's state in a checkpoint."""
    checkpoint = folder / f"step-{step:08d}"
    return sha256(checkpoint / "model.safetensors"), sha256(checkpoint / "optimizer.safetensors")
