"""Check a composed configuration completely and turn it into the plain arguments of a job.

Everything that can be wrong is found here: before data is tokenised, before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.corpus import CorpusFacts, build_tokenizer, check_tokenizer, inspect
from posenc.encodings import build_encoding, check_encoding
from posenc.errors import UserError
from posenc.evaluation import PROTOCOLS, resolve_lengths
from posenc.model.decoder import ModelShape
from posenc.signature import check_arguments
from posenc.tracking import check_tracking
from posenc.training.optimizer import Optimization
from posenc.training.precision import resolve_device, resolve_precision

NAME = re.compile(r"[A-Za-z0-9._+-]+")
LONGEST_NAME = 100  # characters; file systems take 255 bytes, and a hash follows


@dataclass(frozen=True)
class EvalPlan:
    """What is measured, resolved."""

    windows: list[int]  # tokens, ascending
    protocols: list[str]
    split: str
    target_fraction: float
    max_targets: int
    batch_tokens: int


@dataclass(frozen=True)
class TrainJob:
    """A validated training run: `settings` is what config.yaml will say, `directory` where it will be."""

    settings: dict[str, Any]
    directory: Path
    hash: str
    facts: CorpusFacts
    shape: ModelShape
    optimization: Optimization
    steps: int
    batch_windows: int
    precision: str
    device: torch.device
    evaluation: EvalPlan
    encoding_params: dict[str, Any]


def whole(key: str, value: Any, *, least: int) -> int:
    """A whole number of at least `least`; 6e6 counts as one. Raises UserError."""
    allowed = f"a whole number from {least}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(key, value, "wrong type", allowed=allowed)
    if not math.isfinite(value) or value != int(value):
        raise UserError(key, value, "not a whole number", allowed=allowed)
    if value < least:
        raise UserError(key, value, "too small", allowed=allowed)
    return int(value)


def between(key: str, value: float, low: float, high: float, *, open_low: bool = False) -> float:
    """A number in [low, high] or (low, high]. Raises UserError."""
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside or not math.isfinite(value):
        words = f"{'above' if open_low else 'from'} {low:g}" + (f" to {high:g}" if high < math.inf else "")
        raise UserError(key, value, "out of range", allowed=f"a number {words}")
    return float(value)


def check_model(model: dict[str, Any]) -> ModelShape:
    """The decoder's sizes, whole and fitting each other."""
    sizes = {key: whole(f"model.{key}", value, least=1) for key, value in model.items() if key != "name"}
    if sizes["d_model"] % sizes["n_heads"]:
        d_model = sizes["d_model"]
        fitting = [h for h in range(1, d_model + 1) if d_model % h == 0 and h <= 64]
        raise UserError(
            "model.n_heads",
            sizes["n_heads"],
            f"does not divide the width model.d_model={d_model}",
            allowed=", ".join(map(str, fitting)),
        )
    return ModelShape(name=str(model["name"]), **sizes)


def check_evaluation(settings: dict[str, Any], context_length: int) -> EvalPlan:
    """The `eval` group: lengths, protocols, split and sizes."""
    for protocol in settings["protocols"]:
        if protocol not in PROTOCOLS:
            raise UserError(
                "eval.protocols", protocol, "there is no such protocol", allowed=sorted(PROTOCOLS)
            )
    if not settings["protocols"]:
        raise UserError("eval.protocols", "[]", "no protocol to measure with", allowed=sorted(PROTOCOLS))
    if settings["split"] not in ("test", "validation"):
        raise UserError("eval.split", settings["split"], "not a split", allowed=["test", "validation"])
    fraction = between("eval.target_fraction", settings["target_fraction"], 0, 1, open_low=True)
    windows = resolve_lengths(settings["lengths"], context_length)
    block = max(1, round(fraction * context_length))
    if "fixed-target" in settings["protocols"] and windows[0] < block:
        raise UserError(
            "eval.lengths",
            windows[0],
            f"shorter than the target block of {block} tokens (eval.target_fraction * context_length)",
            allowed=f"lengths from {block} tokens",
        )
    return EvalPlan(
        # T itself is always measured: it is the crop line that every change is held against
        windows=sorted({*windows, context_length}),
        protocols=list(dict.fromkeys(settings["protocols"])),
        split=settings["split"],
        target_fraction=fraction,
        max_targets=whole("eval.max_targets", settings["max_targets"], least=1),
        batch_tokens=whole("eval.batch_tokens", settings["batch_tokens"], least=1),
    )


