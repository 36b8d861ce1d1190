"""The schema of results.json, and its check.

A record is one measurement of a run: a protocol, a window, an extension, a checkpoint, a set of targets.
Records are plain JSON. record_making.py makes them, and record_files.py holds them on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, NotRequired, Required, get_type_hints

from annotated_types import Gt, Len, MinLen
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.beside import record_types
from posenc.results.checks import check_aligned, wrong_record
from posenc.results.statistics.documents import Count, Number, PerDocument, Positive
from posenc.settings.stored import other_schema

UNIT = "nats per token"
HEADLINE = "fixed-target"  # the protocol that represents a run where one has to
# References: the loss on the same targets without a model. They are no protocols of the model.
TRIGRAM = (
    "trigram"  # by a byte trigram of the training text, for models that were trained on the measured text
)
UNIGRAM = "unigram"  # by the frequencies of the measured text's own tokens, for any other model
REFERENCES = (TRIGRAM, UNIGRAM)
INFLATED = "nonoverlapping"  # its loss falls with the window because fewer tokens have little context
METRICS = {"nats": "nats per token", "bpb": "bits per byte", "ppl": "perplexity per token"}
Metric = Literal["nats", "bpb", "ppl"]
LEAST_MULTIPLE = 1e-9  # of T, for a window: no T is a billion times as long
BREAK = 0.1  # nats per token above the level at T: where a curve over positions breaks

# Strict: a text is no number. Fields that the schema does not know are kept, because a protocol may add its
# own.
STRICT = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
JsonInterval = Annotated[list[Number], Len(2, 2)]  # low, high


# --- the schema


def _check_documents(sums: PerDocument) -> PerDocument:
    """Return sums by document whose lists are aligned and whose documents are distinct."""
    columns: list[Sequence[object]] = [sums["document"], sums["nats"], sums["targets"], sums["bytes"]]
    if "group" in sums:
        columns.append(sums["group"])
    check_aligned(*columns)
    # Samples are paired by document. One that comes twice would pair with itself or shift all that follow.
    if len(set(sums["document"])) < len(sums["document"]):
        raise wrong_record("a document comes twice")
    return sums


class Curve(TypedDict):
    """Loss by position of one long context; position p has p tokens before it. All in nats per token."""

    edges: list[Count]  # bin i holds positions edges[i] .. edges[i+1]-1
    nats: list[Number]  # mean of each bin
    targets: list[Count]
    level: Number  # mean over T/2 < p <= T
    rise: list[Number]  # of each bin over the level, in the same passes (extended: of the model as trained)
    rise_ci95: list[JsonInterval | None]  # over documents
    slope: Number | None  # nats per token, for each token past T; null where there is none
    slope_ci95: JsonInterval | None  # over documents
    breaks_at: Count | None  # start of the first bin past T whose rise is above 0.1 with its whole interval


def _check_curve(curve: Curve) -> Curve:
    """Return a curve with a number for each bin, and bins that follow each other."""
    edges = curve["edges"]
    columns: list[Sequence[object]] = [curve["nats"], curve["targets"], curve["rise"], curve["rise_ci95"]]
    if len(edges) < 2 or any(len(column) != len(edges) - 1 for column in columns):
        raise wrong_record("lists of different lengths")
    if edges[0] < 1:
        raise wrong_record("edges begin at 1, because the first token of a text is no target")
    if any(start >= end for start, end in pairwise(edges)):
        raise wrong_record("edges must rise")
    return curve


class Extend(TypedDict):
    """A test-time extension: its name, and each resolved parameter beside it."""

    name: Annotated[str, MinLen(1)]
    tuned: NotRequired[list[str]]  # knobs that were chosen on validation documents


@with_config(STRICT)
class Record(TypedDict):
    """One stored measurement. Plain JSON; numbers are null where there is nothing to report (see `note`).

    A protocol that measures more than the loss adds a field with its own name (posenc.results.beside).
    """

    protocol: str  # of posenc.evaluation.protocols, or a reference: trigram, unigram
    extend: Extend | None  # test-time extension with resolved parameters; null: the model as trained
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
    ci95: JsonInterval | None  # of nats, over documents; null below 10 documents
    per_document: Annotated[PerDocument, AfterValidator(_check_documents)] | None  # the sums of all the above
    beyond: str | None  # the declared policy past T, where the encoding needs one
    note: str | None  # why there is no number: oom, diverged, n/a
    seconds: Number  # that the measurement took
    curve: NotRequired[Annotated[Curve, AfterValidator(_check_curve)]]  # of the protocol `positions`
    precision: NotRequired[str]  # fp32 or bf16, of the measurement where it is not the training's


def _check_record(record: Record) -> Record:
    """Return a record with a number or a note that says why not, whose window is a multiple of a T."""
    if record["nats"] is None and record["note"] is None:
        raise wrong_record("nats: null without a note")
    # T is not stored. It is computed from these two, and must be a number of tokens.
    if not LEAST_MULTIPLE <= record["multiple"] <= record["window"]:
        raise wrong_record("multiple: is not the window over a training length")
    return record


def _check_named(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a choice that has a name."""
    if not isinstance(choice.get("name"), str) or not choice["name"]:
        raise wrong_record("must have a name")
    return choice


