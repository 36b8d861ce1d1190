"""Compose every job of a command line through Hydra's compose API; say what is wrong in the user's words."""

from __future__ import annotations

import functools
import glob
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from posenc.config.checks import default_evaluation
from posenc.config.hydra_adapter import (
    BASIC_LAUNCHER,
    BASIC_SWEEPER,
    combinations,
    override_parser,
)
from posenc.config.overrides import CommandLine, groups, is_hydras, key_of, quoted
from posenc.core.console import say
from posenc.core.errors import UserError, first_line, nearest, visible
from posenc.core.paths import choice_files, conf_dir, conf_dirs, expanded, is_folder, refuse_taken_names
from posenc.core.signature import typed
from posenc.encodings.registry import file_encoding
from posenc.results.load import load_run, run_places
from posenc.training.checkpoint import checkpoint_paths

# Hydra's own choices of a folder: posenc makes the run directory.
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.chdir", "hydra.output_subdir")
REFUSALS = (HydraException, OmegaConfBaseException, yaml.YAMLError, AssertionError, ValueError, OSError)
SWEEPER = "hydra/sweeper"
MAKES_JOBS = "lists a,b, glob() and range() make the jobs of a sweep; a W&B sweep searches (docs/recipes.md)"
SIZES = ("model", "optim")  # groups whose choices have the same keys; who takes the others checks theirs
# Types that a default does not say; other settings that are null by default are checked where they are read.
KINDS: dict[str, Any] = {
    **dict.fromkeys(("name", "run", "train.init", "eval.key_tokens"), str),
    "sweep.jobs": int,
    "plugins": list[str],
    "train.length_schedule": list,
    "train.lr": None,  # a number, or `tuned`
}


@dataclass(frozen=True)
class ComposedJob:
    """One job: its overrides and its settings as plain data."""

    overrides: list[str]
    settings: dict[str, Any]


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
        if key_of(override) in FOLDERS:
            hint = "an evaluation is kept in the directory of its run"
            if command == "train":
                hint = "runs_dir=FOLDER experiment_name=GROUP name=NAME gives FOLDER/GROUP/NAME-HASH"
            raise UserError(override, None, "posenc makes the run directory, not Hydra", hint=hint)
        if key_of(override) == "experiment" and is_sweep(override):
            hint = "a command for each; one that is to bring another along says so itself: sweep.also"
            raise UserError(override, None, "one at a time", hint=hint)
    composed = _jobs_of(command, line)
    if not composed.sweep:
        return composed
    every = list(composed.jobs)
    for experiment in every[0].settings["sweep"].get("also", []):
        kept = [o for o in line.overrides if key_of(o) != "experiment"]
        another = replace(line, overrides=[*kept, f"experiment={experiment}"], multirun=True)
        every += _jobs_of(command, another).jobs
    first: dict[str, ComposedJob] = {}
    for job in every:
        first.setdefault(frozen(job.settings), job)
    return replace(composed, jobs=list(first.values()))


def _jobs_of(command: str, line: CommandLine) -> Jobs:
    """Compose the jobs that the line itself names, without those of `sweep.also`."""
    with initialized(line.config_dir) as search:
        deciding = of_the_sweep(line)
        base = _compose(command, [*search, *(deciding if line.multirun or deciding else line.overrides)])
        mode, params = base.hydra.mode, base.hydra.sweeper.get("params") or {}
        choices = base.hydra.runtime.choices
        if base.hydra.callbacks:
            hint = "metrics.jsonl and status.json say how a run goes, tracking= sends it elsewhere"
            raise UserError("hydra.callbacks", None, "posenc calls none", hint=hint)
        if not (line.multirun or mode == RunMode.MULTIRUN or (mode is None and params)):
            if mode is None and choices["hydra/launcher"] != "basic":
                problem = "launches the jobs of a sweep"
                raise UserError("hydra/launcher", choices["hydra/launcher"], problem, hint="add -m")
            if deciding:
                base = _compose(command, [*search, *line.overrides])
            return Jobs([ComposedJob(line.overrides, plain_settings(command, base))], config=base)
        ours = OmegaConf.select(base, "hydra.launcher._target_") == BASIC_LAUNCHER
        if base.hydra.sweeper._target_ != BASIC_SWEEPER:
            raise UserError(SWEEPER, choices[SWEEPER], "posenc makes the jobs itself", hint=MAKES_JOBS)
        jobs: list[ComposedJob] = []
        for overrides in _grid(command, [*(f"{k!s}={v}" for k, v in params.items()), *line.overrides]):
            try:
                settings = plain_settings(command, _compose(command, [*search, *overrides]))
            except UserError as error:
                raise error.within(f"in the job {' '.join(overrides)}") from None
            how = settings["sweep"]
            if how["jobs"] is not None and how["jobs"] < 1:
                raise UserError("sweep.jobs", how["jobs"], "too small", allowed="from 1, or null")
            if how["fail_fast"] and not ours:
                hint = "Slurm cannot be told to stop what has not begun"
                raise UserError("sweep.fail_fast", "true", "is not for this launcher", hint=hint)
            jobs.append(ComposedJob(overrides, settings))
        if not jobs:
            hint = "glob() chooses among the choices of a group, such as encoding"
            raise UserError("-m", None, "there is no job in this sweep", hint=hint)
        return Jobs(jobs, launcher=None if ours else str(choices["hydra/launcher"]))


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


