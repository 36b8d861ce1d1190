"""Estimate what a job takes without running it: parameters, targets, passes, seconds, memory.

No step of the run is tried. Its operations are counted, by the constants below of what a model does to a
token. Their number times the seconds of one, measured in a third of a second, is the time.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from posenc.data import TokenStore, tokens_in_cache, vocabulary
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.evaluate import EvalCell, cells_with_passes, is_stored, plan_cells
from posenc.evaluation.extensions import leaves
from posenc.evaluation.models import MeasuredModel
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.models.transformers_attention import AttentionParts
from posenc.evaluation.passes import DRAWS, EvalContext, inputs_given, positions_of_windows
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.tune import SPLIT, tuning_request
from posenc.model.decoder import Decoder, count_parameters, forward_flops
from posenc.running.evaluate import eval_context, request_of
from posenc.running.job import Job
from posenc.running.machine_rates import Rates, measure_rates
from posenc.running.model_parts import build_outline
from posenc.running.outline_store import measured_bytes_a_token, store_of_lengths
from posenc.running.unloaded_model import (
    ModelSizes,
    UnloadedModel,
    attention_flops,
    attention_seconds_a_flop,
)
from posenc.settings.base import Mark
from posenc.settings.tree import RunSettings, TokenizerSettings

# What a layer computes for a token besides matrix products, counted in multiplications of two numbers: for
# each number of the layer's width, and for each score. Fitted on one core to nano and tiny, T = 64 and 512.
# With all of these constants ten runs took 0.78 to 1.42 times as long as was said (docs/performance.md).
MULTIPLICATIONS_A_WIDTH = 135
MULTIPLICATIONS_A_SCORE = 10
CALLS_A_LAYER = 900  # the time that Python takes for a layer, counted in calls of the smallest operation
MULTIPLICATIONS_AN_UPDATE = 16  # for each parameter, in clipping and the optimizer
PASSES_A_STEP = 3  # a step is a forward pass, and a backward pass twice as long
# Numbers that a step keeps for a token and a layer: for each number of the width, and for each score.
KEPT_A_WIDTH = 19.0
KEPT_A_SCORE = 0.6
BYTES_A_PARAMETER = 16.0  # value, gradient and two moments in float32
BYTES_A_WEIGHT = 4.0  # in an evaluation, which has the weights in float32
WIDTH_OF_GIVEN = 512  # of the product that is timed for a model that posenc did not train
BYTES_A_NUMBER = {"bf16": 2.5, "fp32": 4.0}  # with bf16 some numbers stay in float32
# What a model of transformers computes besides matrix products, in multiplications of two numbers.
HF_MULTIPLICATIONS_A_WIDTH = 60  # of a layer, for each number of its width
MULTIPLICATIONS_A_LOGIT = 8
MOST_TIMED_ROWS = 4096  # tokens in the matrix product that is timed
ROWS_OF_GIVEN = 1024  # of a given model: a product of 4096 rows takes 0.1 s, and a dry run should take three


@dataclass(frozen=True)
class TimedStage:
    """Hold what the updates of a stage of the training take."""

    last_step: int  # the stage ends with this update
    step_seconds: float


@dataclass(frozen=True)
class Estimate:
    """Hold what one run takes."""

    parameters: int
    stages: tuple[TimedStage, ...]
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
            seconds += steps_left * stage.step_seconds
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


def estimate(job: Job, threads: int | None = None, *, is_trained: bool = False) -> Estimate:
    """Count what the run does. Nothing of the model's size is allocated.

    `threads` is what a sweep gives the job on a CPU; None for a run alone, which takes the free cores.
    With `is_trained` only the evaluation is left, and what is stored of it is not counted.
    """
    training = job.training
    assert training is not None
    settings = job.run_settings
    shape = job.run_shape
    # Windows and targets follow from the lengths of documents, so that nothing is tokenised for an estimate.
    store = store_of_lengths(job.corpus_facts, settings.tokenizer)
    model = build_outline(settings, shape, vocabulary(settings.data.plant, store))
    parameters = count_parameters(model).total
    length = settings.context_length
    batch_tokens = training.batch_windows * length
    rows = min(batch_tokens, MOST_TIMED_ROWS)
    # Nothing of the machine is looked up: its pace depends on what else runs on it now.
    rates = measure_rates(job.device, training.precision, shape.d_model, rows, threads)
    update_seconds = MULTIPLICATIONS_AN_UPDATE * parameters * rates.multiplication
    stages = []
    # A batch has the same number of tokens in every stage, and short windows have fewer scores in them.
    for stage in training.stages:
        pass_seconds = forward_seconds(model, rates, stage.length, batch_tokens, batch_tokens)
        step_seconds = PASSES_A_STEP * pass_seconds + update_seconds
        stages.append(TimedStage(stage.last_step, step_seconds))
    evaluation_seconds, problems = _evaluation_seconds(job, model, store, rates, skips_stored=is_trained)
    kept_numbers = shape.n_layers * batch_tokens * _kept_a_token(shape.d_model, shape.n_heads, length)
    activation_bytes = BYTES_A_NUMBER[training.precision] * kept_numbers
    return Estimate(
        parameters=parameters,
        stages=tuple(stages),
        evaluation_seconds=evaluation_seconds,
        memory=BYTES_A_PARAMETER * parameters + activation_bytes,
        problems=problems,
    )


def _kept_a_token(width: int, n_heads: int, window: int) -> float:
    """Return how many numbers one layer keeps for a token of a window."""
    return KEPT_A_WIDTH * width + KEPT_A_SCORE * n_heads * window


@dataclass(frozen=True, kw_only=True)
class CellEstimate:
    """Hold what one number of an evaluation takes."""

    protocol: str
    extension: str | None  # None for the model as trained
    window: int  # tokens
    targets: int
    passes: int = 0  # through the model, of about `batch_tokens` tokens each
    seconds: float = 0.0  # 0 if it is stored, or another cell makes the same passes
    is_stored: bool = False
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

    @property
    def seconds(self) -> float:
        """Return the seconds of all that is to be measured."""
        return self.tuning_seconds + sum(cell.seconds for cell in self.cells)


def estimate_evaluation(job: Job, step: int, threads: int | None = None) -> EvaluationEstimate:
    """Count what `posenc eval` does with the checkpoint of `step`. Nothing is tokenised or measured.

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
    parameters = _count_parameters(model)
    batch_tokens = evaluation.settings.batch_tokens
    as_trained = eval_context(job, model, store)
    # A given model may be a function whose width nobody knows, so a product of one common size is timed.
    is_given = isinstance(model, CallableModel)
    most_rows = ROWS_OF_GIVEN if is_given else MOST_TIMED_ROWS
    rows = min(batch_tokens, most_rows)
    rates = measure_rates(job.device, as_trained.precision, _width(model), rows, threads)
    extension = evaluation.extension_of(model)
    context = dataclasses.replace(as_trained, extension=extension)
    request = request_of(job, store)
    planned = plan_cells(context, request, evaluation.protocols)
    has_exact_targets = _has_exact_targets(store, job.tokenizer)
    stored = [has_exact_targets and is_stored(cell, job.directory, step) for cell in planned]
    cells = _cell_estimates(planned, rates, stored)
    measured = [cell for cell, estimated in zip(planned, cells, strict=True) if estimated.problem is None]
    tries = 0
    tuning_seconds = 0.0
    if extension is not None:
        tries = evaluation.tries
        tuning_seconds = _tuning_seconds(job, context, request, rates)
    return EvaluationEstimate(
        parameters=parameters,
        cells=cells,
        tries=tries,
        tuning_seconds=tuning_seconds,
        memory=_evaluation_memory(model, as_trained.precision, parameters, batch_tokens, measured),
        has_exact_targets=has_exact_targets,
    )


