"""`posenc eval`: measure a run again, at other lengths, by other protocols or on another corpus.

The run's config.yaml is read as plain data. Nothing that it names is imported: its encoding must be one of
posenc's, an installed one, or in a plug-in named on this command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from posenc.corpus import (
    CorpusFacts,
    absolute_data,
    check_lengths,
    check_tokenizer,
    inspect,
    prepare,
    stored_tokenizer,
)
from posenc.errors import RunError, UserError
from posenc.evaluation.evaluate import protocol_module
from posenc.evaluation.extend import build_extension
from posenc.jobs import run_directory as folder
from posenc.jobs.build import build_decoder, build_model, run_facts
from posenc.jobs.checks import (
    EvalPlan,
    check_evaluation,
    check_name,
    check_positions_reach,
    default_evaluation,
)
from posenc.jobs.eval_runs import refuse_several
from posenc.jobs.holding import locked
from posenc.jobs.measure import Outcome, asked_of, byte_store, measure
from posenc.jobs.signals import InterruptedRunError, StopFlag
from posenc.jobs.stored_run import not_ours, stored_run
from posenc.model.decoder import ModelShape
from posenc.report.progress import say
from posenc.results.settings import spoken_name
from posenc.tracking import build_tracker, check_tracking
from posenc.training.checkpoint import check_weights, load_weights, newest_checkpoint
from posenc.training.distributed import current
from posenc.training.precision import resolve_device


@dataclass(frozen=True)
class EvalJob:
    """A validated evaluation of a run on disk."""

    directory: Path
    trained: dict[str, Any]  # the run's own settings
    data: dict[str, Any]  # the corpus to measure on
    tokenizer: dict[str, Any]  # the very one it was trained with
    tracking: dict[str, Any]
    facts: CorpusFacts
    shape: ModelShape
    device: torch.device
    evaluation: EvalPlan


def eval_job(settings: dict[str, Any]) -> EvalJob:
    """The validated job of a composed `eval` configuration. Raises UserError; RunError for damaged files."""
    refuse_several(str(settings["run"]))
    stored = stored_run(settings["run"], settings["plugins"])
    trained, checkpoint = stored.settings, stored.checkpoint
    try:
        check_name("experiment_name", trained["experiment_name"])
        asked = {key: value for key, value in settings["eval"].items() if value is not None}
        # a run from before a setting existed has the default of it
        evaluation = check_evaluation(
            {**default_evaluation(), **trained["eval"], **asked},
            trained["context_length"],
            settings["extend"],
        )
        data = absolute_data(settings["data"] or trained["data"])
        check_tokenizer(trained["tokenizer"])
        precision = trained["train"]["precision"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise not_ours(settings["run"], error) from error
    check_positions_reach(stored.outline, max(evaluation.windows))
    build_extension(evaluation.extend, stored.outline)  # refused now, if it does not apply
    if evaluation.tune and max(evaluation.windows) <= trained["context_length"]:
        raise UserError("extend.tune", True, "there is no length beyond context_length to choose by")
    if precision not in ("fp32", "bf16"):
        raise UserError("run", settings["run"], f"its precision {precision!r} is not one of posenc's")
    check_tracking(settings["tracking"])
    device = resolve_device(settings["device"])
    definition = checkpoint.path / "tokenizer.json"
    tokenizer = stored_tokenizer(definition) if definition.is_file() else trained["tokenizer"]
    longest = max(evaluation.windows)
    for split in evaluation.splits:
        facts = inspect(data, tokenizer, split=split, needed_tokens=longest + 1, context_length=None)
    if settings["data"] is None and facts.fingerprint != checkpoint.state.get("fingerprint"):
        raise UserError(
            "data",
            facts.name,
            "its text is not what this run was trained on any more (another fingerprint)",
            hint=f"to measure on it all the same say data={facts.name}",
        )
    return EvalJob(
        stored.directory,
        trained,
        data,
        tokenizer,
        settings["tracking"],
        facts,
        stored.shape,
        device,
        evaluation,
    )


def asked_targets(job: EvalJob) -> set[tuple[str, str]]:
    """(protocol, hash of its targets) of everything that the job measures."""
    store = prepare(job.data, job.tokenizer, facts=job.facts)
    asked = asked_of(job.trained, store, job.evaluation)
    return {(name, protocol_module(name).plan(asked).hash) for name in job.evaluation.protocols}


def run_eval(job: EvalJob) -> Outcome:
    """Measure what is not measured yet and put results.json together."""
    with StopFlag() as stop, current().watched():
        current().on_stop = stop.asked_elsewhere
        try:
            return _run(job, stop)
        except InterruptedRunError:
            say(f"{stop.name}: finished cells are stored; the same command continues")
            return Outcome(stop.exit_code)


def _checked_checkpoint(job: EvalJob, vocab_size: int) -> tuple[str, int, dict[str, Any]]:
    """Folder, step and state of the newest one, its weights of the right shapes. Raises RunError."""
    checkpoint = newest_checkpoint(job.directory / "checkpoints")  # a running training may have moved on
    if checkpoint is None:
        raise RunError(f"the checkpoints of {job.directory} are gone")
    with torch.device("meta"):  # before anything of a stranger's size is allocated
        check_weights(checkpoint.path, build_decoder(job.trained, job.shape, vocab_size))
    return str(checkpoint.path), checkpoint.step, checkpoint.state


def _run(job: EvalJob, stop: StopFlag) -> Outcome:
    trained, group = job.trained, current()
    store = group.in_turn(lambda: prepare(job.data, job.tokenizer, facts=job.facts))
    longest = max(job.evaluation.windows)
    for split in job.evaluation.splits:
        check_lengths(store, split=split, needed_tokens=longest + 1, context_length=None)
    with locked(job.directory, "evaluation"):
        stop.guard()
        path, step, state = group.first(lambda: _checked_checkpoint(job, store.vocab_size))
        model = build_model(trained, job.shape, store.vocab_size)
        if group.is_first:
            load_weights(Path(path), model)
        group.same_weights(model)
        own = job.facts.fingerprint == state.get("fingerprint")
        records = measure(
            trained,
            model,
            store,
            job.evaluation,
            directory=job.directory,
            corpus=job.data["name"],
            device=job.device,
            step=step,
            stop=stop,
            trained_bytes=partial(byte_store, store, job.data, job.facts) if own else None,
        )
        facts = run_facts(
            trained,
            model,
            fingerprint=state["fingerprint"],
            name=job.directory.name,
            digest=job.directory.name.rpartition("-")[2],
            device=job.device,
            tokens=int(state["tokens"]),
            steps=step,
            seconds=float(state["seconds"]),
            final_loss=state["final_loss"],
            peak_memory_bytes=None,  # this process did not train it
        )
        folder.put_together(job.directory, facts, newer=False)
    if not group.is_first:
        return Outcome(0, records)
    tracker = build_tracker(
        job.tracking,
        run_name=job.directory.name,
        group=trained["experiment_name"],
        tags=[str(spoken_name(trained["encoding"])), trained["experiment_name"]],
        config=trained,
        run_dir=job.directory,
    )
    tracker.evaluation([dict(record) for record in records])
    tracker.finish("finished")
    return Outcome(0, records)
