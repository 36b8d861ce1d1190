"""The jobs of `posenc train` and `posenc eval` as functions: the same validation, errors as exceptions."""

from __future__ import annotations

from typing import Any

from posenc.api.loaded import LoadedRun, load
from posenc.api.settings import settings_of, words_of
from posenc.core.errors import RunError
from posenc.core.paths import choice_files
from posenc.running.measure import Outcome


def train(**overrides: Any) -> LoadedRun:
    """Train and evaluate a run, or continue it, or find it finished; return it.

    Overrides are those of the command: `encoding="rope"`, `train={"tokens": 1e6}`,
    `**{"eval.lengths": ["1x", "8x"]}`. Raises UserError before anything is written, RunError for what
    fails while running, KeyboardInterrupt once a stopped run is saved.
    """
    from posenc.running.train_job import run_train, train_job

    words = list(words_of(overrides))
    job = train_job(settings_of("train", words))
    _ended(run_train(job, words))
    return load(job.directory, plugins=job.settings["plugins"])


def evaluate(subject: Any, **overrides: Any) -> LoadedRun:
    """Measure a run again, given by its directory, name or object; return it with all its records.

    Overrides are those of `posenc eval`: `extend="yarn"`, `eval={"lengths": ["1x", "16x"]}`. Any other model,
    a module or a function from tokens (B, W) to logits (B, W, V): `posenc.api.subjects.measure_given`. One of
    transformers: `evaluate("hf", **{"subject.path": DIR_OR_NAME})`. Raises what `train` raises.
    """
    if callable(subject):
        from posenc.api.subjects import measure_given

        directory, outcome = measure_given(subject, **overrides)
        _ended(outcome)
        return load(directory)
    from posenc.running.jobs import new_job
    from posenc.running.measure import run_eval

    if isinstance(subject, LoadedRun):
        overrides, subject = {"plugins": subject.plugins, **overrides}, subject.path
    group = "subject" if str(subject) in choice_files("subject") else "run"
    job = new_job("eval", settings_of("eval", list(words_of({group: str(subject), **overrides}))))
    _ended(run_eval(job))
    return load(job.directory, plugins=overrides.get("plugins", ()))


def _ended(outcome: Outcome) -> None:
    if outcome.exit_code == 130:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise RunError("stopped by a signal; what is finished is saved: the same call continues")
