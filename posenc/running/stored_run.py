"""Read a run from disk: its checked settings, its newest checkpoint, its model.

No module that the run's config.yaml names is imported: its encoding must be one of posenc's, an installed
one, or in a plug-in named on this command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.core.errors import RunError, UserError, suggestion
from posenc.core.paths import exists, is_file, named_path, why_impossible, why_missing
from posenc.data import stored_tokenizer
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.runs import Run, load_run
from posenc.running.checks import check_model
from posenc.running.model_parts import OPTIONS, build_model, build_outline, check_parts, code_of
from posenc.running.planned_run import writer_of
from posenc.running.run_directory import refuse_links
from posenc.settings.tree import RunSettings, TokenizerSettings
from posenc.training.checkpoint import (
    Checkpoint,
    Writer,
    check_weights,
    load_weights,
    newest_checkpoint,
    stored_shapes,
)

RUN_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")
RUN_HASH = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class StoredRun:
    """Hold a run that was read from disk."""

    directory: Path
    settings: RunSettings  # checked
    shape: ModelShape
    outline: Decoder  # its model on the meta device
    writer: Writer  # what its checkpoints must say of the run that wrote them
    checkpoint: Checkpoint

    @property
    def tokenizer_settings(self) -> TokenizerSettings:
        """Return the tokenizer that the run was trained with. Raises RunError if its definition is gone.

        A checkpoint keeps the definition of every tokenizer but bytes, which need none.
        """
        definition = self.checkpoint.path / "tokenizer.json"
        if definition.is_file():
            return stored_tokenizer(definition)
        # config.yaml names a file, which may have changed since. So it does not replace the definition.
        if self.settings.tokenizer.name != "bytes":
            raise RunError(f"{definition}: the definition of the tokenizer is gone")
        return self.settings.tokenizer


def stored_run(run: str, plugins: list[str]) -> StoredRun:
    """Return the run in the directory `run`. Raises UserError, and RunError for damaged files."""
    directory = directory_of(run)
    refuse_links(directory)
    loaded = load_run(directory)
    stored_settings = _trained_settings(run, loaded)
    settings = _checked_settings(stored_settings, plugins)
    shape = check_model(settings.model)
    try:
        # The outline comes before any weight is read: the shapes of the weights are compared with it.
        outline = build_outline(settings, shape)
    except UserError as error:  # what earlier versions took may be refused today
        problem = f"this version of posenc refuses its settings: {error.key}={error.value}: {error.problem}"
        raise UserError("run", run, problem, hint="its records can still be compared") from error
    # the settings as stored: checking them may fill in a parameter that is newer than the run
    settings_hash = None if loaded.facts is None else loaded.facts.get("settings_hash")
    writer = writer_of(stored_settings, settings_hash)
    checkpoint = newest_checkpoint(directory / "checkpoints", writer)
    if checkpoint is None:
        raise UserError("run", run, "has no checkpoint yet; train it first")
    code = code_of(settings, outline)
    if checkpoint.provenance.code != code:
        problem = f"was trained by other code of {_changed_part(checkpoint.provenance.code, code, settings)}"
        hint = "its weights mean nothing to the changed one; train it again"
        raise UserError("run", run, problem, hint=hint)
    return StoredRun(directory, settings, shape, outline, writer, checkpoint)


def _changed_part(stored: Mapping[str, Any], current: Mapping[str, Any], settings: RunSettings) -> str:
    """Return which part's code differs: `its encoding rope`, or `its attention's ssmax`."""
    stored_encoding = {key: value for key, value in stored.items() if key != OPTIONS}
    current_encoding = {key: value for key, value in current.items() if key != OPTIONS}
    if stored_encoding != current_encoding:
        return f"its encoding {settings.encoding.name}"
    # of both sides, since an option may be on one side alone
    differing = {*stored.get(OPTIONS, ())} ^ {*current.get(OPTIONS, ())}
    names = sorted({option.partition(" ")[0] for option in differing})
    return f"its attention's {', '.join(names)}"


def _trained_settings(run: str, loaded: Run) -> RunSettings:
    """Return the settings of a run that was trained, as they are stored. Raises UserError."""
    stored = loaded.settings
    if stored is None:
        raise UserError("run", run, loaded.problem or "config.yaml cannot be read")
    if not isinstance(stored, RunSettings):
        hint = "posenc eval subject=hf subject.path=..., or posenc.evaluate"
        raise UserError("run", run, "is a model that was measured, not a run that was trained", hint=hint)
    # posenc stores what `auto` came to, so somebody else has written these settings.
    if stored.train.precision == "auto":
        raise UserError("run", run, "its precision 'auto' is not one of posenc's")
    return stored


def _checked_settings(stored: RunSettings, plugins: list[str]) -> RunSettings:
    """Return stored settings with their encoding, attention, positions and extension checked.

    Raises UserError.
    """
    try:
        return check_parts(stored.with_changes(plugins=plugins))
    except UserError as error:
        # plug-ins that a run names are shown, never imported
        if error.key == "encoding" and not plugins and stored.plugins:
            named = f"[{','.join(stored.plugins)}]"
            error.hint = f"it was trained with plugins={named}: if you trust that code, say so here too"
        raise


def load_model(
    settings: RunSettings, shape: ModelShape, checkpoint: Checkpoint, vocab_size: int | None = None
) -> Decoder:
    """Return the model with the verified weights of a checkpoint. Raises RunError for damaged files.

    `vocab_size` is that of the weights unless it is given.
    """
    # Weights without an embedding are refused by `check_weights`, which names what is missing.
    size = vocab_size or stored_shapes(checkpoint).get("embedding.weight", (1,))[0]
    # before anything is allocated whose size comes from somebody else's file
    check_weights(checkpoint, build_outline(settings, shape, size))
    model = build_model(settings, shape, size)
    load_weights(checkpoint, model)
    return model


def directory_of(run: str, key: str = "run") -> Path:
    """Return the run directory that a user names: by its path, or for a run below runs/ by name or hash.

    `key` is the setting that names it. Raises UserError.
    """
    directory = named_path(run)
    if RUN_NAME.fullmatch(run) and not exists(directory):
        # A folder of this name wins, so that what a user typed as a path is never looked for elsewhere.
        directory = _below_runs(run) or directory
    if not directory.name or directory.name == "..":  # the folder's name ends in the hash of its settings
        directory = Path(os.path.abspath(directory))  # noqa: PTH100 (resolve() follows links)
    if not is_file(directory / "config.yaml"):
        problem = why_missing(directory, "folder")
        if exists(directory):
            problem = "not a run directory: there is no config.yaml"
        close = _runs_named(directory.name)
        hints = [suggestion(f"{key}={' or '.join(close)}")] if close else []
        hints.append("a run directory, or for one below runs/ its name or hash (posenc runs lists them)")
        if key == "run":
            hints.append("one run; posenc eval -m run=... alone takes a folder of runs, or a glob")
        raise UserError(key, run, problem, hint="\n".join(hints))
    return directory


def _runs_named(name: str) -> list[str]:
    """Return up to three runs below runs/ whose names begin so: for a wrong path, or a name without hash."""
    if not RUN_NAME.fullmatch(name):
        return []
    return sorted(str(path.parent) for path in Path("runs").glob(f"*/{name}*/config.yaml"))[:3]


def _below_runs(run: str) -> Path | None:
    """Return the run below runs/ with this name or hash, if there is one. Raises UserError for several."""
    if why_impossible(run):
        return None
    pattern = f"*-{run}" if RUN_HASH.fullmatch(run) else run
    directories = [path.parent for path in Path("runs").glob(f"*/{pattern}/config.yaml")]
    if len(directories) > 1:
        raise UserError("run", run, "names several runs", allowed=sorted(map(str, directories)))
    return directories[0] if directories else None
