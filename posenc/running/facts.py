"""Collect the facts of a run for results.json. Where its settings are null, the facts have the number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posenc.encodings.base import Encoding
from posenc.encodings.building import part_parameters
from posenc.evaluation.models.callables import CallableModel
from posenc.model.decoder import Decoder, count_parameters
from posenc.results.records import (
    ModelFacts,
    ParameterFacts,
    PlantFacts,
    RunFacts,
    TokenizerFacts,
    TrainingText,
)
from posenc.running.job import Job
from posenc.running.model_parts import code_of
from posenc.running.run_directory import versions
from posenc.running.utilization import Utilization
from posenc.running.weight_types import weight_type_name
from posenc.settings.base import Mark
from posenc.settings.tree import RunSettings, SubjectSettings
from posenc.training.checkpoint import TrainedSoFar


@dataclass(frozen=True)
class TrainedHere:
    """Hold what only a process that trained the run can know."""

    peak_memory_bytes: int
    utilization: Utilization


def run_facts(
    job: Job, model: Decoder, so_far: TrainedSoFar, fingerprint: str, trained_here: TrainedHere | None
) -> RunFacts:
    """Return the facts of a run that posenc trained.

    `fingerprint` is that of the text it was trained on. Without `trained_here` its weights were loaded.
    """
    settings = job.run_settings
    # One layer speaks for all: they have the same kind of attention.
    attention: Any = model.blocks[0].attention
    # The seconds before a stop count, too: both numbers are of the whole training.
    tokens_per_second = so_far.tokens / max(so_far.seconds, 1e-9)
    peak_memory_bytes = None
    mfu = None
    if trained_here is not None:
        peak_memory_bytes = trained_here.peak_memory_bytes
        mfu = trained_here.utilization.of_all(tokens_per_second)
    return RunFacts(
        name=job.directory.name,
        encoding={**_written_out(settings.encoding.plain(), model.encoding), "beyond": model.encoding.beyond},
        attention={**settings.attention.plain(), **attention.derived},
        positions={**settings.positions.plain(), **_derived_by_options(model)},
        # The type of these settings says which keys there are, as ModelFacts does for readers.
        model=cast(ModelFacts, settings.model.plain()),
        parameters=_parameter_counts(model),
        corpus=_training_text(settings, fingerprint),
        tokenizer=cast(TokenizerFacts, settings.tokenizer.plain()),
        context_length=settings.context_length,
        tokens=so_far.tokens,
        steps=so_far.step,
        seed=settings.seed,
        precision=settings.train.precision,
        device=str(job.device),
        wall_seconds=round(so_far.seconds, 2),
        tokens_per_second=round(tokens_per_second, 1),
        mfu=None if mfu is None else round(mfu, 4),
        peak_memory_bytes=peak_memory_bytes,
        final_loss=so_far.final_loss,
        settings_hash=job.settings_hash,
        code=_code_hash(settings, model),
        versions=versions(),
    )


def facts_of_given_model(job: Job, model: CallableModel) -> RunFacts:
    """Return the facts of a model that posenc did not train, without any about its training."""
    settings = job.settings
    assert isinstance(settings, SubjectSettings)
    weights = list(model.parameters())
    count = sum(weight.numel() for weight in weights)
    dtype = weights[0].dtype if weights else None
    return RunFacts(
        name=job.directory.name,
        encoding=settings.encoding.plain(),
        model=ModelFacts(name=_architecture(settings)),
        parameters=ParameterFacts(total=count) if count else ParameterFacts(),
        tokenizer=_tokenizer(job),
        context_length=settings.context_length,
        seed=settings.seed,
        steps=0,
        precision=weight_type_name(dtype),
        device=str(job.device),
        settings_hash=job.settings_hash,
        versions=versions(),
    )


def _written_out(settings: Mapping[str, Any], part: Encoding) -> dict[str, Any]:
    """Return an encoding's settings with derived numbers for nulls, also in the parts of a sum."""
    written = {**settings, **part.derived}
    parts: tuple[Encoding, ...] = getattr(part, "parts", ())
    for key in part_parameters(type(part)):
        if len(written[key]) == len(parts):
            pairs = zip(written[key], parts, strict=True)
            written[key] = [_written_out(inner_settings, inner) for inner_settings, inner in pairs]
    return written


def _derived_by_options(model: Decoder) -> dict[str, Any]:
    """Return the numbers that options of the attention derive from null settings."""
    derived: dict[str, Any] = {}
    options: Any = model.options
    for option in options:
        derived |= option.derived
    return derived


def _parameter_counts(model: Decoder) -> ParameterFacts:
    """Return how many trained parameters a model has."""
    counts = count_parameters(model)
    return ParameterFacts(
        total=counts.total, embedding=counts.embedding, encoding=counts.encoding, options=counts.options
    )


def _training_text(settings: RunSettings, fingerprint: str) -> TrainingText:
    """Return name and fingerprint of the corpus, and the settings of planted pairs."""
    text = TrainingText(name=settings.data.name, fingerprint=fingerprint)
    if settings.data.plant is not None:
        text["plant"] = cast(PlantFacts, settings.data.plant.marked(Mark.SIZE))
    return text


def _code_hash(settings: RunSettings, model: Decoder) -> str:
    """Return eight hex digits of the code that the numbers depend on."""
    text = json.dumps(code_of(settings, model), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _architecture(settings: SubjectSettings) -> str:
    """Return the architecture by its name in transformers, or `given`."""
    if settings.subject is None:
        return "given"
    return str(settings.subject.parameters.get("architecture", "given"))


def _tokenizer(job: Job) -> TokenizerFacts:
    """Return the tokenizer's settings; only the name of one that posenc keeps in its cache."""
    tokenizer = job.tokenizer.plain()
    name = Path(tokenizer.get("path", "")).stem
    # The path is of this machine's cache, and means nothing elsewhere.
    if name.startswith("given-"):
        return TokenizerFacts(name=name)
    return cast(TokenizerFacts, tokenizer)
