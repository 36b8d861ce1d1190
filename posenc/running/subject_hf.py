"""Plan `posenc eval subject=hf`: a causal language model of transformers, from a folder or from the hub."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from posenc.config.yaml_files import default_choices
from posenc.core.atomic_files import sha256_of_file
from posenc.core.errors import UserError, first_line, safe_name
from posenc.core.paths import conf_dir, expanded, is_file, is_folder, looks_local, why_missing
from posenc.data.download_bar import download_bar
from posenc.data.hub import not_loaded, reachable
from posenc.evaluation.models.transformers import (
    TransformersModel,
    has_bias_instead,
    rope_settings,
    trained_length,
)
from posenc.evaluation.resolve import Evaluation, resolve_evaluation
from posenc.results.identity import own_yaml
from posenc.running.checks import check_name
from posenc.running.given_model import GivenModel, kept_tokenizer, plan_given_model
from posenc.running.job import Job
from posenc.running.plan_evaluation import filled_in
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

LARGEST_LOGITS = 2**28  # numbers in the logits of one pass; for large vocabularies batches are smaller
# Models whose biases, slope times position, bf16 would round. Falcon's too, with `alibi`.
BIASED = ("bloom", "mpt")
WEIGHT_FILES = ("*.safetensors", "*.bin")
REMOTE_CODE = "transformers_modules."  # the package that transformers makes of it
WEIGHTS_NAMED = 3  # in an error
SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")  # of a configuration


def _parameters(
    *,
    path: str,
    revision: str,
    tokenizer: str | None,
    bos: Literal["auto"] | bool,
    trust_remote_code: bool,
    runs_dir: str,
) -> None:
    """Declare the parameters of `subject=hf`; only the signature is used."""


@dataclass(frozen=True)
class LoadedModel:
    """Hold what transformers loads."""

    config: Any
    model: Any  # in float32
    tokenizer: Any | None


def plan_hf(settings: EvalCommandSettings) -> Job:
    """Return the validated job of composed `eval` settings with `subject=hf`. Raises UserError."""
    assert settings.subject is not None
    if settings.run is not None:
        raise UserError("run", settings.run, "has a model of its own", hint="leave out run= or subject=")
    if settings.tracking.name != NONE:
        raise UserError("tracking", settings.tracking.name, "is for runs that posenc trains")
    chosen = check_choice("subject", settings.subject, {"hf": _parameters}, "there is no such subject")
    loaded = load(chosen["path"], chosen["revision"], chosen["trust_remote_code"])
    text_config = loaded.config.get_text_config()
    is_auto = settings.context_length in (None, "auto")
    length = trained_length(loaded.config) if is_auto else settings.context_length
    assert isinstance(length, int)
    evaluation = _evaluation(settings, length, text_config)
    bos = bos_of(chosen, loaded.tokenizer)
    subject = TransformersModel(loaded.model, length, bos)
    subject.check(evaluation.extend, evaluation.lengths.longest, evaluation.tries > 0)
    about = {**chosen, "bos": bos, "architecture": text_config.model_type}
    return plan_given_model(
        GivenModel(
            model=subject,
            name=check_name("subject.path", safe_name(Path(chosen["path"]).name)),
            data=settings.data or _default_data(),
            tokenizer=_tokenizer(chosen["tokenizer"], loaded.tokenizer, chosen["path"]),
            evaluation=evaluation,
            device=resolve_device(settings.device),
            runs_dir=chosen["runs_dir"],
            experiment_name="subjects",
            digest=f"{_identity(chosen, loaded)} bos={bos}",
            subject=Choice.model_validate({"name": "hf", **about}),
        )
    )


def _evaluation(settings: EvalCommandSettings, length: int, text_config: Any) -> Evaluation:
    """Return what is measured, in batches that fit the vocabulary. Raises UserError."""
    default = EvalSettings.model_validate(own_yaml(conf_dir() / "eval" / "default.yaml"))
    evaluation = resolve_evaluation(filled_in(settings.eval, default), length, settings.extend)
    evaluation.check_transformers_model()
    is_biased = text_config.model_type in BIASED or has_bias_instead(text_config)
    if evaluation.settings.precision == "bf16" and is_biased:
        problem = "its bias is slope times position, which bf16 rounds: 256 and 257 are one"
        raise UserError("eval.precision", "bf16", problem, allowed="fp32")
    most = max(1, LARGEST_LOGITS // text_config.vocab_size)
    batch_tokens = min(evaluation.settings.batch_tokens, most)
    return dataclasses.replace(
        evaluation, settings=evaluation.settings.with_changes(batch_tokens=batch_tokens)
    )


def _default_data() -> DataSettings:
    """Return the corpus that `posenc train` takes without being told."""
    name = default_choices("train")["data"]
    return DataSettings.model_validate(own_yaml(conf_dir() / "data" / f"{name}.yaml"))


def load(path: str, revision: str, trust_remote_code: bool) -> LoadedModel:
    """Load a model of transformers. Raises UserError."""
    transformers = library_of("subject")
    folder = expanded(path)
    _check_path(path, folder)
    is_local = is_folder(folder)
    source = str(folder) if is_local else path
    is_online = not is_local and reachable()
    options: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "local_files_only": not is_online,
    }
    loading = {**options, **_download_options(transformers, path)}
    try:
        config = transformers.AutoConfig.from_pretrained(source, **options)
        _check_config(path, config.get_text_config())
        model, report = _model_class(transformers, config, source, options).from_pretrained(
            source,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **loading,
        )
    except UserError:
        raise
    except Exception as error:  # of many packages; all are final here
        raise _not_loaded(path, is_local, is_online, error) from error
    _check_weights(path, report)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except Exception:  # it has none, or none that can be read: said where one is needed
        tokenizer = None
    return LoadedModel(model.config, model.eval(), tokenizer)


def _download_options(transformers: Any, path: str) -> dict[str, Any]:
    """Return the argument that shows the download of weights by bytes.

    An older transformers does not know it, and would pass it on to the model.
    """
    known = inspect.signature(transformers.utils.hub.cached_files).parameters
    return {"tqdm_class": download_bar(path)} if "tqdm_class" in known else {}


def _model_class(transformers: Any, config: Any, source: str, options: dict[str, Any]) -> Any:
    """Return the class that loads the weights: of transformers, or of the code that came with the model.

    AutoModelForCausalLM keeps the class that it loaded first in a process, also once the code was edited.
    """
    reference = getattr(config, "auto_map", {}).get("AutoModelForCausalLM")
    if reference is None or not options["trust_remote_code"]:
        return transformers.AutoModelForCausalLM
    return transformers.dynamic_module_utils.get_class_from_dynamic_module(reference, source, **options)


def _check_config(path: str, config: Any) -> None:
    """Raise UserError for sizes and rotations that no model has: transformers builds it all the same."""
    for name in SIZES:
        size = getattr(config, name, None)
        if isinstance(size, int) and size < 1:
            problem = f"its config.json says {name}={size}"
            raise UserError("subject.path", path, problem, allowed="a whole number from 1")
    for rotation in rope_settings(config):
        base = rotation.get("rope_theta", 10_000)
        is_number = isinstance(base, Real)
        if not is_number or not 1 < base < math.inf:
            problem = f"its config.json says rope_theta={base}"
            raise UserError("subject.path", path, problem, allowed="a finite number above 1")


def _check_weights(path: str, report: Mapping[str, Any]) -> None:
    """Raise UserError unless every weight in the files has a place in the model, and the other way round.

    transformers draws the missing ones at random and drops the others, both without an error. What it
    reports leaves out buffers that older checkpoints hold, such as masks and frequencies.
    """
    problems = []
    if report["mismatched_keys"]:
        shapes = [f"{name} {tuple(stored)}" for name, stored, _ in report["mismatched_keys"]]
        problems.append(f"weights have another shape than in the model: {_listed(shapes)}")
    if report["missing_keys"]:
        problems.append(f"weights are missing, which would be random: {_listed(report['missing_keys'])}")
    if report["unexpected_keys"]:
        names = _listed(report["unexpected_keys"])
        problems.append(f"weights have no place in the model, and would be dropped: {names}")
    if problems:
        hint = "its config.json is not that of the model whose weights these are"
        raise UserError("subject.path", path, "; ".join(problems), hint=hint)


def _listed(names: Collection[str]) -> str:
    hidden = len(names) - WEIGHTS_NAMED
    more = [f"and {hidden} more"] if hidden > 0 else []
    return ", ".join([*sorted(names)[:WEIGHTS_NAMED], *more])


def _check_path(path: str, folder: Path) -> None:
    """Raise UserError for what can be no model: a file, a folder that does not exist, a run of posenc."""
    if is_file(folder):
        raise UserError("subject.path", path, "is a file", allowed="a folder of save_pretrained, or a name")
    if not is_folder(folder) and looks_local(path):
        raise UserError("subject.path", path, why_missing(folder, "folder"))
    if is_file(folder / "status.json"):
        raise UserError("subject.path", path, "is a run of posenc", hint=f"posenc eval run={path}")


def library_of(key: str) -> Any:
    """Return transformers with its messages switched off. Raises UserError if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(key, "hf", "needs transformers", hint="pip install 'posenc[hf]'") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _not_loaded(path: str, is_local: bool, is_online: bool, error: Exception) -> Exception:
    message = _message_of(error)
    if "trust_remote_code" in str(error):
        hint = "subject.trust_remote_code=true runs the code in it; say so if you trust it"
        return UserError("subject.path", path, "needs code of its own", hint=hint)
    if isinstance(error, SafetensorError):
        return UserError("subject.path", path, f"its weights cannot be read: {message}")
    if is_local:
        return UserError("subject.path", path, f"is no causal language model of transformers: {message}")
    ways_out = "subject.path=FOLDER, saved by save_pretrained"
    return not_loaded(f"the model {path}", error if is_online else None, ways_out)


