"""Compose every job of a command line through Hydra's compose API, as typed settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from posenc.config.encoding_file import with_encoding_file
from posenc.config.grid import grid
from posenc.config.hydra_adapter import BASIC_LAUNCHER, BASIC_SWEEPER
from posenc.config.overrides import CommandLine, is_hydras, key_of, quoted
from posenc.config.parsing import is_sweep
from posenc.config.refusals import LAUNCHER, MAKES_JOBS, REFUSALS, SWEEPER, refusal
from posenc.config.typed import typed_settings
from posenc.core.errors import UserError
from posenc.core.paths import conf_dir, conf_dirs, is_folder, refuse_taken_names

# Hydra's choices of a folder: posenc makes the run directory itself.
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.chdir", "hydra.output_subdir")


@dataclass(frozen=True)
class ComposedJob:
    """One job as composed: its overrides and its settings."""

    overrides: list[str]
    settings: Any  # RunSettings of `posenc train`, EvalCommandSettings of `posenc eval`

    @property
    def frozen(self) -> str:
        """The settings as JSON, without `sweep`, which is no part of a job."""
        text: str = self.settings.model_dump_json(exclude={"sweep"})
        return text


@dataclass(frozen=True)
class Jobs:
    """All jobs of a command line, each once."""

    jobs: list[ComposedJob]
    launcher: str | None = None  # the name of a plug-in's; None: posenc runs the jobs itself
    config: DictConfig | None = None  # of a single job: as composed, with Hydra's own part

    @property
    def sweep(self) -> bool:
        """Whether these are the jobs of a sweep, even if there is one only."""
        return self.config is None


def compose_jobs(command: str, line: CommandLine) -> Jobs:
    """Return every job of the command line, duplicates once. Raises UserError."""
    for override in line.overrides:
        _refuse_folder_or_experiments(command, override)
    composed = _jobs_of(command, line)
    if not composed.sweep:
        return composed
    jobs = list(composed.jobs)
    for experiment in _experiments_beside(jobs[0]):
        overrides = [text for text in line.overrides if key_of(text) != "experiment"]
        beside = replace(line, overrides=[*overrides, f"experiment={experiment}"], multirun=True)
        jobs += _jobs_of(command, beside).jobs
    # `sweep.also` may bring jobs that the line has already
    distinct: dict[str, ComposedJob] = {}
    for job in jobs:
        distinct.setdefault(job.frozen, job)
    return replace(composed, jobs=list(distinct.values()))


def _refuse_folder_or_experiments(command: str, override: str) -> None:
    """Raise UserError for a folder of Hydra's, and for several experiments."""
    if key_of(override) in FOLDERS:
        hint = "an evaluation is kept in the directory of its run"
        if command == "train":
            hint = "runs_dir=FOLDER experiment_name=GROUP name=NAME gives FOLDER/GROUP/NAME-HASH"
        raise UserError(override, None, "posenc makes the run directory, not Hydra", hint=hint)
    if key_of(override) == "experiment" and is_sweep(override):
        hint = "a command for each; one that is to bring another along says so itself: sweep.also"
        raise UserError(override, None, "one at a time", hint=hint)


def _experiments_beside(job: ComposedJob) -> list[str]:
    """Return the experiments that `sweep.also` brings along."""
    return list(getattr(job.settings.sweep, "also", []))


def _jobs_of(command: str, line: CommandLine) -> Jobs:
    """Compose the jobs that the line itself names, without those of `sweep.also`."""
    with initialized(line.config_dir) as search:
        # Whether this is a sweep is decided by few overrides. The others wait for their jobs, since a setting
        # such as encoding.base may fit some encodings of a sweep only.
        deciding = of_the_sweep(line)
        first = deciding if line.multirun or deciding else line.overrides
        base = compose_config(command, [*search, *first])
        if base.hydra.callbacks:
            hint = "metrics.jsonl and status.json say how a run goes, tracking= sends it elsewhere"
            raise UserError("hydra.callbacks", None, "posenc calls none", hint=hint)
        if _is_sweep(line, base):
            return _sweep_of(command, line, search, base)
        if base.hydra.mode is None and base.hydra.runtime.choices[LAUNCHER] != "basic":
            chosen = base.hydra.runtime.choices[LAUNCHER]
            raise UserError(LAUNCHER, chosen, "launches the jobs of a sweep", hint="add -m")
        if deciding:
            base = compose_config(command, [*search, *line.overrides])
        return Jobs([ComposedJob(line.overrides, typed_settings(command, base))], config=base)


def _is_sweep(line: CommandLine, base: DictConfig) -> bool:
    """Tell whether the line, or the experiment that it chooses, makes a sweep."""
    mode = base.hydra.mode
    if mode is None:
        return line.multirun or bool(base.hydra.sweeper.get("params"))
    return line.multirun or mode == RunMode.MULTIRUN


