"""`posenc eval subject=hf`: load a causal language model of transformers, and validate its measurement."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from safetensors import SafetensorError

from posenc.config.checks import check_evaluation, check_length, check_name, default_evaluation
from posenc.config.conf_text import groups
from posenc.core.errors import UserError, first_line, safe_name
from posenc.core.paths import choice_file, expanded
from posenc.core.signature import check_choice
from posenc.data.hub import not_loaded, reachable
from posenc.evaluation.hf import HuggingFace, biased_instead, text_config, trained_length
from posenc.running.subject_job import SubjectJob, given_job, kept_tokenizer
from posenc.training.device import resolve_device

LOGITS = 2**28  # numbers in the logits of one pass: batches are smaller for large vocabularies
BIASED = ("bloom", "mpt")  # whose biases, slope times position, bf16 would round; Falcon's with `alibi`
WEIGHTS = ("*.safetensors", "*.bin")


def _settings(
    *,
    path: str,
    revision: str,
    tokenizer: str | None,
    bos: Literal["auto"] | bool,
    trust_remote_code: bool,
    runs_dir: str,
) -> None:
    """Declare the parameters of `subject=hf`; only the signature is used."""


def hf_job(settings: dict[str, Any]) -> SubjectJob:
    """Return the validated job of composed `eval` settings with `subject=hf`. Raises UserError."""
    if settings["run"] is not None:
        raise UserError("run", settings["run"], "has a model of its own", hint="leave out run= or subject=")
    if settings["tracking"]["name"] != "none":
        raise UserError("tracking", settings["tracking"]["name"], "is for runs that posenc trains")
    chosen = check_choice("subject", settings["subject"], {"hf": _settings}, "there is no such subject")
    config, model, library = load(chosen["path"], chosen["revision"], chosen["trust_remote_code"])
    asked = "auto" if settings["context_length"] is None else settings["context_length"]
    length = trained_length(config) if asked == "auto" else check_length(asked)
    usual, given = default_evaluation(), settings["eval"]
    evaluation = {key: usual[key] if value is None else value for key, value in given.items()}
    evaluation["recall"] = usual["recall"]
    plan = check_evaluation(evaluation, length, settings["extend"])
    if plan.key_tokens is not None or "key-tokens" in plan.protocols:
        raise UserError("eval.protocols", "key-tokens", "needs a reference with this model's tokenizer")
    biased = text_config(config).model_type in BIASED or biased_instead(text_config(config))
    if plan.precision == "bf16" and biased:
        problem = "its bias is slope times position, which bf16 rounds: 256 and 257 are one"
        raise UserError("eval.precision", "bf16", problem, allowed="fp32")
    most = max(1, LOGITS // text_config(config).vocab_size)
    plan = dataclasses.replace(plan, batch_tokens=min(plan.batch_tokens, most))
    subject = HuggingFace(model, length, bos_of(chosen, library))
    subject.check(plan.extend, max(plan.windows), bool(plan.tune))
    tokenizer = _tokenizer(chosen["tokenizer"], library, chosen["path"])
    return given_job(
        subject,
        check_name("subject.path", safe_name(Path(chosen["path"]).name)),
        {
            "data": settings["data"] or _default_data(),
            "eval": evaluation,
            "seed": 0,
            "experiment_name": "subjects",
            "runs_dir": chosen["runs_dir"],
        },
        plan,
        device=resolve_device(settings["device"]),
        tokenizer=tokenizer,
        digest=f"{_identity(chosen['path'], config)} bos={subject.bos}",
        own={"subject": {**chosen, "bos": subject.bos, "architecture": text_config(config).model_type}},
    )


def load(path: str, revision: str, trust: bool) -> tuple[Any, Any, Any]:
    """Return configuration, model in float32 and tokenizer (None: it has none). Raises UserError."""
    transformers = library_of("subject")
    local = expanded(path)
    if not local.is_dir() and (path.startswith((".", "/", "~")) or path.count("/") > 1):
        raise UserError("subject.path", path, "there is no such folder")
    place, online = (str(local), False) if local.is_dir() else (path, reachable())
    where: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": trust,
        "local_files_only": not online,
    }
    try:
        cls: Any = transformers.AutoModelForCausalLM
        model, report = cls.from_pretrained(place, dtype=torch.float32, output_loading_info=True, **where)
    except Exception as error:  # of many packages; all final here
        raise _not_loaded(path, local.is_dir(), online, error) from error
    if report["missing_keys"]:
        names = ", ".join(sorted(report["missing_keys"])[:3])
        raise UserError("subject.path", path, f"weights are missing, which would be random: {names}")
    try:
        library = transformers.AutoTokenizer.from_pretrained(place, **where)
    except Exception:  # it has none, or none that can be read: said where one is needed
        library = None
    return model.config, model.eval(), library


def library_of(key: str) -> Any:
    """Return transformers, quiet. Raises UserError where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(key, "hf", "needs transformers", hint="pip install 'posenc[hf]'") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _not_loaded(path: str, is_local: bool, online: bool, error: Exception) -> Exception:
    said = first_line(error)
    if "trust_remote_code" in str(error):
        hint = "subject.trust_remote_code=true runs the code in it; say so if you trust it"
        return UserError("subject.path", path, "needs code of its own", hint=hint)
    if isinstance(error, SafetensorError):
        return UserError("subject.path", path, f"its weights cannot be read: {said}")
    if is_local:
        return UserError("subject.path", path, f"is no causal language model of transformers: {said}")
    ways = "subject.path=FOLDER, saved by save_pretrained"
    return not_loaded(f"the model {path}", error if online else None, ways)


def bos_of(chosen: Mapping[str, Any], library: Any) -> int | None:
    """Return the token in the place of a window's first: as its tokenizer begins a text, or as asked."""
    wanted, bos = chosen["bos"], getattr(library, "bos_token_id", None)
    if wanted is False or (wanted == "auto" and (bos is None or chosen["tokenizer"] is not None)):
        return None
    if bos is None:
        raise UserError("subject.bos", True, "its tokenizer has none")
    begins = library("a")["input_ids"][:1] == [bos]
    return int(bos) if wanted is True or begins else None


def _tokenizer(asked: str | None, library: Any, path: str) -> dict[str, Any]:
    """Return the settings of its own tokenizer, or of another one: bytes, or a tokenizer.json."""
    if asked == "bytes":
        return {"name": "bytes"}
    if asked is not None:
        return {"name": "hf", "path": asked, "revision": "main"}
    if library is None or getattr(library, "backend_tokenizer", None) is None:
        problem, hint = "has no tokenizer that can be read", "subject.tokenizer=bytes, or a tokenizer.json"
        raise UserError("subject.path", path, problem, hint=hint)
    return kept_tokenizer(library)


def _identity(path: str, config: Any) -> str:
    """Return what tells these weights from others: the commit on the hub, or a digest of the files."""
    local = expanded(path)
    if not local.is_dir():
        return f"{path} {getattr(config, '_commit_hash', None)}"
    found = hashlib.sha256(local.joinpath("config.json").read_bytes())
    for file in sorted(one for kind in WEIGHTS for one in local.glob(kind)):
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()


def _default_data() -> dict[str, Any]:
    """Return the corpus that `posenc train` has by default."""
    name = groups("train")["data"]
    path = choice_file("data", name)
    assert path is not None
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found
