"""Count what passes through a model take: through posenc's decoder, or a model of transformers.

The operations of the decoder are known. Of the other one, whose weights are not read yet, the sizes are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from posenc.evaluation.evaluate import EvalCell
from posenc.evaluation.extensions import leaves
from posenc.evaluation.models import MeasuredModel
from posenc.evaluation.models.transformers_attention import AttentionParts
from posenc.model.decoder import Decoder, forward_flops
from posenc.running.machine_rates import Rates
from posenc.running.unloaded_model import UnloadedModel, attention_flops, attention_seconds_a_flop

# What a layer computes for a token besides matrix products, counted in multiplications of two numbers: for
# each number of the layer's width, and for each score. Fitted on one core to nano and tiny, T = 64 and 512.
# With all of these constants ten runs took 0.78 to 1.42 times as long as was said (docs/performance.md).
MULTIPLICATIONS_A_WIDTH = 135
MULTIPLICATIONS_A_SCORE = 10
CALLS_A_LAYER = 900  # the time that Python takes for a layer, counted in calls of the smallest operation
# Numbers that a step keeps for a token and a layer: for each number of the width, and for each score.
KEPT_A_WIDTH = 19.0
KEPT_A_SCORE = 0.6
BYTES_A_WEIGHT = 4.0  # in an evaluation, which has the weights in float32
BYTES_A_NUMBER = {"bf16": 2.5, "fp32": 4.0}  # with bf16 some numbers stay in float32
# What a model of transformers computes besides matrix products, in multiplications of two numbers.
HF_MULTIPLICATIONS_A_WIDTH = 60  # of a layer, for each number of its width
MULTIPLICATIONS_A_LOGIT = 8
MOST_TIMED_ROWS = 4096  # tokens in the matrix product that is timed
# The product that is timed for a model of transformers is of one common size.
WIDTH_OF_GIVEN = 512
ROWS_OF_GIVEN = 1024  # a product of 4096 rows takes 0.1 s, and a dry run should take three


class PassCosts(ABC):
    """What the passes of an evaluation through one model take."""

    parameters: int
    # the matrix product that is timed to know the pace of the machine
    timed_width: int
    most_timed_rows: int

    @abstractmethod
    def seconds(self, cell: EvalCell, inputs: int, rates: Rates) -> float:
        """Return the seconds of the passes of a cell, whose windows have so many inputs."""

    @abstractmethod
    def memory(self, cells: Sequence[EvalCell], batch_tokens: int) -> float:
        """Return the bytes of the weights and of the largest pass of the cells.

        A pass has at least one window, however few `batch_tokens`.
        """


class DecoderCosts(PassCosts):
    """Count the operations of posenc's decoder."""

    most_timed_rows = MOST_TIMED_ROWS

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.timed_width = model.shape.d_model

    def seconds(self, cell: EvalCell, inputs: int, rates: Rates) -> float:
        n_tokens = cell.plan.tokens(cell.window) * inputs / cell.window
        return self.forward_seconds(rates, inputs, n_tokens, cell.context.batch_tokens)

    def memory(self, cells: Sequence[EvalCell], batch_tokens: int) -> float:
        longest = max((cell.window for cell in cells), default=1)
        # No backward pass follows, so the numbers of one layer are held at a time.
        bytes_of_layer = BYTES_A_NUMBER["fp32"] * max(batch_tokens, longest) * self.kept_a_token(longest)
        return BYTES_A_WEIGHT * self.parameters + bytes_of_layer

    def kept_a_token(self, window: int) -> float:
        """Return how many numbers one layer keeps for a token of a window."""
        shape = self.model.shape
        return KEPT_A_WIDTH * shape.d_model + KEPT_A_SCORE * shape.n_heads * window

    def forward_seconds(self, rates: Rates, window: int, n_tokens: float, batch_tokens: int) -> float:
        """Return the seconds of forward passes over `n_tokens` tokens, in windows of `window`."""
        model = self.model
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


