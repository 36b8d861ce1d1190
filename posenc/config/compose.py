"""Compose every job of a command line through Hydra's compose API, as typed settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import ValidationError

from posenc.config.encoding_file import expand_encoding_file
from posenc.config.grid import grid
from posenc.config.hydra_adapter import BASIC_LAUNCHER, BASIC_SWEEPER, SEARCH_PATH, compose
from posenc.config.keys import group_of, is_hydras, key_of
from posenc.config.overrides import CommandLine, is_group, quote
from posenc.config.parsing import has_several_values
from posenc.config.refusals import MAKES_JOBS, REFUSALS, SWEEPER, refusal
from posenc.config.task_file import expand_task
from posenc.config.typed import typed_settings
from posenc.config.yaml_files import default_choices
from posenc.core.errors import UserError
from posenc.core.paths import (
    choice_files,
    conf_dir,
    conf_dirs,
    is_folder,
    missing_path,
    refuse_taken_names,
    why_impossible,
)
from posenc.core.progress import long_loop
from posenc.settings.errors import user_error
from posenc.settings.launchers import LAUNCHER, RayLauncherSettings
from posenc.settings.tree import EvalCommandSettings, RunSettings, TrainSweepSettings

# Hydra's settings of folders: posenc makes the run directory itself.
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.chdir", "hydra.output_subdir")


@dataclass(frozen=True)
class ComposedJob:
    """Hold the overrides of one job, and the settings that they compose."""

    overrides: list[str]
    settings: RunSettings | EvalCommandSettings

    @property
    def run_settings(self) -> RunSettings:
        """Return the settings of a job of `posenc train`."""
        assert isinstance(self.settings, RunSettings)
        return self.settings

    @property
    def eval_settings(self) -> EvalCommandSettings:
        """Return the settings of a job of `posenc eval`."""
        assert isinstance(self.settings, EvalCommandSettings)
        return self.settings

    @property
    def settings_text(self) -> str:
        """Return the settings as JSON, without `sweep`: equal texts are the same job."""
        # `sweep` says how jobs run, and never what they compute.
        return self.settings.model_dump_json(exclude={"sweep"})


@dataclass(frozen=True)
class Jobs:
    """Hold the jobs of a command line, without duplicates."""

    jobs: list[ComposedJob]
    is_sweep: bool  # also true for a sweep of one job
    launcher: str | None = None  # the name of what runs the jobs elsewhere; None: they run on this machine
    ray: RayLauncherSettings | None = None  # how Ray runs them, if the launcher is Ray's
    config: DictConfig | None = None  # the composed configuration with Hydra's own part; None for a sweep


def compose_jobs(command: str, line: CommandLine) -> Jobs:
    """Return the jobs of a command line. Raises UserError."""
    for override in line.overrides:
        _refuse_hydras_folder(command, override)
        _refuse_several_experiments(override)
    composed = _jobs_of_line(command, line)
    if not composed.is_sweep:
        return composed
    jobs = list(composed.jobs)
    # the jobs come from one line, so the first one speaks for all
    for experiment in _additional_experiments(jobs[0]):
        overrides = [text for text in line.overrides if key_of(text) != "experiment"]
        # All else on the line stays, so that the additional experiment is of the same encodings and seeds.
        overrides.append(f"experiment={experiment}")
        jobs += _jobs_of_line(command, replace(line, overrides=overrides, multirun=True)).jobs
    # `sweep.also` may bring jobs that the line has already
    distinct: dict[str, ComposedJob] = {}
    for job in jobs:
        distinct.setdefault(job.settings_text, job)
    return replace(composed, jobs=list(distinct.values()))


def _refuse_hydras_folder(command: str, override: str) -> None:
    """Raise UserError for an override that would move Hydra's folders."""
    if key_of(override) in FOLDERS:
        hint = "an evaluation is kept in the directory of its run"
        if command == "train":
            hint = "runs_dir=FOLDER experiment_name=GROUP name=NAME gives FOLDER/GROUP/NAME-HASH"
        raise UserError(override, None, "posenc makes the run directory, not Hydra", hint=hint)


