"""Fit the evaluation of a model of transformers to the text and the machine, where the user left it open.

Lengths are those that enough documents have. Targets are as many as take about `eval.max_minutes`. What was
chosen once for a model, a text and a time is kept in the cache: a machine under load would choose fewer
targets, and an extension is measured on the targets of the model as trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.errors import UserError, plural
from posenc.core.paths import cache_dir
from posenc.data import CorpusFacts, build_tokenizer
from posenc.evaluation.lengths import resolve_lengths
from posenc.evaluation.resolve import Evaluation, resolve_evaluation
from posenc.report.texts import length_text
from posenc.results.statistics.documents import FEW_DOCUMENTS
from posenc.running.estimate import estimate_evaluation, measured_bytes_a_token
from posenc.running.job import Job
from posenc.settings.tree import EvalSettings, ExtendRequest, TokenizerSettings

ENOUGH_WINDOWS = 8  # of the longest length; below, shorter lengths are measured instead
# An estimate of the longest document may be wrong by so much before it refuses a length.
CERTAIN = 1.05


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
        ratio = measured_bytes_a_token(facts, tokenizer, split)
        lengths = sorted((size / ratio for size in facts.sizes[split]), reverse=True)
        return cls(facts.name, split, lengths, ratio)

    def count(self, window: int) -> int:
        """Return how many documents hold a window and its last target."""
        return sum(length > window for length in self.lengths)

    def check(self, window: int, facts: CorpusFacts, tokenizer: TokenizerSettings) -> None:
        """Raise UserError if no document holds a window, before the text is tokenised."""
        longest = self.lengths[0] if self.lengths else 0.0
        if longest * CERTAIN > window:
            return
        texts = [document.text for document in facts.read() if document.split == self.split]
        longest_text = max(texts, key=len)
        (encoded,) = build_tokenizer(tokenizer, facts).encode_all([longest_text])
        n_tokens = len(encoded.ids)
        if n_tokens * CERTAIN > window:
            return
        problem = f"no document of the {self.split} split is that long: the longest has {n_tokens:,} tokens"
        hint = f"the longest that works is {n_tokens - 1}; or a text of longer documents, data=files"
        raise UserError("eval.lengths", window, problem, hint=hint)


@dataclass(frozen=True)
class OpenSettings:
    """Say what the user left open, and for how long to measure."""

    lengths: bool
    targets: bool
    max_minutes: float


def fitted_lengths(settings: EvalSettings, context_length: int, texts: LongTexts) -> list[int]:
    """Return the windows of the default lengths that enough documents have; T is always among them."""
    base_length = context_length if settings.base_length is None else settings.base_length
    windows = resolve_lengths([*settings.lengths, context_length], base_length)
    at_train_length = texts.count(context_length)
    needed = min(FEW_DOCUMENTS, max(1, at_train_length // 2))
    return [window for window in windows if window <= context_length or texts.count(window) >= needed]


def note_on_lengths(asked: Sequence[int], fitted: Sequence[int], texts: LongTexts, length: int) -> str | None:
    """Say which lengths are left out, and why."""
    left_out = [window for window in asked if window not in fitted]
    if not left_out:
        return None
    names = ", ".join(length_text(round(window / length, 4)) for window in left_out)
    shortest = min(left_out)
    documents = plural(texts.count(shortest), f"{texts.split} document")
    verb = "is" if texts.count(shortest) == 1 else "are"
    return f"lengths    without {names}: {documents} of {texts.name} {verb} longer than {shortest:,} tokens"


def fit_to_time(job: Job, open_settings: OpenSettings, texts: LongTexts, extend: ExtendRequest) -> Evaluation:
    """Return the evaluation with as many targets as take about `max_minutes`.

    If hardly a window of the longest length would be left, shorter lengths are measured, where the user left
    them open. The choice is kept in the cache.
    """
    key = [
        job.hash,
        job.facts.fingerprint,
        str(job.device),
        [str(window) for window in job.evaluation.lengths.windows],
        job.evaluation.protocol_names,
        dataclasses.asdict(open_settings),
    ]
    path = cache_dir() / "fits" / f"{digest_of(key)}.json"
    chosen = read_sealed(path)
    if chosen is None:
        chosen = _choose(job, open_settings, texts)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, chosen)
    settings = job.evaluation.settings.with_changes(**chosen)
    return resolve_evaluation(settings, job.settings.context_length, extend)


def _choose(job: Job, open_settings: OpenSettings, texts: LongTexts) -> dict[str, object]:
    """Return the lengths and the number of targets that take about `max_minutes`."""
    length = job.settings.context_length
    evaluation = job.evaluation
    as_trained = ExtendRequest(name="none", tune=False, tries=1)
    windows = list(evaluation.lengths.windows)
    most = evaluation.settings.max_targets
    block = evaluation.headline.block(evaluation.lengths)
    while True:
        targets = most
        enough = min(most, ENOUGH_WINDOWS * block)
        # without one length beyond T there is nothing to extrapolate to
        beyond = [window for window in windows if window > length]
        is_last = not open_settings.lengths or len(beyond) <= 1
        least = block if is_last else enough
        while targets >= least:
            settings = evaluation.settings.with_changes(lengths=windows, max_targets=targets)
            fitted = resolve_evaluation(settings, length, as_trained)
            trial = dataclasses.replace(job, evaluation=fitted)
            seconds = estimate_evaluation(trial, 0, bytes_a_token=texts.bytes_a_token).seconds
            if seconds <= 60 * open_settings.max_minutes or not open_settings.targets:
                return {"lengths": windows, "max_targets": targets}
            # halved, so that two estimates of one machine seldom choose differently
            targets //= 2
        if is_last:
            return {"lengths": windows, "max_targets": max(1, targets * 2)}
        windows.pop()