class CheckpointCosts(PassCosts):
    """Count the operations of a model of transformers by its sizes; its weights are not read."""

    timed_width = WIDTH_OF_GIVEN
    most_timed_rows = ROWS_OF_GIVEN

    def __init__(self, model: UnloadedModel, precision: str) -> None:
        self.model = model
        self.parameters = model.sizes.parameters
        # Autocast keeps a copy in bf16 of every weight that it has used.
        self.bytes_of_copies = model.sizes.bytes_of_copy if precision == "bf16" else 0.0

    def seconds(self, cell: EvalCell, inputs: int, rates: Rates) -> float:
        context = cell.context
        sizes = self.model.sizes
        shape = sizes.shape
        dtype = torch.bfloat16 if context.precision == "bf16" else torch.float32
        products_a_pair = 2.0  # of query and key, and of weight and value
        multiplications = float(shape.n_layers * shape.d_model * HF_MULTIPLICATIONS_A_WIDTH)
        parts = _attention_parts(cell)
        makes_scores = sizes.attention.numbers_a_score > 0 and not parts
        attention_rate = attention_seconds_a_flop(
            context.device, shape.n_heads, shape.head_dim, dtype, makes_scores
        )
        if parts:  # posenc's own attention, which makes and keeps every score
            scores_a_pair = 1.0 + sum(part.share_of_keys(inputs) for part in parts.redistanced)
            n_scores = shape.n_layers * shape.n_heads * inputs * scores_a_pair
            multiplications += n_scores * MULTIPLICATIONS_A_SCORE
            products_a_pair = 1.0 + scores_a_pair
        attention_seconds = attention_flops(shape, inputs) * attention_rate  # with two products
        seconds_a_token = 2 * sizes.products * rates.flop + attention_seconds * products_a_pair / 2
        seconds_a_token += multiplications * rates.multiplication
        seconds_a_target = 2 * shape.d_model * sizes.vocab_size * rates.flop
        seconds_a_target += sizes.vocab_size * MULTIPLICATIONS_A_LOGIT * rates.multiplication
        n_windows = count_of_windows(cell)
        targets_in_window = cell.plan.targets_in(cell.window)
        n_tokens = n_windows * max(inputs, targets_in_window) + cell.plan.tokens_of_other_passes(cell.window)
        return n_tokens * seconds_a_token + n_windows * targets_in_window * seconds_a_target

    def memory(self, cells: Sequence[EvalCell], batch_tokens: int) -> float:
        # Shorter windows may need more: more of them go through the model at once.
        passes = [self._memory_of_pass(cell, batch_tokens) for cell in cells]
        return max(passes, default=float(self.model.sizes.weight_bytes)) + self.bytes_of_copies

    def _memory_of_pass(self, cell: EvalCell, batch_tokens: int) -> float:
        """Return the bytes of the weights, as they were read, and of a pass of a cell."""
        has_own_attention = not _attention_parts(cell)
        tokens_at_once = min(batch_tokens, count_of_windows(cell) * cell.window)
        targets = cell.plan.targets_in(cell.window)
        needed = self.model.memory(tokens_at_once, cell.window, targets, has_own_attention=has_own_attention)
        if not cell.plan.keeps_keys:
            return needed
        # A text is written alone, and with its keys kept it is read at once, without chunks.
        for_writing = self.model.memory_of_writing(cell.window, has_own_attention=has_own_attention)
        return max(needed, for_writing)


def costs_of(model: MeasuredModel, precision: str) -> PassCosts:
    """Return what passes through a model in a precision take."""
    if isinstance(model, Decoder):
        return DecoderCosts(model)
    assert isinstance(model, UnloadedModel)  # no command estimates what another function takes
    return CheckpointCosts(model, precision)


def count_of_windows(cell: EvalCell) -> int:
    """Return how many windows a cell measures. Where a block of targets is longer, it is read as a window."""
    plan = cell.plan
    window = cell.window
    return (plan.tokens(window) - plan.tokens_of_other_passes(window)) // max(window, plan.targets_in(window))


def _attention_parts(cell: EvalCell) -> AttentionParts:
    """Return the parts of an extension that act in posenc's attention, which takes the model's place."""
    return AttentionParts.of(leaves(cell.context.effective_encoding(cell.window)))
