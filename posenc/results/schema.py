"""The schema of results.json: a record for each cell (protocol, window, extension, step), the run's facts."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, cast

from annotated_types import Ge, Gt, Len, Lt
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.statistics import ratio_interval

SCHEMA_VERSION = 1
UNIT = "nats per token"
HEADLINE = "fixed-target"  # the protocol that represents a run where one has to
RECALL = "recall"  # the protocol that stands beside it
REFERENCE_PROTOCOL = "trigram"  # the loss of a byte trigram on the targets; no protocol of the model
INFLATED = "nonoverlapping"  # its loss falls with the window because fewer tokens have little context
METRICS = {"nats": "nats per token", "bpb": "bits per byte", "ppl": "perplexity per token"}
Metric = Literal["nats", "bpb", "ppl"]
BREAK = 0.1  # nats per token above the level at T: where a curve over positions breaks
HUGE = 1e30  # perplexities beyond are printed as >1e30: their means and squares would overflow

Number = Annotated[float, Gt(-1e100), Lt(1e100)]  # sums and squares of more overflow
Count = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[int, Gt(0), Lt(2**63)]
Interval = Annotated[list[Number], Len(2, 2)]
TargetSet = tuple[str, str, int, str]  # fingerprint, split, stride or 0, hash of the targets
BINS: tuple[Literal["targets", "nats", "rise", "rise_ci95"], ...] = ("targets", "nats", "rise", "rise_ci95")


class PerDocument(TypedDict):
    """Sums and counts by document, aligned lists; paired statistics are made from them later."""

    document: list[Count]  # the document's index in its split
    nats: list[Number]  # summed loss of its targets
    targets: list[Positive]
    bytes: list[Count]  # bytes of text that its targets stand for
    group: NotRequired[list[Count]]  # of the document (folder, book), where the corpus has groups


class Curve(TypedDict):
    """Loss by position of one long context; position p has p tokens before it. All in nats per token."""

    edges: list[Count]  # bin i holds positions edges[i] .. edges[i+1]-1
    nats: list[Number]  # mean of each bin
    targets: list[Count]
    level: Number  # mean over T/2 < p <= T
    rise: list[Number]  # of each bin over the level, in the same passes (extended: of the model as trained)
    rise_ci95: list[Interval | None]  # over documents
    slope: Number | None  # nats per token, for each token past T; null where there is none
    slope_ci95: Interval | None  # over documents
    breaks_at: Count | None  # start of the first bin past T whose rise is above 0.1 with its whole interval


class Recall(TypedDict):
    """Values recalled in windows of one length, aligned lists; the pairs of the training come first."""

    distance: list[Positive]  # tokens between the two places of the asked pair
    pairs: list[Positive]  # in each window
    windows: list[Positive]  # with one target each
    correct: list[Count]  # targets that no other token beats
    nats: list[Number]  # mean


class Record(TypedDict):
    """One finished cell. Plain JSON; numbers are null where there is nothing to report (see `note`)."""

    protocol: str  # of posenc.evaluation.PROTOCOLS, or trigram: their reference
    extend: dict[str, Any] | None  # test-time extension with resolved parameters; {"name": ...}
    checkpoint_step: Count  # of the weights that were measured
    corpus: str  # name of the text that was scored
    fingerprint: str  # sha256 over its documents
    split: str  # test or validation
    targets_hash: str  # of the ids of the scored tokens: equal where the same were scored
    unit: str  # of nats
    window: Positive  # tokens
    multiple: Annotated[Number, Gt(0)]  # window / training length T
    stride: Count | None  # tokens
    nats: Number | None  # per token
    bpb: Number | None  # bits per byte
    ppl: float | None  # exp(nats); null where that overflows
    targets: Count  # scored tokens
    documents: Count  # that they are in
    ci95: Interval | None  # of nats, over documents; null below 10 documents
    per_document: PerDocument | None  # what everything above is computed from
    beyond: str | None  # the declared policy past T, where the encoding needs one
    note: str | None  # why there is no number: oom, diverged, n/a
    seconds: Number  # that the measurement took
    curve: NotRequired[Curve]  # of the protocol `positions`
    recall: NotRequired[Recall]  # of the protocol `recall`
    precision: NotRequired[str]  # fp32 or bf16, of the measurement where it is not the training's


class RunFacts(TypedDict, total=False):
    """The `run` object of results.json. `encoding`, `context_length` and `seed` are required on reading."""

    name: str  # of the run
    encoding: dict[str, Any]  # {"name": ..., parameter: value, ..., "beyond": ...}
    attention: dict[str, Any]  # {"name": ..., window, scale, ...}
    positions: dict[str, Any]  # {"name": ..., ...}
    model: dict[str, Any]  # its config group
    parameters: dict[str, Any]  # total, encoding, options, embedding
    corpus: dict[str, Any]  # name, fingerprint
    tokenizer: Any  # a name, or a dict with one
    context_length: Positive  # T, tokens
    tokens: Count  # trained on so far
    steps: Count  # updates so far
    seed: int  # of batches and initial values
    precision: str  # fp32 or bf16; of a model that was given, its weights'
    device: str  # cpu, cuda, mps
    wall_seconds: float | None  # of training
    tokens_per_second: float | None  # of training, on average
    peak_memory_bytes: int | None  # of training; null where it cannot be known
    final_loss: float | None  # nats per token, training; over the last steps, of a resumed run since then
    settings_hash: str  # of what defines the run
    code: str  # hash of the code of the encoding and its options: runs of other code are another row
    versions: dict[str, Any]  # of Python and the libraries


class Results(TypedDict):
    """results.json."""

    schema_version: Literal[1]
    run: RunFacts
    records: list[Record]


def make_record(
    *,
    documents: Sequence[int] = (),
    nats: Sequence[float] = (),
    targets: Sequence[int] = (),
    bytes: Sequence[int] = (),
    groups: Sequence[int] | None = None,
    train_length: int,
    note: str | None = None,
    curve: Curve | None = None,
    recall: Recall | None = None,
    **cell: Any,
) -> Record:
    """Make a record from sums by document: one division at the end, an interval clustered by document.

    `documents` are distinct indices; the sums and `groups` are theirs (those without a target are left out).
    `train_length` in tokens; `cell` are the record's other fields. Without data pass a `note` that says why.
    A non-finite sum makes a record noted `diverged`.
    """
    lines = zip(documents, nats, targets, bytes, documents if groups is None else groups, strict=True)
    rows = sorted((int(d), float(s), int(t), int(b), int(g)) for d, s, t, b, g in lines if t > 0)
    assert len({row[0] for row in rows}) == len(rows), "every document may come once"
    assert rows or note is not None, "a record without targets needs a note that says why"
    if not all(math.isfinite(row[1]) for row in rows):
        rows, note = [], note or "diverged"
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(5)]
    sums = PerDocument(document=columns[0], nats=columns[1], targets=columns[2], bytes=columns[3])
    if groups is not None:
        sums["group"] = columns[4]
    count, size, total = sum(sums["targets"]), sum(sums["bytes"]), math.fsum(sums["nats"])
    mean = total / count if rows else None
    ppl = math.inf if mean is None else perplexity(mean)
    interval = ratio_interval(sums["nats"], sums["targets"], sums.get("group")) if rows else None
    usual = {"extend": None, "unit": UNIT, "stride": None, "beyond": None}
    made = usual | {key: value for key, value in cell.items() if value is not None or key != "precision"}
    made |= {"multiple": cell["window"] / train_length, "note": note}
    made |= {"targets": count, "documents": len(rows)}
    made |= {"nats": mean, "bpb": total / (math.log(2) * size) if size else None}
    made |= {"ppl": ppl if math.isfinite(ppl) else None, "ci95": interval}
    made |= {"per_document": sums if rows else None} | ({} if curve is None else {"curve": curve})
    made |= {} if recall is None else {"recall": recall}
    return cast("Record", {key: made[key] for key in Record.__annotations__ if key in made})


def perplexity(nats: float) -> float:
    """Return exp(nats), infinite where that overflows."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def multiple_of(record: Record) -> float:
    """Return the window as a multiple of T, rounded so that it can be a key."""
    return round(record["multiple"], 6)