def _refuse_several_experiments(override: str) -> None:
    """Raise UserError for `experiment=a,b`."""
    if key_of(override) == "experiment" and has_several_values(override):
        hint = "a command for each; one that is to bring another along says so itself: sweep.also"
        raise UserError(override, None, "one at a time", hint=hint)


def _additional_experiments(job: ComposedJob) -> list[str]:
    """Return the experiments that `sweep.also` adds to a sweep; evaluations have none."""
    sweep = job.settings.sweep
    return sweep.also if isinstance(sweep, TrainSweepSettings) else []


def _jobs_of_line(command: str, line: CommandLine) -> Jobs:
    """Compose the jobs that the line itself names, without those of `sweep.also`."""
    with initialize_hydra(line.config_dir) as search_overrides:
        # The overrides that decide whether this is a sweep are composed alone: another one, such as
        # encoding.base, may fit only some encodings of a sweep, and is composed with each job.
        deciding = deciding_overrides(line)
        may_be_sweep = line.multirun or bool(deciding)
        base_overrides = deciding if may_be_sweep else line.overrides
        base = compose_config(command, [*search_overrides, *base_overrides])
        _refuse_callbacks(base)
        if _makes_sweep(line, base):
            return _compose_sweep(command, line, search_overrides, base)
        _refuse_launcher(base)
        _refuse_settings_of_sweeps(line, base)
        config = base
        if may_be_sweep:  # so far only the deciding overrides were composed
            config = compose_config(command, [*search_overrides, *line.overrides])
        job = ComposedJob(line.overrides, typed_settings(command, config, line.overrides))
        return Jobs([job], is_sweep=False, config=config)


def deciding_overrides(line: CommandLine) -> list[str]:
    """Return the overrides that decide whether a line is a sweep, and what runs it."""
    return [text for text in line.overrides if key_of(text) == "experiment" or is_hydras(text)]


def _refuse_callbacks(base: DictConfig) -> None:
    """Raise UserError for callbacks of Hydra's."""
    # Hydra calls them from its own `run_job`. On this machine posenc
    # runs jobs, and would ignore them without a word.
    if base.hydra.callbacks:
        hint = "metrics.jsonl and status.json say how a run goes, tracking= sends it elsewhere"
        raise UserError("hydra.callbacks", None, "posenc calls none", hint=hint)


def _refuse_settings_of_sweeps(line: CommandLine, base: DictConfig) -> None:
    """Raise UserError for `sweep.jobs=2` and the like where there is no sweep: nothing would read them."""
    if base.hydra.mode == RunMode.RUN:  # one job of a sweep, with the sweep's line
        return
    for override in line.overrides:
        if group_of(key_of(override)) == "sweep":
            key, _, value = override.partition("=")
            raise UserError(key, value, "has an effect in a sweep only", hint="for a sweep add -m")


def _makes_sweep(line: CommandLine, base: DictConfig) -> bool:
    """Tell whether the line, or the experiment that it chooses, makes a sweep."""
    if line.multirun:
        return True
    mode = base.hydra.mode  # a sweep starts its jobs with hydra.mode=RUN
    if mode is not None:
        return bool(mode == RunMode.MULTIRUN)
    # An experiment may list its jobs and leave out `hydra.mode`.
    return bool(base.hydra.sweeper.get("params"))


def _refuse_launcher(base: DictConfig) -> None:
    """Raise UserError for a launcher where there is no sweep; a job that a sweep started may name one."""
    launcher = base.hydra.runtime.choices[LAUNCHER]
    if base.hydra.mode is None and launcher != "basic":
        raise UserError(LAUNCHER, launcher, "launches the jobs of a sweep", hint="add -m")


