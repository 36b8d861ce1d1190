"""Validate composed settings and turn them into the plain arguments of a training job.

All that can be wrong is found here, before anything is tokenised or written.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.config.checks import (
    LARGEST_MODEL,
    LARGEST_TOKENS,
    LONGEST_CONTEXT,
    between,
    check_batch_tokens,
    check_evaluation,
    check_model,
    check_name,
    check_optimization,
    check_positions_reach,
    check_runs_dir,
    whole,
)
from posenc.core.errors import UserError, safe_name
from posenc.core.paths import expanded
from posenc.data import (
    CorpusFacts,
    absolute_data,
    absolute_tokenizer,
    build_tokenizer,
    check_tokenizer,
    inspect,
)
from posenc.model.decoder import count_parameters, training_flops
from posenc.results.load import spoken_name
from posenc.running.build import build_decoder, code_of, resolve_parts
from posenc.running.measure import Job
from posenc.tracking import check_tracking
from posenc.training.device import resolve_compile, resolve_device, resolve_precision
from posenc.training.optimizer import Optimization


@dataclass(frozen=True, kw_only=True)
class TrainJob(Job):
    """A validated training run."""

    source: dict[str, Any]  # the code of its encoding, for checkpoints
    optimization: Optimization
    steps: int
    batch_windows: int
    precision: str
    begun_here: str | None  # what `auto` would be here, where it was another when this run was begun


def train_job(settings: dict[str, Any]) -> TrainJob:
    """Return the validated job of composed `train` settings. Raises UserError."""
    seed = whole("seed", settings["seed"], least=0)
    context_length = whole("context_length", settings["context_length"], least=2, most=LONGEST_CONTEXT)
    train = settings["train"]
    batch_tokens = check_batch_tokens(train["batch_tokens"], context_length)
    tokens = whole("train.tokens", train["tokens"], least=1, most=LARGEST_TOKENS)
    if tokens < batch_tokens:
        problem = f"is less than one update, train.batch_tokens={batch_tokens}"
        raise UserError("train.tokens", tokens, problem, allowed=f"a whole number from {batch_tokens}")
    whole("train.log_every", train["log_every"], least=1)
    between("train.checkpoint_seconds", train["checkpoint_seconds"], 0, math.inf)
    shape = check_model(settings["model"])
    optimization = check_optimization(train, settings["optim"])
    evaluation = check_evaluation(settings["eval"], context_length)
    check_name("experiment_name", settings["experiment_name"])
    if settings["name"] is not None:
        check_name("name", settings["name"])
    folder = expanded(settings["runs_dir"]) / settings["experiment_name"]
    check_runs_dir(settings["runs_dir"], folder, writing=False)
    check_tracking(settings["tracking"])
    check_tokenizer(settings["tokenizer"])
    device = resolve_device(settings["device"])
    precision = resolve_precision(train["precision"], device)

    parts = resolve_parts(settings, context_length)
    with torch.device("meta"):  # values out of range show when it is built; nothing is allocated
        model = build_decoder(parts, shape, vocab_size=2)
    parameters = count_parameters(model)["total"]
    if parameters > LARGEST_MODEL:
        problem = f"its model would have {parameters:.1e} parameters"
        raise UserError("model", shape.name, problem, allowed=f"up to {LARGEST_MODEL:.0e}")
    check_positions_reach(model, max(evaluation.windows))
    flops = training_flops(model, context_length) * tokens
    compiled = resolve_compile(train["compile"], device, flops=flops)
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
        "data": absolute_data(settings["data"]),
        "tokenizer": absolute_tokenizer(settings["tokenizer"]),
        "model": {**settings["model"], "name": shape.name},
        **parts,
        "seed": seed,
        "train": {
            **train,
            "tokens": tokens,
            "batch_tokens": batch_tokens,
            "precision": precision,
            "compile": compiled,
        },
        "eval": {
            **settings["eval"],
            "max_targets": evaluation.max_targets,
            "batch_tokens": evaluation.batch_tokens,
        },
    }
    source = code_of(parts, model)
    names = [safe_name(name) for name in (str(spoken_name(parts["encoding"])), shape.name)]
    readable = settings["name"] or f"{'-'.join(names)}-T{context_length}-s{seed}"
    digest = run_hash(resolved, facts, source)
    directory = _directory(folder, readable, digest)
    begun_here = None
    if train["precision"] == "auto" and not directory.is_dir():
        other = "fp32" if precision == "bf16" else "bf16"
        elsewhere = {**resolved, "train": {**resolved["train"], "precision": other}}
        hash_elsewhere = run_hash(elsewhere, facts, source)
        begun = _directory(folder, readable, hash_elsewhere)
        if begun.is_dir():  # on another machine: what `auto` meant there is stored, and stays
            resolved, digest, directory = elsewhere, hash_elsewhere, begun
            begun_here, precision = precision, other
    if not directory.is_dir():  # one that is there may be finished, and is then only read
        check_runs_dir(settings["runs_dir"], folder, writing=True)
    return TrainJob(
        settings=resolved,
        directory=directory,
        hash=digest,
        data=resolved["data"],
        tokenizer=resolved["tokenizer"],
        tracking=resolved["tracking"],
        source=source,
        facts=facts,
        shape=shape,
        optimization=optimization,
        steps=max(1, round(tokens / (batch_windows * context_length))),
        batch_windows=batch_windows,
        precision=precision,
        begun_here=begun_here,
        device=device,
        evaluation=evaluation,
    )


def _directory(folder: Path, readable: str, digest: str) -> Path:
    """Return the run directory with this hash, whatever its name; of copies the one with this name."""
    named = folder / f"{readable}-{digest}"
    there = sorted(path for path in folder.glob(f"*-{digest}") if path.is_dir())
    begun = [path for path in there if (path / "status.json").is_file()]
    return named if named in begun else next(iter(begun + there), named)


def run_hash(settings: dict[str, Any], facts: CorpusFacts, source: dict[str, Any]) -> str:
    """Return eight hex digits of what defines a run; not device, compile, tracking, evaluation or names."""
    train = {key: settings["train"][key] for key in ("tokens", "batch_tokens", "lr", "precision")}
    model = {key: value for key, value in settings["model"].items() if key != "name"}
    tokenizer = settings["tokenizer"]
    if tokenizer["name"] == "hf":  # its file may change under the same name; bpe follows from the corpus
        tokenizer = build_tokenizer(tokenizer, facts).identity()
    identity = {
        "model": model,
        "encoding": settings["encoding"],
        "source": source,
        "attention": settings["attention"],
        "positions": settings["positions"],
        "optim": settings["optim"],
        "train": train,
        "context_length": settings["context_length"],
        "seed": settings["seed"],
        "tokenizer": {key: value for key, value in tokenizer.items() if key != "path"},
        "corpus": facts.identity,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
