"""Validate the measurement of a model that posenc did not train."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.core.atomic_files import write_text_atomic
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir, expanded
from posenc.core.seeds import generator_for
from posenc.data import absolute_tokenizer, build_tokenizer, stored_tokenizer
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.models.causality import check_causality
from posenc.evaluation.resolve import Evaluation
from posenc.running.checks import check_name, check_runs_dir
from posenc.running.job import Job
from posenc.running.measured_text import MeasuredText, text_to_measure
from posenc.settings.tree import (
    NONE,
    Choice,
    DataSettings,
    EncodingSettings,
    SubjectSettings,
    TokenizerSettings,
    TrackingSettings,
)
from posenc.training.memory import is_out_of_memory

# A pass of SmolLM2-135M over 32,768 tokens takes five minutes of two cores (docs/real-models.md).
LONGEST_PROBE = 4096  # tokens of the longest text whose logits identify a model
# Not the longest of the default lengths, which may change: every model would get another digest.
PROBED_LENGTHS = 8  # times T
OPEN_DIGEST = "*"  # in the place of the digest where a dry run has not read the weights


@dataclass(frozen=True, kw_only=True)
class GivenModel:
    """A model to measure that posenc did not train, and where its records go."""

    model: CallableModel
    name: str
    data: DataSettings
    tokenizer: TokenizerSettings
    evaluation: Evaluation
    device: torch.device
    folder: Path  # of the experiment: its records go into a directory below
    experiment_name: str
    seed: int = 0
    digest: str | None = None  # identifies the weights; None: its logits for two texts do
    subject: Choice | None = None  # the setting that names it, for config.yaml
    precision: str = "fp32"  # of the weights
    text: MeasuredText | None = None  # None: the text of `data`
    bytes_a_token: float | None = None  # in the text, if it was measured


def folder_of_records(key: str, runs_dir: str, experiment_name: str) -> Path:
    """Return RUNS_DIR/EXPERIMENT for the records of given models; `key` is the setting that holds `runs_dir`.

    Raises UserError if nothing can be written there.
    """
    folder = expanded(runs_dir) / check_name("experiment_name", experiment_name)
    # A finished run may lie where nobody can write, and is then read. Here something is always written.
    check_runs_dir(key, runs_dir, folder, writing=True)
    return folder


def plan_given_model(given: GivenModel) -> Job:
    """Return the validated job of a given model. Raises UserError."""
    evaluation = given.evaluation
    model = given.model
    # Protocols that need posenc's own decoder are refused before a text is read.
    evaluation.check_given_model()
    check_name("name", given.name)
    tokenizer = absolute_tokenizer(given.tokenizer)
    # What the model was trained on is not known: it may have been the part of this text that trains others.
    text = given.text or text_to_measure(given.data, tokenizer, evaluation, keeps_split=True)
    data = text.data
    facts = text.facts
    evaluation.check_corpus(facts)
    encoder = build_tokenizer(tokenizer, facts)
    evaluation.check_tokenizer(encoder)
    length = model.shape.train_length
    # A function does not say how many tokens it knows. Its tokenizer does.
    if not model.has_known_weights:
        model.vocab_size = encoder.vocab_size
        _check_causality(model, given.name, given.device)
    # The same weights with another T or tokenizer make other records, which must not lie in one folder.
    name = f"{given.name} {length} {encoder.identity()}"
    digest = _digest(model, name, given.digest, given.device)
    settings = SubjectSettings(
        encoding=EncodingSettings(name=given.name),
        data=data,
        tokenizer=tokenizer,
        context_length=length,
        eval=evaluation.settings,
        seed=given.seed,
        experiment_name=given.experiment_name,
        subject=given.subject,
        precision=given.precision,
    )
    return Job(
        directory=given.folder / f"{given.name}-T{length}-{digest}",
        settings=settings,
        settings_hash=digest,
        writer={},
        data=data,
        tokenizer=tokenizer,
        # Trackers show runs that are trained.
        tracking=TrackingSettings(name=NONE),
        corpus_facts=facts,
        shape=None,
        block_weights=None,
        device=given.device,
        evaluation=evaluation,
        # Nobody knows what the model was trained on, so no reference of this text is measured beside it.
        is_own_text=False,
        notes=text.notes,
        given_model=model,
        bytes_a_token=given.bytes_a_token,
    )


def kept_tokenizer(given: Any) -> TokenizerSettings:
    """Return the settings that read a tokenizer of `tokenizers`, `transformers` or a run, kept in the cache.

    Raises UserError for anything else.
    """
    if isinstance(given, Tokenizer):
        if given.definition is None:
            return TokenizerSettings(name=given.name)
        return _in_cache(given.definition)
    library = getattr(given, "backend_tokenizer", given)  # of transformers
    # A slow tokenizer of transformers has no such method: it is Python code, and no file describes it.
    if not hasattr(library, "to_str"):
        allowed = "bytes, a tokenizer.json, or an object of tokenizers or transformers that has one"
        raise UserError("tokenizer", type(given).__name__, "is no tokenizer", allowed=allowed)
    return _in_cache(library.to_str())


def _in_cache(definition: str) -> TokenizerSettings:
    """Write a tokenizer.json into the cache; return the settings that read it."""
    # The name follows from the content, so that the same tokenizer is kept once, whoever gives it.
    digest = hashlib.sha256(definition.encode()).hexdigest()[:16]
    path = cache_dir() / "tokenizers" / f"given-{digest}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, definition)
    return stored_tokenizer(Path(path))


def _check_causality(model: CallableModel, name: str, device: torch.device) -> None:
    """Raise UserError for a function that sees later tokens of a text of T tokens."""
    model.to(device).eval()
    try:
        # At T, because a function may take no other lengths than multiples of it.
        check_causality(model, "subject", name, model.shape.train_length, device)
    except NotApplicableError:
        return  # it ends before T: its windows have a note in place of numbers
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


@torch.no_grad()
def _digest(model: CallableModel, name: str, digest: str | None, device: torch.device) -> str:
    """Return eight hex digits that identify a model by its name and by the digest of its weights.

    Without a digest its logits for two texts, of T and of up to 8T tokens, take the place of weights: those
    of a Python function cannot be read.
    """
    if digest == OPEN_DIGEST:
        return OPEN_DIGEST
    if digest is not None:
        return hashlib.sha256(f"{name} {digest}".encode()).hexdigest()[:8]
    sha = hashlib.sha256(name.encode())
    length = model.shape.train_length
    model.to(device).eval()
    # Two models may agree on short texts and differ beyond T, which is what is measured here.
    for window in (length, max(length, min(PROBED_LENGTHS * length, LONGEST_PROBE))):
        ids = torch.randint(model.vocab_size, (1, window), generator=generator_for(0, "probe", window))
        try:
            sha.update(model(ids.to(device), 1).float().cpu().numpy().tobytes())
        except NotApplicableError:
            # The length at which a model ends is a part of what it is.
            sha.update(b"n/a")
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    return sha.hexdigest()[:8]
