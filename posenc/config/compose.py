"""Compose every job of a command line through Hydra's compose API, before anything runs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posenc.cli.eval_runs import with_each_run
from posenc.config.hydra_errors import is_choice, no_such_choice, translated, unreadable, unreadable_yaml
from posenc.config.overrides import CommandLine, is_hydras, key_of, quoted
from posenc.config.plain_settings import plain_settings
from posenc.config.schema import register_schemas
from posenc.core.errors import UserError
from posenc.core.paths import conf_dir, refuse_taken_names

# Compared with, never called: who runs a sweep stands in the configuration that Hydra composed itself.
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
LAUNCHER = "joblib"  # Hydra's name for several jobs at once


def frozen(settings: dict[str, Any]) -> str:
    """Return the settings as JSON, without `sweep`, which is no part of a job."""
    return json.dumps({key: value for key, value in settings.items() if key != "sweep"})


def checked_n_jobs(value: object) -> int:
    """Return `hydra.launcher.n_jobs`. Raises UserError."""
    if isinstance(value, int) and (value >= 1 or value == -1):
        return value
    allowed = "a whole number from 1, or -1: one for each GPU, or for each core where there is none"
    raise UserError("hydra.launcher.n_jobs", value, "is no number of jobs", allowed=allowed)


@dataclass(frozen=True)
class ComposedJob:
    """One job: its overrides and its configuration as plain data."""

    overrides: list[str]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Jobs:
    """All jobs of a command line, each once."""

    jobs: list[ComposedJob]
    n_jobs: int = 1  # at once; -1: as many as the machine is good for
    launcher: str | None = None  # a plug-in (launching.launchers); None: we run them, one or several at once
    config: DictConfig | None = None  # of a single job: as composed, with Hydra's own part

    @property
    def sweep(self) -> bool:
        """Whether these are the jobs of a sweep, if only one."""
        return self.config is None


def compose_jobs(command: str, line: CommandLine) -> Jobs:
    """Every job of the command line, duplicates once. Raises UserError."""
    jobs = _own_jobs(command, line)
    if not jobs.jobs:
        hint = "glob() chooses among the choices of a group, such as encoding; of others name each: seed=0,1"
        raise UserError("-m", None, "there is no job in this sweep", hint=hint)
    if not jobs.sweep:
        return jobs
    every = list(jobs.jobs)
    for name in jobs.jobs[0].settings["sweep"].get("also", ()):
        every += _own_jobs(command, _instead(line, str(name))).jobs
    first: dict[str, ComposedJob] = {}
    for job in every:
        first.setdefault(frozen(job.settings), job)
    return dataclasses.replace(jobs, jobs=list(first.values()))


def _instead(line: CommandLine, experiment: str) -> CommandLine:
    """The same command line with another `experiment=`; what the user added holds for it too."""
    chosen = [o for o in line.overrides if key_of(o) == "experiment"]
    kept = [o for o in line.overrides if o not in chosen]
    return dataclasses.replace(line, overrides=[*kept, f"experiment={experiment}"], multirun=True)


def _own_jobs(command: str, line: CommandLine) -> Jobs:
    """The jobs that the line itself asks for."""
    with initialized(line.config_dir) as search:
        plain = of_the_sweep(line) if line.multirun else line.overrides
        for override in plain:
            if key_of(override) == "experiment" and line.multirun and is_sweep(override):
                hint = "a command for each; one that is to bring another along says so itself: sweep.also"
                raise UserError("experiment", override.partition("=")[2], "one at a time", hint=hint)
        base = _compose(command, [*search, *plain])
        mode = OmegaConf.select(base, "hydra.mode")
        sweep = line.multirun or str(getattr(mode, "name", mode)) == "MULTIRUN"
        sweeper = OmegaConf.select(base, "hydra.sweeper._target_")
        launcher = OmegaConf.select(base, "hydra.launcher._target_")
        chosen = str(OmegaConf.select(base, "hydra.runtime.choices")["hydra/launcher"])
        if not sweep and mode is None and chosen != "basic":
            raise UserError("hydra/launcher", chosen, "launches the jobs of a sweep", hint="add -m")
        several = chosen == LAUNCHER
        if not sweep:
            base.hydra.mode = RunMode.RUN
            return Jobs([ComposedJob(line.overrides, plain_settings(command, base))], config=base)
        if sweeper != BASIC_SWEEPER:
            hint = "a search gives single commands, and reads results.json after each"
            named = str(OmegaConf.select(base, "hydra.runtime.choices")["hydra/sweeper"])
            raise UserError("hydra/sweeper", named, "sweeps are grids here", allowed="basic", hint=hint)
        params = OmegaConf.to_container(base.hydra.sweeper.params or OmegaConf.create({}))
        assert isinstance(params, dict)
        jobs: list[ComposedJob] = []
        said = [*(f"{key!s}={value}" for key, value in params.items()), *line.overrides]
        for overrides in _expand(command, said):
            try:
                settings = plain_settings(command, _compose(command, [*search, *overrides]))
            except UserError as error:
                raise error.within(f"in the job {' '.join(overrides)}") from None
            jobs.append(ComposedJob(overrides, settings))
        n_jobs = checked_n_jobs(OmegaConf.select(base, "hydra.launcher.n_jobs")) if several else 1
        ours = several or launcher == BASIC_LAUNCHER
        return Jobs(jobs, n_jobs, None if ours else chosen)


def of_the_sweep(line: CommandLine) -> list[str]:
    """What says who runs a sweep. Its other settings may fit some of its jobs alone."""
    return [o for o in line.overrides if key_of(o) == "experiment" or is_hydras(o)]


def of_the_job(job: ComposedJob) -> list[str]:
    """The job's overrides without those for Hydra."""
    return [o for o in job.overrides if not is_hydras(o)]