def _compose_sweep(command: str, line: CommandLine, search_overrides: list[str], base: DictConfig) -> Jobs:
    """Compose the jobs of a sweep. Raises UserError."""
    choices = base.hydra.runtime.choices
    # A sweeper that searches would have to be called, and would call Hydra's launcher.
    if base.hydra.sweeper._target_ != BASIC_SWEEPER:
        raise UserError(SWEEPER, choices[SWEEPER], "posenc makes the jobs itself", hint=MAKES_JOBS)
    plug_in = OmegaConf.select(base, "hydra.launcher._target_")
    is_local = plug_in == BASIC_LAUNCHER
    # only Ray's is no plug-in of Hydra's, which would name its class
    ray = _ray_settings(base) if plug_in is None else None
    experiment_params = base.hydra.sweeper.get("params") or {}
    experiment_overrides = [f"{key!s}={value}" for key, value in experiment_params.items()]
    # The line comes last, so that what a user types replaces what the experiment lists.
    combinations = grid(command, experiment_overrides + line.overrides)
    jobs = []
    with long_loop("composing jobs", len(combinations)) as progress:
        for number, overrides in enumerate(combinations, 1):
            progress.update(number - 1, "")
            try:
                job = _job_of_sweep(command, search_overrides, overrides)
                if not is_local and ray is None:
                    _refuse_for_slurm(job)
                jobs.append(job)
            except UserError as error:
                if len(combinations) == 1:
                    raise
                position = f"in job {number} of {len(combinations)} ({' '.join(overrides)})"
                # One line made all jobs, so the user must see which of them is refused.
                raise error.within(position) from None
    if not jobs:
        hint = "glob() chooses among the choices of a group, such as encoding"
        raise UserError("-m", None, "there is no job in this sweep", hint=hint)
    launcher = None if is_local else str(choices[LAUNCHER])
    return Jobs(jobs, is_sweep=True, launcher=launcher, ray=ray)


def _ray_settings(base: DictConfig) -> RayLauncherSettings:
    """Return the settings of the launcher that is no plug-in of Hydra's. Raises UserError."""
    plain = OmegaConf.to_container(base.hydra.launcher, resolve=True)
    try:
        return RayLauncherSettings.model_validate(plain)
    except ValidationError as error:
        raise user_error(error, RayLauncherSettings, "hydra.launcher") from None


def _job_of_sweep(command: str, search_overrides: list[str], overrides: list[str]) -> ComposedJob:
    """Compose one job of a sweep. Raises UserError."""
    config = compose_config(command, [*search_overrides, *overrides])
    return ComposedJob(overrides, typed_settings(command, config, overrides))


def _refuse_for_slurm(job: ComposedJob) -> None:
    """Raise UserError for what Slurm cannot do."""
    sweep = job.settings.sweep
    assert sweep is not None  # only a stored run has none
    if sweep.fail_fast:
        problem = "is not supported with Slurm: pending array jobs cannot be cancelled from here"
        raise UserError("sweep.fail_fast", "true", problem)


def compose_one(command: str, line: CommandLine, what: str) -> ComposedJob:
    """Return the job of a command that takes one encoding, run or corpus at a time. Raises UserError."""
    for override in line.overrides:
        if has_several_values(override):
            hint = "a command for each; a list is written [a,b]"
            raise UserError(override, None, f"takes one {what} at a time", hint=hint)
    composed = compose_jobs(command, line)
    if composed.is_sweep:
        raise UserError("experiment", None, f"is a sweep; this takes one {what} at a time")
    return composed.jobs[0]


def distinguishing_overrides(job: ComposedJob, jobs: Sequence[ComposedJob]) -> list[str]:
    """Return the overrides that tell a job from the others of its sweep, without `encoding=`.

    Labels name the encoding anyway.
    """
    shared = set(job.overrides)
    for other in jobs:
        shared &= set(other.overrides)
    return [text for text in job.overrides if text not in shared and key_of(text) != "encoding"]


# --- Hydra


@contextmanager
def initialize_hydra(config_dir: str | None) -> Iterator[list[str]]:
    """Initialize Hydra's compose API on posenc's YAML; yield the overrides that add the YAML of others."""
    if config_dir is not None:
        if not is_folder(config_dir):
            raise missing_path("--config-dir", config_dir, "folder")
        # Hydra takes the first file of a name on its path, which is posenc's, without a word.
        refuse_taken_names(Path(config_dir))
    # The folder is named, since `initialize` would look beside this file. The tree lies elsewhere in a wheel
    # and in a clone.
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield search_path_overrides(config_dir)


