"""Fit the evaluation of a model of transformers to the text and the machine, where the user left it open.

Lengths are those that enough documents have, and whose passes fit into memory. Targets, and windows of
protocols that count these, are as many as take about `eval.max_minutes`. What was chosen once for a model, a
text and a time is kept in the cache: later, under load or with less free memory, fewer would be chosen, but
an extension has to be measured on the same targets as the model as trained.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.errors import UserError, plural
from posenc.core.paths import cache_dir
from posenc.core.quantities import length_text
from posenc.data import CorpusFacts, build_tokenizer
from posenc.evaluation.lengths import resolve_lengths
from posenc.evaluation.resolve import Evaluation, resolve_evaluation
from posenc.results.statistics.documents import FEW_DOCUMENTS
from posenc.running.estimate import estimate_evaluation, memory_by_window
from posenc.running.job import Job
from posenc.running.outline_store import measured_bytes_a_token
from posenc.running.room import room_on
from posenc.settings.base import flattened
from posenc.settings.tree import NONE, EvalOverrides, EvalSettings, ExtendRequest, TokenizerSettings

# Raise it where the choice, the estimate of a time or `Fit` changes: earlier choices are not read then.
REVISION = 2
ENOUGH_WINDOWS = 8  # of the longest length; if time is left for fewer, that length is left out
# The longest document may be longer than its estimate by this factor: only then a length is refused.
MARGIN = 1.05
MAX_MINUTES = 30.0  # unless the user says another time


@dataclass(frozen=True)
class LongTexts:
    """Hold the lengths of the documents to measure, in tokens, as far as a sample tells."""

    name: str
    split: str
    lengths: list[float]  # descending
    bytes_a_token: float

    @classmethod
    def of(cls, facts: CorpusFacts, tokenizer: TokenizerSettings, split: str) -> LongTexts:
        """Estimate the lengths of the documents of a split."""
        # A corpus is not tokenised for a plan. A sample of long documents tells how long they are in tokens.
        ratio = measured_bytes_a_token(facts, tokenizer, split)
        lengths = sorted((size / ratio for size in facts.sizes[split]), reverse=True)
        return cls(facts.name, split, lengths, ratio)

    def count(self, window: int) -> int:
        """Return how many documents hold a window and its last target."""
        return sum(length > window for length in self.lengths)

    def check(self, window: int, facts: CorpusFacts, tokenizer: TokenizerSettings) -> None:
        """Raise UserError if no document holds a window, before the text is tokenised."""
        longest = self.lengths[0] if self.lengths else 0.0
        if longest * MARGIN > window:
            return
        # The lengths are estimates by a sample. Before a length is refused, the longest text is tokenised.
        texts = [document.text for document in facts.read() if document.split == self.split]
        longest_text = max(texts, key=len)  # bytes
        (encoded,) = build_tokenizer(tokenizer, facts).encode_all([longest_text])
        n_tokens = len(encoded.ids)
        if n_tokens * MARGIN > window:  # the tokens of the longest text are not always the most
            return
        problem = f"no document of the {self.split} split is that long: the longest has {n_tokens:,} tokens"
        hint = f"the longest that works is {n_tokens - 1}; or a text of longer documents, data=files"
        raise UserError("eval.lengths", window, problem, hint=hint)


@dataclass(frozen=True)
class FitLimits:
    """Say for how long to measure, and what may be lowered for that: what the user did not name."""

    has_open_lengths: bool  # lengths may be left out
    open_counts: tuple[str, ...]  # keys of the `eval` group that say how much is measured
    max_minutes: float

    @classmethod
    def of(cls, asked: EvalOverrides, evaluation: Evaluation) -> FitLimits:
        """Return the limits by what the user asked for."""
        values = flattened(asked.plain())
        open_counts = [key for key in evaluation.count_keys if values.get(key) is None]
        return cls(asked.lengths is None, tuple(open_counts), asked.max_minutes or MAX_MINUTES)


@dataclass(frozen=True)
class Fit:
    """Hold what was chosen."""

    lengths: list[int]  # windows in tokens
    counts: dict[str, int]  # by keys of the `eval` group, such as max_targets and needle.windows
    minutes: float  # that this is estimated to take

    def applied(self, settings: EvalSettings) -> EvalSettings:
        """Return the settings with what was chosen."""
        changes: dict[str, Any] = {"lengths": self.lengths}
        for key, count in self.counts.items():
            group, _, name = key.rpartition(".")
            if group:
                changes[group] = {**settings.protocol_parameters[group], name: count}
            else:
                changes[name] = count
        return settings.with_changes(**changes)


def fitted_lengths(settings: EvalSettings, context_length: int, texts: LongTexts) -> list[int]:
    """Return the windows of the default lengths that enough documents have; T is always among them."""
    windows = resolve_lengths([*settings.lengths, context_length], settings.base_for(context_length))
    documents_at_train_length = texts.count(context_length)
    # A table warns of fewer documents. A corpus that has few even at T is asked for half of those.
    needed = min(FEW_DOCUMENTS, max(1, documents_at_train_length // 2))
    return [window for window in windows if window <= context_length or texts.count(window) >= needed]


def note_on_lengths(wanted: Sequence[int], fitted: Sequence[int], texts: LongTexts, t: int) -> str | None:
    """Say which lengths are left out, and why. `t` is T, for their names."""
    left_out = [window for window in wanted if window not in fitted]
    if not left_out:
        return None
    names = ", ".join(length_text(round(window / t, 4)) for window in left_out)
    shortest = min(left_out)
    n_documents = texts.count(shortest)
    documents = plural(n_documents, f"{texts.split} document")
    verb = "is" if n_documents == 1 else "are"
    estimate = f"{documents} of {texts.name} {verb} longer than {shortest:,} tokens, by a sample"
    return f"lengths    without {names}: {estimate}"


# --- memory


@dataclass(frozen=True)
class WindowMemory:
    """Hold the bytes that a process takes whose passes are over windows of one length."""

    window: int  # tokens
    bytes: float


@dataclass(frozen=True)
class MemoryFit:
    """Hold the lengths and the tokens of a pass that fit into memory, and what does not fit."""

    lengths: list[int]  # windows in tokens
    batch_tokens: int
    free: float  # bytes, when this was chosen
    left_out: list[WindowMemory]  # of the smallest passes
    needed_at_train_length: float | None  # bytes, if T does not fit; it is measured all the same
    needed_by_default_passes: float | None  # bytes, if passes were made smaller than by default

    @property
    def is_limited(self) -> bool:
        """Tell whether anything does not fit."""
        needed = (self.needed_at_train_length, self.needed_by_default_passes)
        return bool(self.left_out) or any(amount is not None for amount in needed)

    def applied(self, settings: EvalSettings) -> EvalSettings:
        """Return the settings with what was chosen."""
        return settings.with_changes(lengths=self.lengths, batch_tokens=self.batch_tokens)


@dataclass(frozen=True)
class MemoryChoice:
    """Hold what was chosen by memory, now or by an earlier plan."""

    fit: MemoryFit
    earlier_file: Path | None  # where the cache keeps it since an earlier plan; None: it was chosen now

    def notes(self, context_length: int, batch_tokens: int) -> list[str]:
        """Say what was left out or lowered, and why. `batch_tokens` is the default size of a pass."""
        fit = self.fit
        if not fit.is_limited:
            return []
        # What was free on another day must not look like what is free now.
        verb = "are free" if self.earlier_file is None else "were free when this was chosen"
        free = f"{_gigabytes(fit.free)} {verb}"
        notes = []
        if fit.left_out:
            needs = [
                f"{length_text(round(memory.window / context_length, 4))} needs {_gigabytes(memory.bytes)}"
                for memory in fit.left_out
            ]
            notes.append(f"memory     without lengths that do not fit: {', '.join(needs)}, and {free}")
        if fit.needed_at_train_length is not None:
            needed = _gigabytes(fit.needed_at_train_length)
            notes.append(f"memory     T = {context_length:,} does not fit: it needs {needed}, and {free}")
        if fit.needed_by_default_passes is not None:
            needed = _gigabytes(fit.needed_by_default_passes)
            lowered = f"eval.batch_tokens={fit.batch_tokens}: {batch_tokens} need {needed}, and {free}"
            notes.append(f"memory     {lowered}")
        if self.earlier_file is not None:
            file = shlex.quote(str(self.earlier_file))
            notes.append(f"memory     kept for all extensions of this model; to choose again: rm {file}")
        return notes


STORED_MEMORY_FIT = TypeAdapter(MemoryFit)


def fit_to_memory(job: Job, asked: EvalOverrides, model_key: Sequence[object]) -> MemoryChoice:
    """Return the lengths whose passes fit into the free memory, of those that the user left open.

    Passes are made smaller first, down to one window. T stays, whether it fits or not. The choice is kept in
    the cache, for models with this key: an extension is measured on the targets of the model as trained.
    """
    has_open_batch = asked.batch_tokens is None
    has_open_lengths = asked.lengths is None
    key = [*_key_of_fit(job, model_key), "memory", has_open_batch, has_open_lengths]
    path = _path_of_fit(key)
    stored = _stored_memory_fit(path)
    if stored is not None:
        return MemoryChoice(stored, earlier_file=path)
    fit = _fit_memory(job, has_open_batch=has_open_batch, has_open_lengths=has_open_lengths)
    _keep(path, fit)
    return MemoryChoice(fit, earlier_file=None)


def _stored_memory_fit(path: Path) -> MemoryFit | None:
    """Return the choice of an earlier plan; None if there is none, or one of another form."""
    stored = read_sealed(path)
    if stored is None:
        return None
    try:
        return STORED_MEMORY_FIT.validate_python(stored)
    except ValidationError:  # earlier versions kept finished sentences in place of figures
        return None


def _fit_memory(job: Job, *, has_open_batch: bool, has_open_lengths: bool) -> MemoryFit:
    """Return the lengths and the tokens of a pass that fit into the memory that is free now."""
    length = job.settings.context_length
    batch_tokens = job.evaluation.settings.batch_tokens
    windows = list(job.evaluation.lengths.windows)
    room = room_on(job.device, job.given_model)
    least_batch = 1 if has_open_batch else batch_tokens
    least_memory = memory_by_window(job, least_batch)  # of the smallest passes
    too_large = [window for window in windows if least_memory.get(window, 0.0) > room.for_model]
    needed = {window: room.needed(least_memory[window]) for window in too_large}
    # A model whose weights alone are too large has no length that fits, and its plan says so by T.
    left_out = [window for window in too_large if has_open_lengths and window > length]
    fitting = [window for window in windows if window not in left_out]
    # Below the largest pass of a single window nothing is gained.
    target = max(room.for_model, *(least_memory.get(window, 0.0) for window in fitting))
    lowered = batch_tokens
    most_memory = _most_memory(job, fitting, lowered)
    whole_memory = most_memory
    while has_open_batch and most_memory > target and lowered > 1:
        lowered //= 2
        most_memory = _most_memory(job, fitting, lowered)
    return MemoryFit(
        lengths=fitting,
        batch_tokens=lowered,
        free=room.free,
        left_out=[WindowMemory(window, needed[window]) for window in left_out],
        needed_at_train_length=needed.get(length) if has_open_lengths else None,
        needed_by_default_passes=room.needed(whole_memory) if lowered < batch_tokens else None,
    )


def _most_memory(job: Job, windows: Sequence[int], batch_tokens: int) -> float:
    """Return the bytes of the largest pass over any of these windows."""
    memory = memory_by_window(job, batch_tokens)
    return max((memory.get(window, 0.0) for window in windows), default=0.0)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.3g} GB"


# --- time


def fit_to_time(job: Job, limits: FitLimits, model_key: Sequence[object]) -> Fit:
    """Return as much as takes about `max_minutes`: fewer targets, fewer windows of needle.

    If hardly a window of the longest length would be left, shorter lengths are measured, where the user left
    them open. The choice is kept in the cache, for models with this key: it names what decides the time of a
    pass, and is known before weights are read.
    """
    path = _path_of_fit([*_key_of_fit(job, model_key), dataclasses.asdict(limits)])
    # A file that was cut or edited has a wrong sha256, and counts as none.
    stored = read_sealed(path)
    fit = _fit(job, limits) if stored is None else Fit(**stored)
    if stored is None:
        _keep(path, fit)
    return fit


def _key_of_fit(job: Job, model_key: Sequence[object]) -> list[object]:
    """Return all that a choice depends on, but the load of the machine and its free memory.

    A minute later these would choose other targets.
    """
    return [
        REVISION,
        list(model_key),
        job.settings.encoding.name,
        job.corpus_facts.fingerprint,
        str(job.device),
        [str(window) for window in job.evaluation.lengths.windows],
        [[protocol.name, protocol.settings.plain()] for protocol in job.evaluation.protocols],
        job.evaluation.settings.plain(),
    ]


def _path_of_fit(key: Sequence[object]) -> Path:
    return cache_dir() / "fits" / f"{digest_of(key)}.json"


def _keep(path: Path, fit: Fit | MemoryFit) -> None:
    """Write a choice into the cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, dataclasses.asdict(fit))


