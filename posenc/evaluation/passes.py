"""Forward passes over windows of text: they give the losses that every protocol sums.

A pass that several protocols need is made once in an evaluation, so they get the same numbers bit for bit.
For example, `positions` needs the longest windows of `nonoverlapping`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from posenc.core.errors import first_line
from posenc.core.machine import free_memory
from posenc.core.seeds import generator_for
from posenc.data import TokenStore
from posenc.encodings.base import Encoding
from posenc.evaluation.errors import NotApplicableError, OutOfMemoryError
from posenc.evaluation.extensions import Extension
from posenc.evaluation.models import MeasuredModel
from posenc.evaluation.models.callables import LogitsOf, OnLayer, TargetLosses
from posenc.evaluation.models.scoring import ModelPass, Scorer, scorer_of
from posenc.training.memory import is_out_of_memory, memory_needed

# Encodings with drawn positions: how many draws the windows of one length share. Window i has draw i % DRAWS.
DRAWS = 16
# float32 numbers for each pair of tokens and each head. If even these fit, memory is not measured.
MOST_FLOATS_A_SCORE = 32
# Scores are float32 in every precision, so bf16 halves no part of this.
BYTES_A_FLOAT = 4

# from the number of a window to its tokens (window + 1,): the inputs and the last target
WindowReader = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Scores:
    """The loss of the last targets of some windows, and whether each is the model's first choice.

    The first choice is what greedy decoding writes. Of equal logits, which bf16 has, the lower token counts.
    """

    nats: np.ndarray  # (windows, targets) float64
    is_best: np.ndarray  # (windows, targets) bool: the target is the first choice


@dataclass(frozen=True)
class Windows:
    """Windows of one length, whose last targets are to be scored."""

    read: WindowReader
    count: int
    length: int  # tokens that go into the model at once
    n_targets: int  # in each window: its last tokens

    @classmethod
    def of_tokens(cls, tokens: np.ndarray, n_targets: int) -> Windows:
        """Return the windows of an array (count, length + 1): inputs and the last target in each row."""
        count, row_length = tokens.shape
        return cls(tokens.__getitem__, count, row_length - 1, n_targets)


@dataclass(frozen=True)
class PassCache:
    """What the passes of an evaluation gave, by what tells one pass from another."""

    losses: dict[Hashable, np.ndarray] = field(default_factory=dict)  # of text_losses
    scores: dict[Hashable, Scores] = field(default_factory=dict)  # of token_scores
    # By extension and window. A kernel keeps masks by the encoding, and would make them anew for another one.
    encodings: dict[tuple[Extension, int], Encoding] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget all passes."""
        self.losses.clear()
        self.scores.clear()
        self.encodings.clear()


@dataclass(frozen=True)
class WindowInputs:
    """What windows of one length give the model besides their tokens."""

    encoding: Encoding  # the one that acts
    draws: list[Tensor]  # (n_inputs,) each: the positions that a window may have; window i has i % len(draws)

    @property
    def n_inputs(self) -> int:
        """Return how many tokens of a window the model reads."""
        return len(self.draws[0])


@dataclass(frozen=True)
class WindowBatch:
    """Windows that go through the model at once."""

    numbers: np.ndarray  # (B,) of the windows, among all windows
    tokens: Tensor  # (B, n_inputs + 1): the inputs and the last target
    pos: Tensor  # (n_inputs,)
    encoding: Encoding  # the one that acts in this pass
    on_layer: OnLayer  # reports the progress inside the pass


