"""Make the cases of a bench: one encoding at one training length, with the windows of its evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posenc.config.compose import ComposedJob, distinguishing_overrides
from posenc.config.keys import group_of, key_of
from posenc.core.errors import UserError
from posenc.data import build_tokenizer, check_tokenizer
from posenc.evaluation.lengths import resolve_length
from posenc.evaluation.protocols.fixed_target import block_size
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.runs import encoding_name
from posenc.running.model_parts import StepPlan, build_model, check_step
from posenc.settings.numbers import check_between
from posenc.settings.tree import RunSettings, TokenizerSettings

# Groups that stand in the title of a table or cost no time, so a row is not labelled with them.
NOT_IN_LABEL = ("context_length", "model", "device", "seed", "train", "tokenizer", "data")


@dataclass(frozen=True)
class TableTitle:
    """Hold what the rows of a table share."""

    model: ModelShape
    vocab_size: int
    context_length: int  # T, tokens
    batch_windows: int
    precision: str
    compile: bool
    device: str


@dataclass(frozen=True)
class BenchCase:
    """Hold what is measured for one row."""

    label: str
    step: StepPlan
    vocab_size: int
    windows: Sequence[int]  # lengths to evaluate at, in tokens
    n_targets: int  # scored tokens of a window
    eval_batch_tokens: int

    @property
    def title(self) -> TableTitle:
        """Return the title of the table that the row belongs to."""
        return TableTitle(
            model=self.step.shape,
            vocab_size=self.vocab_size,
            context_length=self.step.settings.context_length,
            batch_windows=self.step.batch_windows,
            precision=self.step.precision,
            compile=bool(self.step.settings.train.compile),
            device=str(self.step.device),
        )

    def model(self) -> Decoder:
        """Return the model with its initial values, on its device."""
        return build_model(self.step.settings, self.step.shape, self.vocab_size).to(self.step.device)


def make_cases(jobs: Sequence[ComposedJob], lengths: str) -> list[BenchCase]:
    """Return a case for each job. Jobs that differ only in what costs no time, such as the seed, share one.

    lengths: windows to evaluate at, such as `1x,8x`, or `none`. Raises UserError.
    """
    cases: dict[tuple[str, TableTitle], BenchCase] = {}
    for job in jobs:
        try:
            case = _make_case(_label(job, jobs), job.run_settings, lengths)
        except UserError as error:
            if len(jobs) == 1:
                raise
            raise error.within(f"in the job {' '.join(job.overrides)}") from None
        # The first one stays. Jobs that differ in the seed alone would be timed for nothing.
        cases.setdefault((case.label, case.title), case)
    return list(cases.values())


def _label(job: ComposedJob, jobs: Sequence[ComposedJob]) -> str:
    """Return the encoding's name, and the overrides that distinguish the job and cost time."""
    parts = [encoding_name(job.run_settings.encoding.plain()) or ""]
    for override in distinguishing_overrides(job, jobs):
        if group_of(key_of(override)) not in NOT_IN_LABEL:
            parts.append(override)
    return " ".join(parts)


def _make_case(label: str, settings: RunSettings, lengths: str) -> BenchCase:
    """Return the case of a job's settings. Raises UserError."""
    # A bench reads no corpus: a step and a batch of an evaluation are timed on random tokens.
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
    texts = lengths.strip("[] ").split(",")
    windows = sorted({resolve_length("--eval-lengths", text, context_length) for text in texts})
    # A window holds its own targets, or fewer tokens would be scored than at the other lengths.
    if windows[0] < n_targets:
        scored = f"the {n_targets} tokens that are scored (eval.target_fraction * T)"
        allowed = f"lengths from {n_targets} tokens"
        raise UserError("--eval-lengths", windows[0], f"shorter than {scored}", allowed=allowed)
    return windows


def _vocab_size(tokenizer: TokenizerSettings) -> int:
    """Return the size of the vocabulary without training a tokenizer. Raises UserError."""
    check_tokenizer(tokenizer)
    # Training a tokenizer would need a text, and only the size of its vocabulary costs time.
    if tokenizer.name == "bpe":
        return int(tokenizer.parameters["vocab_size"])
    return build_tokenizer(tokenizer, None).vocab_size