def _has_exact_targets(store: TokenStore, tokenizer: TokenizerSettings) -> bool:
    """Tell whether the targets of a plan are those that will be scored, so that stored ones are found."""
    # A byte is a token, so that an outline of bytes has the lengths of the text itself.
    return not store.is_outline or tokenizer.name == "bytes"


def memory_by_window(job: Job, batch_tokens: int) -> dict[int, float]:
    """Return the bytes that the weights and a pass take, by window; for a model of transformers, as trained.

    Windows that cannot be measured are left out. A pass has at least one window, however few `batch_tokens`.
    """
    model = job.given_model
    assert isinstance(model, UnloadedModel)
    store = store_of_lengths(job.corpus_facts, job.tokenizer, job.bytes_a_token)
    context = eval_context(job, model, store)
    memory: dict[int, float] = {}
    for cell in plan_cells(context, request_of(job, store), job.evaluation.protocols):
        try:
            _inputs_of(cell)
        except NotApplicableError:
            continue
        needed = _memory_of_pass(model, cell, batch_tokens) + _bytes_of_copy(model, context.precision)
        memory[cell.window] = max(needed, memory.get(cell.window, 0.0))
    return memory


def _tuning_seconds(job: Job, context: EvalContext, request: EvalRequest, rates: Rates) -> float:
    """Return the seconds of all candidates for the knobs of an extension, on validation documents."""
    evaluation = job.evaluation
    if not evaluation.tries:
        return 0.0
    # Candidates are tried on validation documents alone, so their targets are others than those reported.
    validation = tuning_request(request)
    cells = plan_cells(dataclasses.replace(context, split=SPLIT), validation, [evaluation.headline])
    # `tune` measures its candidates beyond T alone.
    beyond = [cell for cell in cells if cell.window in request.lengths.beyond_training]
    return evaluation.tries * sum(cell.seconds for cell in _cell_estimates(beyond, rates))