def frozen(settings: dict[str, Any]) -> str:
    """Return the settings as JSON, without `sweep`, which is not part of a job."""
    return json.dumps({key: value for key, value in settings.items() if key != "sweep"})


def of_the_sweep(line: CommandLine) -> list[str]:
    """Return the overrides that decide who runs a sweep; the others may fit some of its jobs only."""
    return [o for o in line.overrides if key_of(o) == "experiment" or is_hydras(o)]


def own_overrides(job: ComposedJob, jobs: Sequence[ComposedJob]) -> list[str]:
    """Return the overrides that this job of a sweep does not share with all others, but for `encoding=`."""
    shared = set.intersection(*(set(one.overrides) for one in jobs))
    return [o for o in job.overrides if o not in shared and key_of(o) != "encoding"]


def search_path(config_dir: str | None = None) -> list[str]:
    """Return the override that adds the YAML of installed packages, and the user's; none without either."""
    folders = [*conf_dirs()[1:], *([] if config_dir is None else [Path(config_dir).resolve()])]
    places = ",".join(quoted(f"file://{folder}") for folder in folders)
    return [f"hydra.searchpath=[{places}]"] if folders else []


@contextmanager
def initialized(config_dir: str | None) -> Iterator[list[str]]:
    """Initialize Hydra's compose API on posenc's YAML; yields the overrides that add the user's folder."""
    if config_dir is not None:
        if not is_folder(config_dir):
            raise UserError("--config-dir", config_dir, "there is no such folder")
        refuse_taken_names(Path(config_dir))
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield search_path(config_dir)


def is_sweep(override: str) -> bool:
    """Return whether it has several values. Raises UserError for one that cannot be read."""
    try:
        return OverridesParser.create().parse_override(override).is_sweep_override()
    except HydraException as error:
        raise _unreadable(override) from error


