"""Make the header of a comparison, which says what its numbers have in common."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.results.cells import shared_or_none
from posenc.results.drafts import Draft, protocols_of
from posenc.results.grouping import CODE
from posenc.results.identity import differing, text_name, tokens_trained
from posenc.results.measurements import Measurement, Member, measurements_of
from posenc.results.plain import NOT_IN_JSON
from posenc.results.records import METRICS, REFERENCES, UNIT, Metric, TokenizerFacts
from posenc.results.runs import Run
from posenc.results.statistics.intervals import CONFIDENCE
from posenc.results.statistics.verdicts import COLLAPSED_MARGIN, SAME_MARGIN
from posenc.settings.tree import RunSettings

Range = tuple[int, int]  # fewest, most
# Prefixes of settings that labels and notes of rows already show, so that the header leaves them out.
NAMED_BY_LABELS = ("encoding.", "attention.", "positions.", CODE)


@dataclass(frozen=True)
class Reference:
    """The loss of a reference on the targets that are shown."""

    protocol: str  # trigram: of the training text; unigram: of a text that the models were not trained on
    mean: float | None  # null where runs differ
    unit: str


@dataclass(frozen=True)
class Margins:
    """The margins by which a change of the loss is called `same` or `collapsed`."""

    unit: str
    same: float
    collapsed: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the numbers of a comparison have in common; a value is null where the runs differ in it."""

    protocol: str
    group: dict[str, str]  # what tells this table from the others of the same command
    metric: Metric
    unit: str
    corpus: str | None  # name of the text that was scored
    fingerprint: str | None  # sha256 over its documents
    split: str | None
    stride: int | None  # tokens
    tokenizer: Any  # a name, or an object with one
    context_length: int | None  # T, tokens
    model: dict[str, Any] | None  # its config group
    parameters: Range | None  # fewest, most
    tokens: int | str | None  # trained on; `unknown` if that is not stored
    seeds: tuple[int, ...]
    documents: Range | None  # fewest, most
    targets: Range | None  # fewest, most
    mixed: dict[str, list[str]]  # conditions in which the rows differ; empty without `--allow-mixed`
    also_differs: dict[str, list[str]]  # settings in which rows of several encodings differ
    reference: Reference | None
    margins: Margins
    left_out: int  # records that no table shows, since their targets, checkpoint or tuned knobs differ
    baseline: str | None  # label of the row that is subtracted
    # The rest is for the reports, and not in JSON.
    precisions: tuple[str, ...] = field(metadata=NOT_IN_JSON)  # of the trainings
    evaluated_in: str | None = field(metadata=NOT_IN_JSON)  # precision of all measurements
    also_measured: tuple[str, ...] = field(metadata=NOT_IN_JSON)  # other protocols of the runs
    nats_per_bpb: float | None = field(metadata=NOT_IN_JSON)  # nats per token that equal one bit per byte
    left_out_by_reason: dict[str, int] = field(metadata=NOT_IN_JSON)  # number of records
    columns_left_out: bool = field(metadata=NOT_IN_JSON)  # whether lengths were measured that are not shown
    trained_on: str | None = field(metadata=NOT_IN_JSON)  # the training corpus, if another one was scored

    @property
    def one_bit(self) -> float | None:
        """Return one bit per byte in the metric; None for perplexities or without bytes."""
        if self.metric == "bpb":
            return 1.0
        return self.nats_per_bpb if self.metric == "nats" else None


def make_header(draft: Draft, baseline: str | None) -> Header:
    """Return the header of a table; `baseline` is the label of the row that is subtracted."""
    members = draft.members  # those with measurements
    runs = _runs_of_rows(draft)
    # all measurements of a member have the same text, split and stride, so the first stands for all
    first_measurements = [member.measurements[0] for member in members]
    recorded = [measurement for member in members for measurement in member.measurements]
    # A record with a note has 0 targets, which would begin the range of the header.
    scored = [measurement for measurement in recorded if measurement.targets]
    unit = METRICS[draft.metric]
    if draft.metric == "nats":
        # the unit stands in the records: nats per token, per value, or per token of an answer
        unit = shared_or_none(measurement.unit for measurement in recorded) or UNIT
    parameters = [member.run.parameters for member in members]
    train_lengths = [_train_length(run) for run in runs]
    # Of all runs and not of those with numbers: a seed that diverged was trained, too.
    seeds = {seed for group in draft.groups for seed in group.seeds}
    left_out = _records_left_out(draft)
    return Header(
        protocol=draft.protocol,
        group=draft.distinct_conditions,
        metric=draft.metric,
        unit=unit,
        corpus=shared_or_none(measurement.corpus for measurement in first_measurements),
        fingerprint=shared_or_none(measurement.target_set.fingerprint for measurement in first_measurements),
        split=shared_or_none(measurement.target_set.split for measurement in first_measurements),
        stride=shared_or_none(measurement.target_set.stride for measurement in first_measurements),
        tokenizer=shared_or_none(_tokenizer(member.run) for member in members),
        context_length=shared_or_none(length for length in train_lengths if length is not None),
        model=shared_or_none(member.run.model for member in members),
        parameters=_range([count for count in parameters if count is not None]),
        tokens=_tokens_trained_on(members, runs),
        seeds=tuple(sorted(seeds)),
        documents=_range([measurement.documents for measurement in scored]),
        targets=_range([measurement.targets for measurement in scored]),
        mixed=draft.mixed,
        also_differs=_also_differs(draft),
        reference=_reference(members, draft.metric),
        margins=Margins(METRICS["bpb"], SAME_MARGIN, COLLAPSED_MARGIN, CONFIDENCE),
        left_out=left_out.total(),
        left_out_by_reason=dict(sorted(left_out.items())),
        columns_left_out=draft.columns_left_out,
        baseline=baseline,
        trained_on=shared_or_none(_text_trained_on(member) for member in members),
        precisions=_precisions(runs),
        evaluated_in=shared_or_none(measurement.precision for measurement in recorded),
        also_measured=tuple(name for name in protocols_of(runs) if name != draft.protocol),
        nats_per_bpb=_nats_per_bpb(recorded),
    )