@contextmanager
def initialized(config_dir: str | None) -> Iterator[list[str]]:
    """Hydra's compose API on posenc's YAML; the overrides that add the user's folder."""
    # Path.is_dir raises for a name too long
    if config_dir is not None and not os.path.isdir(config_dir):  # noqa: PTH112
        raise UserError("--config-dir", config_dir, "there is no such folder")
    if config_dir is not None:
        refuse_taken_names(Path(config_dir))
    register_schemas()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        found = None if config_dir is None else quoted(f"file://{Path(config_dir).resolve()}")
        yield [] if found is None else [f"hydra.searchpath=[{found}]"]


def _parser() -> OverridesParser:
    return OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())


def is_sweep(override: str) -> bool:
    """Whether it has several values. Raises UserError for one that cannot be read."""
    try:
        return OverridesParser.create().parse_override(override).is_sweep_override()
    except HydraException as error:
        raise unreadable(override) from error


def _expand(command: str, overrides: list[str]) -> list[list[str]]:
    for written in overrides:
        is_sweep(written)  # says in our words which one cannot be read
    if command == "eval":
        overrides = with_each_run(overrides, _parser())
    parsed = _parser().parse_overrides(overrides)
    last = {o.get_key_element(): o for o in parsed}  # what is said later on the command line wins
    for override in last.values():
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(override.get_key_element(), override.get_value_string(), "cannot be enumerated")
    batches = BasicSweeper.split_arguments(list(last.values()), max_batch_size=None)
    return [list(job) for batch in batches for job in batch]


def _compose(command: str, overrides: list[str]) -> DictConfig:
    """With Hydra's own part."""
    _refuse_lists_of_choices(overrides)
    try:
        return compose(command, overrides, return_hydra_config=True)
    except MissingConfigException as error:
        raise no_such_choice(error) from error
    except AssertionError as error:  # of OmegaConf, where Hydra's own part takes no such key
        given = " ".join(filter(is_hydras, overrides))
        raise UserError("hydra", given or None, "cannot be set so", hint="see --cfg hydra") from error
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        if isinstance(error, FileNotFoundError) and not error.filename:
            raise  # the working folder is gone
        trained = partial(_compose, "train") if command == "eval" else None
        raise translated(overrides, error, partial(_compose, command), trained) from error
    except yaml.YAMLError as error:
        raise unreadable_yaml(error) from error


def _refuse_lists_of_choices(overrides: list[str]) -> None:
    """`encoding=[alibi,rope]` is refused: Hydra would merge the two and keep the last one's name."""
    for override in overrides:
        group, _, value = override.partition("=")
        if value.strip().startswith("[") and is_choice(override):
            hint = f"for a sweep: -m {group}=A,B"
            if group == "tracking":
                hint = f"several at once: tracking=several tracking.trackers={value}"
            raise UserError(group, value, "takes one choice", hint=hint)
