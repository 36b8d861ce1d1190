"""Make the validated job of `posenc eval subject=hf`: what the model is measured on, as far as it fits.

The lengths have to fit into the text and into memory, and the numbers of targets into the minutes that are
allowed. What the user has named stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from posenc.core.errors import UserError, safe_name
from posenc.core.quantities import duration, length_text
from posenc.evaluation.resolve import Evaluation, resolve_evaluation
from posenc.running.checkpoint_identity import id_of_weights, known_id_of_weights, outline_digest
from posenc.running.checks import check_name
from posenc.running.fit_evaluation import (
    FitLimits,
    LongTexts,
    fit_to_memory,
    fit_to_time,
    fitted_lengths,
    note_on_lengths,
)
from posenc.running.given_model import OPEN_DIGEST, GivenModel, folder_of_records, plan_given_model
from posenc.running.hf_checkpoint import name_of_checkpoint
from posenc.running.job import Job
from posenc.running.length_note import notes_on_trained_length
from posenc.running.measured_text import MeasuredText, text_to_measure
from posenc.running.rotation_notes import notes_on_rotation
from posenc.running.subject_hf import (
    EXPERIMENT,
    HfModel,
    HfSubject,
    default_data,
    has_open_length,
    named_subject,
    read_subject,
)
from posenc.settings.base import flattened
from posenc.settings.tree import NONE, Choice, EvalCommandSettings, TokenizerSettings
from posenc.training.device import resolve_device


def plan_hf(settings: EvalCommandSettings, *, only_estimate: bool = False, is_alone: bool = True) -> Job:
    """Return the validated job of composed `eval` settings with `subject=hf`. Raises UserError.

    With `only_estimate` the job is for a dry run: the end of its directory's name may be left open, since
    that takes a digest of all weights. `is_alone` is False for a job of a sweep.
    """
    if settings.run is not None:
        raise UserError("run", settings.run, "has a model of its own", hint="leave out run= or subject=")
    if settings.tracking.name != NONE:
        raise UserError("tracking", settings.tracking.name, "is for runs that posenc trains")
    subject = named_subject(settings)
    folder = folder_of_records("subject.runs_dir", subject.runs_dir, EXPERIMENT)
    # Jobs of a sweep may share a directory, whose name is known in full with transformers alone.
    hf = read_subject(settings, plainly=only_estimate and is_alone)
    # The text comes first: a length that no document has takes no time.
    text, texts, evaluation = _fitted_to_text(settings, hf.evaluation, hf.train_length, hf.tokenizer)
    evaluation.check_tuning()
    notes = [*text.notes, *notes_on_rotation(hf.checkpoint, is_extended=evaluation.is_extended)]
    if has_open_length(settings):
        notes += notes_on_trained_length(hf.checkpoint)
    dtype = hf.weights.dtype
    job = plan_given_model(
        GivenModel(
            model=hf.model,
            name=_name(subject),
            data=text.data,
            tokenizer=hf.tokenizer,
            evaluation=evaluation,
            device=resolve_device(settings.device),
            folder=folder,
            experiment_name=EXPERIMENT,
            digest=_digest(hf, only_estimate=only_estimate),
            precision=dtype,
            subject=_stored_subject(hf),
            text=dataclasses.replace(text, notes=tuple(notes)),
            bytes_a_token=texts.bytes_a_token,
        )
    )
    attention = hf.model.sizes.attention.name
    # The extension is not part of it: with and without one the same targets are measured.
    model_key = [outline_digest(hf.checkpoint), hf.train_length, dtype, subject.tokenizer, attention]
    # With a device map layers are spread over devices, and it is not known which memory is free for which.
    if hf.weights.device_map is None:
        job = _fitted_to_memory(job, settings, [*model_key, hf.model.chunk_tokens])
        # The check is repeated, since no length beyond T may be left.
        job.evaluation.check_tuning(hint="the free memory left none: set eval.lengths")
    fitted = _fitted_to_time(job, settings, model_key)
    fitted.evaluation.check_tuning(hint="eval.max_minutes left none: set eval.lengths, or allow more minutes")
    return fitted


def _digest(hf: HfModel, *, only_estimate: bool) -> str:
    """Return what identifies the weights and how they are used.

    A dry run reads no weights: of 16 GB that takes a quarter of a minute. Without a digest that is known from
    an earlier evaluation it leaves the end of the directory's name open.
    """
    if hf.checkpoint.is_plain:
        return OPEN_DIGEST
    weights = known_id_of_weights(hf.checkpoint) if only_estimate else id_of_weights(hf.checkpoint)
    if weights is None:
        return OPEN_DIGEST
    # Records in float32 keep the names that they had before the type could be chosen. So do records of the
    # attention that transformers chooses. Both settings change losses by rounding.
    dtype = "" if hf.weights.dtype == "fp32" else f" dtype={hf.weights.dtype}"
    attention = "" if hf.subject.attention is None else f" attention={hf.subject.attention}"
    return f"{weights} bos={hf.bos}{dtype}{attention}"


def _name(subject: HfSubject) -> str:
    """Return what the rows of its records are called."""
    name = check_name("subject.path", safe_name(name_of_checkpoint(subject.path)))
    # Both stand in one table, each beside its own extensions.
    return name if subject.rope_scaling else f"{name}-unscaled"


def _stored_subject(hf: HfModel) -> Choice:
    """Return the subject as config.yaml keeps it: with its BOS token and its architecture."""
    # config.yaml has what `auto` came to, since another version of a tokenizer may make something else of it.
    resolved = {"bos": hf.bos, "architecture": hf.checkpoint.text_config.model_type}
    values = dataclasses.asdict(hf.subject)
    if hf.subject.attention is None:  # as in records from before it could be chosen, which are compared with
        del values["attention"]
    return Choice.model_validate({"name": "hf", **values, **resolved})


def _fitted_to_text(
    settings: EvalCommandSettings, evaluation: Evaluation, length: int, tokenizer: TokenizerSettings
) -> tuple[MeasuredText, LongTexts, Evaluation]:
    """Return the text, its long documents, and the evaluation at lengths that enough of them have.

    Raises UserError if no document has a length that the user asked for, or without such lengths T.
    """
    has_open_lengths = settings.eval.lengths is None
    least = evaluation  # the evaluation that the text has to allow
    if has_open_lengths:
        # The text has to hold T alone here. Longer windows are left out below, with a note.
        at_train_length = evaluation.settings.with_changes(lengths=[length])
        least = resolve_evaluation(at_train_length, length, settings.extend)
    # What the model was trained on is not known: it may have been the part of this text that trains others.
    text = text_to_measure(settings.data or default_data(), tokenizer, least, keeps_split=True)
    texts = LongTexts.of(text.facts, tokenizer, evaluation.split)
    texts.check(least.lengths.longest, text.facts, tokenizer)
    if not has_open_lengths:
        return text, texts, evaluation
    lengths = fitted_lengths(evaluation.settings, length, texts)
    note = note_on_lengths(evaluation.lengths.windows, lengths, texts, length)
    if note is not None:
        text = dataclasses.replace(text, notes=(*text.notes, note))
    fitted = evaluation.settings.with_changes(lengths=lengths)
    return text, texts, resolve_evaluation(fitted, length, settings.extend)


def _fitted_to_memory(job: Job, settings: EvalCommandSettings, model_key: Sequence[object]) -> Job:
    """Return the job with lengths and passes that fit into memory, as far as the user gave none."""
    choice = fit_to_memory(job, settings.eval, model_key)
    if not choice.fit.is_limited:
        return job
    unfitted = job.evaluation.settings
    notes = choice.notes(job.settings.context_length, unfitted.batch_tokens)
    values = choice.fit.applied(unfitted)
    evaluation = resolve_evaluation(values, job.settings.context_length, settings.extend)
    fitted = job.settings.with_changes(eval=evaluation.settings)
    return dataclasses.replace(job, evaluation=evaluation, settings=fitted, notes=(*job.notes, *notes))


def _fitted_to_time(job: Job, settings: EvalCommandSettings, model_key: Sequence[object]) -> Job:
    """Return the job with what takes about `eval.max_minutes`, as far as the user gave no numbers.

    The choice is kept for models with this key.
    """
    limits = FitLimits.of(settings.eval, job.evaluation)
    # The user gave every number, so there is nothing to choose.
    if not limits.open_counts:
        return job
    fit = fit_to_time(job, limits, model_key)
    fitted_settings = fit.applied(job.evaluation.settings)
    evaluation = resolve_evaluation(fitted_settings, job.settings.context_length, settings.extend)
    unfitted_values = flattened(job.evaluation.settings.plain())
    fitted_values = flattened(evaluation.settings.plain())
    chosen = " ".join(f"eval.{key}={fitted_values[key]}" for key in limits.open_counts)
    longest = length_text(round(evaluation.lengths.longest / job.settings.context_length, 4))
    note = f"chosen     {chosen}, up to {longest}, by eval.max_minutes={limits.max_minutes:g}"
    has_fewer = any(fitted_values[key] != unfitted_values[key] for key in limits.open_counts)
    is_shorter = evaluation.lengths.longest < job.evaluation.lengths.longest
    notes = list(job.notes)
    # Where nothing had to be lowered, there is nothing to say.
    if has_fewer or is_shorter:
        notes.append(note)
    if fit.minutes > limits.max_minutes:
        least = f"the least takes about {duration(60 * fit.minutes)}"
        notes.append(f"time       {least}: ask for fewer lengths or protocols")
    fitted = job.settings.with_changes(eval=evaluation.settings)
    return dataclasses.replace(job, evaluation=evaluation, settings=fitted, notes=tuple(notes))
