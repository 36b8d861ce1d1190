"""Make the validated job of a stored run of composed settings of `posenc eval`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import why_not_writable
from posenc.core.errors import UserError
from posenc.data import check_plant, check_tokenizer
from posenc.evaluation.resolve import Evaluation, default_eval_settings, resolve_evaluation
from posenc.model.decoder import count_block_weights
from posenc.running.checks import check_name, check_positions_reach
from posenc.running.job import Job
from posenc.running.measured_text import TrainedOn, text_to_measure
from posenc.running.stored_run import StoredRun, stored_run
from posenc.settings.tree import (
    NONE,
    EvalCommandSettings,
    EvalOverrides,
    EvalSettings,
)
from posenc.tracking import check_tracking
from posenc.training.device import resolve_device


def plan_evaluation(settings: EvalCommandSettings, *, keeps_records: bool = True) -> Job:
    """Return the validated job of composed settings. Raises UserError, and RunError for damaged files.

    Without `keeps_records` the run may lie where nobody can write.
    """
    _refuse_settings_of_given_models(settings)
    assert settings.run is not None
    stored = stored_run(settings.run, settings.plugins)
    if keeps_records:
        _check_writable(settings.run, stored.directory)
    trained = stored.settings
    check_name("experiment_name", trained.experiment_name)
    as_asked = with_stored_values(settings.eval, trained.eval)
    evaluation = resolve_evaluation(as_asked, trained.context_length, settings.extend)
    if trained.data.plant is not None:
        check_plant(trained.data.plant, trained.context_length, trained.tokenizer.name)
    check_tokenizer(trained.tokenizer)
    check_positions_reach(stored.outline, evaluation.lengths.longest)
    _check_extension(stored, evaluation)
    check_tracking(settings.tracking)
    # The tokenizer of the checkpoint and not of config.yaml, whose file may have changed since.
    tokenizer = stored.tokenizer_settings
    fingerprint = stored.checkpoint.provenance.fingerprint
    # Shares and a split that the user set are meant. Knobs are chosen on validation documents, which a text
    # that is measured whole does not have.
    is_split_meant = settings.keeps_shares or settings.eval.split is not None or evaluation.tries > 0
    text = text_to_measure(
        settings.data or trained.data,
        tokenizer,
        evaluation,
        keeps_split=settings.data is None or is_split_meant,
        trained_on=TrainedOn(data=trained.data, fingerprint=fingerprint),
    )
    data = text.data
    facts = text.facts
    evaluation.check_text(facts=facts, tokenizer=tokenizer, plant=data.plant)
    # SymPy may have been upgraded since, or a folder of texts edited: then the targets are others
    is_own_text = facts.fingerprint == fingerprint
    if settings.data is None and not is_own_text:
        problem = "its text is not what this run was trained on any more (another fingerprint)"
        hint = f"to measure on it all the same say data={facts.name}"
        raise UserError("data", facts.name, problem, hint=hint)
    return Job(
        directory=stored.directory,
        settings=trained,
        settings_hash=stored.checkpoint.provenance.settings_hash,
        writer=stored.writer,
        data=data,
        tokenizer=tokenizer,
        tracking=settings.tracking,
        corpus_facts=facts,
        shape=stored.shape,
        block_weights=count_block_weights(stored.outline),
        device=resolve_device(settings.device),
        evaluation=evaluation,
        is_own_text=is_own_text,
        notes=text.notes,
    )


def _refuse_settings_of_given_models(settings: EvalCommandSettings) -> None:
    """Raise UserError without a run, and for settings that only a model without one has."""
    if settings.run is None:
        raise UserError("run", None, "is needed and has no default", hint="add run=..., or subject=hf")
    if settings.context_length is not None:
        asked_length = settings.context_length
        # The hint repeats the number that was typed, so that it can be copied.
        longer = "..." if asked_length == "auto" else asked_length
        hint = f"to measure it in windows of another length: 'eval.lengths=[{longer}]'"
        raise UserError("context_length", asked_length, "is the run's own", hint=hint)
    if settings.eval.max_minutes is not None:
        problem = "has no effect on a run: it is measured on as many targets as in training"
        raise UserError("eval.max_minutes", settings.eval.max_minutes, problem, hint="set eval.max_targets=N")


def _check_writable(run: str, directory: Path) -> None:
    """Raise UserError if a run cannot keep the records of an evaluation."""
    reason = why_not_writable(directory)
    if reason is not None:
        problem = f"its folder, which keeps the records, cannot be written ({reason})"
        raise UserError("run", run, problem, hint="copy the run to a folder that you can write to")


def with_stored_values(asked: EvalOverrides, stored: EvalSettings) -> EvalSettings:
    """Return the settings that were asked for, with the stored value of each that is null."""
    values = asked.plain()
    values.pop("max_minutes")  # it has chosen max_targets by now, or was refused
    # a run that was trained before there was a protocol has no settings for it
    default = default_eval_settings().plain()
    return EvalSettings.model_validate(_merged(values, {**default, **stored.plain()}))


def _merged(asked: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with every null of `asked` replaced by what is stored."""
    merged = dict(stored)
    for key, value in asked.items():
        if isinstance(value, Mapping) and isinstance(stored.get(key), Mapping):
            merged[key] = _merged(value, stored[key])
        # In the group `eval` of conf/eval.yaml every value is null, which stands for what was not asked for.
        elif value is not None:
            merged[key] = value
    return merged


def _check_extension(stored: StoredRun, evaluation: Evaluation) -> None:
    """Refuse an extension that does not apply to the run, now and not once it is measured."""
    trained_with = stored.settings.extend.name
    if evaluation.is_extended and trained_with != NONE:
        raise UserError("extend", evaluation.extension_name, f"it was trained with {trained_with}")
    # The outline has no weights. Its sizes and its encoding are all that an extension asks.
    extension = evaluation.extension_of(stored.outline)
    is_tuned = evaluation.tries > 0
    if extension is not None and not is_tuned:
        extension.check_change(evaluation.lengths.longest)
    evaluation.check_tuning()