EncodingFacts = Annotated[dict[str, Any], AfterValidator(_check_named)]


class ModelFacts(TypedDict, total=False):
    """The model: its name and its sizes. Of a model that was given only the name is known."""

    name: Required[str]  # nano, or the architecture of a model that was given
    d_model: Count  # width of the residual stream
    n_layers: Count  # blocks of attention and MLP
    n_heads: Count  # of each layer
    mlp_ratio: Count  # width of the hidden layer of each MLP, in d_model
    short_conv: Count | None  # tokens; null without a convolution


class ParameterFacts(TypedDict, total=False):
    """How many trained parameters a model has. Of a model that was given only the total is known, if any."""

    total: Count  # of the whole model
    embedding: Count  # of the tokens
    encoding: Count  # of the positional encoding
    options: Count  # of the attention's options


class PlantFacts(TypedDict, total=False):
    """What `data.plant` put into the training text (PlantSettings)."""

    kind: str  # assignments; missing for tokens, the only kind that there was before
    share: Number  # of the windows of a batch that have pairs
    pairs: Count  # in such a window
    cue: Count  # tokens by which a pair is told from others
    alphabet: Count  # different keys
    weight: Number  # in the loss of a value that the model can know


class TrainingText(TypedDict):
    """The text that a model was trained on."""

    name: str  # of the choice of `data`
    fingerprint: str  # sha256 over its documents
    plant: NotRequired[PlantFacts]  # where key-value pairs were planted


class TokenizerFacts(TypedDict):
    """The tokenizer: its name, and its parameters such as `vocab_size` beside it."""

    name: str  # bytes, bpe, hf, or that of a model that was given


class RunFacts(TypedDict, total=False):
    """The `run` object of results.json. `encoding`, `context_length` and `seed` are required on reading."""

    name: str  # of the run
    encoding: Required[EncodingFacts]  # {"name": ..., parameter: value, ..., "beyond": ...}
    attention: dict[str, Any]  # {"name": ..., window, scale, ...}
    positions: dict[str, Any]  # {"name": ..., ...}
    model: ModelFacts  # its config group
    parameters: ParameterFacts  # how many it has
    corpus: TrainingText  # missing for a model that was given
    tokenizer: TokenizerFacts | str  # posenc writes an object; a name alone is read, too
    context_length: Required[Positive]  # T, tokens
    tokens: Count  # trained on so far
    steps: Count  # updates so far
    seed: Required[int]  # of batches and initial values
    precision: str  # fp32 or bf16; of a model that was given, its weights'
    device: str  # cpu, cuda, mps
    wall_seconds: float | None  # of training, with its validations and checkpoints
    tokens_per_second: float | None  # in these seconds, on average
    mfu: float | None  # of training, share of the GPU's dense peak in `precision`; null where that is unknown
    peak_memory_bytes: int | None  # of training; null where it cannot be known
    final_loss: float | None  # nats per token, training; over the last steps, of a resumed run since then
    settings_hash: str  # of what defines the run
    code: str  # hash of the code of the encoding and its options: runs of other code are another row
    versions: dict[str, Any]  # of Python and the libraries


@with_config(STRICT)
class Results(TypedDict):
    """results.json."""

    schema_version: Literal[2]
    run: RunFacts
    records: list[Record]


# --- checking


def check_results(data: bytes | Mapping[str, Any]) -> Results:
    """Return results.json, given as its text or as plain data, checked. Raises ValueError."""
    adapter = _results_adapter()
    try:
        # Pydantic's own parser reads the text, so that no second copy of hundreds of megabytes is made as
        # Python objects.
        return adapter.validate_json(data) if isinstance(data, bytes) else adapter.validate_python(data)
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from error


def check_record(data: bytes) -> Record:
    """Return a record, given as JSON, checked. Raises ValueError."""
    try:
        return _record_adapter().validate_json(data)
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from error


@functools.cache
def _results_adapter() -> TypeAdapter[Results]:
    # The files of the protocols import this module, so that the whole type can be made only when it is first
    # needed.
    fields = get_type_hints(Results, include_extras=True)
    list_type: Any = list
    fields["records"] = list_type[_complete_record_type()]
    return TypeAdapter(with_config(STRICT)(_typed_dict("Results", fields)))


@functools.cache
def _record_adapter() -> TypeAdapter[Record]:
    return TypeAdapter(_complete_record_type())


@functools.cache
def _complete_record_type() -> Any:
    """Return Record with the fields of the protocols that measure more than the loss, for pydantic."""
    fields = get_type_hints(Record, include_extras=True)
    for key, record_type in record_types().items():
        fields[key] = NotRequired[record_type]
    complete_type = with_config(STRICT)(_typed_dict("Record", fields))
    return Annotated[complete_type, AfterValidator(_check_record)]


def _typed_dict(name: str, fields: dict[str, Any]) -> Any:
    """Return a type of dictionaries whose fields are known only now, which mypy does not allow."""
    make_typed_dict: Any = TypedDict
    return make_typed_dict(name, fields)


def _first_problem(error: ValidationError) -> str:
    # The first problem alone: a file of another version may have hundreds.
    first = error.errors(include_url=False, include_context=False)[0]
    if first["loc"] == ("schema_version",):
        return other_schema(first["input"])
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" if field else f"damaged ({first['msg']})"
