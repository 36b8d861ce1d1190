"""Make a validated job of composed settings of `posenc train`. Nothing is tokenised or written."""

from __future__ import annotations

from dataclasses import dataclass

from posenc.core.errors import UserError, plural
from posenc.core.paths import expanded, is_folder
from posenc.data import (
    CorpusFacts,
    Stage,
    absolute_data,
    absolute_tokenizer,
    check_plant,
    check_tokenizer,
    inspect,
    named_data,
)
from posenc.data.planted import planted_windows
from posenc.encodings.building import has_foreign_code
from posenc.evaluation.resolve import Evaluation, resolve_evaluation, suited_to
from posenc.model.decoder import count_block_weights
from posenc.running.checks import (
    check_length_schedule,
    check_name,
    check_positions_reach,
    check_runs_dir,
)
from posenc.running.initial_weights import InitialCheckpoint, check_fit, initial_checkpoint
from posenc.running.job import Job, Training
from posenc.running.law_check import check_foreign_encoding
from posenc.running.model_parts import StepPlan, check_step, code_of
from posenc.running.planned_run import PlannedRun, writer_of
from posenc.running.tuned_rate import TUNED, with_tuned_rate
from posenc.settings.tree import NONE, PlantSettings, RunSettings
from posenc.tracking import check_tracking


@dataclass(frozen=True, kw_only=True)
class CheckedTraining:
    """Hold a training whose settings fit each other and its corpus."""

    step: StepPlan
    stages: tuple[Stage, ...]
    evaluation: Evaluation
    initial: InitialCheckpoint | None  # the weights that it begins with; None: drawn from the seed
    run: PlannedRun  # in the precision of this machine


def plan_training(settings: RunSettings) -> Job:
    """Return the validated job of composed settings. Raises UserError."""
    # The rate is part of the run's name, so it has to be known before anything else is planned.
    if settings.train.lr == TUNED:
        settings = with_tuned_rate(settings, planned_run)
    training = _checked(settings)
    step = training.step
    run = _as_begun(training.run, settings.train.precision)
    directory = run.directory
    if not is_folder(directory):  # one that exists may be finished, and is then only read
        # The check in `_checked` came before the corpus was read. Only now the name of the folder is known.
        check_runs_dir("runs_dir", settings.runs_dir, directory.parent, writing=True)
    precision = run.settings.train.precision
    return Job(
        directory=directory,
        settings=run.settings,
        settings_hash=run.hash,
        writer=writer_of(run.settings, run.hash),
        data=run.settings.data,
        tokenizer=run.settings.tokenizer,
        tracking=run.settings.tracking,
        corpus_facts=run.facts,
        shape=step.shape,
        block_weights=count_block_weights(step.outline),
        device=step.device,
        evaluation=training.evaluation,
        training=Training(
            optimization=step.optimization,
            precision=precision,
            compile=bool(run.settings.train.compile),
            cuda_graph=bool(run.settings.train.cuda_graph),
            steps=step.steps,
            batch_windows=step.batch_windows,
            stages=training.stages,
            code=run.code,
            initial=training.initial,
            auto_precision=None if precision == step.precision else step.precision,
        ),
    )


def planned_run(settings: RunSettings) -> PlannedRun:
    """Return the run of composed settings, validated. Raises UserError."""
    return _checked(settings).run