def _grid(command: str, overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every job: all combinations of the values."""
    for written in overrides:
        is_sweep(written)  # names the one that cannot be read
    if command == "eval":
        overrides = [_with_each_run(one) if key_of(one) == "run" else one for one in overrides]
    parsed = override_parser().parse_overrides(overrides)
    last = {o.get_key_element(): o for o in parsed}  # what is said later on the command line wins
    for override in last.values():
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(override.get_key_element(), override.get_value_string(), "cannot be enumerated")
    return combinations(list(last.values()))


def _with_each_run(override: str) -> str:
    """Put the runs below a folder or a glob in its place; a run directory stays, for its job to judge.

    Runs that are not finished are left out and named. Raises UserError where nothing is left.
    """
    value = override_parser().parse_override(override).value()
    runs: dict[str, None] = {}
    for one in value.list if isinstance(value, ChoiceSweep) else [value]:
        given = one.text if isinstance(one, QuotedString) else str(one)
        folder, path = is_folder(given), expanded(given)
        if (folder and (path / "config.yaml").is_file()) or not (folder or glob.has_magic(given)):
            runs[given] = None
        else:
            runs.update(dict.fromkeys(_runs_below(given, path)))
    return f"{override.partition('=')[0]}={','.join(map(quoted, runs))}"


def _runs_below(given: str, path: Path) -> list[str]:
    """Return the trained runs below a folder or of a glob."""
    try:
        below = run_places([path])
    except UserError as error:
        raise UserError("run", given, "nothing is there by that name") from error
    kept = []
    for run, problem in below:
        state = problem or load_run(run).state
        if state == "finished" and checkpoint_paths(run / "checkpoints"):
            kept.append(str(run))
        else:
            say(f"{visible(run)}: left out: {'no checkpoint' if state == 'finished' else state}")
    if not kept:
        raise UserError("run", given, "there is no trained run below it")
    return kept


def _compose(command: str, overrides: list[str]) -> DictConfig:
    """Compose one configuration, with Hydra's own part. Raises UserError."""
    overrides = with_file(overrides)
    for override in overrides:  # encoding=[alibi,rope]: Hydra would merge both and keep the last one's name
        group, _, value = override.partition("=")
        several = value.strip().startswith("[") or value == "null"
        if several and os.path.isdir(conf_dir() / group):  # noqa: PTH112 (is_dir raises for names too long)
            raise UserError(group, value, "takes one choice", hint=f"for a sweep: -m {group}=A,B")
    try:
        return compose(command, overrides, return_hydra_config=True)
    except REFUSALS as error:
        raise _explained(command, overrides, error) from error


def with_file(overrides: list[str]) -> list[str]:
    """Return the overrides with `encoding=./mine.py:Class` as settings and a plug-in."""
    chosen = [o.partition("=")[2] for o in overrides if o.startswith("encoding=")]
    said = chosen[-1].replace("\\", "").strip("'\"") if chosen else ""
    if (found := re.fullmatch(r"(.+\.py)(?::(\w+))?", said)) is None:
        return overrides
    try:
        settings = file_encoding(found[1], found[2])
    except (yaml.YAMLError, OSError, TypeError, ValueError) as error:
        raise UserError("encoding", said, f"its YAML cannot be read: {first_line(error)}") from error
    plugins = [o.partition("=")[2].strip("[]") for o in overrides if key_of(o) == "plugins"]
    kept = [o for o in overrides if key_of(o) not in ("encoding", "plugins")]
    return [
        "~encoding",
        *(f"++encoding.{key}={json.dumps(one)}" for key, one in settings.items()),
        *(f"++{o.lstrip('+')}" if key_of(o).startswith("encoding.") else o for o in kept),
        f"plugins=[{','.join([*filter(None, plugins[-1:]), quoted(found[1])])}]",
    ]


@functools.cache
def usual_settings(command: str) -> dict[str, Any]:
    """Return the settings of a command with their defaults, which say their types; `...` may be anything."""
    tree: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{command}.yaml"))
    for group, choice in groups(command).items():
        if group in SIZES:
            own: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / group / f"{choice}.yaml"))
            tree[group] = {**tree.get(group, {}), **own}
        else:
            tree[group] = None if choice is None else ...
    tree["eval"] = default_evaluation()
    return {key: value for key, value in tree.items() if key not in ("defaults", "hydra", "experiment")}