def _sweep_of(command: str, line: CommandLine, search: list[str], base: DictConfig) -> Jobs:
    """Compose the jobs of a sweep. Raises UserError."""
    choices = base.hydra.runtime.choices
    if base.hydra.sweeper._target_ != BASIC_SWEEPER:
        raise UserError(SWEEPER, choices[SWEEPER], "posenc makes the jobs itself", hint=MAKES_JOBS)
    is_local = OmegaConf.select(base, "hydra.launcher._target_") == BASIC_LAUNCHER
    of_experiment = base.hydra.sweeper.get("params") or {}
    swept = [*(f"{key!s}={value}" for key, value in of_experiment.items()), *line.overrides]
    combinations = grid(command, swept)
    jobs = []
    for number, overrides in enumerate(combinations, 1):
        try:
            jobs.append(_job_of_sweep(command, search, overrides, is_local))
        except UserError as error:
            position = f"in job {number} of {len(combinations)} ({' '.join(overrides)})"
            raise error.within(position) from None
    if not jobs:
        hint = "glob() chooses among the choices of a group, such as encoding"
        raise UserError("-m", None, "there is no job in this sweep", hint=hint)
    return Jobs(jobs, launcher=None if is_local else str(choices[LAUNCHER]))


def _job_of_sweep(command: str, search: list[str], overrides: list[str], is_local: bool) -> ComposedJob:
    settings = typed_settings(command, compose_config(command, [*search, *overrides]))
    assert settings.sweep is not None
    if settings.sweep.fail_fast and not is_local:
        problem = "is not supported with Slurm: pending array jobs cannot be cancelled from here"
        raise UserError("sweep.fail_fast", "true", problem)
    return ComposedJob(overrides, settings)


def compose_one(command: str, line: CommandLine, what: str) -> ComposedJob:
    """Return the job of a command that takes one encoding, run or corpus at a time. Raises UserError."""
    for override in line.overrides:
        if is_sweep(override):
            hint = "a command for each; a list is written [a,b]"
            raise UserError(override, None, f"takes one {what} at a time", hint=hint)
    composed = compose_jobs(command, line)
    if composed.sweep:
        raise UserError("experiment", None, f"is a sweep; this takes one {what} at a time")
    return composed.jobs[0]


def of_the_sweep(line: CommandLine) -> list[str]:
    """Return the overrides that decide who runs a sweep; the others may fit some of its jobs only."""
    return [text for text in line.overrides if key_of(text) == "experiment" or is_hydras(text)]


def own_overrides(job: ComposedJob, jobs: Sequence[ComposedJob]) -> list[str]:
    """Return the overrides that this job of a sweep does not share with all others, but for `encoding=`."""
    shared = set.intersection(*(set(other.overrides) for other in jobs))
    return [text for text in job.overrides if text not in shared and key_of(text) != "encoding"]


def search_path(config_dir: str | None = None) -> list[str]:
    """Return the override that adds the YAML of installed packages, and the user's; none without either."""
    folders = conf_dirs()[1:]
    if config_dir is not None:
        folders.append(Path(config_dir).resolve())
    urls = ",".join(quoted(f"file://{folder}") for folder in folders)
    return [f"hydra.searchpath=[{urls}]"] if folders else []


@contextmanager
def initialized(config_dir: str | None) -> Iterator[list[str]]:
    """Initialize Hydra's compose API on posenc's YAML; yields the overrides that add the user's folder."""
    if config_dir is not None:
        if not is_folder(config_dir):
            raise UserError("--config-dir", config_dir, "there is no such folder")
        refuse_taken_names(Path(config_dir))
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield search_path(config_dir)


def compose_config(command: str, overrides: list[str]) -> DictConfig:
    """Compose one configuration, with Hydra's own part. Raises UserError."""
    expanded = with_encoding_file(overrides)
    for override in expanded:
        _refuse_several_choices(override)
    try:
        return compose(command, expanded, return_hydra_config=True)
    except REFUSALS as error:
        raise refusal(command, expanded, error) from error


def _refuse_several_choices(override: str) -> None:
    """Raise UserError for `encoding=[alibi,rope]`, which Hydra would merge, keeping the last one's name."""
    group, _, value = override.partition("=")
    is_no_choice = value.strip().startswith("[") or value == "null"
    is_group = os.path.isdir(conf_dir() / group)  # noqa: PTH112 (Path.is_dir raises for names too long)
    if is_no_choice and is_group:
        raise UserError(group, value, "takes one choice", hint=f"for a sweep: -m {group}=A,B")
