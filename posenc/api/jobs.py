"""The jobs of `posenc train` and `posenc eval` as functions: the same validation, errors as exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc.api.loaded import LoadedRun, load
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine, quoted
from posenc.core.errors import RunError, UserError
from posenc.running.eval_job import Outcome

PLAIN = re.compile(r"[A-Za-z_][\w.+-]*", re.ASCII)  # read by Hydra as the text that it is


def train(**overrides: Any) -> LoadedRun:
    """Train and evaluate a run, or continue it, or find it finished; return it.

    Overrides are those of the command: `encoding="rope"`, `train={"tokens": 1e6}`,
    `**{"eval.lengths": ["1x", "8x"]}`. Raises UserError before anything is written, RunError for what
    fails while running, KeyboardInterrupt once a stopped run is saved.
    """
    from posenc.running.train_job import run_train, train_job

    plugins = overrides.get("plugins", ())
    words = list(words_of(overrides))
    job = train_job(settings_of("train", words))
    _ended(run_train(job, words))
    return load(job.directory, plugins=plugins)


def evaluate(subject: Any, **overrides: Any) -> LoadedRun:
    """Measure a run again, given by its directory, name or object; return it with all its records.

    Overrides are those of `posenc eval`: `extend="yarn"`, `eval={"lengths": ["1x", "16x"]}`. Raises what
    `train` raises.
    """
    from posenc.running.eval_job import eval_job, run_eval

    if isinstance(subject, LoadedRun):
        overrides, subject = {"plugins": subject.plugins, **overrides}, subject.path
    job = eval_job(settings_of("eval", list(words_of({"run": str(subject), **overrides}))))
    _ended(run_eval(job))
    return load(job.directory, plugins=overrides.get("plugins", ()))


def settings_of(command: str, words: list[str]) -> dict[str, Any]:
    """Return the composed settings of one job. Raises UserError."""
    composed = compose_jobs(command, CommandLine(words))
    if composed.sweep:
        raise UserError("overrides", None, "make a sweep", hint="a loop over calls does the same")
    return composed.jobs[0].settings


def words_of(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield KEY=VALUE for each; a mapping below a key sets the keys inside it."""
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from words_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_text(value)}"


def _text(value: Any) -> str:
    """Return a value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, str | Path):
        return str(value) if PLAIN.fullmatch(str(value)) else quoted(str(value))
    raise UserError("overrides", value, f"cannot be a setting ({type(value).__name__})")


def _ended(outcome: Outcome) -> None:
    if outcome.exit_code == 130:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise RunError("stopped by a signal; what is finished is saved: the same call continues")
