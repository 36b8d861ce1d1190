"""Check what a training step computes, build a run's model, and give its facts for results.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from posenc.config.checks import (
    LARGEST_BATCH,
    LARGEST_MODEL,
    LARGEST_TOKENS,
    EvalPlan,
    check_length,
    check_model,
    check_optimization,
)
from posenc.core.errors import UserError
from posenc.core.signature import whole
from posenc.data import CorpusFacts
from posenc.encodings import list_encodings
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import build_options
from posenc.encodings.positions import check_positions, position_limits
from posenc.encodings.registry import (
    build_of_shape,
    encoding_class,
    part_parameters,
    resolve_encoding,
    sources_of,
)
from posenc.evaluation.extensions import NONE, build_extension, resolve_extend
from posenc.evaluation.foreign import Foreign
from posenc.model.attention import ATTENTIONS, own_parameters, resolve_attention
from posenc.model.decoder import Decoder, ModelShape, count_parameters, initialize, training_flops
from posenc.results.schema import RunFacts
from posenc.running.run_directory import versions
from posenc.training.device import resolve_compile, resolve_device, resolve_precision
from posenc.training.optimizer import Optimization


@dataclass(frozen=True, kw_only=True)
class Job:
    """A validated training or evaluation of a run."""

    directory: Path
    settings: dict[str, Any]  # the run's: what config.yaml says
    hash: str
    data: dict[str, Any]  # the corpus to measure on
    tokenizer: dict[str, Any]  # the one it is trained with
    tracking: dict[str, Any]
    facts: CorpusFacts
    shape: ModelShape
    device: torch.device
    evaluation: EvalPlan
    own_text: bool = True  # the corpus to measure on is the one it is trained on
    subject: Foreign | None = None  # a model that posenc did not train


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What one training step computes, checked without reading a corpus."""

    parts: dict[str, Any]  # of the model, as a run stores them
    shape: ModelShape
    outline: Decoder  # on the meta device
    optimization: Optimization
    tokens: int  # of the whole training
    batch_tokens: int
    batch_windows: int
    device: torch.device
    precision: str
    compile: bool


def check_step(settings: dict[str, Any]) -> StepPlan:
    """Return what a step of composed `train` settings computes. Raises UserError."""
    train, device = settings["train"], resolve_device(settings["device"])
    length = check_length(settings["context_length"])
    low = f"holds no window of context_length={length}"
    batch_tokens = whole(
        "train.batch_tokens", train["batch_tokens"], least=length, most=LARGEST_BATCH, low=low
    )
    low = f"is less than one update, train.batch_tokens={batch_tokens}"
    tokens = whole("train.tokens", train["tokens"], least=batch_tokens, most=LARGEST_TOKENS, low=low)
    shape, optimization = check_model(settings["model"]), check_optimization(train, settings["optim"])
    precision, parts = resolve_precision(train["precision"], device), resolve_parts(settings)
    with torch.device("meta"):  # values out of range show when it is built; nothing is allocated
        outline = build_decoder({**parts, "train": train}, shape, vocab_size=2)
    parameters = count_parameters(outline)["total"]
    if parameters > LARGEST_MODEL:
        problem = f"its model would have {parameters:.1e} parameters"
        raise UserError("model", shape.name, problem, allowed=f"up to {LARGEST_MODEL:.0e}")
    compiled = resolve_compile(train["compile"], device, flops=training_flops(outline, length) * tokens)
    return StepPlan(
        parts=parts,
        shape=shape,
        outline=outline,
        optimization=optimization,
        tokens=tokens,
        batch_tokens=batch_tokens,
        batch_windows=batch_tokens // length,
        device=device,
        precision=precision,
        compile=compiled,
    )


def resolve_parts(settings: dict[str, Any]) -> dict[str, Any]:
    """Return T, seed, encoding, attention, positions and plug-ins as a run stores them. Raises UserError."""
    plugins, extend = settings["plugins"], resolve_extend(settings.get("extend") or {"name": NONE})
    return {
        **({} if extend["name"] == NONE else {"extend": extend}),
        "context_length": check_length(settings["context_length"]),
        "seed": whole("seed", settings["seed"], least=0),
        "encoding": resolve_encoding(settings["encoding"], plugins),
        "attention": resolve_attention(settings["attention"]),
        "positions": check_positions(settings["positions"]),
        "plugins": plugins,
    }


def build_model(settings: dict[str, Any], shape: ModelShape, vocab_size: int) -> Decoder:
    """Return the decoder of these settings with its initial values."""
    model = build_decoder(settings, shape, vocab_size)
    initialize(model, settings["seed"])
    return model