def plain_settings(command: str, config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain data, without Hydra's own part.

    Raises UserError for unknown keys (`+foo=1`), missing ones (`~seed`) and values of another type.
    """
    if "experiment" in config:
        hint = "begin it with the line\n# @package _global_      and choose others by a defaults list: "
        hint += "- override /encoding: rope"
        name = f"experiment/{config.hydra.runtime.choices.experiment}.yaml"
        raise UserError(name, None, "its settings stand for those of a group `experiment`", hint=hint)
    kept = OmegaConf.masked_copy(config, [str(k) for k in config if k != "hydra"])
    try:
        settings = OmegaConf.to_container(kept, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or "override")
        if isinstance(error, MissingMandatoryValue):
            raise _needed(key) from error
        raise UserError(key, None, first_line(error)) from error
    plain: dict[str, Any] = _as_usual(settings, usual_settings(command), "", command)
    return plain


def _as_usual(value: Any, usual: Any, key: str, command: str) -> Any:
    """Return a setting as what its default is: 3 as 3.0, 6e3 as 6000, 7 as "7". Raises UserError."""
    if isinstance(usual, dict):
        begin = f"{key}." if key else ""
        if not isinstance(value, dict):
            allowed = [begin + name for name in usual]
            raise UserError(key, value, "is a group of settings: name one of them", allowed=allowed)
        for name in value.keys() - usual.keys():
            raise _unknown_key(begin + name, None, _keys(usual_settings(command)))
        for name in usual.keys() - value.keys():
            if usual[name] is not None:
                raise _needed(begin + name)
        found = {**dict.fromkeys(usual), **value}
        return {name: _as_usual(one, usual[name], begin + name, command) for name, one in found.items()}
    if value is None and usual is not None and not (command == "eval" and key.startswith("eval.")):
        raise UserError(key, "null", "must be given")
    kind = KINDS.get(key, None if usual in (None, ...) else type(usual))
    if value is None or kind is None:
        return value
    if kind is str and isinstance(value, bool | int | float):
        return str(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return typed(value, kind, key)


def _explained(command: str, overrides: list[str], error: Exception) -> UserError:
    """Return what to say of the override, or of the YAML, that Hydra could not compose."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException):
        return _no_such_choice(error)
    if isinstance(error, yaml.YAMLError):
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", first_line(error))
        where, line = ("--config-dir", "") if mark is None else (str(mark.name), f" in line {mark.line + 1}")
        return UserError(where, None, f"cannot be read as YAML{line}: {problem}")
    if in_file := re.match(r"In '([^']+)': \w+ raised while composing config:\n(.+)", str(error)):
        return UserError(f"{in_file[1]}.yaml", None, in_file[2])
    cause = error.__cause__ or error
    said, wrong = first_line(cause), getattr(cause, "full_key", None)
    choosing = {*groups(command), "hydra/launcher", "hydra.searchpath"}
    choices = [o for o in overrides if o.partition("=")[0] in choosing and not is_sweep(o)]
    config = compose(command, choices, return_hydra_config=True)
    known = _keys(OmegaConf.to_container(config))  # type: ignore[arg-type]
    for key, value in {key_of(o): o.partition("=")[2] for o in overrides}.items():  # the last one counts
        if key not in known and key not in choosing:
            return _unknown_key(key, value or None, known, command)
        if "Ambiguous value" in str(error) and is_sweep(f"{key}={value}"):
            is_list = OmegaConf.is_list(OmegaConf.select(config, key))
            hint = f"a list is written so: '{key}=[{value}]'" if is_list else "for a sweep add -m"
            return UserError(key, value, "several values", hint=hint)
    return UserError(wrong or "override", None, said)


def _needed(key: str) -> UserError:
    return UserError(key, None, "is needed and has no default", hint=f"add {key}=...")


def _unreadable(override: str) -> UserError:
    hint = "no spaces around '='; quote what holds spaces or brackets:\n'eval.lengths=[1x,2x]'"
    if override in choice_files("encoding"):
        hint = f"did you mean: encoding={override}"
    return UserError(override, None, "cannot be read as KEY=VALUE", hint=hint)


def _no_such_choice(error: MissingConfigException) -> UserError:
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return UserError(choice, None, first_line(error))
    hint = f"one of your own needs --config-dir DIR with its YAML in DIR/{group}/"
    if group == SWEEPER:
        hint = MAKES_JOBS
    elif group == "hydra/launcher":
        hint = "without it jobs run at once here, sweep.jobs=N says how many"
        hint += "\nslurm needs a plug-in: pip install 'posenc[slurm]'"
    return UserError(group, choice, f"there is no such {group}", allowed=list(error.options or []), hint=hint)


def _unknown_key(key: str, value: object, known: list[str], command: str = "train") -> UserError:
    """Return the error for a key that does not exist, with the nearest dotted key, or whose it is."""
    group, _, name = key.partition(".")
    if command == "eval" and group in set(usual_settings("train")) - set(known):
        own = "a run is measured as it was trained; what eval takes: posenc eval --help"
        return UserError(key, value, "is the run's own", hint=own)
    parent = key.rpartition(".")[0]
    while not (siblings := [k for k in known if k.rpartition(".")[0] == parent]):
        parent = parent.rpartition(".")[0]
    known = [k for k in known if k.startswith("hydra") == key.startswith("hydra")]
    leaf = nearest(key, [k.rpartition(".")[2] for k in known]) if "." not in key else None
    alike = [k for k in known if k.rpartition(".")[2] == leaf]
    close = " or ".join(alike) or nearest(key, [k for k in known if not key.startswith(f"{k}.")])
    hint = f"did you mean: {close}" if close else ""
    texts = {choice: path.read_text(encoding="utf-8") for choice, path in choice_files(group).items()}
    if having := [choice for choice, text in texts.items() if name and name in (yaml.safe_load(text) or {})]:
        hint = f"{key} is a setting of {group}={', '.join(having)}"
    return UserError(key, value, "there is no such setting", allowed=", ".join(sorted(siblings)), hint=hint)


def _keys(config: Mapping[Any, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key, value in config.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += _keys(value, f"{prefix}{key}.")
    return keys
