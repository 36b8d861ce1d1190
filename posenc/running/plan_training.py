"""From composed settings of `posenc train` to a validated job. Nothing is tokenised or written."""

from __future__ import annotations

from posenc.core.paths import expanded
from posenc.data import CorpusFacts, absolute_data, absolute_tokenizer, check_plant, check_tokenizer, inspect
from posenc.evaluation.resolve import Evaluation, resolve_evaluation
from posenc.running.checks import check_length_schedule, check_name, check_positions_reach, check_runs_dir
from posenc.running.identity import Identity
from posenc.running.initial_weights import InitialCheckpoint, check_fit, initial_checkpoint
from posenc.running.job import Job, Stage, Training
from posenc.running.model_parts import StepPlan, check_step, code_of
from posenc.running.tuned_rate import TUNED, with_tuned_rate
from posenc.settings.tree import DataSettings, RunSettings, TokenizerSettings
from posenc.tracking import check_tracking


def plan_training(settings: RunSettings) -> Job:
    """Return the validated job of composed settings. Raises UserError."""
    if settings.train.lr == TUNED:
        settings = with_tuned_rate(settings, identify)
    prepared = _prepare(settings)
    step, identity = prepared.step, prepared.identity
    begun = _begun_in(identity, settings.train.precision)
    directory = begun.directory
    if not directory.is_dir():  # one that exists may be finished, and is then only read
        check_runs_dir(settings.runs_dir, directory.parent, writing=True)
    resolved = begun.settings
    precision = resolved.train.precision
    return Job(
        directory=directory,
        settings=resolved,
        hash=begun.hash,
        data=resolved.data,
        tokenizer=resolved.tokenizer,
        tracking=resolved.tracking,
        facts=identity.facts,
        shape=step.shape,
        device=step.device,
        evaluation=prepared.evaluation,
        training=Training(
            optimization=step.optimization,
            precision=precision,
            compile=bool(resolved.train.compile),
            steps=prepared.steps,
            batch_windows=step.batch_windows,
            stages=prepared.stages,
            code=identity.code,
            initial=prepared.initial,
            auto_precision=None if precision == step.precision else step.precision,
        ),
    )


def identify(settings: RunSettings) -> Identity:
    """Return the identity of composed settings, validated. Raises UserError."""
    return _prepare(settings).identity


class _Prepared:
    """What validation finds out about a training, before it is known in which precision it was begun."""

    def __init__(
        self, step: StepPlan, evaluation: Evaluation, facts: CorpusFacts, initial: InitialCheckpoint | None
    ) -> None:
        self.step = step
        self.evaluation = evaluation
        self.initial = initial
        settings = step.settings
        batch_tokens = step.batch_windows * settings.context_length
        self.steps = max(1, round(settings.train.tokens / batch_tokens))
        self.stages = _stages_of(step, self.steps)
        resolved = settings.with_changes(
            data=_with_absolute_paths(settings.data),
            tokenizer=TokenizerSettings.model_validate(absolute_tokenizer(settings.tokenizer.plain())),
            eval=evaluation.settings,
        )
        self.identity = Identity(resolved, facts, code_of(settings, step.outline))


def _prepare(settings: RunSettings) -> _Prepared:
    """Check the settings against each other, then against the corpus. Raises UserError."""
    initial = None
    if settings.train.init is not None:
        initial = initial_checkpoint(settings.train.init, settings.tokenizer, settings.plugins)
        settings = _beginning_with(settings, initial)
    step = check_step(settings)
    if initial is not None:
        check_fit(initial, step.outline)
    evaluation = resolve_evaluation(settings.eval, settings.context_length)
    _check_place(settings)
    check_tracking(settings.tracking.plain())
    check_tokenizer(settings.tokenizer.plain())
    longest = evaluation.lengths.longest
    check_positions_reach(step.outline, longest)
    _check_planted_pairs(settings, step)
    facts = inspect(
        settings.data.plain(),
        settings.tokenizer.plain(),
        splits=evaluation.splits,
        needed_tokens=longest + 1,
        context_length=settings.context_length,
    )
    evaluation.check_text(
        fingerprint=facts.fingerprint, tokenizer=settings.tokenizer.name, plant=settings.data.plant
    )
    return _Prepared(step, evaluation, facts, initial)


def _beginning_with(settings: RunSettings, initial: InitialCheckpoint) -> RunSettings:
    """Return the settings with what is known of the run whose weights it begins with."""
    train = settings.train.with_changes(init=str(initial.directory.resolve()), began=initial.about)
    return settings.with_changes(train=train)


def _check_place(settings: RunSettings) -> None:
    """Check the names that make the run directory, and that it can be made. Raises UserError."""
    check_name("experiment_name", settings.experiment_name)
    if settings.name is not None:
        check_name("name", settings.name)
    folder = expanded(settings.runs_dir) / settings.experiment_name
    check_runs_dir(settings.runs_dir, folder, writing=False)


def _check_planted_pairs(settings: RunSettings, step: StepPlan) -> None:
    """Check that planted pairs fit into the shortest training windows. Raises UserError."""
    if settings.data.plant is None:
        return
    batch_tokens = step.batch_windows * settings.context_length
    steps = max(1, round(settings.train.tokens / batch_tokens))
    shortest = _stages_of(step, steps)[0].length
    check_plant(settings.data.plant.plain(), shortest)


def _stages_of(step: StepPlan, steps: int) -> tuple[Stage, ...]:
    """Return the stages of `train.length_schedule`. Raises UserError."""
    settings = step.settings
    schedule = settings.train.length_schedule
    stages = check_length_schedule(schedule, settings.context_length, step.batch_windows, steps)
    return tuple(Stage(last_step, length) for last_step, length in stages)


def _with_absolute_paths(data: DataSettings) -> DataSettings:
    return DataSettings.model_validate(absolute_data(data.plain()))


def _begun_in(identity: Identity, precision: str) -> Identity:
    """Return the run as it was begun, where `auto` meant the other precision on the machine that began it."""
    here = identity.settings.train.precision
    if precision != "auto" or identity.directory.is_dir():
        return identity
    other = identity.in_precision("fp32" if here == "bf16" else "bf16")
    return other if other.directory.is_dir() else identity