@dataclass(frozen=True, kw_only=True)
class EvalContext:
    """A trained model and the documents it is measured on."""

    model: MeasuredModel
    context_length: int  # T, tokens
    seed: int  # for positions that are drawn
    precision: str
    device: torch.device
    store: TokenStore
    split: str
    batch_tokens: int  # tokens in one forward pass
    extension: Extension | None = None  # changes the encoding at windows beyond T
    recorded_precision: str | None = None  # for the record; None if it is the precision of the training
    cache: PassCache = field(default_factory=PassCache)  # all cells of an evaluation share one
    check_stop: Callable[[], None] = lambda: None  # called between batches; raises if the user stops the run
    on_batch: Callable[[float], None] = lambda share: None  # called with the share of a cell that is done

    @cached_property
    def scorer(self) -> Scorer:
        """Return how the model is asked for losses, logits and its first choice."""
        # Kept for all batches: it depends on the model, the precision and the device alone.
        return scorer_of(self.model, self.precision, self.device)

    @property
    def document_starts(self) -> np.ndarray:
        """Return where each document of the split begins in the tokens of the store: (N,) int64."""
        return self.store.splits[self.split].starts

    def effective_encoding(self, window: int) -> Encoding:
        """Return the encoding that acts when the model is given `window` tokens at once."""
        if self.extension is None:
            return self.model.effective_encoding
        key = (self.extension, window)
        if key not in self.cache.encodings:
            self.cache.encodings[key] = self.extension.effective_encoding(window)
        return self.cache.encodings[key]

    def window_inputs(self, window: int, n_targets: int, encoding: Encoding | None = None) -> WindowInputs:
        """Return the encoding and the positions of windows of `window` tokens. Raises NotApplicableError.

        `encoding` is the one that acts. None stands for the encoding of windows of this length.
        """
        if encoding is None:
            encoding = self.effective_encoding(window)
        # Here and not by the caller, because a model in training draws its positions in another way.
        self.model.eval()
        n_inputs = inputs_given(encoding, window, n_targets)
        return WindowInputs(encoding, positions_of_windows(self, encoding, window, n_inputs))

    def text_windows(self, stops: np.ndarray, window: int, n_targets: int) -> Windows:
        """Return windows of text: the last target of window i is the token before stops[i] (count,)."""

        def read(i: int) -> np.ndarray:
            # One token more than the window: the last target is no input.
            return self.store.tokens[stops[i] - window - 1 : stops[i]]

        return Windows(read, len(stops), window, n_targets)

    def acting_extension(self, window: int) -> Extension | None:
        """Return the extension, or None if it changes nothing at this window, as most do up to T.

        An extension that changes nothing gives the trained encoding itself.
        """
        is_as_trained = self.effective_encoding(window) is self.model.effective_encoding
        return None if is_as_trained else self.extension

    def text_losses(self, stops: np.ndarray, window: int, n_targets: int) -> np.ndarray:
        """Return the losses in nats of the last targets of windows of text: (count, n_targets) float64.

        Window i has `window` inputs, and its last target is the token before stops[i] (count,) of the store.
        A pass is made once in an evaluation and then remembered. Raises NotApplicableError, OutOfMemoryError.
        """
        # Only passes over the same windows are shared. A longer window with the same last tokens has other
        # keys and values from the second layer on: 16 more tokens at its beginning change the loss of a
        # target by 0.02 nats at T and by 0.3 at 8T (RoPE).
        key = (self.acting_extension(window), window, n_targets, stops.tobytes())
        if key not in self.cache.losses:
            losses = self.losses_of_new_pass(self.text_windows(stops, window, n_targets))
            # Several protocols get this same array, so none of them may change it.
            losses.setflags(write=False)
            self.cache.losses[key] = losses
        return self.cache.losses[key]

    def token_scores(self, tokens: np.ndarray, n_targets: int) -> Scores:
        """Return the scores of the last targets of windows, given by their tokens (count, window + 1).

        The same tokens are passed through the model once in an evaluation, also if an extension changes
        nothing there. Raises NotApplicableError, OutOfMemoryError.
        """
        windows = Windows.of_tokens(tokens, n_targets)
        # Protocols write or draw these windows, so they are no places of the store: their tokens are the key.
        digest = hashlib.sha256(np.ascontiguousarray(tokens).data).digest()
        key = (self.acting_extension(windows.length), windows.length, n_targets, digest)
        if key not in self.cache.scores:
            scores = self.scores_of_new_pass(windows)
            scores.nats.setflags(write=False)
            scores.is_best.setflags(write=False)
            self.cache.scores[key] = scores
        return self.cache.scores[key]

    def losses_of_new_pass(self, windows: Windows, inputs: WindowInputs | None = None) -> np.ndarray:
        """Return the losses in nats of the last targets of windows: (count, n_targets) float64.

        `inputs` as in `run_in_batches`. The pass is made anew each time; `text_losses` remembers its passes.
        Raises NotApplicableError, OutOfMemoryError.
        """
        return _scores_of_new_pass(self, windows, inputs, with_best=False).nats

    def scores_of_new_pass(self, windows: Windows, inputs: WindowInputs | None = None) -> Scores:
        """Return the losses of `losses_of_new_pass`, and whether each target is the model's first choice.

        `inputs` as in `run_in_batches`. The pass is made anew each time; `token_scores` remembers its passes.
        Raises NotApplicableError, OutOfMemoryError.
        """
        return _scores_of_new_pass(self, windows, inputs, with_best=True)

    def part_of_cell(self, done: int, total: int) -> EvalContext:
        """Return a context for one of `total` equal parts of a cell, of which `done` are finished.

        What it reports is progress over the whole cell.
        """
        return replace(self, on_batch=lambda share: self.on_batch((done + share) / total))