def _message_of(error: Exception) -> str:
    """Return the first line of an error; with the second one where the first says that it follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return " ".join(lines[:2])
    return first_line(error)


def bos_of(chosen: dict[str, Any], tokenizer: Any | None) -> int | None:
    """Return the token that replaces the first of each window, by its tokenizer or as asked; None: none."""
    wish = chosen["bos"]
    bos = getattr(tokenizer, "bos_token_id", None)
    if wish is False:
        return None
    if wish == "auto" and (bos is None or chosen["tokenizer"] is not None):
        return None
    if bos is None or tokenizer is None:
        raise UserError("subject.bos", True, "its tokenizer has none")
    begins_with_it = tokenizer("a")["input_ids"][:1] == [bos]
    return int(bos) if wish is True or begins_with_it else None


def _tokenizer(asked: str | None, tokenizer: Any | None, path: str) -> TokenizerSettings:
    """Return the settings of its own tokenizer, or of another one: bytes, or a tokenizer.json."""
    if asked == "bytes":
        return TokenizerSettings.model_validate({"name": "bytes"})
    if asked is not None:
        return TokenizerSettings.model_validate({"name": "hf", "path": asked, "revision": "main"})
    if tokenizer is None or getattr(tokenizer, "backend_tokenizer", None) is None:
        problem, hint = "has no tokenizer that can be read", "subject.tokenizer=bytes, or a tokenizer.json"
        raise UserError("subject.path", path, problem, hint=hint)
    return kept_tokenizer(tokenizer)


def _identity(chosen: Mapping[str, Any], loaded: LoadedModel) -> str:
    """Return what identifies weights and code: the commit on the hub, or a digest of the files."""
    path = chosen["path"]
    folder = expanded(path)
    code = _code_files(folder, loaded) if chosen["trust_remote_code"] else []
    code_digests = [sha256_of_file(file) for file in code]
    if not is_folder(folder):
        commit = getattr(loaded.config, "_commit_hash", None)
        return " ".join([path, str(commit), *code_digests])
    files = [file for pattern in WEIGHT_FILES for file in folder.glob(pattern)]
    sha = hashlib.sha256(folder.joinpath("config.json").read_bytes())
    for digest in (*map(sha256_of_file, sorted(files)), *code_digests):
        sha.update(bytes.fromhex(digest))
    return sha.hexdigest()


def _code_files(folder: Path, loaded: LoadedModel) -> list[Path]:
    """Return the Python files that came with a model: those in its folder, or those of the hub that ran.

    A repository on the hub may take its code from another one, whose commit is not known.
    """
    sources = {folder}
    if not is_folder(folder):
        kinds = [type(loaded.model), type(loaded.config)]
        kinds_of_hub = [kind for kind in kinds if kind.__module__.startswith(REMOTE_CODE)]
        sources = {Path(inspect.getfile(kind)).parent for kind in kinds_of_hub}
    files = [file for source in sources for file in source.rglob("*.py")]
    return sorted(file for file in files if file.is_file())