def _fit(job: Job, limits: FitLimits) -> Fit:
    """Return the lengths and the counts that take about `max_minutes`, or else the fewest that were tried."""
    length = job.settings.context_length
    windows = list(job.evaluation.lengths.windows)
    while True:
        beyond = [window for window in windows if window > length]
        # without one length beyond T there is nothing to extrapolate to
        is_last = not limits.has_open_lengths or len(beyond) <= 1
        least_windows = 1 if is_last else ENOUGH_WINDOWS
        fit = _fit_counts(job, limits, windows, least_windows)
        if is_last or fit.minutes <= limits.max_minutes:
            return fit
        # The longest length goes first: its windows cost most, and each needs a document of its length.
        windows = windows[:-1]


def _fit_counts(job: Job, limits: FitLimits, windows: list[int], least_windows: int) -> Fit:
    """Halve the counts until they take about `max_minutes`, or hardly a window of each protocol is left."""
    evaluation = job.evaluation
    settings = flattened(evaluation.settings.plain())
    counts = {key: int(settings[key]) for key in limits.open_counts}
    least = {}
    for key, most in counts.items():
        # `max_targets` counts targets, of which a window has a block. The other counts are windows.
        count_of_a_window = 1
        if key == "max_targets":
            count_of_a_window = evaluation.headline.block(evaluation.lengths)
        # Where the block of one window has more targets than the default, the default stays.
        least[key] = min(most, least_windows * count_of_a_window)
    while True:
        fit = _estimated(job, windows, counts)
        # halved, so that two estimates of one machine seldom choose differently
        halved = dict(counts)
        for key, count in counts.items():
            if count // 2 >= least[key]:
                halved[key] = count // 2
        if fit.minutes <= limits.max_minutes or halved == counts:
            return fit
        counts = halved


def _estimated(job: Job, windows: list[int], counts: dict[str, int]) -> Fit:
    """Estimate how long the model as trained is measured at these lengths, on so much of the text."""
    fit = Fit(windows, counts, minutes=0.0)
    # With and without an extension the same number of targets is chosen, since their losses are compared.
    as_trained = ExtendRequest(name=NONE, tune=False, tries=1)
    settings = fit.applied(job.evaluation.settings)
    evaluation = resolve_evaluation(settings, job.settings.context_length, as_trained)
    trial = dataclasses.replace(job, evaluation=evaluation)
    seconds = estimate_evaluation(trial, 0).seconds
    return dataclasses.replace(fit, minutes=seconds / 60)
