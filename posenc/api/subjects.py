"""Measure any model by the protocols; its records are kept in a run directory, as those of a trained one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from posenc.api.settings import settings_of, words_of
from posenc.config.checks import check_evaluation, check_length, check_name, check_runs_dir, whole
from posenc.config.overrides import group_of
from posenc.core.atomic_files import write_text_atomic
from posenc.core.errors import UserError, first_line, safe_name
from posenc.core.paths import cache_dir, expanded
from posenc.core.seeds import generator_for
from posenc.data import absolute_data, absolute_tokenizer, build_tokenizer, inspect
from posenc.evaluation.foreign import Foreign, NotApplicableError
from posenc.model.decoder import ModelShape
from posenc.results.schema import RunFacts
from posenc.running import run_directory as folder
from posenc.running.build import Job
from posenc.running.eval_job import Corpus, Outcome, measure, tokenised
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.training.device import is_out_of_memory, resolve_device

MODEL = ("context_length", "tokenizer", "device", "seed", "name")
ASKED = (*MODEL, "data", "eval", "experiment_name", "runs_dir")
PROBED = 4096  # tokens: the longest text that a model is told apart from others by


def measure_given(
    subject: Callable[[torch.Tensor], Any], *, tokenizer: Any = "bytes", **overrides: Any
) -> tuple[Path, Outcome]:
    """Measure a module or function, tokens (B, W) -> logits (B, W, V); return its run directory.

    `context_length` is T, the length that the others are multiples of; `tokenizer` "bytes", a tokenizer.json,
    or an object of `tokenizers` or `transformers`; `data`, `eval` and so on as in `posenc train`. Every
    cell is measured anew. The text has no token in front (no BOS). Raises UserError, RunError.
    """
    for key in overrides:
        if group_of(key) not in ASKED:
            problem = "does not apply to a model that is given as it is"
            raise UserError(key, None, problem, allowed=", ".join(ASKED))
    if "context_length" not in overrides:
        raise UserError("context_length", None, "is needed: T, the length that others are compared with")
    name = str(overrides.pop("name", None) or getattr(subject, "__name__", type(subject).__name__))
    check_name("name", name := safe_name(name))
    settings = settings_of("train", [*words_of(overrides), *words_of(_tokenizer(tokenizer))])
    job, model, corpus = _job(subject, name, settings)
    with StopFlag() as stop, folder.locked(job.directory):
        try:
            folder.refuse_links(job.directory)
            folder.write_config(job.directory, job.settings)
            folder.write_status(job.directory, "running")
            records = measure(job, model, corpus, _facts(job, model, name), stop, newer=True)
            folder.write_status(job.directory, "finished", step=0)
        except InterruptedRunError:
            folder.write_status(job.directory, "interrupted", reason=stop.name)
            return job.directory, Outcome(stop.exit_code)
        except Exception as error:
            folder.write_status(
                job.directory, "failed", reason=f"{type(error).__name__}: {first_line(error)}"
            )
            raise
    return job.directory, Outcome(0, records)


def _tokenizer(given: Any) -> dict[str, Any]:
    """Return the overrides that choose a tokenizer."""
    library = getattr(given, "backend_tokenizer", given)  # of transformers
    if hasattr(library, "to_str"):
        text = library.to_str()
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        given = cache_dir() / "tokenizers" / f"given-{digest}.json"
        given.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(given, text)
    if isinstance(given, Mapping):
        settings = {f"tokenizer.{key}": value for key, value in given.items() if key != "name"}
        return {"tokenizer": given["name"], **settings}
    if not isinstance(given, str | os.PathLike):
        allowed = "bytes, a tokenizer.json, or an object of tokenizers or transformers that has one"
        raise UserError("tokenizer", type(given).__name__, "is no tokenizer", allowed=allowed)
    return {"tokenizer": given} if given == "bytes" else {"tokenizer": "hf", "tokenizer.path": str(given)}


def _job(subject: Callable[..., Any], name: str, settings: dict[str, Any]) -> tuple[Job, Foreign, Corpus]:
    """Validate, tokenise, and find the run directory, which the model's own logits are part of."""
    length = check_length(settings["context_length"])
    seed, plan = whole("seed", settings["seed"], least=0), check_evaluation(settings["eval"], length)
    if "recall" in plan.protocols:
        raise UserError("eval.protocols", "recall", "asks for what posenc planted in the training text")
    place = expanded(settings["runs_dir"]) / check_name("experiment_name", settings["experiment_name"])
    check_runs_dir(settings["runs_dir"], place, writing=True)
    data, tokenizer = absolute_data(settings["data"]), absolute_tokenizer(settings["tokenizer"])
    device, needed = resolve_device(settings["device"]), max(plan.windows) + 1
    facts = inspect(data, tokenizer, split=plan.split, needed_tokens=needed, context_length=None)
    chosen = build_tokenizer(tokenizer, facts)
    model = Foreign(subject, chosen.vocab_size, length).to(device).eval()
    digest = _digest(model, f"{name} {length} {chosen.identity()}", device)
    kept = ("data", "tokenizer", "context_length", "eval", "seed", "experiment_name")
    own = {"encoding": {"name": name}, **{key: settings[key] for key in kept}, "train": {"precision": "fp32"}}
    job = Job(
        directory=place / f"{name}-T{length}-{digest}",
        settings={**own, "data": data, "tokenizer": tokenizer, "seed": seed},
        hash=digest,
        data=data,
        tokenizer=tokenizer,
        tracking={"name": "none"},
        facts=facts,
        shape=ModelShape("given", 1, 1, 1, 1),
        device=device,
        evaluation=plan,
        own_text=False,
    )
    return job, model, tokenised(job)


@torch.no_grad()
def _digest(model: Foreign, text: str, device: torch.device) -> str:
    """Return eight hex digits of what it is called, and of what it says about one text at T and at 8T."""
    found, length = hashlib.sha256(text.encode()), model.shape.train_length
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


def _facts(job: Job, model: Foreign, name: str) -> RunFacts:
    """Return the `run` object of results.json: of its training nothing is known."""
    parameters = {"total": count} if (count := sum(one.numel() for one in model.parameters())) else {}
    return RunFacts(
        name=job.directory.name,
        encoding={"name": name},
        model={"name": "given"},
        parameters=parameters,
        tokenizer=job.tokenizer,
        context_length=job.settings["context_length"],
        seed=job.settings["seed"],
        steps=0,
        precision="fp32",
        device=str(job.device),
        settings_hash=job.hash,
        versions=folder.versions(),
    )