def build_decoder(settings: dict[str, Any], shape: ModelShape, vocab_size: int) -> Decoder:
    """Return the decoder, its parameters not yet filled.

    Raises UserError for values out of range and for parts that make no sense together.
    """
    chosen, name = settings["attention"], settings["encoding"]["name"]
    attention, own = ATTENTIONS[chosen["name"]], own_parameters(chosen)
    length, positions = settings["context_length"], settings["positions"]
    extend, began = settings.get("extend"), (settings.get("train") or {}).get("began")
    known = began["context_length"] if extend and began else length  # T of the weights that it stretches
    farthest, apart = position_limits(positions, length)
    try:
        head_dim = attention.encoded_width(shape.head_dim, **own)
        sizes = Shape(shape.d_model, shape.n_heads, head_dim, shape.n_layers, known, farthest, apart)
        encoding = build_of_shape(sizes, settings["encoding"], settings["plugins"])
        if attention.decoupled and not encoding.decouples:
            able = [one for one in list_encodings() if encoding_class(one).decouples]
            problem = f"has no place for encoding={name}: it turns a part of the "
            problem += "head of its own, so it takes encodings that can do with that part alone"
            raise UserError("attention", chosen["name"], problem, allowed=able)
        options = build_options(sizes, encoding, positions=positions, attention=chosen)
        model = Decoder(shape, vocab_size, encoding, options, partial(attention, **own))
    except ValueError as error:
        raise UserError("attention", chosen["name"], str(error)) from error
    if extend:
        with torch.device("cpu"):  # it looks at positions, also of a model on the meta device
            acting = build_extension(extend, model)
            assert acting is not None
            model.train_with(acting.effective_encoding(length))
    return model


def code_of(settings: dict[str, Any], model: Decoder) -> dict[str, Any]:
    """Return which code the numbers depend on: part of a run's hash, and kept beside its weights."""
    code = sources_of(settings["encoding"], settings["plugins"])
    options = [f"{getattr(option, 'name', '')} {option.revision}" for option in model.options]
    return {**code, **({"options": options} if options else {})}


def _written_out(settings: dict[str, Any], part: Encoding) -> dict[str, Any]:
    """Return an encoding's settings with derived numbers for nulls, also in the parts of a sum."""
    found = {**settings, **part.derived}
    parts: tuple[Encoding, ...] = getattr(part, "parts", ())
    for key in part_parameters(type(part)):
        if len(found[key]) == len(parts):
            found[key] = [_written_out(one, of) for one, of in zip(found[key], parts, strict=True)]
    return found


def run_facts(
    job: Job, model: Decoder, trained: Mapping[str, Any], steps: int, peak_memory_bytes: int | None
) -> RunFacts:
    """Return the `run` object of results.json; settings that were null have their number here.

    `trained` holds fingerprint, tokens, seconds and final_loss of the training, `peak_memory_bytes` its peak.
    """
    settings = job.settings
    attention: Any = model.blocks[0].attention
    corpus = {"name": settings["data"]["name"], "fingerprint": trained["fingerprint"]}
    if (plant := settings["data"].get("plant")) is not None:
        corpus["plant"] = plant
    options: Any = model.options
    tokens, seconds = int(trained["tokens"]), float(trained["seconds"])
    drawn = {key: value for option in options for key, value in option.derived.items()}
    code = json.dumps(code_of(settings, model), sort_keys=True)
    return RunFacts(
        name=job.directory.name,
        encoding={**_written_out(settings["encoding"], model.encoding), "beyond": model.encoding.beyond},
        attention={**settings["attention"], **attention.derived},
        positions={**settings["positions"], **drawn},
        model=settings["model"],
        parameters=count_parameters(model),
        corpus=corpus,
        tokenizer=settings["tokenizer"],
        context_length=settings["context_length"],
        tokens=tokens,
        steps=steps,
        seed=settings["seed"],
        precision=settings["train"]["precision"],
        device=str(job.device),
        wall_seconds=round(seconds, 2),
        tokens_per_second=round(tokens / max(seconds, 1e-9), 1),
        peak_memory_bytes=peak_memory_bytes,
        final_loss=trained["final_loss"],
        settings_hash=job.hash,
        code=hashlib.sha256(code.encode()).hexdigest()[:8],
        versions=versions(),
    )


def subject_facts(job: Job, subject: Foreign) -> RunFacts:
    """Return the `run` object of a model that posenc did not train: of its training nothing is known."""
    parameters = {"total": count} if (count := sum(one.numel() for one in subject.parameters())) else {}
    dtype = next((one.dtype for one in subject.parameters()), torch.float32)
    tokenizer, kept = job.tokenizer, Path(job.tokenizer.get("path", "")).stem
    return RunFacts(
        name=job.directory.name,
        encoding=job.settings["encoding"],
        model={"name": job.settings.get("subject", {}).get("architecture", "given")},
        parameters=parameters,
        tokenizer={"name": kept} if kept.startswith("given-") else tokenizer,  # no place in the cache
        context_length=job.settings["context_length"],
        seed=job.settings["seed"],
        steps=0,
        precision={torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32"),
        device=str(job.device),
        settings_hash=job.hash,
        versions=versions(),
    )