def _runs_of_rows(draft: Draft) -> list[Run]:
    """Return the runs of all rows, each once, those without numbers as well."""
    members = [member for group in draft.groups for member in group.members]
    by_path = {member.run.path: member.run for member in members}
    return list(by_path.values())


def _records_left_out(draft: Draft) -> Counter[str]:
    """Count, by reason, the records of the table's runs that no table shows."""
    counts: Counter[str] = Counter()
    # Each run once: it has a member for each extension, and its records would be counted as often.
    for path in {member.run.path for member in draft.members}:
        counts.update(draft.left_out.get(path, {}))
    return counts


def _range(values: Sequence[int]) -> Range | None:
    """Return the fewest and the most; None without values."""
    return (min(values), max(values)) if values else None


def _tokenizer(run: Run) -> TokenizerFacts | str | None:
    return None if run.facts is None else run.facts.get("tokenizer")


def _train_length(run: Run) -> int | None:
    """Return T; None if it is not known."""
    # Facts first: results.json says what was trained and measured, config.yaml what was asked for.
    if run.facts is not None:
        return run.facts.get("context_length")
    return None if run.settings is None else run.settings.context_length


def _text_trained_on(member: Member) -> str | None:
    """Return the name of the corpus that a run was trained on; None if the same corpus was scored.

    If both corpora have the same name (as with `files`), the fingerprint is appended.
    """
    trained = member.run.training_text
    scored = member.measurements[0]
    if trained is None:
        return None
    name = trained["name"]
    fingerprint = trained["fingerprint"]
    # By the fingerprint and not by the name: one text may have two names, as another path in `data=files`.
    if fingerprint == scored.target_set.fingerprint:
        return None
    return text_name(name, fingerprint) if name == scored.corpus else name


def _tokens_trained_on(members: Sequence[Member], runs: Sequence[Run]) -> int | str | None:
    """Return on how many tokens all models were trained; the planned number if nothing is measured yet.

    None if the models differ.
    """
    if members:
        trained: int | str | None = shared_or_none(tokens_trained(member) for member in members)
        return trained
    tokens: int | None = shared_or_none(
        run.settings.train.tokens for run in runs if isinstance(run.settings, RunSettings)
    )
    return tokens


def _also_differs(draft: Draft) -> dict[str, list[str]]:
    """Return settings in which the rows differ and that no label names, with all values.

    Empty if all rows have one encoding: then their labels name all that differs.
    """
    if len({group.encoding for group in draft.groups}) < 2:
        return {}
    settings = [group.settings for group in draft.groups if group.settings]
    also_differs = {}
    for key in differing(settings):
        if not key.startswith(NAMED_BY_LABELS):
            values = {settings_of_row.get(key, "unset") for settings_of_row in settings}
            also_differs[key] = sorted(values)
    return also_differs


def _reference(members: Sequence[Member], metric: Metric) -> Reference | None:
    """Return the loss of the reference on the targets of the table; None if none was measured."""
    for name in REFERENCES:
        values: set[float | None] = set()
        for member in members:
            # A run may hold the reference of several texts. The table shows the one on its own targets.
            hashes = {measurement.target_set.targets_hash for measurement in member.measurements}
            for reference in measurements_of(member.run, name):
                if reference.target_set.targets_hash in hashes:
                    values.add(reference.value(metric))
        if any(value is not None for value in values):
            return Reference(name, shared_or_none(values), METRICS[metric])
    return None


def _precisions(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the precisions of the trainings, each once."""
    precisions = {run.facts.get("precision") for run in runs if run.facts is not None}
    return tuple(sorted(str(precision) for precision in precisions if precision))


def _nats_per_bpb(measurements: Sequence[Measurement]) -> float | None:
    """Return how many nats per token equal one bit per byte, the median over a table; None without bytes."""
    # Of the table alone: tokens of another text or protocol have other bytes, and with all records of the
    # runs an interval in nats could lie beside its own change.
    ratios = []
    for measurement in measurements:
        if measurement.nats and measurement.bpb:
            ratios.append(measurement.nats / measurement.bpb)
    # The ratio is the bytes of a token times log 2, and differs a little between sets of targets. The median
    # is not moved by a record of few targets.
    return statistics.median(ratios) if ratios else None