def _evaluation_seconds(
    job: Job, model: Decoder, store: TokenStore, rates: Rates, *, skips_stored: bool
) -> tuple[float, list[str]]:
    """Return the seconds of every pass of the evaluation, and what cannot be measured, in words."""
    context = eval_context(job, model, store)
    planned = plan_cells(context, request_of(job, store), job.evaluation.protocols)
    # An evaluation that was stopped goes on with what is not stored. A run of another length of training has
    # another directory, so that its last step is enough to find the records.
    training = job.training
    assert training is not None
    may_skip = skips_stored and _has_exact_targets(store, job.tokenizer)
    stored = [may_skip and is_stored(cell, job.directory, training.steps) for cell in planned]
    cells = _cell_estimates(planned, rates, stored)
    problems = [f"{cell.protocol} at {cell.window}: {cell.problem}" for cell in cells if cell.problem]
    return sum(cell.seconds for cell in cells), problems


def _cell_estimates(
    cells: Sequence[EvalCell], rates: Rates, stored: Sequence[bool] | None = None
) -> list[CellEstimate]:
    """Return what each cell takes. Protocols that agree in inputs and targets share their passes."""
    if stored is None:
        stored = [False] * len(cells)
    estimates = []
    # A pass costs, a protocol does not: the second protocol with the same windows takes no time.
    for (cell, makes_passes), has_record in zip(cells_with_passes(cells, stored), stored, strict=True):
        context = cell.context
        n_windows = _windows_of(cell)
        targets_in_window = cell.plan.targets_in(cell.window)
        without_passes = CellEstimate(
            protocol=cell.protocol.name,
            extension=None if context.extension is None else context.extension.settings["name"],
            window=cell.window,
            targets=n_windows * targets_in_window,
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
        seconds = _cell_seconds(cell, rates, inputs) if makes_passes else 0.0
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


def _windows_of(cell: EvalCell) -> int:
    """Return how many windows a cell measures. Where a block of targets is longer, it is read as a window."""
    plan = cell.plan
    window = cell.window
    return (plan.tokens(window) - plan.tokens_of_other_passes(window)) // max(window, plan.targets_in(window))


def _cell_seconds(cell: EvalCell, rates: Rates, inputs: int) -> float:
    """Return the seconds of the passes of a cell, whose windows have so many inputs."""
    context = cell.context
    model = context.model
    if isinstance(model, UnloadedModel):
        return _seconds_by_sizes(cell, model.sizes, rates, inputs)
    n_tokens = cell.plan.tokens(cell.window) * inputs / cell.window
    return forward_seconds(model, rates, inputs, n_tokens, context.batch_tokens)


def _seconds_by_sizes(cell: EvalCell, sizes: ModelSizes, rates: Rates, inputs: int) -> float:
    """Return the seconds of the passes of a cell with a model of transformers of these sizes."""
    context = cell.context
    shape = sizes.shape
    dtype = torch.bfloat16 if context.precision == "bf16" else torch.float32
    products_a_pair = 2.0  # of query and key, and of weight and value
    multiplications = float(shape.n_layers * shape.d_model * HF_MULTIPLICATIONS_A_WIDTH)
    parts = AttentionParts.of(leaves(context.effective_encoding(cell.window)))
    makes_scores = sizes.attention.numbers_a_score > 0 and not parts
    attention_rate = attention_seconds_a_flop(
        context.device, shape.n_heads, shape.head_dim, dtype, makes_scores
    )
    if parts:  # posenc's own attention, which makes and keeps every score
        scores_a_pair = 1.0 + sum(part.share_of_keys(inputs) for part in parts.redistanced)
        multiplications += shape.n_layers * shape.n_heads * inputs * scores_a_pair * MULTIPLICATIONS_A_SCORE
        products_a_pair = 1.0 + scores_a_pair
    attention_seconds = attention_flops(shape, inputs) * attention_rate  # with two products
    seconds_a_token = 2 * sizes.products * rates.flop + attention_seconds * products_a_pair / 2
    seconds_a_token += multiplications * rates.multiplication
    seconds_a_target = 2 * shape.d_model * sizes.vocab_size * rates.flop
    seconds_a_target += sizes.vocab_size * MULTIPLICATIONS_A_LOGIT * rates.multiplication
    n_windows = _windows_of(cell)
    targets_in_window = cell.plan.targets_in(cell.window)
    n_tokens = n_windows * max(inputs, targets_in_window) + cell.plan.tokens_of_other_passes(cell.window)
    return n_tokens * seconds_a_token + n_windows * targets_in_window * seconds_a_target


def _count_parameters(model: MeasuredModel) -> int:
    """Return the parameters of a model, also of one whose weights are not read."""
    if isinstance(model, UnloadedModel):
        return model.sizes.parameters
    return sum(parameter.numel() for parameter in model.parameters())


def _evaluation_memory(
    model: MeasuredModel, precision: str, parameters: int, batch_tokens: int, cells: Sequence[EvalCell]
) -> float:
    """Return the bytes of the weights and of what one layer keeps; of a given function the weights alone."""
    if isinstance(model, UnloadedModel):
        copies = _bytes_of_copy(model, precision)
        # Shorter windows may need more: more of them go through the model at once.
        passes = [_memory_of_pass(model, cell, batch_tokens) for cell in cells]
        return max(passes, default=float(model.sizes.weight_bytes)) + copies
    weights = BYTES_A_WEIGHT * parameters
    # What a function keeps while it runs is not known.
    if isinstance(model, CallableModel):
        return weights
    longest = max((cell.window for cell in cells), default=1)
    kept_a_token = _kept_a_token(model.shape.d_model, model.shape.n_heads, longest)
    return weights + BYTES_A_NUMBER["fp32"] * max(batch_tokens, longest) * kept_a_token


def _bytes_of_copy(model: UnloadedModel, precision: str) -> float:
    """Return the bytes of the copy in bf16 that autocast keeps of every weight that it has used."""
    return model.sizes.bytes_of_copy if precision == "bf16" else 0.0


def _memory_of_pass(model: UnloadedModel, cell: EvalCell, batch_tokens: int) -> float:
    """Return the bytes of weights and of a pass of a cell."""
    targets = cell.plan.targets_in(cell.window)
    acting = cell.context.effective_encoding(cell.window)
    parts = AttentionParts.of(leaves(acting))
    tokens_at_once = min(batch_tokens, _windows_of(cell) * cell.window)
    needed = model.memory(tokens_at_once, cell.window, targets, has_own_attention=not parts)
    if not cell.plan.keeps_keys:
        return needed
    # A text is written alone, and with its keys kept it is read at once, without chunks.
    return max(needed, model.memory_of_writing(cell.window, has_own_attention=not parts))


def _width(model: MeasuredModel) -> int:
    """Return the width of the matrix product that is timed: of the layers, or one for all given models."""
    return WIDTH_OF_GIVEN if isinstance(model, CallableModel) else model.shape.d_model


def forward_seconds(
    model: MeasuredModel, rates: Rates, window: int, n_tokens: float, batch_tokens: int
) -> float:
    """Return the seconds of forward passes over `n_tokens` tokens, in windows of `window`.

    Of a given model only the products with its weights are known.
    """
    if isinstance(model, CallableModel):
        # A weight takes part in one multiplication and one addition for each token.
        return 2 * _count_parameters(model) * n_tokens * rates.flop
    shape = model.shape
    multiplications = MULTIPLICATIONS_A_WIDTH * shape.d_model
    multiplications += MULTIPLICATIONS_A_SCORE * shape.n_heads * window
    seconds_a_token = forward_flops(model, window) * rates.flop
    seconds_a_token += shape.n_layers * multiplications * rates.multiplication
    # Small models wait for Python: each layer of a batch costs calls, however few its numbers are.
    calls = n_tokens / max(batch_tokens, window) * shape.n_layers * CALLS_A_LAYER
    seconds = n_tokens * seconds_a_token + calls * rates.call
    # An encoding's cost was measured at 64 and at 512 tokens, which are three doublings apart
    cost_at_64, cost_at_512 = model.effective_encoding.cost
    # In between, and beyond, the cost is taken to grow by the same amount with each doubling.
    doublings = max(0.0, math.log2(window / 64))
    return seconds * (cost_at_64 + (cost_at_512 - cost_at_64) * doublings / 3)
