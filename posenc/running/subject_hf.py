"""Read `subject=hf`: a causal language model of transformers, from a folder or from the hub.

Everything is checked and estimated before the weights are read. The configuration and the headers of the
files are enough for a dry run of the common architectures. Otherwise an outline of the model is built too,
which takes two seconds more: it knows which attention transformers chooses, and where positions end.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

from posenc.config.yaml_files import default_choices
from posenc.core.errors import UserError, safe_name
from posenc.core.paths import conf_dir, expanded, load_yaml
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
from posenc.running.checkpoint_checks import check_checkpoint, check_quantisation
from posenc.running.given_model import kept_tokenizer
from posenc.running.hf_checkpoint import (
    EAGER,
    HfCheckpoint,
    attention_names,
    load_hf_model,
    name_of_checkpoint,
    outline_of,
    read_hf_checkpoint,
    stored_dtype,
)
from posenc.running.plain_checkpoint import read_plainly
from posenc.running.plan_evaluation import with_stored_values
from posenc.running.stored_tensors import outlined_tensors, stored_tensors
from posenc.running.unloaded_model import SDPA, UnloadedModel, model_sizes
from posenc.running.weight_types import WEIGHT_TYPES
from posenc.settings.numbers import CountingNumber
from posenc.settings.signature import check_choice
from posenc.settings.tree import (
    NONE,
    DataSettings,
    EvalCommandSettings,
    EvalSettings,
    TokenizerSettings,
)

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


def read_subject(settings: EvalCommandSettings, *, plainly: bool = False) -> HfModel:
    """Read the configuration and the tokenizer of `subject=hf`. Raises UserError.

    With `plainly` they are read without transformers, where that says the same.
    """
    subject = named_subject(settings)
    plain = _plain_checkpoint(subject, settings) if plainly else None
    checkpoint = plain or read_hf_checkpoint(subject.path, subject.revision, subject.trust_remote_code)
    _check_attention_name(subject.attention)
    if not checkpoint.is_plain:
        check_checkpoint(checkpoint)
    checkpoint = dataclasses.replace(checkpoint, attention=subject.attention)
    length = settings.context_length
    if has_open_length(settings):
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


def has_open_length(settings: EvalCommandSettings) -> bool:
    """Tell whether T is what the configuration of the model says."""
    return settings.context_length in (None, "auto")


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
    stored_name = safe_name(name_of_checkpoint(subject.path))
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
        or any((expanded(subject.runs_dir) / EXPERIMENT).glob(f"{stored_name}-T*"))
    )
    checkpoint = None if needs_transformers else read_plainly(subject.path)
    if checkpoint is None or stored_tensors(checkpoint) is None:  # weights are counted in an outline then
        return None
    return checkpoint


def _without_scaling(checkpoint: HfCheckpoint) -> HfCheckpoint:
    """Return a checkpoint whose rotation turns by its base alone. Raises UserError if it is not scaled."""
    if not scaled_types(checkpoint.text_config):
        raise UserError("subject.rope_scaling", False, "its rotation is not scaled", hint="leave it out")
    return dataclasses.replace(checkpoint, config=without_scaling(checkpoint.config))


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
        if checkpoint.tokenizer_problem is not None:
            problem = f"{problem}: {checkpoint.tokenizer_problem}"
        hint = "subject.tokenizer=bytes, or subject.tokenizer=FILE, a whole tokenizer.json"
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
