"""From settings to the objects of a job: the model, and what is known about a run."""

from __future__ import annotations

import sys
from typing import Any

import torch

from posenc.encodings import build_encoding
from posenc.model.decoder import Decoder, ModelShape, count_parameters
from posenc.model.init import initialize
from posenc.results.records import RunFacts


def build_model(settings: dict[str, Any], shape: ModelShape, vocab_size: int) -> Decoder:
    """The decoder of these settings with its initial values."""
    model = build_decoder(settings, shape, vocab_size)
    initialize(model, settings["seed"])
    return model


def build_decoder(settings: dict[str, Any], shape: ModelShape, vocab_size: int) -> Decoder:
    """The same, its parameters not filled yet."""
    encoding = build_encoding(
        settings["encoding"]["name"],
        d_model=shape.d_model,
        n_heads=shape.n_heads,
        head_dim=shape.head_dim,
        n_layers=shape.n_layers,
        train_length=settings["context_length"],
        plugins=settings["plugins"],
        **{key: value for key, value in settings["encoding"].items() if key != "name"},
    )
    return Decoder(shape, vocab_size, encoding)


def run_facts(
    settings: dict[str, Any],
    model: Decoder,
    *,
    fingerprint: str,
    name: str,
    digest: str,
    device: torch.device,
    tokens: int,
    steps: int,
    seconds: float,
    final_loss: float | None,
    versions: dict[str, str],
) -> RunFacts:
    """The `run` object of results.json; `seconds` is the training time."""
    return RunFacts(
        name=name,
        encoding={**settings["encoding"], "beyond": model.encoding.beyond},
        model=settings["model"],
        parameters=count_parameters(model),
        corpus={"name": settings["data"]["name"], "fingerprint": fingerprint},
        tokenizer=settings["tokenizer"],
        context_length=settings["context_length"],
        tokens=tokens,
        steps=steps,
        seed=settings["seed"],
        precision=settings["train"]["precision"],
        device=str(device),
        wall_seconds=round(seconds, 2),
        tokens_per_second=round(tokens / max(seconds, 1e-9), 1),
        peak_memory_bytes=peak_memory(device),
        final_loss=final_loss,
        settings_hash=digest,
        versions=versions,
    )


def peak_memory(device: torch.device) -> int | None:
    """Bytes: the most this process held, on the GPU if it runs there; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux, bytes on macOS
