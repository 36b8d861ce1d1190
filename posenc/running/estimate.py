"""Estimate what a job takes without running it: parameters, targets, passes, seconds, memory.

No step of the run is tried. Its operations are counted: `pass_costs` has what a model does to a token. Their
number times the seconds of one, measured in a third of a second, is the time.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.data import Stage, TokenStore, tokens_in_cache, vocabulary
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.evaluate import (
    EvalCell,
    as_trained_cell,
    cells_with_passes,
    is_stored,
    plan_cells,
    record_key,
)
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.passes import DRAWS, EvalContext, inputs_given, positions_of_windows
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.tune import SPLIT, tuning_request
from posenc.model.decoder import count_parameters
from posenc.results.record_files import record_path
from posenc.running.evaluate import eval_context, request_of
from posenc.running.job import Job
from posenc.running.machine_rates import Rates, measure_rates
from posenc.running.model_parts import build_outline
from posenc.running.outline_store import measured_bytes_a_token, store_of_lengths
from posenc.running.pass_costs import (
    BYTES_A_NUMBER,
    DecoderCosts,
    PassCosts,
    costs_of,
    count_of_windows,
)
from posenc.settings.base import Mark
from posenc.settings.tree import RunSettings, TokenizerSettings

MULTIPLICATIONS_AN_UPDATE = 16  # for each parameter, in clipping and the optimizer
PASSES_A_STEP = 3  # a step is a forward pass, and a backward pass twice as long
BYTES_A_PARAMETER = 16.0  # value, gradient and two moments in float32


@dataclass(frozen=True)
class Estimate:
    """Hold what one run takes."""

    parameters: int
    stages: Sequence[Stage]
    step_seconds: Mapping[int, float]  # by the length of the windows
    evaluation_seconds: float
    memory: float  # bytes
    problems: list[str]  # protocols and windows that cannot be measured

    @property
    def training_seconds(self) -> float:
        """Return the seconds of all updates."""
        return self.training_seconds_after(0)

    def training_seconds_after(self, step: int) -> float:
        """Return the seconds of the updates that are left after `step` of them."""
        seconds = 0.0
        done = step
        for stage in self.stages:
            steps_left = max(0, stage.last_step - done)
            seconds += steps_left * self.step_seconds[stage.length]
            done += steps_left
        return seconds


def cost_key(settings: RunSettings) -> str:
    """Return as text what decides how long a job takes. Jobs with equal texts share one estimate."""
    defining = settings.marked(Mark.DEFINES, Mark.SIZE)
    # A sweep over learning rates takes the same time for each, so that one estimate does for all.
    defining["train"].pop("lr")
    shared = {
        **defining,
        "data": settings.data.plain(),
        "eval": settings.eval.plain(),
        "device": settings.device,
        # The device and the compiler define no run, and yet they decide its time.
        "compile": settings.train.compile,
    }
    return json.dumps(shared, sort_keys=True, default=str)


def estimate(job: Job, threads: int | None = None, *, skips_stored: bool = False) -> Estimate:
    """Count what the run does. Nothing of the model's size is allocated.

    `threads` is what a sweep gives the job on a CPU; None for a run alone, which takes the free cores.
    With `skips_stored` what is stored of the evaluation is not counted; it is for a run that is trained.
    """
    training = job.training
    assert training is not None
    settings = job.run_settings
    shape = job.run_shape
    # Windows and targets follow from the lengths of documents, so that nothing is tokenised for an estimate.
    store = store_of_lengths(job.corpus_facts, settings.tokenizer)
    model = build_outline(settings, shape, vocabulary(settings.data.plant, store))
    parameters = count_parameters(model).total
    costs = DecoderCosts(model)
    length = settings.context_length
    batch_tokens = training.batch_windows * length
    rows = min(batch_tokens, costs.most_timed_rows)
    # The machine is measured anew and not looked up: its pace depends on what else runs on it now.
    rates = measure_rates(job.device, training.precision, costs.timed_width, rows, threads)
    update_seconds = MULTIPLICATIONS_AN_UPDATE * parameters * rates.multiplication
    step_seconds = {}
    # A batch has the same number of tokens in every stage, and short windows have fewer scores in them.
    for stage in training.stages:
        pass_seconds = costs.forward_seconds(rates, stage.length, batch_tokens, batch_tokens)
        step_seconds[stage.length] = PASSES_A_STEP * pass_seconds + update_seconds
    evaluation_seconds, problems = _evaluation_seconds(job, costs, store, rates, skips_stored=skips_stored)
    kept_numbers = shape.n_layers * batch_tokens * costs.kept_a_token(length)
    activation_bytes = BYTES_A_NUMBER[training.precision] * kept_numbers
    return Estimate(
        parameters=parameters,
        stages=training.stages,
        step_seconds=step_seconds,
        evaluation_seconds=evaluation_seconds,
        memory=BYTES_A_PARAMETER * parameters + activation_bytes,
        problems=problems,
    )


@dataclass(frozen=True, kw_only=True)
class CellEstimate:
    """Hold what one number of an evaluation takes."""

    protocol: str
    extension: str | None  # None for the model as trained
    window: int  # tokens
    targets: int
    passes: int = 0  # through the model, of about `batch_tokens` tokens each
    seconds: float = 0.0  # 0 if it is stored, or another cell makes the same passes
    is_stored: bool = False  # or will be, by an earlier job of the sweep
    problem: str | None = None  # why it cannot be measured


@dataclass(frozen=True)
class EvaluationEstimate:
    """Hold what an evaluation takes, without what is stored already."""

    parameters: int
    cells: list[CellEstimate]
    tries: int  # at most so many values of an extension's knobs are tried first
    tuning_seconds: float
    memory: float  # bytes
    has_exact_targets: bool  # False: they are estimated, and what is stored is not known
    records: list[Path]  # the files of its records, once it is finished

    @property
    def seconds(self) -> float:
        """Return the seconds of all that is to be measured."""
        return self.tuning_seconds + sum(cell.seconds for cell in self.cells)


def estimate_evaluation(
    job: Job, step: int, threads: int | None = None, *, earlier: Collection[Path] = ()
) -> EvaluationEstimate:
    """Count what `posenc eval` does with the checkpoint of `step`. Nothing is tokenised or measured.

    `earlier` are the files of the records that earlier jobs of a sweep will have written.

    Which cells are stored already is known where a token is a byte, or where the tokens are in the cache: a
    stored cell is found by its targets.
    """
    evaluation = job.evaluation
    bytes_a_token = job.bytes_a_token
    if bytes_a_token is None:
        # A plan that has measured it already hands it on, since it
        # takes the tokenizer and a sample of the text.
        bytes_a_token = measured_bytes_a_token(job.corpus_facts, job.tokenizer, evaluation.split)
    # Tokens are in the cache once an evaluation has begun, which may have been stopped.
    was_begun = job.tokenizer.name != "bytes" and job.directory.is_dir()
    cached = tokens_in_cache(job.tokenizer, job.corpus_facts) if was_begun else None
    store = cached or store_of_lengths(job.corpus_facts, job.tokenizer, bytes_a_token)
    model = job.given_model or build_outline(
        job.run_settings, job.run_shape, vocabulary(job.data.plant, store)
    )
    batch_tokens = evaluation.settings.batch_tokens
    as_trained = eval_context(job, model, store)
    costs = costs_of(model, as_trained.precision)
    rows = min(batch_tokens, costs.most_timed_rows)
    rates = measure_rates(job.device, as_trained.precision, costs.timed_width, rows, threads)
    extension = evaluation.extension_of(model)
    context = dataclasses.replace(as_trained, extension=extension)
    request = request_of(job, store)
    planned = plan_cells(context, request, evaluation.protocols)
    cells = _cell_estimates(planned, costs, rates, _which_are_stored(job, store, planned, step, earlier))
    measured = [cell for cell, estimated in zip(planned, cells, strict=True) if estimated.problem is None]
    tries = 0
    tuning_seconds = 0.0
    if extension is not None:
        tries = evaluation.tries
        tuning_seconds = _tuning_seconds(job, context, request, costs, rates)
    return EvaluationEstimate(
        parameters=costs.parameters,
        cells=cells,
        tries=tries,
        tuning_seconds=tuning_seconds,
        memory=costs.memory(measured, batch_tokens),
        has_exact_targets=_has_exact_targets(store, job.tokenizer),
        records=[record_path(job.directory, record_key(cell, step)) for cell in planned],
    )


def _which_are_stored(
    job: Job, store: TokenStore, cells: Sequence[EvalCell], step: int, earlier: Collection[Path] = ()
) -> list[bool]:
    """Tell of each cell whether its numbers are known to be stored, or will be in an `earlier` file."""
    # A record is found by its targets, and not by estimated ones.
    has_exact_targets = _has_exact_targets(store, job.tokenizer)
    stored = []
    for cell in cells:
        same_numbers = [same for same in (cell, as_trained_cell(cell)) if same is not None]
        files = [record_path(job.directory, record_key(same, step)) for same in same_numbers]
        is_measured_before = any(file in earlier for file in files)
        stored.append(is_measured_before or (has_exact_targets and is_stored(cell, job.directory, step)))
    return stored


def _has_exact_targets(store: TokenStore, tokenizer: TokenizerSettings) -> bool:
    """Tell whether the targets of a plan are those that will be scored, so that stored ones are found."""
    # A byte is a token, so that an outline of bytes has the lengths of the text itself.
    return not store.is_outline or tokenizer.name == "bytes"


def memory_by_window(job: Job, batch_tokens: int) -> dict[int, float]:
    """Return the bytes that the weights and a pass take, by window; for a model of transformers, as trained.

    Windows that cannot be measured are left out. A pass has at least one window, however few `batch_tokens`.
    """
    model = job.given_model
    assert model is not None
    store = store_of_lengths(job.corpus_facts, job.tokenizer, job.bytes_a_token)
    context = eval_context(job, model, store)
    costs = costs_of(model, context.precision)
    memory: dict[int, float] = {}
    for cell in plan_cells(context, request_of(job, store), job.evaluation.protocols):
        try:
            _inputs_of(cell)
        except NotApplicableError:
            continue
        needed = costs.memory([cell], batch_tokens)
        memory[cell.window] = max(needed, memory.get(cell.window, 0.0))
    return memory


def _tuning_seconds(
    job: Job, context: EvalContext, request: EvalRequest, costs: PassCosts, rates: Rates
) -> float:
    """Return the seconds of all candidates for the knobs of an extension, on validation documents."""
    evaluation = job.evaluation
    if not evaluation.tries:
        return 0.0
    # Candidates are tried on validation documents alone, so their targets are others than those reported.
    validation = tuning_request(request)
    cells = plan_cells(dataclasses.replace(context, split=SPLIT), validation, [evaluation.headline])
    # `tune` measures its candidates beyond T alone.
    beyond = [cell for cell in cells if cell.window in request.lengths.beyond_training]
    return evaluation.tries * sum(cell.seconds for cell in _cell_estimates(beyond, costs, rates))


def _evaluation_seconds(
    job: Job, costs: DecoderCosts, store: TokenStore, rates: Rates, *, skips_stored: bool
) -> tuple[float, list[str]]:
    """Return the seconds of every pass of the evaluation, and what cannot be measured, in words."""
    context = eval_context(job, costs.model, store)
    planned = plan_cells(context, request_of(job, store), job.evaluation.protocols)
    # An evaluation that was stopped goes on with what is not stored. A run of another length of training has
    # another directory, so that its last step is enough to find the records.
    training = job.training
    assert training is not None
    stored = _which_are_stored(job, store, planned, training.steps) if skips_stored else None
    cells = _cell_estimates(planned, costs, rates, stored)
    problems = [f"{cell.protocol} at {cell.window}: {cell.problem}" for cell in cells if cell.problem]
    return sum(cell.seconds for cell in cells), problems


def _cell_estimates(
    cells: Sequence[EvalCell], costs: PassCosts, rates: Rates, stored: Sequence[bool] | None = None
) -> list[CellEstimate]:
    """Return what each cell takes. Protocols that agree in inputs and targets share their passes."""
    if stored is None:
        stored = [False] * len(cells)
    estimates = []
    # A pass costs, a protocol does not: the second protocol with the same windows takes no time.
    for (cell, makes_passes), has_record in zip(cells_with_passes(cells, stored), stored, strict=True):
        context = cell.context
        without_passes = CellEstimate(
            protocol=cell.protocol.name,
            extension=None if context.extension is None else context.extension.settings["name"],
            window=cell.window,
            targets=cell.plan.count_targets(cell.window),
            is_stored=has_record,
        )
        if has_record:
            estimates.append(without_passes)
            continue
        encoding = context.effective_encoding(cell.window)
        try:
            inputs = _inputs_of(cell)
        except NotApplicableError as error:
            # Such a cell is no error: the evaluation notes the reason in
            # place of a number, and so does the dry run.
            estimates.append(dataclasses.replace(without_passes, problem=str(error)))
            continue
        seconds = costs.seconds(cell, inputs, rates) if makes_passes else 0.0
        n_windows = count_of_windows(cell)
        # Drawn positions are the same in all windows of a batch, so windows of different draws share no pass.
        draws = min(DRAWS, n_windows) if "positions" in encoding.hooks else 1
        batch = max(1, context.batch_tokens // inputs)  # windows
        passes = draws * math.ceil(n_windows / draws / batch)
        passes += math.ceil(cell.plan.tokens_of_other_passes(cell.window) / context.batch_tokens)
        estimates.append(dataclasses.replace(without_passes, passes=passes, seconds=seconds))
    return estimates


def _inputs_of(cell: EvalCell) -> int:
    """Return how many tokens of a window the model reads. Raises NotApplicableError if it cannot."""
    context = cell.context
    encoding = context.effective_encoding(cell.window)
    cell.plan.check_fits(cell.window)
    inputs = inputs_given(encoding, cell.window, cell.plan.targets_in(cell.window))
    if isinstance(context.model, CallableModel):  # of posenc's own models it was checked before
        positions_of_windows(context, encoding, cell.window, inputs)
    return inputs
