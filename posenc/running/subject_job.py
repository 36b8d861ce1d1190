"""Measure any model by the protocols; its records are kept in a run directory, as those of a trained one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.config.checks import EvalPlan, check_name, check_runs_dir
from posenc.core.atomic_files import write_text_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, first_line
from posenc.core.paths import cache_dir, expanded
from posenc.core.seeds import generator_for
from posenc.data import absolute_data, absolute_tokenizer, build_tokenizer, inspect
from posenc.data.tokenizers import stored_tokenizer
from posenc.evaluation.foreign import Foreign, NotApplicableError
from posenc.model.decoder import ModelShape
from posenc.results.schema import RunFacts
from posenc.running import run_directory as folder
from posenc.running.build import Job
from posenc.running.eval_job import Outcome, measure, tokenised
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.training.device import is_out_of_memory

PROBED = 4096  # tokens: the longest text that a model is told apart from others by


@dataclass(frozen=True, kw_only=True)
class SubjectJob(Job):
    """The validated measurement of a model that posenc did not train."""

    model: Foreign
    name: str


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
) -> SubjectJob:
    """Find the corpus and the run directory. `settings`: data, eval, seed, experiment_name, runs_dir.

    `digest`: what it is told apart from others by; None: what it says about one text. `own` is kept in
    config.yaml beside the settings. Raises UserError.
    """
    if "recall" in plan.protocols:
        raise UserError("eval.protocols", "recall", "asks for what posenc planted in the training text")
    check_name("name", name)
    place = expanded(settings["runs_dir"]) / check_name("experiment_name", settings["experiment_name"])
    check_runs_dir(settings["runs_dir"], place, writing=True)
    data, tokenizer = absolute_data(settings["data"]), absolute_tokenizer(tokenizer)
    for split in plan.splits:
        facts = inspect(
            data, tokenizer, split=split, needed_tokens=max(plan.windows) + 1, context_length=None
        )
    chosen, length = build_tokenizer(tokenizer, facts), model.shape.train_length
    if not model.is_known:
        model.vocab_size = chosen.vocab_size
    identity = f"{name} {length} {chosen.identity()}"
    found = _digest(model, identity, device) if digest is None else _hex(f"{identity} {digest}")
    kept = {key: settings[key] for key in ("eval", "seed", "experiment_name")}
    return SubjectJob(
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
        model=model,
        name=name,
    )


def run_subject(job: SubjectJob) -> Outcome:
    """Measure it. Of a model whose weights are known, stored cells are kept; any other is measured anew."""
    corpus = tokenised(job)
    with StopFlag() as stop, folder.locked(job.directory):
        try:
            folder.refuse_links(job.directory)
            folder.write_config(job.directory, job.settings)
            folder.write_status(job.directory, "running")
            model = job.model.to(job.device).eval()
            records = measure(job, model, corpus, _facts(job), stop, newer=True)
            folder.write_status(job.directory, "finished", step=0)
        except InterruptedRunError:
            folder.write_status(job.directory, "interrupted", reason=stop.name)
            if job.model.is_known:
                say(f"{stop.name}: finished cells are stored; the same command continues")
            return Outcome(stop.exit_code)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            folder.write_status(job.directory, "failed", reason=reason)
            raise
    return Outcome(0, records)


def kept_tokenizer(given: Any) -> dict[str, Any]:
    """Return the settings that read a tokenizer of `tokenizers` or `transformers`, kept in the cache.

    Raises UserError for anything else.
    """
    library = getattr(given, "backend_tokenizer", given)  # of transformers
    if not hasattr(library, "to_str"):
        allowed = "bytes, a tokenizer.json, or an object of tokenizers or transformers that has one"
        raise UserError("tokenizer", type(given).__name__, "is no tokenizer", allowed=allowed)
    text = library.to_str()
    path = cache_dir() / "tokenizers" / f"given-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, text)
    return stored_tokenizer(Path(path))


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@torch.no_grad()
def _digest(model: Foreign, text: str, device: torch.device) -> str:
    """Return eight hex digits of what it is called, and of what it says about one text at T and at 8T."""
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


def _facts(job: SubjectJob) -> RunFacts:
    """Return the `run` object of results.json: of its training nothing is known."""
    parameters = {"total": count} if (count := sum(one.numel() for one in job.model.parameters())) else {}
    tokenizer, kept = job.tokenizer, Path(job.tokenizer.get("path", "")).stem
    return RunFacts(
        name=job.directory.name,
        encoding={"name": job.name},
        model={"name": job.settings.get("subject", {}).get("architecture", "given")},
        parameters=parameters,
        tokenizer={"name": kept} if kept.startswith("given-") else tokenizer,  # no place in the cache
        context_length=job.settings["context_length"],
        seed=job.settings["seed"],
        steps=0,
        precision="fp32",
        device=str(job.device),
        settings_hash=job.hash,
        versions=folder.versions(),
    )