def target_set(record: Record) -> TargetSet:
    """Return what identifies the scored targets."""
    return record["fingerprint"], record["split"], record["stride"] or 0, record["targets_hash"]


def check_results(data: bytes | Mapping[str, Any]) -> Results:
    """Return results.json, given as its text or as plain data, checked. Raises ValueError."""
    results: Results = _checked(Results, data)
    facts: Mapping[str, Any] = results["run"]
    for field in ("encoding", "context_length", "seed"):
        if field not in facts:
            raise ValueError(f"run.{field}: missing")
    if not (isinstance(facts["encoding"].get("name"), str) and facts["encoding"]["name"]):
        raise ValueError("run.encoding: must have a name")
    for record in results["records"]:
        _check_parts(record)
    return results


def check_record(data: bytes) -> Record:
    """Return a record, given as JSON, checked. Raises ValueError."""
    record: Record = _checked(Record, data)
    _check_parts(record)
    return record


def _checked(kind: Any, data: bytes | Mapping[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        adapter = _adapter(kind)
        return adapter.validate_json(data) if isinstance(data, bytes) else adapter.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else f"damaged ({first['msg']})") from error


@functools.cache
def _adapter(kind: Any) -> Any:
    """Make the validator of a type: no conversions, finite numbers, unknown fields are kept."""
    from pydantic import ConfigDict, TypeAdapter

    kind.__pydantic_config__ = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    return TypeAdapter(kind)


def _check_parts(record: Record) -> None:
    """Check what a field's type cannot say. Raises ValueError."""
    sums, curve = record["per_document"], record.get("curve")
    extend = {"name": "none"} if record["extend"] is None else record["extend"]
    tuned: Any = extend.get("tuned", [])
    checks = {
        "nats: null without a note": record["nats"] is None and record["note"] is None,
        "extend: must have a name": not (extend.get("name") and isinstance(extend["name"], str)),
        "extend.tuned: no texts": not isinstance(tuned, list) or not all(isinstance(k, str) for k in tuned),
    }
    if sums is not None:
        lengths = {len(sums["document"]), len(sums["nats"]), len(sums["targets"]), len(sums["bytes"])}
        lengths.add(len(sums.get("group", sums["document"])))
        checks["per_document: lists of different lengths"] = len(lengths) > 1
        checks["per_document: a document comes twice"] = len(set(sums["document"])) < len(sums["document"])
    if (recall := record.get("recall")) is not None:
        lines = {len(values) for values in recall.values() if isinstance(values, list)}
        checks["recall: lists of different lengths"] = len(lines) != 1 or not recall["distance"]
    if curve is not None:
        edges, bins = curve["edges"], len(curve["edges"]) - 1
        lengths = {len(curve[key]) for key in BINS}
        checks["curve: lists of different lengths"] = bins < 1 or lengths != {bins}
        checks["curve.edges: must rise"] = sorted(set(edges)) != edges
    for problem, wrong in checks.items():
        if wrong:
            raise ValueError(f"record.{problem}")


def printed(value: float, metric: str, sign: str = "") -> str:
    """Return a loss or perplexity as tables print it: 1.234 (nats, bpb), 12.34 (ppl), `>1e30`."""
    if abs(value) > HUGE:
        return f">{sign}1e30" if value > 0 else "<-1e30"
    if metric == "ppl" and abs(value) >= 1000:
        return f"{value:{sign}.0f}" if abs(value) < 1e6 else f"{value:{sign}.2e}"
    return f"{value:{sign}z.{2 if metric == 'ppl' else 3}f}"


def printed_change(value: float, metric: str) -> str:
    """Return the same with a sign."""
    return printed(value, metric, "+")
