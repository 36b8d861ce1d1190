"""Run one evaluation from a validated job to its records: load weights, measure, write results.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from posenc.core.console import say
from posenc.core.errors import RunError
from posenc.data import check_lengths, prepare
from posenc.evaluation.evaluate import protocol_module
from posenc.results.settings import spoken_name
from posenc.running import run_directory as folder
from posenc.running.build import build_decoder, build_model, run_facts
from posenc.running.eval_job import EvalJob
from posenc.running.measure import Outcome, byte_store, measure, request_of
from posenc.running.run_lock import is_held, locked
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.tracking import build_tracker
from posenc.training.checkpoint import check_weights, load_weights, newest_checkpoint
from posenc.training.distributed import current


def targets_of(job: EvalJob) -> set[tuple[str, str]]:
    """Return the (protocol, hash of its targets) of everything that the job measures."""
    store = prepare(job.data, job.tokenizer, facts=job.facts)
    request = request_of(job.trained, store, job.evaluation)
    return {(name, protocol_module(name).plan(request).hash) for name in job.evaluation.protocols}


def run_eval(job: EvalJob) -> Outcome:
    """Measure what is not measured yet and write results.json."""
    with StopFlag() as stop, current().watched():
        current().on_stop = stop.asked_elsewhere
        try:
            return _run(job, stop)
        except InterruptedRunError:
            say(f"{stop.name}: finished cells are stored; the same command continues")
            return Outcome(stop.exit_code)


def _checked_checkpoint(job: EvalJob, vocab_size: int) -> tuple[str, int, dict[str, Any]]:
    """Return folder, step and state of the newest checkpoint, its shapes checked. Raises RunError."""
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
        trained_bytes = byte_store(store, job.data, job.facts, job.evaluation) if own else None
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
            trained_bytes=trained_bytes,
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
    if job.tracking["name"] != "none" and is_held(job.directory, "run"):  # which sends all at its end
        say("this run is being trained: its own process tells the tracker of these numbers")
        return Outcome(0, records)
    tracker = build_tracker(
        job.tracking,
        run_name=job.directory.name,
        group=trained["experiment_name"],
        tags=[str(spoken_name(trained["encoding"])), trained["experiment_name"]],
        config=trained,
        run_dir=job.directory,
    )
    tracker.evaluation(folder.records_at(job.directory, step))
    tracker.finish("finished")
    return Outcome(0, records)