def _scores_of_new_pass(
    context: EvalContext, windows: Windows, inputs: WindowInputs | None, *, with_best: bool
) -> Scores:
    """Score the last targets of windows. Without `with_best` no target counts as the first choice."""
    # float64: a document's losses are summed over thousands of targets.
    nats = np.empty((windows.count, windows.n_targets))
    is_best = np.zeros((windows.count, windows.n_targets), dtype=bool)

    def score(batch: WindowBatch) -> None:
        losses = forward(
            context, batch.tokens, batch.pos, batch.encoding, windows.n_targets, with_best, batch.on_layer
        )
        nats[batch.numbers] = losses.nats.cpu().double().numpy()
        if losses.is_best is not None:
            is_best[batch.numbers] = losses.is_best.cpu().numpy()

    run_in_batches(context, windows, score, inputs)
    return Scores(nats, is_best)


@torch.no_grad()
def run_in_batches(
    context: EvalContext,
    windows: Windows,
    run_batch: Callable[[WindowBatch], None],
    inputs: WindowInputs | None = None,
) -> None:
    """Call `run_batch` for the windows, batch by batch. Raises NotApplicableError, OutOfMemoryError.

    `inputs` are the encoding and the positions; None stands for those of windows of this length. Drawn
    positions depend on the seed, the window's length and its number, never on the batch.

    A batch holds about `batch_tokens` tokens. If memory runs out, batches are halved, and `run_batch` is
    called again for the same windows, so it must keep nothing of a pass that raised.
    """
    context.model.to(context.device).eval()
    if inputs is None:
        inputs = context.window_inputs(windows.length, windows.n_targets)
    encoding = inputs.encoding
    n_inputs = inputs.n_inputs
    # Any draw will do, since memory depends on the number of positions and not on their values.
    check_memory(context, inputs.draws[0], encoding, windows.n_targets)
    # Not enough for one window of a long text, but less than one window cannot be passed.
    batch_size = max(1, context.batch_tokens // n_inputs)

    n_done = 0
    # The windows of a batch share one tensor of positions, so each draw has batches of its own.
    for draw, pos in enumerate(inputs.draws):
        remaining = np.arange(draw, windows.count, len(inputs.draws))  # windows with these positions
        while len(remaining):
            context.check_stop()
            numbers = remaining[:batch_size]
            # Where the encoding truncates, only the end of a window goes in, which holds all targets.
            rows = [windows.read(number)[-n_inputs - 1 :] for number in numbers]
            tokens = np.stack(rows).astype(np.int64)  # (B, n_inputs + 1)
            on_layer = layer_progress(context, n_done / windows.count, len(numbers) / windows.count)
            try:
                run_batch(WindowBatch(numbers, torch.from_numpy(tokens), pos, encoding, on_layer))
            # On some devices memory that ran out has no exception of its own, only a RuntimeError's message.
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                batch_size = smaller_batch(error, batch_size, n_inputs)
                continue  # with the same windows
            remaining = remaining[len(numbers) :]
            n_done += len(numbers)
            context.on_batch(n_done / windows.count)


def layer_progress(context: EvalContext, done: float, batch_share: float) -> OnLayer:
    """Return the callback that reports progress inside a batch: a pass of a large model may take minutes.

    `done` is the share of the windows before this batch, `batch_share` that of its own.
    """

    def on_layer(share: float) -> None:
        context.check_stop()
        context.on_batch(done + share * batch_share)

    return on_layer


def end_of_batch(context: EvalContext, batch: WindowBatch, window: int, n_targets: int) -> WindowBatch:
    """Return the batch of windows of `window` tokens that end where the windows of a longer batch end.

    They have the encoding and the positions of that length, so their first token has the first position.
    """
    inputs = context.window_inputs(window, n_targets)
    draw = batch.numbers[0] % len(inputs.draws)  # all windows of a batch have the same draw
    tokens = batch.tokens[:, -inputs.n_inputs - 1 :]  # (B, n_inputs + 1)
    return replace(batch, tokens=tokens, pos=inputs.draws[draw], encoding=inputs.encoding)


def inputs_given(encoding: Encoding, window: int, n_targets: int) -> int:
    """Return how many tokens of a window the model reads: fewer than all if the encoding truncates.

    Raises NotApplicableError if the encoding refuses the window, or cuts off targets.
    """
    trained = encoding.shape.positions  # more than T where training positions are drawn
    if window <= trained or encoding.beyond not in ("truncate", "refuse"):
        return window
    if encoding.beyond == "refuse":
        raise NotApplicableError(f"refused: beyond='refuse' past {trained} tokens")
    if n_targets > trained:
        problem = f"beyond=truncate keeps {trained} tokens, {n_targets} were to be scored"
        raise NotApplicableError(f"n/a: {problem}")
    return trained


def positions_of_windows(
    context: EvalContext, encoding: Encoding, window: int, n_inputs: int
) -> list[Tensor]:
    """Return the positions that a window may have: one (n_inputs,), or DRAWS of them if the encoding draws.

    Raises NotApplicableError if the encoding ends before the last of them.
    """
    n_draws = DRAWS if "positions" in encoding.hooks else 1
    draws = []
    for draw in range(n_draws):
        # Neither the protocol nor the encoding is in the name, so that all of them get the same draws.
        generator = generator_for(context.seed, "evaluation", window, draw)
        draws.append(context.model.positions(n_inputs, generator, encoding))
    limit = encoding.ends_at
    if limit is not None and any(int(pos[-1]) >= limit for pos in draws):
        raise NotApplicableError(f"n/a: no encoding of positions from {limit} on")
    return draws


def smaller_batch(error: BaseException, batch_size: int, n_inputs: int) -> int:
    """Return half the batch size after memory ran out.

    Raises OutOfMemoryError if a single window does not fit, and the error itself if it has another cause.
    """
    # First, because a single window cannot be halved, whatever the error says.
    if batch_size == 1:
        raise_no_room(error, n_inputs)
    if not is_out_of_memory(error):
        raise error
    return batch_size // 2


def raise_no_room(error: BaseException, n_inputs: int) -> NoReturn:
    """Raise OutOfMemoryError if memory ran out in a single window, and the error itself otherwise."""
    if not is_out_of_memory(error):
        raise error
    raise OutOfMemoryError(n_inputs, first_line(error)) from error


def forward(
    context: EvalContext,
    tokens: Tensor,
    pos: Tensor,
    encoding: Encoding,
    n_targets: int,
    with_best: bool = False,
    on_layer: OnLayer | None = None,
) -> TargetLosses:
    """Return the losses of the last targets of tokens (B, n_inputs + 1) at positions pos (n_inputs,)."""
    tokens = tokens.to(context.device)
    model_pass = ModelPass(
        inputs=tokens[:, :-1], pos=pos, encoding=encoding, n_targets=n_targets, on_layer=on_layer
    )
    return context.scorer.losses(model_pass, tokens[:, -n_targets:], with_best=with_best)


def target_logits(
    context: EvalContext,
    tokens: Tensor,
    pos: Tensor,
    encoding: Encoding,
    n_targets: int,
    on_layer: OnLayer | None = None,
) -> LogitsOf:
    """Make a pass as `forward` does, and return a function that makes logits for columns of the targets.

    The function gives (B, columns, V) float32.
    """
    inputs = tokens[:, :-1].to(context.device)
    model_pass = ModelPass(inputs=inputs, pos=pos, encoding=encoding, n_targets=n_targets, on_layer=on_layer)
    return context.scorer.target_logits(model_pass)


# --- Memory


def check_memory(context: EvalContext, pos: Tensor, encoding: Encoding, n_targets: int) -> None:
    """Raise OutOfMemoryError if one window at positions pos (n_inputs,) does not fit into free memory.

    On a CPU the operating system would kill the process without an error. A GPU raises one in time.
    """
    if context.device.type != "cpu":
        return
    # The estimate takes passes of its own, so it is skipped where even the worst encoding would fit.
    window = len(pos)
    free = free_memory()
    bytes_a_score = BYTES_A_FLOAT * MOST_FLOATS_A_SCORE
    # Of a single layer: the scores of a layer are freed before the next layer makes its own.
    most_bytes = bytes_a_score * context.model.shape.n_heads * window**2
    if most_bytes <= free:
        return

    def make_pass(length: int) -> None:
        # The values of tokens do not matter to memory, so the trial reads no text.
        tokens = torch.zeros((1, length + 1), dtype=torch.int64)
        n_scored = min(n_targets, length)
        model_pass = ModelPass(inputs=tokens[:, :-1], pos=pos[:length], encoding=encoding, n_targets=n_scored)
        scorer = context.scorer.for_trial(length / window)
        # A pass that is also asked for first choices makes the same blocks of logits, so it needs as much.
        scorer.losses(model_pass, tokens[:, -n_scored:], with_best=False)

    needed = memory_needed(make_pass, window)
    if needed > free:
        need = f"needs about {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB free"
        raise OutOfMemoryError(window, need)