def _check_optimization(train: dict[str, Any], optim: dict[str, Any]) -> Optimization:
    if optim["name"] != "adamw":
        raise UserError("optim.name", optim["name"], "there is no such optimizer", allowed=["adamw"])
    infinity = math.inf
    return Optimization(
        lr=between("train.lr", train["lr"], 0, infinity, open_low=True),
        betas=(
            between("optim.beta1", optim["beta1"], 0, 0.9999),
            between("optim.beta2", optim["beta2"], 0, 0.99999),
        ),
        eps=between("optim.eps", optim["eps"], 0, infinity, open_low=True),
        weight_decay=between("optim.weight_decay", optim["weight_decay"], 0, infinity),
        grad_clip=between("optim.grad_clip", optim["grad_clip"], 0, infinity, open_low=True),
        warmup_fraction=between("optim.warmup_fraction", optim["warmup_fraction"], 0, 1),
        final_lr_fraction=between("optim.final_lr_fraction", optim["final_lr_fraction"], 0, 1),
    )


def check_name(key: str, value: str) -> str:
    """A name that becomes part of a path."""
    if not NAME.fullmatch(value) or value.startswith(".") or len(value) > LONGEST_NAME:
        allowed = f"letters, digits and . _ + -, at most {LONGEST_NAME}"
        raise UserError(key, value[: LONGEST_NAME + 1], "not a name for a folder", allowed=allowed)
    return value


def encoding_parameters(encoding: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the `encoding` group, without its name."""
    return {key: value for key, value in encoding.items() if key != "name"}


def train_job(settings: dict[str, Any]) -> TrainJob:
    """The validated job of a composed `train` configuration. Raises UserError."""
    seed = whole("seed", settings["seed"], least=0)
    context_length = whole("context_length", settings["context_length"], least=2)
    train = settings["train"]
    tokens = whole("train.tokens", train["tokens"], least=1)
    batch_tokens = whole("train.batch_tokens", train["batch_tokens"], least=1)
    if batch_tokens < context_length:
        raise UserError(
            "train.batch_tokens",
            batch_tokens,
            f"holds no window of context_length={context_length}",
            allowed=f"a whole number from {context_length}",
        )
    whole("train.log_every", train["log_every"], least=1)
    between("train.checkpoint_seconds", train["checkpoint_seconds"], 0, math.inf)
    shape = check_model(settings["model"])
    optimization = _check_optimization(train, settings["optim"])
    evaluation = check_evaluation(settings["eval"], context_length)
    check_name("experiment_name", settings["experiment_name"])
    if settings["name"] is not None:
        check_name("name", settings["name"])
    check_tracking(settings["tracking"])
    check_tokenizer(settings["tokenizer"])
    device = resolve_device(settings["device"])
    precision = resolve_precision(train["precision"], device)

    encoding = settings["encoding"]
    cls = check_encoding(encoding, settings["plugins"])
    # typed, so that base=10000 and base=10000.0 are one run
    params = check_arguments(cls, encoding_parameters(encoding), "encoding")
    with torch.device("meta"):  # values out of range show when it is built; nothing is allocated
        build_encoding(
            encoding["name"],
            d_model=shape.d_model,
            n_heads=shape.n_heads,
            head_dim=shape.head_dim,
            n_layers=shape.n_layers,
            train_length=context_length,
            plugins=settings["plugins"],
            **params,
        )
    facts = inspect(
        settings["data"],
        settings["tokenizer"],
        split=evaluation.split,
        needed_tokens=max(evaluation.windows) + 1,
        context_length=context_length,
    )
    batch_windows = batch_tokens // context_length
    resolved = {
        **settings,
        "encoding": {"name": encoding["name"], **params},
        "seed": seed,
        "context_length": context_length,
        "train": {**train, "tokens": tokens, "batch_tokens": batch_tokens, "precision": precision},
        "eval": {
            **settings["eval"],
            "max_targets": evaluation.max_targets,
            "batch_tokens": evaluation.batch_tokens,
        },
    }
    digest = run_hash(resolved, facts, cls.revision)
    readable = settings["name"] or f"{encoding['name']}-{shape.name}-T{context_length}-s{seed}"
    return TrainJob(
        settings=resolved,
        directory=Path(settings["runs_dir"]) / settings["experiment_name"] / f"{readable}-{digest}",
        hash=digest,
        facts=facts,
        shape=shape,
        optimization=optimization,
        steps=max(1, round(tokens / (batch_windows * context_length))),
        batch_windows=batch_windows,
        precision=precision,
        device=device,
        evaluation=evaluation,
        encoding_params=params,
    )


def run_hash(settings: dict[str, Any], facts: CorpusFacts, revision: int) -> str:
    """Eight hex digits of what defines a run; not device, compile, tracking, evaluation or names."""
    train = {key: settings["train"][key] for key in ("tokens", "batch_tokens", "lr", "precision")}
    model = {key: value for key, value in settings["model"].items() if key != "name"}
    tokenizer = settings["tokenizer"]
    if tokenizer["name"] == "hf":  # its file may change under the same name; bpe follows from the corpus
        tokenizer = build_tokenizer(tokenizer, facts).identity()
    identity = {
        "model": model,
        "encoding": {**settings["encoding"], "revision": revision},
        "optim": settings["optim"],
        "train": train,
        "context_length": settings["context_length"],
        "seed": settings["seed"],
        "tokenizer": tokenizer,
        "corpus": facts.identity,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
