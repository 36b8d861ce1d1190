"""What is timed: one encoding at one training length, with the windows of its evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posenc.config.compose import ComposedJob, distinguishing_overrides
from posenc.config.overrides import group_of, key_of
from posenc.core.errors import UserError
from posenc.data import build_tokenizer, check_tokenizer
from posenc.evaluation.lengths import resolve_length
from posenc.evaluation.protocols.fixed_target import block_size
from posenc.model.decoder import Decoder
from posenc.results.runs import encoding_name
from posenc.running.model_parts import StepPlan, build_model, check_step
from posenc.settings.numbers import check_between
from posenc.settings.tree import RunSettings, TokenizerSettings

# Overrides that stand in the title of a table, or cost no time: they are not part of a row's name.
NOT_IN_LABEL = ("context_length", "model", "device", "seed", "train", "tokenizer", "data")


@dataclass(frozen=True)
class BenchCase:
    """One row at one training length."""

    label: str
    step: StepPlan
    vocab_size: int
    windows: Sequence[int]  # tokens, of the evaluation
    n_targets: int  # scored tokens of a window
    eval_batch_tokens: int

    def title(self) -> dict[str, Any]:
        """Return what the rows of a table share, as plain JSON."""
        return {
            "model": asdict(self.step.shape),
            "vocab_size": self.vocab_size,
            "context_length": self.step.settings.context_length,
            "batch_windows": self.step.batch_windows,
            "precision": self.step.precision,
            "compile": self.step.settings.train.compile,
            "device": str(self.step.device),
        }

    def model(self) -> Decoder:
        """Return its model with the initial values, on its device."""
        return build_model(self.step.settings, self.step.shape, self.vocab_size).to(self.step.device)


def make_cases(jobs: Sequence[ComposedJob], lengths: str) -> list[BenchCase]:
    """Return the case of each job; jobs that differ in what costs no time, such as the seed, are one.

    lengths: those to evaluate at, such as `1x,8x`, or `none`. Raises UserError.
    """
    cases: dict[str, BenchCase] = {}
    for job in jobs:
        try:
            case = _make_case(_label(job, jobs), job.run_settings, lengths)
        except UserError as error:
            if len(jobs) == 1:
                raise
            raise error.within(f"in the job {' '.join(job.overrides)}") from None
        cases.setdefault(json.dumps([case.label, case.title()]), case)
    return list(cases.values())


def _label(job: ComposedJob, jobs: Sequence[ComposedJob]) -> str:
    """Return the encoding's name, and the overrides that tell the job from others."""
    parts = [encoding_name(job.run_settings.encoding.plain()) or ""]
    for override in distinguishing_overrides(job, jobs):
        if group_of(key_of(override)) not in NOT_IN_LABEL:
            parts.append(override)
    return " ".join(parts)


def _make_case(label: str, settings: RunSettings, lengths: str) -> BenchCase:
    step = check_step(settings)
    context_length = settings.context_length
    target_fraction = settings.eval.protocol_parameters["target_fraction"]
    fraction = check_between("eval.target_fraction", target_fraction, 0, 1, above_low=True)
    n_targets = block_size(fraction, context_length)
    return BenchCase(
        label=label,
        step=step,
        vocab_size=_vocab_size(settings.tokenizer),
        windows=_windows(lengths, context_length, n_targets),
        n_targets=n_targets,
        eval_batch_tokens=settings.eval.batch_tokens,
    )


def _windows(lengths: str, context_length: int, n_targets: int) -> list[int]:
    """Return the windows of `--eval-lengths` in tokens, from the shortest. Raises UserError."""
    if lengths.strip() == "none":
        return []
    named = lengths.strip("[] ").split(",")
    windows = sorted({resolve_length("--eval-lengths", length, context_length) for length in named})
    if windows[0] < n_targets:
        problem = f"shorter than the {n_targets} tokens that are scored"
        problem += " (eval.target_fraction * context_length)"
        allowed = f"lengths from {n_targets} tokens"
        raise UserError("--eval-lengths", windows[0], problem, allowed=allowed)
    return windows


def _vocab_size(tokenizer: TokenizerSettings) -> int:
    """Return the size of the vocabulary; no tokenizer is trained for it. Raises UserError."""
    check_tokenizer(tokenizer)
    if tokenizer.name == "bpe":
        return int(tokenizer.parameters["vocab_size"])
    return build_tokenizer(tokenizer, None).vocab_size