def _checked(settings: RunSettings) -> CheckedTraining:
    """Check the settings against each other, then against the corpus. Raises UserError.

    What needs no text comes first, so that a typo is found before a corpus is read.
    """
    initial = None
    if settings.train.init is not None:
        # The weights come first, since what they were trained with becomes a part of the settings.
        initial = initial_checkpoint(settings.train.init, settings.tokenizer, settings.plugins)
        settings = _beginning_with(settings, initial)
    elif settings.extend.name != NONE:
        raise _extension_without_weights(settings.extend.name)
    step = check_step(settings)
    if has_foreign_code(step.settings.encoding, settings.plugins):
        check_foreign_encoding(step.settings)
    if initial is not None:
        check_fit(initial, step.outline)
    stages = _stages_of(step)
    # The default protocols score text. On a task their place is taken by those that score answers.
    as_measured = suited_to(settings.eval, settings.data)
    evaluation = resolve_evaluation(as_measured, settings.context_length)
    _check_place(settings)
    check_tracking(settings.tracking)
    check_tokenizer(settings.tokenizer)
    # Positions at random have an end. Without this check a run would
    # fail in its evaluation, after the training.
    check_positions_reach(step.outline, evaluation.lengths.longest)
    if settings.data.plant is not None:
        # pairs must fit the shortest windows
        check_plant(settings.data.plant, stages[0].length, settings.tokenizer.name)
        _check_share(settings.data.plant, step.batch_windows)
    facts = _read_facts(settings, evaluation)
    resolved = _resolved(step.settings, evaluation)
    return CheckedTraining(
        step=step,
        stages=stages,
        evaluation=evaluation,
        initial=initial,
        run=PlannedRun(resolved, facts, code_of(step.settings, step.outline)),
    )


def _check_share(plant: PlantSettings, batch_windows: int) -> None:
    """Raise UserError for a share of planted windows that is less than half a window of a batch."""
    if planted_windows(plant, batch_windows) == 0:
        problem = f"of {plural(batch_windows, 'window')} in a batch is rounded to none"
        hint = "a larger share, or train.batch_tokens"
        raise UserError("data.plant.share", plant.share, problem, hint=hint)


def _extension_without_weights(name: str) -> UserError:
    """Return the error for a training from random weights that asks for a test-time extension."""
    problem = "extends a trained run, and this one begins with random weights"
    hint = f"train without it, then: posenc eval run=RUN extend={name}\n"
    hint += "a training that goes on with it begins with a run's weights: train.init=RUN"
    return UserError("extend", name, problem, hint=hint)


def _beginning_with(settings: RunSettings, initial: InitialCheckpoint) -> RunSettings:
    """Return the settings with what is known of the run whose weights it begins with."""
    train = settings.train.with_changes(init=str(initial.directory.resolve()), began=initial.about)
    return settings.with_changes(train=train)


def _stages_of(step: StepPlan) -> tuple[Stage, ...]:
    """Return the stages of `train.length_schedule`. Raises UserError."""
    settings = step.settings
    schedule = settings.train.length_schedule
    return check_length_schedule(schedule, settings.context_length, step.batch_windows, step.steps)


def _check_place(settings: RunSettings) -> None:
    """Check the names that make the run directory, and that it can be made. Raises UserError."""
    check_name("experiment_name", settings.experiment_name)
    if settings.name is not None:
        check_name("name", settings.name)
    folder = expanded(settings.runs_dir) / settings.experiment_name
    check_runs_dir("runs_dir", settings.runs_dir, folder, writing=False)


def _read_facts(settings: RunSettings, evaluation: Evaluation) -> CorpusFacts:
    """Return the corpus in figures. Raises UserError where it is too short for the evaluation."""
    facts = inspect(
        settings.data,
        settings.tokenizer,
        splits=evaluation.splits,
        needed_tokens=evaluation.lengths.longest + 1,
        context_length=settings.context_length,
    )
    evaluation.check_text(facts=facts, tokenizer=settings.tokenizer, plant=settings.data.plant)
    return facts


def _resolved(settings: RunSettings, evaluation: Evaluation) -> RunSettings:
    """Return the settings as the run stores them: paths are absolute, the evaluation is complete."""
    # An absolute path means the same from every folder. A relative
    # one would be another text in another folder.
    return settings.with_changes(
        data=named_data(absolute_data(settings.data)),
        tokenizer=absolute_tokenizer(settings.tokenizer),
        eval=evaluation.settings,
    )


def _as_begun(run: PlannedRun, asked_precision: str) -> PlannedRun:
    """Return the run in the precision that it was begun in, where `auto` was asked for.

    A run may be begun on a machine with bf16 in hardware and continued on one without. What `auto` meant on
    the first one stays, or the second would begin another run.
    """
    # Who names a precision means that run, even if the other one exists.
    if asked_precision != "auto" or is_folder(run.directory):
        return run
    other = run.in_other_precision
    return other if is_folder(other.directory) else run
