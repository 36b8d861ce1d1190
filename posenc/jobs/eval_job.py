"""`posenc eval`: measure a run again, at other lengths, by other protocols or on another corpus.

The run's config.yaml is read as plain data. Nothing that it names is imported: its encoding must be one of
posenc's, an installed one, or in a plug-in named on this command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.corpus import CorpusFacts, check_lengths, inspect, prepare
from posenc.encodings import check_encoding
from posenc.errors import UserError
from posenc.jobs import run_directory as folder
from posenc.jobs.build import build_model, run_facts
from posenc.jobs.measure import Outcome, measure
from posenc.jobs.signals import InterruptedRunError, StopFlag
from posenc.jobs.validate import EvalPlan, check_evaluation, check_model, check_name, whole
from posenc.model.decoder import ModelShape
from posenc.report.progress import say
from posenc.results.load import load_run
from posenc.results.store import assemble_results
from posenc.tracking import build_tracker, check_tracking
from posenc.training.checkpoint import Checkpoint, load_weights, newest_checkpoint
from posenc.training.precision import resolve_device


@dataclass(frozen=True)
class EvalJob:
    """A validated evaluation of a run on disk."""

    directory: Path
    trained: dict[str, Any]  # the run's own settings
    data: dict[str, Any]  # the corpus to measure on
    tracking: dict[str, Any]
    facts: CorpusFacts
    shape: ModelShape
    checkpoint: Checkpoint
    device: torch.device
    evaluation: EvalPlan


def eval_job(settings: dict[str, Any]) -> EvalJob:
    """The validated job of a composed `eval` configuration. Raises UserError; RunError for damaged files."""
    directory = Path(settings["run"]).expanduser()
    if not (directory / "config.yaml").is_file():
        raise UserError("run", settings["run"], "not a run directory: it has no config.yaml")
    run = load_run(directory)
    if run.config is None:
        raise UserError("run", settings["run"], run.problem or "config.yaml cannot be read")
    trained = {**run.config, "plugins": settings["plugins"]}
    try:
        whole("seed", trained["seed"], least=0)
        whole("context_length", trained["context_length"], least=2)
        check_name("experiment_name", trained["experiment_name"])
        shape = check_model(trained["model"])
        check_encoding(trained["encoding"], settings["plugins"])
        length = int(trained["context_length"])
        asked = {key: value for key, value in settings["eval"].items() if value is not None}
        evaluation = check_evaluation({**trained["eval"], **asked}, length)
        data = settings["data"] or trained["data"]
        tokenizer, precision = trained["tokenizer"], trained["train"]["precision"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            "run", settings["run"], f"its config.yaml is not one of posenc's ({error!r})"
        ) from error
    if precision not in ("fp32", "bf16"):
        raise UserError("run", settings["run"], f"its precision {precision!r} is not one of posenc's")
    check_tracking(settings["tracking"])
    device = resolve_device(settings["device"])
    facts = inspect(
        data,
        tokenizer,
        split=evaluation.split,
        needed_tokens=max(evaluation.windows) + 1,
        context_length=length,
    )
    checkpoint = newest_checkpoint(directory / "checkpoints")
    if checkpoint is None:
        raise UserError("run", settings["run"], "has no checkpoint yet; train it first")
    return EvalJob(
        directory, trained, data, settings["tracking"], facts, shape, checkpoint, device, evaluation
    )


def run_eval(job: EvalJob) -> Outcome:
    """Measure what is not measured yet and put results.json together."""
    stop = StopFlag().install()
    trained = job.trained
    length = trained["context_length"]
    store = prepare(job.data, trained["tokenizer"], facts=job.facts)
    check_lengths(
        store,
        split=job.evaluation.split,
        needed_tokens=max(job.evaluation.windows) + 1,
        context_length=length,
    )
    model = build_model(trained, job.shape, store.vocab_size)
    load_weights(job.checkpoint.path, model)
    with folder.locked(job.directory, "evaluation"):
        try:
            records = measure(
                trained,
                model,
                store,
                job.evaluation,
                directory=job.directory,
                corpus=job.data["name"],
                device=job.device,
                step=job.checkpoint.step,
                stop=stop,
            )
        except InterruptedRunError:
            say(f"{stop.name}: finished cells are stored; the same command continues")
            return Outcome(stop.exit_code)
        before = load_run(job.directory)
        facts = before.facts or run_facts(
            trained,
            model,
            store,
            name=job.directory.name,
            digest=job.directory.name.rpartition("-")[2],
            device=job.device,
            tokens=int(job.checkpoint.state["tokens"]),
            steps=job.checkpoint.step,
            seconds=float(job.checkpoint.state["seconds"]),
            final_loss=job.checkpoint.state["final_loss"],
            versions=folder.versions(),
        )
        assemble_results(job.directory, facts)
    tracker = build_tracker(
        job.tracking,
        run_name=job.directory.name,
        group=trained["experiment_name"],
        tags=[trained["encoding"]["name"], trained["experiment_name"]],
        config=trained,
        run_dir=job.directory,
    )
    tracker.evaluation([dict(record) for record in records])
    tracker.finish("finished")
    return Outcome(0, records)
