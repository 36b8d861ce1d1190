"""Build a run's model from its settings, and the facts that results.json gives of it."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from posenc.core.errors import UserError
from posenc.encodings import build_encoding, list_encodings
from posenc.encodings.base import Encoding
from posenc.encodings.options import build_options, check_positions, position_limits
from posenc.encodings.registry import (
    encoding_class,
    part_parameters,
    resolve_encoding,
    sources_of,
)
from posenc.encodings.sum import Composed
from posenc.model.attention import ATTENTIONS, own_parameters, resolve_attention
from posenc.model.decoder import Decoder, ModelShape, count_parameters, initialize
from posenc.results.schema import RunFacts
from posenc.running.run_directory import versions

if TYPE_CHECKING:
    from posenc.running.measure import Job


def resolve_parts(settings: dict[str, Any], context_length: int) -> dict[str, Any]:
    """Return encoding, attention, positions, T and plug-ins as a run stores them, names and types checked.

    Raises UserError.
    """
    plugins = settings["plugins"]
    return {
        "encoding": resolve_encoding(settings["encoding"], plugins),
        "attention": resolve_attention(settings["attention"]),
        "positions": check_positions(settings["positions"]),
        "context_length": context_length,
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
    chosen = settings["attention"]
    attention, params = ATTENTIONS[chosen["name"]], own_parameters(chosen)
    length, positions = settings["context_length"], settings["positions"]
    try:
        head_dim = attention.encoded_width(shape.head_dim, **params)
    except ValueError as error:
        raise UserError("attention", chosen["name"], str(error)) from error
    farthest, apart = position_limits(positions, length)
    encoding = build_encoding(
        settings["encoding"]["name"],
        d_model=shape.d_model,
        n_heads=shape.n_heads,
        head_dim=head_dim,
        n_layers=shape.n_layers,
        train_length=length,
        position_limit=farthest,
        distance_limit=apart,
        plugins=settings["plugins"],
        **{key: value for key, value in settings["encoding"].items() if key != "name"},
    )
    if attention.decoupled and not encoding.decouples:
        name = settings["encoding"]["name"]
        raise UserError(
            "attention",
            chosen["name"],
            f"has no place for encoding={name}: it turns a part of the "
            "head of its own, so it takes encodings that can do with that part alone",
            allowed=_decoupling(),
        )
    options = build_options(
        encoding.shape, encoding, positions=positions, window=chosen["window"], scale=chosen["scale"]
    )
    try:
        return Decoder(shape, vocab_size, encoding, options, partial(attention, **params))
    except ValueError as error:
        raise UserError("attention", chosen["name"], str(error)) from error


def _decoupling() -> list[str]:
    return [name for name in list_encodings() if encoding_class(name).decouples]


def code_of(settings: dict[str, Any], model: Decoder) -> dict[str, Any]:
    """Return which code the numbers depend on: part of a run's hash, and kept beside its weights."""
    code = sources_of(settings["encoding"], settings["plugins"])
    options = [f"{getattr(option, 'name', '')} {option.revision}" for option in model.options]
    return {**code, **({"options": options} if options else {})}


def _digest(code: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:8]


def _written_out(settings: dict[str, Any], part: Encoding) -> dict[str, Any]:
    """Return an encoding's settings with the numbers that its nulls came to; for a sum, in its parts too."""
    found = {**settings, **part.derived}
    parts = part.parts if isinstance(part, Composed) else ()
    for key in part_parameters(type(part)):
        if len(found[key]) == len(parts):
            found[key] = [_written_out(one, of) for one, of in zip(found[key], parts, strict=True)]
    return found


def run_facts(
    job: Job,
    model: Decoder,
    *,
    fingerprint: str,
    tokens: int,
    steps: int,
    seconds: float,
    final_loss: float | None,
    peak_memory_bytes: int | None,
) -> RunFacts:
    """Return the `run` object of results.json; `seconds` and the peak are the training's.

    Settings that were null have their number here.
    """
    settings = job.settings
    attention: Any = model.blocks[0].attention
    drawn: dict[str, Any] = {}
    corpus = {"name": settings["data"]["name"], "fingerprint": fingerprint}
    if (plant := settings["data"].get("plant")) is not None:
        corpus["plant"] = plant
    for option in model.options:
        assert isinstance(option, Encoding)
        drawn |= option.derived
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
        final_loss=final_loss,
        settings_hash=job.hash,
        code=_digest(code_of(settings, model)),
        versions=versions(),
    )
