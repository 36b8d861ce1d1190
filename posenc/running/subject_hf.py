"""Plan `posenc eval subject=hf`: a causal language model of transformers, from a folder or from the hub.

Everything is checked and estimated before the weights are read. The configuration and the headers of the
files are enough for a dry run of the common architectures. Otherwise an outline of the model is built too,
which takes two seconds more: it knows which attention transformers chooses, and where positions end.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posenc.config.yaml_files import default_choices
from posenc.core.errors import UserError, safe_name
from posenc.core.paths import conf_dir, expanded, load_yaml
from posenc.core.quantities import duration
from posenc.data import build_tokenizer, stored_tokenizer
from posenc.evaluation.lengths import nearest_length
from posenc.evaluation.models.configurations import (
    has_bias_instead,
    scaled_types,
    trained_length,
    without_scaling,
)
from posenc.evaluation.models.transformers import TransformersModel
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.resolve import Evaluation, default_eval_settings, resolve_evaluation
from posenc.report.texts import length_text
from posenc.running.checkpoint_checks import check_checkpoint, check_quantisation
from posenc.running.checks import check_name
from posenc.running.fit_evaluation import (
    FitLimits,
    LongTexts,
    fit_to_memory,
    fit_to_time,
    fitted_lengths,
    note_on_lengths,
)
from posenc.running.given_model import (
    OPEN_DIGEST,
    GivenModel,
    folder_of_records,
    kept_tokenizer,
    plan_given_model,
)
from posenc.running.hf_checkpoint import (
    EAGER,
    HfCheckpoint,
    attention_names,
    id_of_weights,
    known_id_of_weights,
    load_hf_model,
    outline_digest,
    outline_of,
    outlined_tensors,
    read_hf_checkpoint,
    stored_dtype,
    stored_tensors,
)
from posenc.running.job import Job
from posenc.running.measured_text import MeasuredText, text_to_measure
from posenc.running.plain_checkpoint import read_plainly
from posenc.running.plan_evaluation import with_stored_values
from posenc.running.rotation_notes import notes_on_rotation
from posenc.running.unloaded_model import SDPA, UnloadedModel, model_sizes
from posenc.running.weight_types import WEIGHT_TYPES
from posenc.settings.base import flattened
from posenc.settings.numbers import CountingNumber
from posenc.settings.signature import check_choice
from posenc.settings.tree import (
    NONE,
    Choice,
    DataSettings,
    EvalCommandSettings,
    EvalSettings,
    TokenizerSettings,
)
from posenc.training.device import resolve_device

# Architectures with a bias of slope times position, which two bytes would round. Falcon has one with `alibi`.
BIASED = ("bloom", "mpt")
EXPERIMENT = "subjects"  # the folder of all records of subjects, below subject.runs_dir
PLAIN_ATTENTIONS = (SDPA, EAGER)  # that all architectures of plain checkpoints have
# From here on not every whole number exists: a bf16 has 8 binary digits, an fp16 11.
FIRST_ALIKE = {"bf16": "256 and 257", "fp16": "2048 and 2049"}  # positions that are equal in this type


@dataclass(frozen=True, kw_only=True)
class HfSubject:
    """The parameters of `subject=hf`, which conf/subject/hf.yaml explains."""

    path: str
    revision: str
    tokenizer: str | None
    bos: Literal["auto"] | bool
    trust_remote_code: bool
    dtype: Literal["fp32", "bf16", "fp16", "auto"]
    attention: str | None
    device_map: str | None
    chunk_tokens: CountingNumber | None
    rope_scaling: bool
    runs_dir: str


@dataclass(frozen=True)
class WeightOptions:
    """How weights are loaded."""

    dtype: str  # fp32, bf16 or fp16; of quantised weights the type of what is computed with them
    device_map: str | None  # of transformers; None: all on one device


@dataclass(frozen=True, kw_only=True)
class HfModel:
    """A model of transformers before its weights are read, and how it is measured."""

    subject: HfSubject
    checkpoint: HfCheckpoint
    train_length: int
    weights: WeightOptions
    evaluation: Evaluation  # as far as it does not depend on the text
    bos: int | None  # token that replaces the first of each window
    model: UnloadedModel
    tokenizer: TokenizerSettings


def named_subject(settings: EvalCommandSettings) -> HfSubject:
    """Return the parameters of `subject=hf`. Raises UserError."""
    assert settings.subject is not None
    # A subject is a choice among classes, as an encoding is, so that a typo is answered with the nearest key.
    parameters = check_choice("subject", settings.subject, {"hf": HfSubject}, "there is no such subject")
    return HfSubject(**parameters)


def read_subject(settings: EvalCommandSettings, *, only_estimate: bool = False) -> HfModel:
    """Read the configuration and the tokenizer of `subject=hf`. Raises UserError.

    With `only_estimate` they are read without transformers, where that says the same.
    """
    subject = named_subject(settings)
    plain = _plain_checkpoint(subject, settings) if only_estimate else None
    checkpoint = plain or read_hf_checkpoint(subject.path, subject.revision, subject.trust_remote_code)
    _check_attention_name(subject.attention)
    if not checkpoint.is_plain:
        check_checkpoint(checkpoint)
    checkpoint = dataclasses.replace(checkpoint, attention=subject.attention)
    length = settings.context_length
    if length in (None, "auto"):
        length = trained_length(checkpoint.config)
    assert isinstance(length, int)
    # T is read before: the length before a scaling stands in the part that is taken away here.
    if not subject.rope_scaling:
        checkpoint = _without_scaling(checkpoint)
    weights = _weights(subject, checkpoint)
    evaluation = _evaluation(settings, length, checkpoint, weights)
    bos = bos_of(subject, checkpoint.tokenizer)
    tokenizer = _tokenizer(subject, checkpoint)
    _check_vocabulary(subject, tokenizer, checkpoint)
    return HfModel(
        subject=subject,
        checkpoint=checkpoint,
        train_length=length,
        weights=weights,
        evaluation=evaluation,
        bos=bos,
        model=_unloaded_model(checkpoint, length, bos, evaluation, weights, subject.chunk_tokens),
        tokenizer=tokenizer,
    )


def _check_attention_name(name: str | None) -> None:
    """Raise UserError for an attention that transformers does not have. A model may lack it all the same."""
    if name is None or name in PLAIN_ATTENTIONS:
        return
    allowed = attention_names()
    if name not in allowed:
        raise UserError("subject.attention", name, "transformers has no such attention", allowed=allowed)


def _plain_checkpoint(subject: HfSubject, settings: EvalCommandSettings) -> HfCheckpoint | None:
    """Return the checkpoint as it is read without transformers; None if that is not enough.

    Extensions and passes in chunks need the model's modules. With `tokenizer=bytes` a dry run looks for
    stored records, in a directory whose name is a digest. The BOS token is part of it, which only
    transformers' tokenizer knows.
    """
    needs_transformers = (
        settings.extend.name != NONE
        or subject.tokenizer == "bytes"
        or subject.bos is True
        # Code that comes with a checkpoint may read its configuration in its own way.
        or subject.trust_remote_code
        or subject.chunk_tokens is not None
        or subject.attention not in (None, *PLAIN_ATTENTIONS)
        or not subject.rope_scaling
        # What is stored of it is found by the name of its directory, as with `tokenizer=bytes`.
        or any((expanded(subject.runs_dir) / EXPERIMENT).glob(f"{safe_name(Path(subject.path).name)}-T*"))
    )
    checkpoint = None if needs_transformers else read_plainly(subject.path)
    if checkpoint is None or stored_tensors(checkpoint) is None:  # weights are counted in an outline then
        return None
    return checkpoint


def plan_hf(settings: EvalCommandSettings, *, only_estimate: bool = False) -> Job:
    """Return the validated job of composed `eval` settings with `subject=hf`. Raises UserError.

    With `only_estimate` the job is for a dry run: the end of its directory's name may be left open, since
    that takes a digest of all weights.
    """
    if settings.run is not None:
        raise UserError("run", settings.run, "has a model of its own", hint="leave out run= or subject=")
    if settings.tracking.name != NONE:
        raise UserError("tracking", settings.tracking.name, "is for runs that posenc trains")
    subject = named_subject(settings)
    folder = folder_of_records("subject.runs_dir", subject.runs_dir, EXPERIMENT)
    hf = read_subject(settings, only_estimate=only_estimate)
    # The text comes first: a length that no document has takes no time.
    text, texts, evaluation = _fitted_to_text(settings, hf.evaluation, hf.train_length, hf.tokenizer)
    evaluation.check_tuning()
    notes = notes_on_rotation(hf.checkpoint, is_extended=evaluation.is_extended)
    dtype = hf.weights.dtype
    job = plan_given_model(
        GivenModel(
            model=hf.model,
            name=_name(subject),
            data=text.data,
            tokenizer=hf.tokenizer,
            evaluation=evaluation,
            device=resolve_device(settings.device),
            folder=folder,
            experiment_name=EXPERIMENT,
            digest=_digest(hf, only_estimate=only_estimate),
            precision=dtype,
            subject=_stored_subject(hf),
            text=dataclasses.replace(text, notes=(*text.notes, *notes)),
            bytes_a_token=texts.bytes_a_token,
        )
    )
    attention = hf.model.sizes.attention.name
    # The extension is not part of it: with and without one the same targets are measured.
    model_key = [outline_digest(hf.checkpoint), hf.train_length, dtype, subject.tokenizer, attention]
    # With a device map layers are spread over devices, and it is not known which memory is free for which.
    if hf.weights.device_map is None:
        job = _fitted_to_memory(job, settings, [*model_key, hf.model.chunk_tokens])
        # The check is repeated, since no length beyond T may be left.
        job.evaluation.check_tuning(hint="the free memory left none: set eval.lengths")
    fitted = _fitted_to_time(job, settings, model_key)
    fitted.evaluation.check_tuning(hint="eval.max_minutes left none: set eval.lengths, or allow more minutes")
    return fitted


def _digest(hf: HfModel, *, only_estimate: bool) -> str:
    """Return what identifies the weights and how they are used.

    A dry run reads no weights: of 16 GB that takes a quarter of a minute. Without a digest that is known from
    an earlier evaluation it leaves the end of the directory's name open.
    """
    if hf.checkpoint.is_plain:
        return OPEN_DIGEST
    weights = known_id_of_weights(hf.checkpoint) if only_estimate else id_of_weights(hf.checkpoint)
    if weights is None:
        return OPEN_DIGEST
    # Records in float32 keep the names that they had before the type could be chosen. So do records of the
    # attention that transformers chooses. Both settings change losses by rounding.
    dtype = "" if hf.weights.dtype == "fp32" else f" dtype={hf.weights.dtype}"
    attention = "" if hf.subject.attention is None else f" attention={hf.subject.attention}"
    return f"{weights} bos={hf.bos}{dtype}{attention}"


def _name(subject: HfSubject) -> str:
    """Return what the rows of its records are called."""
    name = check_name("subject.path", safe_name(Path(subject.path).name))
    # Both stand in one table, each beside its own extensions.
    return name if subject.rope_scaling else f"{name}-unscaled"


def _without_scaling(checkpoint: HfCheckpoint) -> HfCheckpoint:
    """Return a checkpoint whose rotation turns by its base alone. Raises UserError if it is not scaled."""
    if not scaled_types(checkpoint.text_config):
        raise UserError("subject.rope_scaling", False, "its rotation is not scaled", hint="leave it out")
    return dataclasses.replace(checkpoint, config=without_scaling(checkpoint.config))


def _stored_subject(hf: HfModel) -> Choice:
    """Return the subject as config.yaml keeps it: with its BOS token and its architecture."""
    # config.yaml has what `auto` came to, since another version of a tokenizer may make something else of it.
    resolved = {"bos": hf.bos, "architecture": hf.checkpoint.text_config.model_type}
    values = dataclasses.asdict(hf.subject)
    if hf.subject.attention is None:  # as in records from before it could be chosen, which are compared with
        del values["attention"]
    return Choice.model_validate({"name": "hf", **values, **resolved})


def _weights(subject: HfSubject, checkpoint: HfCheckpoint) -> WeightOptions:
    """Return how the weights are loaded. Raises UserError if they cannot be loaded so."""
    device_map = subject.device_map
    if device_map is not None and importlib.util.find_spec("accelerate") is None:
        problem = "needs the package accelerate"
        raise UserError("subject.device_map", device_map, problem, hint="pip install accelerate")
    # fp32 is the default, so that it cannot be told from a choice of the user: it means what `auto` does.
    if checkpoint.is_quantised and subject.dtype not in ("auto", "fp32"):
        problem = "its weights are quantised, and are loaded as transformers loads them"
        raise UserError("subject.dtype", subject.dtype, problem, allowed="auto")
    check_quantisation(checkpoint)
    dtype = stored_dtype(checkpoint) if subject.dtype == "auto" else subject.dtype
    return WeightOptions(dtype, device_map)


def _evaluation(
    settings: EvalCommandSettings, length: int, checkpoint: HfCheckpoint, weights: WeightOptions
) -> Evaluation:
    """Return the protocols and windows to measure, before the text is looked at. Raises UserError."""
    # The other default protocols are left out. Each would take as long again, here minutes and not seconds.
    default = default_eval_settings().with_changes(protocols=[FixedTarget.name])
    values = with_stored_values(settings.eval, default)
    if settings.eval.lengths is None:
        values = values.with_changes(lengths=_whole_lengths(values, length))
    evaluation = resolve_evaluation(values, length, settings.extend)
    evaluation.check_given_model()
    evaluation.check_transformers_model()
    _check_precision(evaluation.settings.precision, weights.dtype, checkpoint.text_config)
    return evaluation


def _whole_lengths(settings: EvalSettings, context_length: int) -> list[int]:
    """Return the default lengths in tokens, rounded: half of an odd T is no whole number."""
    base_length = settings.base_for(context_length)
    return [max(1, nearest_length("eval.lengths", length, base_length)) for length in settings.lengths]


def _check_precision(precision: str, dtype: str, config: Any) -> None:
    """Raise UserError if precision and type of the weights disagree, or if one would round a bias."""
    if config.model_type in BIASED or has_bias_instead(config):
        for key, rounding in (("eval.precision", precision), ("subject.dtype", dtype)):
            alike = FIRST_ALIKE.get(rounding)
            if alike is not None:
                problem = f"its bias is slope times position, and {rounding} rounds: {alike} are equal"
                raise UserError(key, rounding, problem, allowed="fp32")
    if dtype != "fp32" and precision not in ("auto", dtype):
        problem = f"its weights are loaded in {dtype}"
        raise UserError("eval.precision", precision, problem, hint="subject.dtype=fp32")


def _unloaded_model(
    checkpoint: HfCheckpoint,
    length: int,
    bos: int | None,
    evaluation: Evaluation,
    weights: WeightOptions,
    chunk_tokens: int | None,
) -> UnloadedModel:
    """Return the model before its weights are read.

    Raises UserError for an extension that cannot act, and for chunks that would give other numbers.
    """
    # Layers that accelerate has spread over devices, and packed weights, must not be moved by `to`.
    stays_in_place = weights.device_map is not None or checkpoint.is_quantised

    # A function and not the model: reading the weights comes last, after everything that may be refused.
    def load() -> TransformersModel:
        model = load_hf_model(checkpoint, WEIGHT_TYPES[weights.dtype], weights.device_map)
        return TransformersModel(model, length, bos, is_placed=stays_in_place, chunk_tokens=chunk_tokens)

    # Quantised weights stay as small as they are stored.
    bytes_a_weight = None if checkpoint.is_quantised else WEIGHT_TYPES[weights.dtype].itemsize
    tensors = stored_tensors(checkpoint)
    if tensors is not None and checkpoint.is_plain:
        # Transformers chooses SDPA for such a model, and its positions have no end: no outline is needed.
        attention = checkpoint.attention or SDPA
        sizes = model_sizes(checkpoint.text_config, tensors, bytes_a_weight, attention)
        return UnloadedModel(checkpoint, length, None, sizes, load)
    outline = TransformersModel(outline_of(checkpoint), length, bos)
    if evaluation.extend is not None:
        outline.check(evaluation.extend.plain(), evaluation.lengths.longest, evaluation.tries > 0)
    if chunk_tokens is not None:
        _check_chunks(chunk_tokens, outline, evaluation)
    if tensors is None:  # no safetensors here: files of another kind, or a model of the hub not loaded yet
        tensors = outlined_tensors(outline.model)
    attention = outline.config._attn_implementation  # the one that transformers chose
    sizes = model_sizes(checkpoint.text_config, tensors, bytes_a_weight, attention)
    return UnloadedModel(checkpoint, length, outline.encoding, sizes, load, chunk_tokens)


def _check_chunks(chunk_tokens: int, outline: TransformersModel, evaluation: Evaluation) -> None:
    """Raise UserError if passes in chunks would not give the numbers of passes over whole windows."""
    acting = outline.effective_encoding
    extension = evaluation.extension_of(outline)
    if extension is not None:
        acting = extension.effective_encoding(evaluation.lengths.longest)
    # What acts may be of the extension and not of the model: `window` makes the attention itself.
    reason = outline.why_not_in_chunks(acting)
    if reason is not None:
        raise UserError("subject.chunk_tokens", chunk_tokens, reason, hint="leave it out")


def _fitted_to_text(
    settings: EvalCommandSettings, evaluation: Evaluation, length: int, tokenizer: TokenizerSettings
) -> tuple[MeasuredText, LongTexts, Evaluation]:
    """Return the text, its long documents, and the evaluation at lengths that enough of them have.

    Raises UserError if no document has a length that the user asked for, or without such lengths T.
    """
    has_open_lengths = settings.eval.lengths is None
    least = evaluation  # the evaluation that the text has to allow
    if has_open_lengths:
        # The text has to hold T alone here. Longer windows are left out below, with a note.
        at_train_length = evaluation.settings.with_changes(lengths=[length])
        least = resolve_evaluation(at_train_length, length, settings.extend)
    # What the model was trained on is not known: it may have been the part of this text that trains others.
    text = text_to_measure(settings.data or default_data(), tokenizer, least, keeps_split=True)
    texts = LongTexts.of(text.facts, tokenizer, evaluation.split)
    texts.check(least.lengths.longest, text.facts, tokenizer)
    if not has_open_lengths:
        return text, texts, evaluation
    lengths = fitted_lengths(evaluation.settings, length, texts)
    note = note_on_lengths(evaluation.lengths.windows, lengths, texts, length)
    if note is not None:
        text = dataclasses.replace(text, notes=(*text.notes, note))
    fitted = evaluation.settings.with_changes(lengths=lengths)
    return text, texts, resolve_evaluation(fitted, length, settings.extend)


def _fitted_to_memory(job: Job, settings: EvalCommandSettings, model_key: Sequence[object]) -> Job:
    """Return the job with lengths and passes that fit into memory, as far as the user gave none."""
    fit = fit_to_memory(job, settings.eval, model_key)
    if not fit.notes:
        return job
    values = fit.applied(job.evaluation.settings)
    evaluation = resolve_evaluation(values, job.settings.context_length, settings.extend)
    fitted = job.settings.with_changes(eval=evaluation.settings)
    return dataclasses.replace(job, evaluation=evaluation, settings=fitted, notes=(*job.notes, *fit.notes))


def _fitted_to_time(job: Job, settings: EvalCommandSettings, model_key: Sequence[object]) -> Job:
    """Return the job with what takes about `eval.max_minutes`, as far as the user gave no numbers.

    The choice is kept for models with this key.
    """
    limits = FitLimits.of(settings.eval, job.evaluation)
    # The user gave every number, so there is nothing to choose.
    if not limits.open_counts:
        return job
    fit = fit_to_time(job, limits, model_key)
    fitted_settings = fit.applied(job.evaluation.settings)
    evaluation = resolve_evaluation(fitted_settings, job.settings.context_length, settings.extend)
    unfitted_values = flattened(job.evaluation.settings.plain())
    fitted_values = flattened(evaluation.settings.plain())
    chosen = " ".join(f"eval.{key}={fitted_values[key]}" for key in limits.open_counts)
    longest = length_text(round(evaluation.lengths.longest / job.settings.context_length, 4))
    note = f"chosen     {chosen}, up to {longest}, by eval.max_minutes={limits.max_minutes:g}"
    has_fewer = any(fitted_values[key] != unfitted_values[key] for key in limits.open_counts)
    is_shorter = evaluation.lengths.longest < job.evaluation.lengths.longest
    notes = list(job.notes)
    # Where nothing had to be lowered, there is nothing to say.
    if has_fewer or is_shorter:
        notes.append(note)
    if fit.minutes > limits.max_minutes:
        least = f"the least takes about {duration(60 * fit.minutes)}"
        notes.append(f"time       {least}: ask for fewer lengths or protocols")
    fitted = job.settings.with_changes(eval=evaluation.settings)
    return dataclasses.replace(job, evaluation=evaluation, settings=fitted, notes=tuple(notes))


def default_data() -> DataSettings:
    """Return the corpus that `posenc train` takes without being told."""
    name = default_choices("train")["data"]
    return DataSettings.model_validate(load_yaml(conf_dir() / "data" / f"{name}.yaml"))


def bos_of(subject: HfSubject, tokenizer: Any | None) -> int | None:
    """Return the token that replaces the first one of each window; None if it stays. Raises UserError.

    `subject.bos=auto` replaces it if the model's own tokenizer begins every text with a BOS token.
    """
    if subject.bos is False:
        return None
    bos = getattr(tokenizer, "bos_token_id", None)
    if subject.bos is True:
        if bos is None:
            raise UserError("subject.bos", True, "its tokenizer has none")
        return int(bos)
    has_own_tokenizer = subject.tokenizer is None
    # The ids of one tokenizer mean other texts in another.
    if bos is None or tokenizer is None or not has_own_tokenizer:
        return None
    # Many tokenizers know such a token and do not use it. Only a text shows which.
    begins_with_bos = tokenizer("a")["input_ids"][:1] == [bos]
    return int(bos) if begins_with_bos else None


def _tokenizer(subject: HfSubject, checkpoint: HfCheckpoint) -> TokenizerSettings:
    """Return the settings of the tokenizer that the user chose, or else of the model's own one.

    Raises UserError if the model has none that can be read.
    """
    if subject.tokenizer == "bytes":
        return TokenizerSettings.model_validate({"name": "bytes"})
    if subject.tokenizer is not None:
        file = {"name": "hf", "path": subject.tokenizer, "revision": "main"}
        return TokenizerSettings.model_validate(file)
    if checkpoint.tokenizer_file is not None:
        return stored_tokenizer(checkpoint.tokenizer_file)
    tokenizer = checkpoint.tokenizer
    if tokenizer is None or getattr(tokenizer, "backend_tokenizer", None) is None:
        problem = "has no tokenizer that can be read"
        hint = "subject.tokenizer=bytes, or a tokenizer.json"
        raise UserError("subject.path", subject.path, problem, hint=hint)
    return kept_tokenizer(tokenizer)


def _check_vocabulary(subject: HfSubject, settings: TokenizerSettings, checkpoint: HfCheckpoint) -> None:
    """Raise UserError for a tokenizer whose texts have tokens that the model lacks.

    Tokens that were added to it do not count: many checkpoints have one for padding that is beyond the
    model's last, and texts do not contain it.
    """
    tokenizer = build_tokenizer(settings, None)
    model_size = checkpoint.text_config.vocab_size
    if tokenizer.text_vocab_size > model_size:
        name = subject.tokenizer or "null"
        problem = f"the tokenizer has {tokenizer.vocab_size:,} tokens, and the model knows {model_size:,}"
        hint = "Give the tokenizer that the model was trained with: subject.tokenizer=PATH/tokenizer.json"
        raise UserError("subject.tokenizer", name, problem, hint=hint)
