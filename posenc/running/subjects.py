"""Validate the measurement of a model that posenc did not train: a given one, or one of transformers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from posenc.config.checks import (
    EvalPlan,
    check_evaluation,
    check_length,
    check_name,
    check_runs_dir,
    default_evaluation,
)
from posenc.config.overrides import groups
from posenc.core.atomic_files import sha256_of_file, write_text_atomic
from posenc.core.errors import UserError, first_line, safe_name
from posenc.core.paths import cache_dir, conf_dir, expanded
from posenc.core.seeds import generator_for
from posenc.core.signature import check_choice
from posenc.data import absolute_data, absolute_tokenizer, build_tokenizer, inspect, stored_tokenizer
from posenc.data.hub import not_loaded, reachable
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.foreign import Foreign, NotApplicableError
from posenc.evaluation.hf import HuggingFace, biased_instead, trained_length
from posenc.model.decoder import ModelShape
from posenc.results.settings import own_yaml
from posenc.running.build import Job
from posenc.running.eval_job import filled
from posenc.training.device import is_out_of_memory, resolve_device

PROBED = 4096  # tokens: the longest text whose logits identify a model
LOGITS = 2**28  # numbers in the logits of one pass: batches are smaller for large vocabularies
BIASED = ("bloom", "mpt")  # whose biases, slope times position, bf16 would round; Falcon's with `alibi`
WEIGHTS = ("*.safetensors", "*.bin")


def given_job(
    model: Foreign,
    name: str,
    settings: Mapping[str, Any],
    plan: EvalPlan,
    *,
    device: torch.device,
    tokenizer: Mapping[str, Any],
    digest: str | None = None,
    own: Mapping[str, Any],
) -> Job:
    """Return the validated job of a given model. `settings`: data, eval, seed, experiment_name, runs_dir.

    `digest` identifies the model; None: its logits for one text do. `own` is kept in config.yaml beside the
    settings. Raises UserError.
    """
    if "recall" in plan.protocols:
        raise UserError("eval.protocols", "recall", "asks for what posenc planted in the training text")
    check_name("name", name)
    place = expanded(settings["runs_dir"]) / check_name("experiment_name", settings["experiment_name"])
    check_runs_dir(settings["runs_dir"], place, writing=True)
    data, tokenizer = absolute_data(settings["data"]), absolute_tokenizer(tokenizer)
    needed = max(plan.windows) + 1
    facts = inspect(data, tokenizer, splits=plan.splits, needed_tokens=needed, context_length=None)
    chosen, length = build_tokenizer(tokenizer, facts), model.shape.train_length
    if not model.is_known:
        model.vocab_size = chosen.vocab_size
    identity = f"{name} {length} {chosen.identity()}"
    found = _digest(model, identity, digest, device)
    kept = {key: settings[key] for key in ("eval", "seed", "experiment_name")}
    return Job(
        directory=place / f"{name}-T{length}-{found}",
        settings={
            "encoding": {"name": name},
            **kept,
            **own,
            "data": data,
            "tokenizer": tokenizer,
            "context_length": length,
            "train": {"precision": "fp32"},
        },
        hash=found,
        data=data,
        tokenizer=tokenizer,
        tracking={"name": "none"},
        facts=facts,
        shape=ModelShape("given", 1, 1, 1, 1),
        device=device,
        evaluation=plan,
        own_text=False,
        subject=model,
    )


def kept_tokenizer(given: Any) -> dict[str, Any]:
    """Return the settings that read a tokenizer of `tokenizers`, `transformers` or a run, kept in the cache.

    Raises UserError for anything else.
    """
    library = getattr(given, "backend_tokenizer", given)  # of transformers
    if isinstance(given, Tokenizer) and given.definition is None:
        return {"name": given.name}
    if not isinstance(given, Tokenizer) and not hasattr(library, "to_str"):
        allowed = "bytes, a tokenizer.json, or an object of tokenizers or transformers that has one"
        raise UserError("tokenizer", type(given).__name__, "is no tokenizer", allowed=allowed)
    text = given.definition if isinstance(given, Tokenizer) else library.to_str()
    assert text is not None
    path = cache_dir() / "tokenizers" / f"given-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, text)
    return stored_tokenizer(Path(path))


@torch.no_grad()
def _digest(model: Foreign, text: str, digest: str | None, device: torch.device) -> str:
    """Return eight hex digits of its name and `digest`; of its logits for texts of T and 8T without one."""
    if digest is not None:
        return hashlib.sha256(f"{text} {digest}".encode()).hexdigest()[:8]
    found, length = hashlib.sha256(text.encode()), model.shape.train_length
    model.to(device).eval()
    for window in (length, max(length, min(8 * length, PROBED))):
        ids = torch.randint(model.vocab_size, (1, window), generator=generator_for(0, "probe", window))
        try:
            found.update(model(ids.to(device), 1).float().cpu().numpy().tobytes())
        except NotApplicableError:
            found.update(b"n/a")
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    return found.hexdigest()[:8]


# --- models of transformers: `posenc eval subject=hf`


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


def hf_job(settings: dict[str, Any]) -> Job:
    """Return the validated job of composed `eval` settings with `subject=hf`. Raises UserError."""
    if settings["run"] is not None:
        raise UserError("run", settings["run"], "has a model of its own", hint="leave out run= or subject=")
    if settings["tracking"]["name"] != "none":
        raise UserError("tracking", settings["tracking"]["name"], "is for runs that posenc trains")
    chosen = check_choice("subject", settings["subject"], {"hf": _settings}, "there is no such subject")
    config, model, library = load(chosen["path"], chosen["revision"], chosen["trust_remote_code"])
    asked = "auto" if settings["context_length"] is None else settings["context_length"]
    length = trained_length(config) if asked == "auto" else check_length(asked)
    evaluation = filled(settings["eval"], default_evaluation())
    plan = check_evaluation(evaluation, length, settings["extend"])
    if plan.key_tokens is not None or "key-tokens" in plan.protocols:
        raise UserError("eval.protocols", "key-tokens", "needs a reference with this model's tokenizer")
    text = config.get_text_config()
    biased = text.model_type in BIASED or biased_instead(text)
    if plan.precision == "bf16" and biased:
        problem = "its bias is slope times position, which bf16 rounds: 256 and 257 are one"
        raise UserError("eval.precision", "bf16", problem, allowed="fp32")
    most = max(1, LOGITS // text.vocab_size)
    plan = dataclasses.replace(plan, batch_tokens=min(plan.batch_tokens, most))
    subject = HuggingFace(model, length, bos_of(chosen, library))
    subject.check(plan.extend, max(plan.windows), bool(plan.tune))
    tokenizer = _tokenizer(chosen["tokenizer"], library, chosen["path"])
    return given_job(
        subject,
        check_name("subject.path", safe_name(Path(chosen["path"]).name)),
        {
            "data": settings["data"] or own_yaml(conf_dir() / "data" / f"{groups('train')['data']}.yaml"),
            "eval": evaluation,
            "seed": 0,
            "experiment_name": "subjects",
            "runs_dir": chosen["runs_dir"],
        },
        plan,
        device=resolve_device(settings["device"]),
        tokenizer=tokenizer,
        digest=f"{_identity(chosen['path'], config)} bos={subject.bos}",
        own={"subject": {**chosen, "bos": subject.bos, "architecture": text.model_type}},
    )


def load(path: str, revision: str, trust: bool) -> tuple[Any, Any, Any]:
    """Return configuration, model in float32 and tokenizer (None: it has none). Raises UserError."""
    transformers = library_of("subject")
    local = expanded(path)
    if local.is_file():
        raise UserError("subject.path", path, "is a file", allowed="a folder of save_pretrained, or a name")
    if not local.is_dir() and (path.startswith((".", "/", "~")) or path.count("/") > 1):
        raise UserError("subject.path", path, "there is no such folder")
    if (local / "status.json").is_file():
        raise UserError("subject.path", path, "is a run of posenc", hint=f"posenc eval run={path}")
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
    """Return the token that replaces the first of each window, by its tokenizer or as asked; None: none."""
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
    """Return what identifies these weights: the commit on the hub, or a digest of the files."""
    local = expanded(path)
    if not local.is_dir():
        return f"{path} {getattr(config, '_commit_hash', None)}"
    found = hashlib.sha256(local.joinpath("config.json").read_bytes())
    for file in sorted(one for kind in WEIGHTS for one in local.glob(kind)):
        found.update(bytes.fromhex(sha256_of_file(file)))
    return found.hexdigest()
