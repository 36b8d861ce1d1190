"""The schema of results: a record for each cell (protocol, window, extension, step), the facts of its run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from posenc.results.statistics import ratio_interval

SCHEMA_VERSION = 1
UNIT = "nats per token"
HEADLINE = "fixed-target"  # the protocol that stands for a run where one has to
REFERENCE_PROTOCOL = "trigram"  # not a protocol of the model: the loss of a byte trigram on its targets
INFLATED = "nonoverlapping"  # the protocol whose loss falls with the window for a reason of its own
METRICS = {"nats": "nats per token", "bpb": "bits per byte", "ppl": "perplexity per token"}
Metric = Literal["nats", "bpb", "ppl"]


class PerDocument(TypedDict):
    """Sums and counts by document, aligned lists; what paired statistics are made from later."""

    document: list[int]  # the document's index in its split
    nats: list[float]  # summed loss of its targets
    targets: list[int]
    bytes: list[int]  # bytes of text that its targets stand for


BREAK = 0.1  # nats per token above the level at T: what a curve over positions breaks by


class Curve(TypedDict):
    """Loss by position of one long context; position p has p tokens before it. All in nats per token."""

    edges: list[int]  # bin i holds positions edges[i] .. edges[i+1]-1
    nats: list[float]  # mean of each bin
    targets: list[int]
    level: float  # mean over T/2 < p <= T
    rise: list[float]  # of each bin over the level, in the same passes (extended: of the model as trained)
    rise_ci95: list[list[float] | None]  # over documents
    slope: float | None  # nats per token, for each token past T; null where there is none
    slope_ci95: list[float] | None  # over documents
    breaks_at: int | None  # start of the first bin past T whose rise is above 0.1 with its whole interval


class Record(TypedDict):
    """One finished cell. Plain JSON; numbers are null where there is nothing to report (see `note`)."""

    protocol: str  # fixed-target, sliding, nonoverlapping, positions, induction, far-copy, trigram
    extend: dict[str, Any] | None  # test-time extension with resolved parameters; {"name": ...}
    checkpoint_step: int  # of the weights that were measured
    corpus: str  # name of the text that was scored
    fingerprint: str  # sha256 over its documents
    split: str  # test or validation
    targets_hash: str  # of the ids of the scored tokens: equal where the same were scored
    unit: str  # of nats
    window: int  # tokens
    multiple: float  # window / training length T
    stride: int | None  # tokens
    nats: float | None  # per token
    bpb: float | None  # bits per byte
    ppl: float | None  # exp(nats); null where that overflows
    targets: int  # scored tokens
    documents: int  # that they are in
    ci95: list[float] | None  # of nats, over documents; null below 30 documents
    per_document: PerDocument | None  # what everything above is made of
    beyond: str | None  # the declared policy past T, where the encoding needs one
    note: str | None  # why there is no number: oom, diverged, n/a
    seconds: float  # that the measurement took
    curve: NotRequired[Curve]  # of the protocol `positions`


class RunFacts(TypedDict, total=False):
    """The `run` object of results.json. `encoding`, `context_length` and `seed` are required on reading."""

    name: str  # of the run
    encoding: dict[str, Any]  # {"name": ..., parameter: value, ..., "beyond": ...}
    attention: dict[str, Any]  # {"name": ..., window, scale, ...}
    positions: dict[str, Any]  # {"name": ..., ...}
    model: dict[str, Any]  # its config group
    parameters: dict[str, int]  # total, encoding, options, embedding
    corpus: dict[str, Any]  # name, fingerprint
    tokenizer: Any  # a name, or a dict with one
    context_length: int  # T, tokens
    tokens: int  # trained on so far
    steps: int  # updates so far
    seed: int  # of batches and initial values
    precision: str  # fp32 or bf16
    device: str  # cpu, cuda, mps
    wall_seconds: float  # of training
    tokens_per_second: float  # of training, on average
    peak_memory_bytes: int | None  # of training; null where it cannot be known
    final_loss: float | None  # nats per token, training; over the last steps, of a resumed run since then
    settings_hash: str  # of what defines the run
    code: str  # hash of the code of the encoding and its options: runs of other code are another row
    versions: dict[str, str]  # of Python and the libraries


def make_record(
    *,
    protocol: str,
    window: int,
    train_length: int,
    checkpoint_step: int,
    corpus: str,
    fingerprint: str,
    split: str,
    targets_hash: str,
    seconds: float,
    documents: Sequence[int] = (),
    nats: Sequence[float] = (),
    targets: Sequence[int] = (),
    bytes: Sequence[int] = (),
    unit: str = UNIT,
    extend: Mapping[str, Any] | None = None,
    stride: int | None = None,
    beyond: str | None = None,
    note: str | None = None,
    curve: Curve | None = None,
) -> Record:
    """A record from sums by document: one division at the end, an interval clustered by document.

    `documents` are distinct indices; `nats`, `targets`, `bytes` are sums of each, in the same order
    (documents without a target are left out). `window` and `train_length` in tokens. Without data pass a
    `note` that says why. A non-finite sum makes a record without numbers, noted `diverged`.
    Raises ValueError when lengths differ, a document comes twice, or there is neither data nor a note.
    """
    if not len(documents) == len(nats) == len(targets) == len(bytes):
        raise ValueError("documents, nats, targets and bytes need one entry a document each")
    if len(set(documents)) != len(documents):
        raise ValueError("every document may come once")
    rows = sorted(
        (int(d), float(s), int(t), int(b))
        for d, s, t, b in zip(documents, nats, targets, bytes, strict=True)
        if t > 0
    )
    if not rows and note is None:
        raise ValueError("a record without targets needs a note that says why")
    if not all(math.isfinite(row[1]) for row in rows):
        rows, note = [], note or "diverged"
    per_document = _per_document(rows) if rows else None
    numbers = _numbers(per_document)
    record = Record(
        protocol=protocol,
        extend=None if extend is None else dict(extend),
        checkpoint_step=int(checkpoint_step),
        corpus=corpus,
        fingerprint=fingerprint,
        split=split,
        targets_hash=targets_hash,
        unit=unit,
        window=int(window),
        multiple=int(window) / int(train_length),
        stride=stride,
        nats=numbers["nats"],
        bpb=numbers["bpb"],
        ppl=numbers["ppl"],
        ci95=numbers["ci95"],
        targets=sum(row[2] for row in rows),
        documents=len(rows),
        per_document=per_document,
        beyond=beyond,
        note=note,
        seconds=float(seconds),
    )
    if curve is not None:
        record["curve"] = curve
    return record


def perplexity(nats: float) -> float:
    """exp(nats), infinite where that overflows."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _per_document(rows: list[tuple[int, float, int, int]]) -> PerDocument:
    return PerDocument(
        document=[row[0] for row in rows],
        nats=[row[1] for row in rows],
        targets=[row[2] for row in rows],
        bytes=[row[3] for row in rows],
    )


def _numbers(per_document: PerDocument | None) -> dict[str, Any]:
    if per_document is None:
        return {"nats": None, "bpb": None, "ppl": None, "ci95": None}
    total, size = math.fsum(per_document["nats"]), sum(per_document["bytes"])
    nats = total / sum(per_document["targets"])
    ppl = perplexity(nats)
    interval = ratio_interval(per_document["nats"], per_document["targets"])
    return {
        "nats": nats,
        "bpb": total / (math.log(2) * size) if size else None,
        "ppl": ppl if math.isfinite(ppl) else None,
        "ci95": None if interval is None else list(interval),
    }