def search_path_overrides(config_dir: str | None = None) -> list[str]:
    """Return the override that adds the YAML of installed packages and of the user, or an empty list."""
    _, *folders = conf_dirs()  # the first is posenc's own
    if config_dir is not None:
        folders.append(Path(config_dir).resolve())
    urls = ",".join(quote(f"file://{folder}") for folder in folders)
    # Hydra's compose API takes one folder. The others go by this setting.
    return [f"{SEARCH_PATH}=[{urls}]"] if folders else []


def expand_files(overrides: list[str]) -> tuple[list[str], list[str]]:
    """Return the overrides with the user's files of an encoding or a task replaced by names, and these files.

    The files are plug-ins: they are imported beside those that `plugins` names.
    """
    expanded, task_files = expand_task(overrides)
    expanded, encoding_files = expand_encoding_file(expanded)
    return expanded, [*task_files, *encoding_files]


def compose_config(command: str, overrides: list[str]) -> DictConfig:
    """Compose one configuration, with Hydra's own part. Raises UserError."""
    expanded, files = expand_files(overrides)
    for override in expanded:
        _refuse_several_choices(override)
        _refuse_long_choice(command, override)
    expanded = _without_null_choices(command, expanded)
    try:
        config = compose(command, expanded)
    except REFUSALS as error:
        raise refusal(command, expanded, error) from error
    if files:  # an experiment may have plug-ins of its own
        config.plugins = _with_files(config.plugins, files)
    return config


def _with_files(plugins: Any, files: list[str]) -> Any:
    """Return the plug-ins of a configuration with files behind them. One may stand there without a list."""
    named = [plugins] if isinstance(plugins, str) else plugins
    if not isinstance(named, ListConfig | list):  # the settings' types say what is wrong
        return plugins
    return [*named, *(file for file in files if file not in named)]


def overrides_for_hydra(command: str, line: CommandLine) -> list[str]:
    """Return the line's overrides as Hydra alone understands them. Raises UserError."""
    with initialize_hydra(line.config_dir) as search_overrides:
        # Hydra knows no files as choices, so they become names and plug-ins first.
        written = without_files(command, search_overrides, line.overrides)
    return [*search_path_overrides(), *written]


def without_files(command: str, search_overrides: list[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides with files of an encoding or a task as `plugins`, beside those of an experiment.

    Needs an initialized Hydra. Raises UserError.
    """
    expanded, files = expand_files(list(overrides))
    expanded = _without_null_choices(command, expanded)
    if files:
        plugins = compose_config(command, [*search_overrides, *overrides]).plugins
        expanded.append(f"plugins=[{','.join(map(quote, plugins))}]")  # the last one counts
    return expanded


def _refuse_several_choices(override: str) -> None:
    """Raise UserError for `encoding=[alibi,rope]`, which Hydra would merge, keeping the last one's name."""
    group, _, value = override.partition("=")
    if is_group(group) and value.strip().startswith("["):
        choices = value.strip().strip("[]").replace(" ", "")
        raise UserError(group, value, "takes one choice", hint=f"for a sweep: -m {group}={choices}")


def _without_null_choices(command: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides without `experiment=null`, the default, which Hydra refuses on a line.

    Raises UserError for null where a group needs a choice: `encoding=null`.
    """
    may_be_null = [group for group, default in default_choices(command).items() if default is None]
    chosen: list[str] = []
    for override in overrides:
        group, _, value = override.partition("=")
        if value != "null" or not is_group(group):
            chosen.append(override)
        elif group not in may_be_null:
            names = ", ".join(choice_files(group))
            raise UserError(group, value, "needs one of its choices", allowed=names)
    return chosen


def _refuse_long_choice(command: str, override: str) -> None:
    """Raise UserError for a choice that is too long for a YAML file: Hydra fails at the question for it."""
    group, _, choice = override.partition("=")
    if why_impossible(f"{choice}.yaml") is None:
        return
    if group in default_choices(command) or group in (LAUNCHER, SWEEPER):
        raise UserError(group, choice, f"there is no such {group}", allowed=choice_files(group))
